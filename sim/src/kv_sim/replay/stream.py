"""Replay of a trace while it is read: memory is bounded by what the caches hold, however long the trace is.

Requests are read, named and fed to every cache part by part, and a part is gone when the next one comes. Sums are
all that stays: hits by tier, what was loaded, stored, evicted, refused. They are what a replay of the whole trace
counts, to the last block.

What needs the whole trace isn't here: MIN looks ahead, a cache without end and the count of different blocks hold
every id, the age of a hit needs the last use of every block, and a series the time of the last request.

Invariants: every cache has been fed the same requests, all that were read.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kv_api import ConfigError
from kv_sim.replay.cache import CacheRun, Setup
from kv_sim.replay.columns import Columns, ColumnsBuilder
from kv_sim.replay.curve import Hits, Totals
from kv_sim.replay.readers.opening import Opening
from kv_sim.replay.results import CacheCounts, counts_of
from kv_sim.replay.tally import Tiers, hits_by_tier
from kv_sim.replay.units import Footprint

PART_REQUESTS: Final = 1024
PART_IDS: Final = 1 << 16
"""A part of the trace ends with the request that reaches either."""


MOST_BLOCKS: Final = 1 << 28
"""Each has its line in some book, which is there from the start."""


@dataclass(frozen=True)
class StreamReplays:
    """All of one command, and what is known of the trace when it is through."""

    trace: str
    notes: tuple[str, ...]
    requests: int
    duration_seconds: float
    totals: Totals
    runs: tuple[CacheCounts, ...]


def replay_stream(
    opening: Opening,
    setups: Sequence[Setup],
    footprint: Footprint,
    progress: Callable[[int], None] = lambda n: None,
) -> StreamReplays:
    """Replay through all setups side by side, in one go through the file."""
    if opening.sorts:
        raise ConfigError(
            f"{opening.name}: --stream takes requests in the order of the file, and these have to be sorted first"
        )
    for setup in setups:
        for option, blocks in (("--capacity", setup.capacity), ("--disk-capacity", setup.disk)):
            if blocks > MOST_BLOCKS:
                raise ConfigError(
                    f"{option}: that is {blocks} blocks, and --stream keeps books of {MOST_BLOCKS} at most; "
                    "without it they are no more than the trace has"
                )
    watch = _Watch()
    sums = [_Sums(CacheRun(setup)) for setup in setups]
    totals = Totals(0, 0, 0, opening.block_tokens)
    count = 0
    for part in _parts(opening, watch):
        totals = totals.plus(Totals.of(part))
        for one in sums:
            one.feed(part)
        count += len(part)
        progress(count)
    runs = tuple(one.counts(totals, footprint) for one in sums)
    return StreamReplays(opening.name, opening.notes, count, watch.seconds, totals, runs)


@dataclass
class _Watch:
    """The first and the last arrival."""

    first: float | None = None
    seconds: float = 0.0

    def see(self, arrival: float) -> None:
        if self.first is None:
            self.first = arrival
        self.seconds = arrival - self.first


class _Sums:
    """One setup, and its hits so far."""

    def __init__(self, run: CacheRun) -> None:
        self._run = run
        self._tiers = Tiers(*[Hits(0, 0, 0)] * 3)

    def feed(self, part: Columns) -> None:
        self._tiers = self._tiers.plus(hits_by_tier(part, self._run.outcome(*self._run.feed(part))))

    def counts(self, totals: Totals, footprint: Footprint) -> CacheCounts:
        return counts_of(self._tiers, self._run.sums, totals, footprint)


def _parts(opening: Opening, watch: _Watch) -> Iterator[Columns]:
    builder, ids = ColumnsBuilder(), 0
    for request in opening.requests():
        watch.see(request[0])
        builder.add(*request)
        ids += len(request[3])
        if len(builder) >= PART_REQUESTS or ids >= PART_IDS:
            yield builder.finish(opening.name, opening.block_tokens)
            builder, ids = ColumnsBuilder(), 0
    if len(builder):
        yield builder.finish(opening.name, opening.block_tokens)
