"""How exact a replay is: its hit ratios beside those that others measured.

It prints every cell of a table that an independent program measured, and by how much ours differs: each policy
through the real manager, a block at a time (as in textbooks), FIFO by itself, MIN. Then the same policies as a
server drives them, where a prompt's blocks are offered together. This takes five minutes.

``--figure FILE`` draws Figure 9 (Synthetic) of the Mooncake paper beside ours, and does nothing else.

    python benchmarks/ratios.py [--figure FILE]
"""

from __future__ import annotations

import argparse
import sys
from collections import OrderedDict
from math import log10
from pathlib import Path

from kv_api import OffloadKey, ReqContext
from kv_offload_cpu import POLICIES, AtOnceManager
from kv_sim.console.table import aligned
from kv_sim.replay import Columns, open_trace
from kv_sim.replay.caches.bounds import min_hits
from kv_sim.replay.caches.cache import replay_cache
from kv_sim.replay.caches.keys import keys_of
from kv_sim.replay.caches.outcome import Setup
from kv_sim.replay.caches.ratios import Totals
from kv_sim.replay.caches.shape import shape_of
from kv_sim.replay.caches.stack import Order, lru_curve

CAPACITIES = {
    "mooncake-conversation": (182, 1827, 9139, 18279, 45697),
    "mooncake-synthetic": (43, 439, 2196, 4392, 10981),
}
FIGURE_9 = {
    10**4: 0.0004,
    10**5: 0.0117,
    10**6: 0.1461,
    2 * 10**6: 0.2345,
    4 * 10**6: 0.3805,
    5 * 10**6: 0.4352,
    8 * 10**6: 0.5447,
    10**7: 0.5886,
    5 * 10**7: 0.6583,
    10**8: 0.6583,
    10**9: 0.6583,
}
REFERENCE: dict[str, dict[str, tuple[tuple[float, ...], ...]]] = {
    "mooncake-conversation": {
        "lru": ((0.042, 0.042), (0.052, 0.052), (0.195, 0.196), (0.278, 0.279), (0.353, 0.353)),
        "fifo": ((0.037, 0.042), (0.050, 0.051), (0.175, 0.176), (0.248, 0.248), (0.326, 0.327)),
        "arc": ((0.045, 0.042), (0.064, 0.065), (0.210, 0.210), (0.284, 0.284), (0.335, 0.335)),
        "s3fifo": ((0.042, 0.045), (0.075, 0.075), (0.187, 0.187), (0.245, 0.245), (0.344, 0.344)),
        "sieve": ((0.045, 0.042), (0.058, 0.058), (0.127, 0.128), (0.195, 0.195), (0.336, 0.336)),
        "MIN": ((0.087,), (0.246,), (0.366,), (0.366,), (0.366,)),
    },
    "mooncake-synthetic": {
        "lru": ((0.002, 0.004), (0.034, 0.038), (0.155, 0.157), (0.260, 0.262), (0.443, 0.444)),
        "fifo": ((0.002, 0.004), (0.036, 0.040), (0.151, 0.152), (0.247, 0.248), (0.419, 0.419)),
        "arc": ((0.002, 0.004), (0.036, 0.042), (0.159, 0.163), (0.262, 0.266), (0.459, 0.460)),
        "s3fifo": ((0.002, 0.002), (0.034, 0.038), (0.144, 0.154), (0.258, 0.261), (0.446, 0.447)),
        "sieve": ((0.002, 0.002), (0.018, 0.019), (0.105, 0.106), (0.176, 0.177), (0.387, 0.390)),
        "MIN": ((0.037,), (0.185,), (0.396,), (0.506,), (0.626,)),
    },
}
"""Of an independent program. The head of a prompt is used first (forward) or last (reversed)."""


def one_at_a_time(columns: Columns, policy: str, capacity: int, step: int) -> int:
    """Hits of the real manager, a request for each block: a policy as its paper has it. ``step`` is 1 or -1."""
    manager, hits = AtOnceManager(capacity, policy), 0
    for index, keys in enumerate(keys_of(columns)):
        hits += manager.lookup_prefix(keys, ReqContext("asks")).hits
        for key in keys[::step]:
            manager.store([key], ReqContext("stores"))
        if not index % 256:
            manager.get_stats()
    return hits


def fifo(columns: Columns, capacity: int, step: int) -> int:
    """Hits of a FIFO, which is no policy of ours: that both programs mean the same by a hit."""
    cache: OrderedDict[OffloadKey, None] = OrderedDict()
    hits = 0
    for keys in keys_of(columns):
        hits += next((index for index, key in enumerate(keys) if key not in cache), len(keys))
        for key in keys[::step]:
            if key not in cache:
                if len(cache) >= capacity:
                    cache.popitem(last=False)
                cache[key] = None
    return hits


def compare_with_reference() -> None:
    """Every cell of the reference table, ours and how far it is off; then the policies as a server has them."""
    worst = 0.0
    for name, capacities in CAPACITIES.items():
        columns = open_trace(name)
        shape = shape_of(columns)
        rows = [["block ratio", *(f"{size:,}" for size in capacities)]]
        for policy, expected in REFERENCE[name].items():
            for step, order in ((1, "forward"), (-1, "reversed")) if policy != "MIN" else ((0, ""),):
                cells = [f"{policy} {order}".rstrip()]
                for size, pair in zip(capacities, expected, strict=True):
                    if policy == "MIN":
                        hits = min_hits(columns, shape, size).blocks
                    elif policy == "fifo":
                        hits = fifo(columns, size, step)
                    else:
                        hits = one_at_a_time(columns, policy, size, step)
                    off = hits / columns.references - pair[step < 0]
                    worst = max(worst, abs(off))
                    cells.append(f"{hits / columns.references:.4f} ({off:+.4f})")
                rows.append(cells)
                print(*cells, sep="  ", file=sys.stderr)
        for policy in POLICIES:
            found = [replay_cache(columns, Setup(policy, size)).cpu_hits.sum() for size in capacities]
            rows.append([f"{policy} as a server", *(f"{hit / columns.references:.4f}" for hit in found)])
        print(name, *aligned(rows), "", sep="\n")
    print(f"the farthest cell is {worst:.4f} off; the references are rounded to 0.001")


def draw_figure(file: Path) -> None:
    """Figure 9, Synthetic, as SVG."""
    columns = open_trace("mooncake-synthetic")
    shape, totals = shape_of(columns), Totals.of(columns)
    curve = lru_curve(columns, shape, shape.unique_blocks, Order.TAIL_LAST)
    ours = {tokens: curve.at(tokens // 512).ratios(totals).full_block for tokens in FIGURE_9}

    def at(tokens: float, ratio: float) -> tuple[float, float]:
        return 60 + (log10(tokens) - 4) / 5 * 620, 300 - ratio / 0.7 * 270

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 350" font-family="sans-serif" font-size="12">'
    ]
    parts.append('<rect width="700" height="350" fill="#ffffff"/>')
    for step in range(8):
        x, y = at(1e4, step / 10)
        parts.append(f'<line x1="60" x2="680" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4df"/>')
        parts.append(f'<text x="52" y="{y + 4:.1f}" text-anchor="end" fill="#5d6068">{step / 10:.1f}</text>')
    for power in range(4, 10):
        x, _ = at(10.0**power, 0)
        parts.append(f'<text x="{x:.1f}" y="318" text-anchor="middle" fill="#5d6068">1e{power}</text>')
    points = " ".join("{:.1f},{:.1f}".format(*at(*pair)) for pair in ours.items())
    parts.append(f'<polyline points="{points}" fill="none" stroke="#1f5fd6" stroke-width="2"/>')
    for pair in FIGURE_9.items():
        x, y = at(*pair)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="none" stroke="#c4480c" stroke-width="2"/>')
    parts.append('<text x="370" y="340" text-anchor="middle" fill="#5d6068">capacity in tokens</text>')
    parts.append('<text x="80" y="46" fill="#1f5fd6">kv-sim, LRU</text>')
    parts.append('<text x="80" y="64" fill="#c4480c">○ Mooncake, FAST 2025, Figure 9, Synthetic</text></svg>\n')
    file.write_text("\n".join(parts), encoding="utf-8")
    worst = max(abs(ours[tokens] - ratio) for tokens, ratio in FIGURE_9.items())
    print(f"{file}: {len(ours)} points, the farthest is {worst:.4f} off")


def main() -> None:
    """Compare, or draw."""
    parser = argparse.ArgumentParser(description="Hit ratios of replays, beside those that others measured.")
    parser.add_argument("--figure", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.figure:
        draw_figure(options.figure)
    else:
        compare_with_reference()


if __name__ == "__main__":
    main()
