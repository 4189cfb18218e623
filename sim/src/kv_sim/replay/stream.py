"""Replay of a trace while it is read: memory is bounded by what the caches hold, however long the trace is.

Requests are read, named and fed to every cache part by part, and a part is gone when the next one comes. Sums are
all that stays: hits by tier, what was loaded, stored, evicted, refused. They are what a replay of the whole trace
counts, to the last block.

What needs the whole trace isn't here: MIN looks ahead, a cache without end and the count of different blocks hold
every id, the age of a hit needs the last use of every block, a series the time of the last request, and routing by
prefix who was sent each block.

Invariants: the caches of each setup, one on each server, have been fed all requests that were read, each one once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kv_api import ConfigError
from kv_sim.replay.caches.cache import CacheRun, Setup
from kv_sim.replay.caches.curve import Hits, Totals
from kv_sim.replay.caches.tally import Tiers, hits_by_tier
from kv_sim.replay.columns import Columns, ColumnsBuilder
from kv_sim.replay.fleet import Fleet, Load, add_up_sums, has_sessions, refuse_no_sessions, shares_of
from kv_sim.replay.readers.opening import Opening
from kv_sim.replay.results import CacheCounts, counts_of
from kv_sim.replay.routers import make_router, route
from kv_sim.replay.routing import Routing
from kv_sim.replay.trace import Tell
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
    load: Load | None
    """Of each server, where there are several."""
    runs: tuple[CacheCounts, ...]


def replay_stream(
    opening: Opening,
    setups: Sequence[Setup],
    footprint: Footprint,
    progress: Tell = lambda count: None,
    fleet: Fleet | None = None,
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
    dealer = _Dealer(fleet or Fleet(), opening)
    watch = _Watch()
    sums = [_Sums([CacheRun(setup) for _ in range(dealer.servers)]) for setup in setups]
    totals = Totals(0, 0, 0, opening.block_tokens)
    count = 0
    for part in _parts(opening, watch):
        totals = totals.plus(Totals.of(part))
        dealt = dealer.deal(part)
        for one in sums:
            one.feed(dealt)
        count += len(part)
        progress(count)
    runs = tuple(one.counts(totals, footprint) for one in sums)
    return StreamReplays(
        trace=opening.name,
        notes=opening.notes,
        requests=count,
        duration_seconds=watch.seconds,
        totals=totals,
        load=dealer.load(),
        runs=runs,
    )


@dataclass
class _Watch:
    """The first and the last arrival."""

    first: float | None = None
    seconds: float = 0.0

    def see(self, arrival: float) -> None:
        if self.first is None:
            self.first = arrival
        self.seconds = arrival - self.first


class _Dealer:
    """Deals out what is read, and counts who got how much."""

    def __init__(self, fleet: Fleet, opening: Opening) -> None:
        if fleet.servers > 1 and fleet.routing is Routing.PREFIX:
            raise ConfigError(
                f"{opening.name}: --stream keeps nothing of the trace, which --routing {fleet.routing.value} needs"
            )
        self._fleet = fleet
        self._name = opening.name
        self._router = make_router(fleet.routing, fleet.servers, opening.block_tokens)
        self._requests = [0] * fleet.servers
        self._tokens = [0] * fleet.servers
        self._has_sessions = False

    @property
    def servers(self) -> int:
        return self._fleet.servers

    def deal(self, part: Columns) -> list[Columns]:
        """To each server what it gets of the next part."""
        if self.servers == 1:
            return [part]
        dealt = shares_of(part, route(self._router, part), self.servers)
        for server, share in enumerate(dealt):
            self._requests[server] += len(share.columns)
            self._tokens[server] += share.columns.input_tokens
        if self._fleet.needs_sessions:
            self._has_sessions |= has_sessions(part)
        return [share.columns for share in dealt]

    def load(self) -> Load | None:
        """What came to each server; None: there is one alone."""
        if self.servers == 1:
            return None
        if self._fleet.needs_sessions and not self._has_sessions:
            refuse_no_sessions(self._name)
        return Load(self._fleet.routing.value, tuple(self._requests), tuple(self._tokens))


class _Sums:
    """One setup on every server, and their hits so far."""

    def __init__(self, runs: Sequence[CacheRun]) -> None:
        self._runs = runs
        self._tiers = Tiers(*[Hits(0, 0, 0)] * 3)

    def feed(self, parts: Sequence[Columns]) -> None:
        for run, part in zip(self._runs, parts, strict=True):
            self._tiers = self._tiers.plus(hits_by_tier(part, run.outcome(*run.feed(part))))

    def counts(self, totals: Totals, footprint: Footprint) -> CacheCounts:
        return counts_of(self._tiers, add_up_sums([run.sums for run in self._runs]), totals, footprint)


def _parts(opening: Opening, watch: _Watch) -> Iterator[Columns]:
    keeps = opening.keeps_sessions
    builder, ids = ColumnsBuilder(keeps_sessions=keeps), 0
    for request in opening.requests():
        watch.see(request[0])
        builder.add(*request)
        ids += len(request[3])
        if len(builder) >= PART_REQUESTS or ids >= PART_IDS:
            yield builder.finish(opening.name, opening.block_tokens)
            builder, ids = ColumnsBuilder(keeps_sessions=keeps), 0
    if len(builder):
        yield builder.finish(opening.name, opening.block_tokens)
