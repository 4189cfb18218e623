"""Models of routers in front of several servers, one for each way to route.

A router sees one request after the other, and knows what it sent where. Servers tell it nothing.

By prefix, what a server has to compute are prompt tokens that it wasn't sent before, of this request and of those
before. Those before fade, as servers get on with them, so that about `REMEMBERED` requests a server count.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np

from kv_sim.replay.columns import NO_SESSION, Columns, Ints
from kv_sim.replay.servers.routing import Routing

REMEMBERED: Final = 4

_ODD: Final = 0x9E3779B97F4A7C15
_WORD: Final = (1 << 64) - 1


class Router(Protocol):
    """Sends requests to servers, which are numbered from 0."""

    def choose(self, session: int, ids: Sequence[int], tokens: int) -> int:
        """The server for the next request, given its session (or `NO_SESSION`), blocks and prompt tokens."""


def make_router(routing: Routing, servers: int, block_tokens: int) -> Router:
    """A router that has sent nothing yet."""
    return _ROUTERS[routing](servers, block_tokens)


def route(router: Router, columns: Columns) -> Ints:
    """The server of each request of a trace, or of its next part."""
    sessions = [NO_SESSION] * len(columns) if columns.sessions is None else columns.sessions.tolist()
    requests = zip(sessions, columns, strict=True)
    chosen = [router.choose(session, request.blocks, request.input_tokens) for session, request in requests]
    return np.array(chosen, dtype=np.int64)


class _RoundRobin:
    def __init__(self, servers: int, block_tokens: int) -> None:
        self._servers = servers
        self._next = 0

    def choose(self, session: int, ids: Sequence[int], tokens: int) -> int:
        chosen = self._next
        self._next = (chosen + 1) % self._servers
        return chosen


class _BySession:
    def __init__(self, servers: int, block_tokens: int) -> None:
        self._servers = servers
        self._alone = 0

    def choose(self, session: int, ids: Sequence[int], tokens: int) -> int:
        if session == NO_SESSION:
            self._alone += 1
            session = -1 - self._alone
        return _mixed(session) % self._servers


class _ByPrefix:
    """Keeps of every block to whom it was sent: a bit for each server."""

    def __init__(self, servers: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._sent: dict[int, int] = {}
        self._loads = [0.0] * servers
        self._fades = 1 - 1 / (REMEMBERED * servers)

    def choose(self, session: int, ids: Sequence[int], tokens: int) -> int:
        found = self._found(ids)
        loads = [
            load + max(0, tokens - blocks * self._block_tokens)
            for load, blocks in zip(self._loads, found, strict=True)
        ]
        chosen = loads.index(min(loads))
        self._loads[chosen] = loads[chosen]
        self._loads = [load * self._fades for load in self._loads]
        bit, sent = 1 << chosen, self._sent
        for one in ids:
            sent[one] = sent.get(one, 0) | bit
        return chosen

    def _found(self, ids: Sequence[int]) -> list[int]:
        """How many of the first blocks each server was sent before."""
        found = [0] * len(self._loads)
        having, sent = (1 << len(found)) - 1, self._sent
        for place, one in enumerate([*ids, None]):
            left = having & sent.get(one, 0) if one is not None else 0
            ended = having & ~left
            while ended:
                lowest = ended & -ended
                found[lowest.bit_length() - 1] = place
                ended ^= lowest
            having = left
            if not having:
                break
        return found


def _mixed(number: int) -> int:
    """A hash that is the same in every process, and spreads numbers that count up."""
    mixed = number * _ODD & _WORD
    return mixed ^ mixed >> 32


_ROUTERS: Final[Mapping[Routing, Callable[[int, int], Router]]] = {
    Routing.ROUND_ROBIN: _RoundRobin,
    Routing.SESSION: _BySession,
    Routing.PREFIX: _ByPrefix,
}
