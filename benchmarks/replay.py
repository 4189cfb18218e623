"""How fast a trace is replayed: ours beside LMCache's cache simulator, in one process.

Three tables, on the conversation trace that ships with kv-sim:

* one replay with statistics: ours goes through the real manager, theirs through its ``simulate``;
* an LRU curve of 20 capacities: ours from stack distances, theirs ``simulate(fast=True)`` for each of them;
* the same trace cut into blocks of 16 tokens (9 million references): ours only, and MIN, too.

A time is processor time, the best of ``--repeat`` rounds, rounds of both taken in turns. Traces are in memory, in
each one's own form, before a time is taken. Theirs needs only sortedcontainers: unpack its wheel (``pip download
--no-deps lmcache``) and name the folder.

    python benchmarks/replay.py [--lmcache FOLDER] [--repeat 3] [--skip-fine]
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kv_sim.console.table import aligned
from kv_sim.replay import Columns, open_trace
from kv_sim.replay.caches.bounds import Bounds
from kv_sim.replay.caches.cache import replay_cache
from kv_sim.replay.caches.outcome import Setup
from kv_sim.replay.caches.ratios import Totals
from kv_sim.replay.caches.shape import shape_of
from kv_sim.replay.caches.stack import lru_curve
from kv_sim.replay.caches.tally import ages_of, hits_by_tier, series_of
from kv_sim.replay.columns import ColumnsBuilder
from kv_sim.replay.sizing.capacities import usual_capacities

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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Replays, side by side with LMCache's simulator.")
    parser.add_argument("--lmcache", type=Path, metavar="FOLDER", help="where lmcache's wheel is unpacked")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--skip-fine", action="store_true")
    options = parser.parse_args()
    simulate = None if options.lmcache is None else load_simulate(options.lmcache)
    if simulate is None:
        print("without --lmcache only our own times are taken\n")
    columns = open_trace("mooncake-conversation")
    compare(columns, simulate, options.repeat)
    if not options.skip_fine:
        measure_fine(columns)


if __name__ == "__main__":
    main()
