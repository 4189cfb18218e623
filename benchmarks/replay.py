"""How fast a trace is replayed: ours beside LMCache's cache simulator, in one process; and how exactly.

Three tables, on the conversation trace that ships with kv-sim:

* one replay with statistics: ours goes through the real manager, theirs through its ``simulate``;
* an LRU curve of 20 capacities: ours from stack distances, theirs ``simulate(fast=True)`` for each of them;
* the same trace cut into blocks of 16 tokens (9 million references): ours only, and MIN, too.

A time is processor time, the best of ``--repeat`` rounds, rounds of both taken in turns. Traces are in memory, in
each one's own form, before a time is taken. Theirs needs only sortedcontainers: unpack its wheel (``pip download
--no-deps lmcache``) and name the folder.

``--reference`` prints every cell of a table of hit ratios that an independent program measured, and by how much
ours differs: each policy through the real manager, a block at a time (the textbook's), FIFO by itself, MIN. Then
the same policies as a server drives them, where a prompt's blocks are offered together. It takes five minutes.
``--figure FILE`` draws Figure 9 (Synthetic) of the Mooncake paper beside ours.

    python benchmarks/replay.py [--lmcache FOLDER] [--repeat 3] [--skip-fine] [--reference] [--figure FILE]
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
import types
from collections import OrderedDict
from collections.abc import Callable
from math import log10
from pathlib import Path
from typing import Any

from kv_api import OffloadKey, ReqContext
from kv_offload_cpu import POLICIES, AtOnceManager
from kv_sim.command.table import aligned
from kv_sim.replay import Columns, open_trace
from kv_sim.replay.caches.bounds import Bounds, min_hits
from kv_sim.replay.caches.cache import Setup, replay_cache
from kv_sim.replay.caches.curve import Totals
from kv_sim.replay.caches.keys import keys_of
from kv_sim.replay.caches.shape import shape_of
from kv_sim.replay.caches.stack import Order, lru_curve
from kv_sim.replay.caches.tally import ages_of, hits_by_tier, series_of
from kv_sim.replay.columns import ColumnsBuilder
from kv_sim.replay.sizing import usual_capacities

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
FINE_TOKENS = 16


def load_simulate(folder: Path) -> Callable[..., Any]:
    """LMCache's ``simulate``, without the rest of LMCache: its packages import torch."""
    for name in ("lmcache", "lmcache.tools", "lmcache.tools.cache_simulator"):
        module = types.ModuleType(name)
        module.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = module
    from lmcache.tools.cache_simulator.simulator import simulate  # type: ignore[import-not-found]

    found: Callable[..., Any] = simulate
    return found


def take_turns(repeat: int, works: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds of each, the best of some rounds."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(repeat):
        for name, work in works.items():
            begin = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - begin)
    return best


def with_statistics(columns: Columns, capacity: int) -> None:
    """One replay, and everything that is reported of it."""
    shape = shape_of(columns)
    outcome = replay_cache(columns, Setup("lru", capacity))
    hits_by_tier(columns, outcome)
    ages_of(columns, shape, outcome)
    series_of(columns, shape, outcome)


def curve_of(columns: Columns, capacities: list[int]) -> list[float]:
    """The ratios of LRU at some capacities."""
    totals = Totals.of(columns)
    curve = lru_curve(columns, shape_of(columns), max(capacities))
    return [curve.at(size).ratios(totals).block for size in capacities]


def best_of(columns: Columns, capacities: list[int]) -> list[int]:
    """The hits of MIN at some capacities."""
    bounds = Bounds(columns, shape_of(columns))
    return [bounds.at(size).blocks for size in capacities]


def compare(columns: Columns, simulate: Callable[..., Any] | None, repeat: int) -> None:
    """The first two tables."""
    sizes = usual_capacities(shape_of(columns).unique_blocks, 20)
    one, many = {"ours": lambda: with_statistics(columns, 18_279)}, {"ours": lambda: curve_of(columns, sizes)}
    if simulate is not None:
        events = [
            {"chunk_hashes": [f"{b:016x}" for b in r.blocks], "seq_len": r.input_tokens, "chunk_size": 512}
            for r in columns
        ]
        one["LMCache simulate"] = lambda: simulate(events, 18_279, 1)
        many["LMCache fast sweep"] = lambda: [simulate(events, size, 1, fast=True) for size in sizes]
    for title, works in (
        ("a replay with statistics, 18,279 blocks", one),
        ("an LRU curve of 20 capacities", many),
    ):
        found = take_turns(repeat, works)
        count = columns.references * (len(sizes) if works is many else 1)
        rows = [["", "seconds", "M references/s", "ratio"]]
        for name, seconds in found.items():
            ratio = max(found.values()) / seconds
            rows.append([name, f"{seconds:.3f}", f"{count / seconds / 1e6:.2f}", f"{ratio:.1f}x"])
        print(title, *aligned(rows), "", sep="\n")


def finer(columns: Columns, tokens: int) -> Columns:
    """The same trace in smaller blocks."""
    parts, builder, numbers = columns.block_tokens // tokens, ColumnsBuilder(), dict[int, int]()
    for request in columns:
        blocks = [numbers.setdefault(block, len(numbers)) for block in request.blocks]
        ids = [block * parts + part for block in blocks for part in range(parts)]
        count = -(-request.input_tokens // tokens)
        builder.add(request.arrival_seconds, request.input_tokens, request.output_tokens, ids[:count])
    return builder.finish(f"{columns.name} by {tokens}", tokens)


def measure_fine(columns: Columns) -> None:
    """The third table."""
    fine = finer(columns, FINE_TOKENS)
    capacity = 18_279 * columns.block_tokens // FINE_TOKENS
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = [["", "seconds", "M references/s"]]
    sizes = usual_capacities(32 * 182_790, 20)
    works = {
        "replay with statistics": lambda: with_statistics(fine, capacity),
        "LRU curve of 20": lambda: curve_of(fine, sizes),
        "MIN at 20": lambda: best_of(fine, sizes),
    }
    for name, seconds in take_turns(1, works).items():
        rows.append([name, f"{seconds:.2f}", f"{fine.references / seconds / 1e6:.2f}"])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{fine.references:,} references of 16 tokens, {capacity:,} blocks; memory grew by {grown:.0f} MiB")
    print(*aligned(rows), "", sep="\n")


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
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Replays, side by side with LMCache's simulator.")
    parser.add_argument("--lmcache", type=Path, metavar="FOLDER", help="where lmcache's wheel is unpacked")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--skip-fine", action="store_true")
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--figure", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.reference or options.figure:
        if options.reference:
            compare_with_reference()
        if options.figure:
            draw_figure(options.figure)
        return
    simulate = None if options.lmcache is None else load_simulate(options.lmcache)
    if simulate is None:
        print("without --lmcache only our own times are taken\n")
    columns = open_trace("mooncake-conversation")
    compare(columns, simulate, options.repeat)
    if not options.skip_fine:
        measure_fine(columns)


if __name__ == "__main__":
    main()
