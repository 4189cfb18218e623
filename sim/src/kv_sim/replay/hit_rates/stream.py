"""Replay of a trace while it is read: memory is bounded by what the caches hold, however long the trace is.

Requests are read, named and fed to every cache part by part, and a part is gone when the next one comes. Sums are
all that stays: hits by tier, what was loaded, stored, evicted, refused. They are what a replay of the whole trace
counts, to the last block.

What needs the whole trace isn't here: MIN looks ahead. A cache without end, and the count of different blocks,
hold every id. The age of a hit needs the last use of every block. A series needs the time of the last request, and
routing by prefix needs to know who was sent each block.

Invariants: the caches of each setup, one on each server, have been fed all requests that were read, each one once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kv_api import ConfigError
from kv_sim.replay.caches.beside import BesideSums, ObservedSums
from kv_sim.replay.caches.cache import CacheRun, feed_in_turn
from kv_sim.replay.caches.homes import Homes
from kv_sim.replay.caches.medium import MediumRun
from kv_sim.replay.caches.outcome import Setup, add_up_sums
from kv_sim.replay.caches.ratios import Hits, Totals
from kv_sim.replay.caches.tally import Tiers, hits_by_tier
from kv_sim.replay.columns import Columns, ColumnsBuilder, Ints
from kv_sim.replay.hit_rates.facts import Facts
from kv_sim.replay.hit_rates.results import CacheCounts, counts_of
from kv_sim.replay.readers.opening import Opening
from kv_sim.replay.servers.fleet import Fleet, Load, has_sessions, refuse_no_sessions
from kv_sim.replay.servers.routers import make_router, route
from kv_sim.replay.servers.routing import Routing
from kv_sim.replay.trace import Tell
from kv_sim.replay.units import Footprint

PART_REQUESTS: Final = 1024
PART_IDS: Final = 1 << 16
"""A part of the trace ends with the request that reaches either."""


MOST_BLOCKS: Final = 1 << 28
"""Each has its line in some book, which is there from the start."""


@dataclass(frozen=True)
class StreamReplays(Facts):
    """All replays of one command, when the trace is through."""

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
            f"{opening.name}: --stream reads requests in the order of the file, but these have to be sorted by "
            "time"
        )
    for setup in setups:
        for option, blocks in (("--capacity", setup.capacity), ("--disk-capacity", setup.disk)):
            if blocks > MOST_BLOCKS:
                raise ConfigError(
                    f"{option}: that is {blocks} blocks, and --stream supports {MOST_BLOCKS} at most; without "
                    "--stream only blocks of the trace count"
                )
    fleet = fleet or Fleet()
    dealer = _Dealer(fleet, opening)
    watch = _Watch()
    sums = [_Sums(setup, fleet) for setup in setups]
    totals = Totals(0, 0, 0, opening.block_tokens)
    observed, count = ObservedSums(), 0
    for part in _parts(opening, watch):
        totals, observed = totals.plus(Totals.of(part)), observed.plus(ObservedSums.of(part))
        server_of = dealer.deal(part)
        for one in sums:
            one.feed(part, server_of)
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
        disk_shared=fleet.disk_shared,
        observed=observed.ratios(),
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
                f"{opening.name}: --stream doesn't keep the trace, which --routing {fleet.routing.value} needs"
            )
        self._fleet = fleet
        self._name = opening.name
        self._router = make_router(fleet.routing, fleet.servers, opening.block_tokens)
        self._requests: Ints = np.zeros(fleet.servers, dtype=np.int64)
        self._tokens: Ints = np.zeros(fleet.servers, dtype=np.int64)
        self._has_sessions = False

    def deal(self, part: Columns) -> Ints:
        """Who gets each request of the next part."""
        if self._fleet.servers == 1:
            return np.zeros(len(part), dtype=np.int64)
        server_of = route(self._router, part)
        np.add.at(self._requests, server_of, 1)
        np.add.at(self._tokens, server_of, part.inputs)
        if self._fleet.needs_sessions:
            self._has_sessions |= has_sessions(part)
        return server_of

    def load(self) -> Load | None:
        """What came to each server; None: there is one alone."""
        if self._fleet.servers == 1:
            return None
        if self._fleet.needs_sessions and not self._has_sessions:
            refuse_no_sessions(self._name)
        return Load(self._fleet.routing.value, tuple(self._requests.tolist()), tuple(self._tokens.tolist()))


class _Sums:
    """One setup on every server, and their hits so far."""

    def __init__(self, setup: Setup, fleet: Fleet) -> None:
        open_disk = Homes().open if fleet.disk_shared else MediumRun
        self._runs = [CacheRun(setup, open_disk=open_disk) for _ in range(fleet.servers)]
        self._tiers = Tiers(*[Hits(0, 0, 0)] * 4)
        self._beside = BesideSums()

    def feed(self, part: Columns, server_of: Ints) -> None:
        hits = feed_in_turn(self._runs, part, server_of.tolist())
        outcome = self._runs[0].outcome(*hits)
        self._tiers = self._tiers.plus(hits_by_tier(part, outcome))
        self._beside = self._beside.plus(BesideSums.of(part, outcome))

    def counts(self, totals: Totals, footprint: Footprint) -> CacheCounts:
        sums = add_up_sums([run.sums for run in self._runs])
        return counts_of(self._tiers, sums, totals, footprint, self._beside)


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
