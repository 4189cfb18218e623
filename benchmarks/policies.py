"""Hits of each policy, and of MIN, beside libCacheSim's, which others wrote: each block of a trace is a request.

The trace goes to libCacheSim as the file that ``--write-oracle`` makes, and to a replay of ours with one block a
request, so that prefixes play no part. All must be equal, block by block; if any is not, this ends with 1.

Two things are asked of libCacheSim otherwise than it is used most:

* its Belady keeps what just came in. MIN may let that go at once, so Belady gets room for one block more, and
  after each request is told to evict down to the capacity.
* its S3-FIFO isn't the published algorithm: while the cache fills for the first time, what finds its small queue
  full goes to main; main gives a block when main is over its share, not when small is below its own; a ghost is
  asked after before there is room rather than then; and nothing fits in a small queue of one block. So its hits
  stand beside ours and beside a plain model of either, and each model must hit where what it models does.

    python -m pip install libcachesim
    python benchmarks/policies.py [--trace mooncake-synthetic] [--capacity 439,2196] [--limit 100000]
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections import OrderedDict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from kv_sim.console.table import aligned
from kv_sim.replay import Columns, open_trace
from kv_sim.replay.caches.bounds import min_hits
from kv_sim.replay.caches.cache import replay_cache
from kv_sim.replay.caches.outcome import Setup
from kv_sim.replay.caches.shape import shape_of
from kv_sim.replay.columns import ColumnsBuilder, Ints
from kv_sim.replay.report.oracle import RECORD, write_oracle

_SAME = {"lru": "LRU", "arc": "ARC", "sieve": "Sieve"}


def by_block(columns: Columns, limit: int) -> Columns:
    """The same accesses, each a request of its own."""
    builder = ColumnsBuilder()
    for place, block in enumerate(columns.blocks[:limit].tolist()):
        builder.add(float(place), 1, 0, [block])
    return builder.finish(f"{columns.name} by block", 1)


def theirs(simulator: Any, cache: Any, file: Path, most_kept: int) -> Ints:
    """Where a cache of libCacheSim's hits: 1 or 0 of each access."""
    reader = simulator.TraceReader(str(file), simulator.TraceType.ORACLE_GENERAL_TRACE)
    hits = []
    for access in reader:
        hits.append(cache.get(access))
        if cache.get_n_obj() > most_kept:
            cache.evict(access)
    return np.array(hits, dtype=np.int64)


class Queues:
    """S3-FIFO as published, or as libCacheSim has it: one access after the other, nothing else."""

    def __init__(self, capacity: int, *, published: bool) -> None:
        self.capacity, self.published, self.was_full = capacity, published, False
        self.small_target = capacity // 10
        self.most_ghosts = capacity - self.small_target if published else capacity * 9 // 10
        self.small, self.main = OrderedDict[int, int](), OrderedDict[int, int]()
        self.ghosts = OrderedDict[int, None]()

    def access(self, block: int) -> bool:
        """Whether it is a hit."""
        for queue in (self.small, self.main):
            if block in queue:
                queue[block] = min(queue[block] + 1, 3)
                return True
        is_known = not self.published and self._is_ghost(block)
        while len(self.small) + len(self.main) >= self.capacity:
            self.was_full = True
            self._evict()
        is_known = is_known or (self.published and self._is_ghost(block))
        skips_small = not self.published and not self.was_full and len(self.small) >= self.small_target
        (self.main if is_known or skips_small else self.small)[block] = 0
        return False

    def _is_ghost(self, block: int) -> bool:
        return self.ghosts.pop(block, False) is None

    def _evict(self) -> None:
        """A step: one block of either queue goes, or moves on."""
        if self.published:
            is_small = len(self.small) >= self.small_target or not self.main
        else:
            is_small = bool(self.small) and len(self.main) <= self.capacity - self.small_target
        while True:
            queue = self.small if is_small else self.main
            block, uses = queue.popitem(last=False)
            if is_small and uses >= 2:
                self.main[block] = 0
            elif not is_small and uses:
                self.main[block] = uses - 1
            else:
                break
            if self.published or not queue:
                return
        if is_small:
            while len(self.ghosts) >= self.most_ghosts:
                self.ghosts.popitem(last=False)
            self.ghosts[block] = None


def compare(simulator: Any, columns: Columns, file: Path, capacities: list[int]) -> list[list[str]]:
    """A row for each capacity and policy; the last cell is empty if all is as it should be."""
    shape = shape_of(columns)
    rows = []
    for size in capacities:
        for policy, name in _SAME.items():
            mine = replay_cache(columns, Setup(policy, size)).cpu_hits
            other = theirs(simulator, getattr(simulator, name)(size), file, size)
            rows.append(row(size, policy, mine.sum(), other.sum(), np.flatnonzero(mine != other)))
        best = min_hits(columns, shape, size).blocks
        belady = theirs(simulator, simulator.Belady(size + 1), file, size).sum()
        rows.append(row(size, "MIN", best, belady, np.arange(best != belady)))
        mine = replay_cache(columns, Setup("s3fifo", size)).cpu_hits
        rows.append(modelled(columns, size, "s3fifo, published", mine, published=True))
        if size >= 20:  # below, nothing fits in its small queue
            other = theirs(simulator, simulator.S3FIFO(size), file, size)
            rows.append(modelled(columns, size, "s3fifo, libCacheSim's", other, published=False))
        print(f"{size:,} blocks", file=sys.stderr)
    return rows


def modelled(columns: Columns, size: int, what: str, found: Ints, *, published: bool) -> list[str]:
    """The row of an S3-FIFO beside its model."""
    queues = Queues(size, published=published)
    model = np.array([queues.access(block) for block in columns.blocks.tolist()], dtype=np.int64)
    mine, other = (found, model) if published else (model, found)
    return row(size, what, mine.sum(), other.sum(), np.flatnonzero(mine != other))


def row(size: int, what: str, mine: int, other: int, differs: Ints) -> list[str]:
    """A row of the table."""
    return [f"{size:,}", what, f"{mine:,}", f"{other:,}", f"first at {differs[0]:,}" if len(differs) else ""]


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description="Hits of each policy beside libCacheSim's.")
    parser.add_argument("--trace", default="mooncake-synthetic")
    parser.add_argument("--capacity", default="20,43,439,2196,10981", metavar="BLOCKS,…")
    parser.add_argument("--limit", type=int, default=100_000, metavar="N", help="accesses")
    options = parser.parse_args()
    try:
        simulator = importlib.import_module("libcachesim")
    except ImportError:
        print("this needs libcachesim: python -m pip install libcachesim")
        return
    columns = by_block(open_trace(options.trace), options.limit)
    with TemporaryDirectory() as folder:
        file = Path(folder, "trace.oracleGeneral")
        write_oracle(columns, file)
        assert file.stat().st_size == columns.references * RECORD.itemsize
        rows = compare(simulator, columns, file, [int(size) for size in options.capacity.split(",")])
    print(f"{columns.name}: {columns.references:,} accesses of {shape_of(columns).unique_blocks:,} blocks")
    print(*aligned([["blocks", "policy", "ours", "theirs", "differ"], *rows]), sep="\n")
    if any(differs for *_, differs in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
