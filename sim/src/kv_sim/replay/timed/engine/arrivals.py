"""The requests of an engine in the order of arrival: from a trace, or sent on by an engine that prefilled them.

``TraceArrivals`` are known beforehand; ``HandedArrivals`` become known while both engines run. The loop of an
engine's steps (``drive``) asks either of them when the next known request arrives.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final, Protocol

from kv_sim.replay.timed.durations.timing import to_ns
from kv_sim.replay.timed.engine.books import Books
from kv_sim.replay.timed.engine.request import TracedRequest
from kv_sim.replay.timed.server.refuse import refuse_too_late
from kv_sim.replay.trace import TraceRequest

NEVER: Final = 1 << 62

Numbered = tuple[int, TraceRequest]
"""A request's place in the trace, and the trace's record of it."""
Make = Callable[[int, TraceRequest], TracedRequest]
"""Makes the engine's form of a request."""


class Arrivals(Protocol):
    """The requests of one engine, in the order of time."""

    @property
    def moment(self) -> int:
        """When the next request arrives. NEVER: no further one is known."""
        ...

    def take(self) -> TracedRequest:
        """Remove and return the next request."""
        ...


class TraceArrivals:
    """The requests of a trace that the engine accepts; refused ones are counted."""

    def __init__(self, requests: Iterator[Numbered], books: Books, make: Make) -> None:
        self._requests = requests
        self._books = books
        self._make = make
        self.moment = NEVER
        self._next: Numbered | None = None
        self._pull()

    def take(self) -> TracedRequest:
        assert self._next is not None, "no request is left"
        made = self._make(*self._next)
        self._pull()
        return made

    def _pull(self) -> None:
        """Get the next request that the engine accepts."""
        self._next, self.moment = None, NEVER
        for index, traced in self._requests:
            if self._books.admits(traced):
                refuse_too_late(index, traced.arrival_seconds)
                self._next, self.moment = (index, traced), to_ns(traced.arrival_seconds)
                return


class HandedArrivals:
    """Requests that another engine prefilled.

    Of those that arrive at the same time, the first sent on comes first.
    """

    def __init__(self) -> None:
        self._coming: list[tuple[int, int, TracedRequest]] = []
        self._handed = 0

    @property
    def moment(self) -> int:
        return self._coming[0][0] if self._coming else NEVER

    def take(self) -> TracedRequest:
        return heappop(self._coming)[-1]

    def hand(self, request: TracedRequest, moment: int) -> None:
        """Let a request arrive at ``moment``."""
        self._handed += 1
        heappush(self._coming, (moment, self._handed, request))
