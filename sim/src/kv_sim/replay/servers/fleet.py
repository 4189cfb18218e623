"""A trace on several servers behind a router: each has memory of its own, and gets its share of the requests.

Servers share nothing, or their disks. Where they share nothing, what they answer together is a sum over them. With
one server, its share is the trace.

Invariants (``check``): each request is in one share; a share has its requests in the order of the trace.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Final, NoReturn

import numpy as np

from kv_api import ConfigError
from kv_offload_file.sharing.place import MOST_ENGINES
from kv_sim.replay.caches.bounds import Bounds
from kv_sim.replay.caches.outcome import Outcome, add_up_sums
from kv_sim.replay.caches.ratios import Hits
from kv_sim.replay.caches.shape import NOBODY, Shape, shape_of
from kv_sim.replay.columns import NO_SESSION, Columns, Ints
from kv_sim.replay.servers.routers import make_router, route
from kv_sim.replay.servers.routing import USUAL, Routing

MOST_SERVERS: Final = 1024


@dataclass(frozen=True)
class Fleet:
    """Several servers of one kind, and how requests are routed to them."""

    servers: int = 1
    routing: Routing = USUAL
    disk_shared: bool = False
    """Whether each reads what the others have on their disks (``file_shared`` of kv-offload-file)."""

    def __post_init__(self) -> None:
        if not 1 <= self.servers <= MOST_SERVERS:
            raise ConfigError(f"--servers: expected 1 to {MOST_SERVERS}, got {self.servers}")
        if self.disk_shared and self.servers == 1:
            raise ConfigError("--disk-shared needs several servers; --servers says how many")
        if self.disk_shared and self.servers > MOST_ENGINES:
            raise ConfigError(
                f"--disk-shared: at most {MOST_ENGINES} servers can share a disk, got {self.servers}"
            )

    @property
    def needs_sessions(self) -> bool:
        """Whether requests are routed by their session."""
        return self.servers > 1 and self.routing is Routing.SESSION


@dataclass(frozen=True)
class Load:
    """The load of each server."""

    routing: str
    requests: tuple[int, ...]
    tokens: tuple[int, ...]
    """Prompt tokens."""

    @property
    def servers(self) -> int:
        """How many there are."""
        return len(self.requests)

    @property
    def most(self) -> float:
        """The prompt tokens of the busiest server, as a multiple of the average."""
        return max(self.tokens) * self.servers / max(1, sum(self.tokens))

    def __str__(self) -> str:
        most = f"the busiest got {self.most:.2f} × the prompt tokens of the average"
        return f"{self.servers} servers, routing {self.routing}: {most}"


@dataclass
class Share:
    """The requests of one server."""

    columns: Columns
    requests: Ints
    """Their numbers in the trace."""

    @cached_property
    def shape(self) -> Shape:
        """The shape of the share, as a trace by itself."""
        return shape_of(self.columns)

    @cached_property
    def bounds(self) -> Bounds:
        """Upper bounds on the hits of any policy."""
        return Bounds(self.columns, self.shape)


@dataclass
class RoutedTrace:
    """A trace, with the server that gets each request."""

    columns: Columns
    fleet: Fleet = field(default_factory=Fleet)

    @cached_property
    def shares(self) -> list[Share]:
        """A share for each server."""
        columns, servers = self.columns, self.fleet.servers
        if servers == 1:
            return [Share(columns, np.arange(len(columns)))]
        return shares_of(columns, self.server_of, servers)

    @cached_property
    def server_of(self) -> Ints:
        """The server of each request."""
        columns, fleet = self.columns, self.fleet
        if fleet.needs_sessions and not has_sessions(columns):
            refuse_no_sessions(columns.name)
        return route(make_router(fleet.routing, fleet.servers, columns.block_tokens), columns)

    @cached_property
    def shape(self) -> Shape:
        """The shape of the trace if one cache served all."""
        return self.shares[0].shape if self.fleet.servers == 1 else shape_of(self.columns)

    @cached_property
    def routed_shape(self) -> Shape:
        """The shape of the trace if what went to another server counts for nothing."""
        if self.fleet.servers == 1:
            return self.shape
        pairs = [(share, share.shape) for share in self.shares]
        request = np.concatenate([share.requests[part.request] for share, part in pairs])
        order = np.argsort(request, kind="stable")
        return Shape(
            request[order],
            np.concatenate([part.start for _, part in pairs])[order],
            np.concatenate([part.length for _, part in pairs])[order],
            np.concatenate([_known(share.requests, part.user) for share, part in pairs])[order],
            len(self.columns),
        )

    @property
    def reached_shape(self) -> Shape:
        """The shape of the trace if only that counts which a server can come by."""
        return self.shape if self.fleet.disk_shared else self.routed_shape

    @property
    def most_blocks(self) -> int:
        """Different blocks that one server keeps at most: with so many nothing leaves anywhere.

        What comes to several is kept by each of them, but where they share their disks: there by the first.
        """
        if not self.fleet.disk_shared:
            return max(share.shape.unique_blocks for share in self.shares)
        new = self.shape.user == NOBODY
        owner, lengths = self.server_of[self.shape.request[new]], self.shape.length[new]
        return int(np.bincount(owner, weights=lengths, minlength=1).max())

    @property
    def load(self) -> Load | None:
        """The load of each server, if there are several."""
        if self.fleet.servers == 1:
            return None
        return Load(
            self.fleet.routing.value,
            tuple(len(share.columns) for share in self.shares),
            tuple(share.columns.input_tokens for share in self.shares),
        )

    def sum(self, hits: Callable[[Share], Hits]) -> Hits:
        """The hits of all servers."""
        return add_up(hits(share) for share in self.shares)

    def best_hits(self, capacity: int) -> Hits:
        """The hits of the offline optimum (MIN) with so many blocks on each server.

        Where they share their disks it is that of one cache with the blocks of all, which they can't beat.
        """
        if self.fleet.disk_shared:
            return self._bounds.at(self.fleet.servers * capacity)
        return self.sum(lambda share: share.bounds.at(capacity))

    @cached_property
    def _bounds(self) -> Bounds:
        """What nobody beats who has all of the trace."""
        return Bounds(self.columns, self.shape)

    def gather(self, outcomes: Sequence[Outcome]) -> Outcome:
        """What happened on the servers, each in its place, as one: hits by request of the trace, and sums."""
        if len(outcomes) == 1:
            return outcomes[0]
        hits = []
        for name in ("gpu_hits", "cpu_hits", "disk_hits"):
            whole: Ints = np.zeros(len(self.columns), dtype=np.int64)
            for share, outcome in zip(self.shares, outcomes, strict=True):
                whole[share.requests] = getattr(outcome, name)
            hits.append(whole)
        return replace(add_up_sums(outcomes), gpu_hits=hits[0], cpu_hits=hits[1], disk_hits=hits[2])

    def check(self) -> None:
        """Recount."""
        routed = np.concatenate([share.requests for share in self.shares])
        assert np.array_equal(np.sort(routed), np.arange(len(self.columns))), "a request is in no share, or in two"
        for share in self.shares:
            assert (np.diff(share.requests) > 0).all(), "a share has requests in another order than the trace"
            share.columns.check()
        self.routed_shape.check(self.columns)


def add_up(hits: Iterable[Hits]) -> Hits:
    """The sum of several hits, such as those of each server."""
    return reduce(Hits.plus, hits, Hits(0, 0, 0))


def shares_of(columns: Columns, server_of: Ints, servers: int) -> list[Share]:
    """The requests of each server, given the server of each request."""
    chosen = [np.flatnonzero(server_of == server) for server in range(servers)]
    return [Share(columns.of(requests), requests) for requests in chosen]


def has_sessions(columns: Columns) -> bool:
    """Whether any request names its session."""
    if columns.sessions is None:
        raise ConfigError(
            f"{columns.name}: --routing session, and the trace was opened without sessions (TraceOptions.sessions)"
        )
    return bool((columns.sessions != NO_SESSION).any())


def refuse_no_sessions(name: str) -> NoReturn:
    """Refuse routing by session for a trace without sessions."""
    others = ", ".join(one.value for one in Routing if one is not Routing.SESSION)
    raise ConfigError(
        f"{name}: --routing session, but no request of the trace names its session; other routings: {others}"
    )


def _known(requests: Ints, users: Ints) -> Ints:
    """Users as the trace counts requests, of those of a share."""
    known: Ints = np.where(users == NOBODY, NOBODY, requests[users])
    return known
