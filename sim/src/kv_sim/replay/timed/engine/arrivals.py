"""The requests of an engine, by their arrival: from a trace, or handed over by an engine that prefilled them.

``TraceArrivals`` are known beforehand; ``HandedArrivals`` become known while both engines go on. The loop of an
engine's steps (``drive``) asks either of them when the next one comes, as far as that is known.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final, Protocol

from kv_sim.replay.timed.engine.books import Books
from kv_sim.replay.timed.engine.request import TracedRequest
from kv_sim.replay.timed.refuse import refuse_too_late
from kv_sim.replay.timed.timing import to_ns
from kv_sim.replay.trace import TraceRequest

NEVER: Final = 1 << 62

Numbered = tuple[int, TraceRequest]
"""Which of a trace's requests it is, and what the trace says of it."""
Make = Callable[[int, TraceRequest], TracedRequest]
"""A request as an engine holds it."""


class Arrivals(Protocol):
    """The requests of one engine, in the order of time."""

    @property
    def moment(self) -> int:
        """When the next one comes. NEVER: none is known of."""
        ...

    def take(self) -> TracedRequest:
        """The next one."""
        ...


class TraceArrivals:
    """Those requests of a trace that the engine takes; the others are counted."""

    def __init__(self, requests: Iterator[Numbered], books: Books, make: Make) -> None:
        self._requests = requests
        self._books = books
        self._make = make
        self.moment = NEVER
        self._next: Numbered | None = None
        self._pull()

    def take(self) -> TracedRequest:
        assert self._next is not None, "nobody comes any more"
        made = self._make(*self._next)
        self._pull()
        return made

    def _pull(self) -> None:
        """Get the next request that the engine takes."""
        self._next, self.moment = None, NEVER
        for index, traced in self._requests:
            if self._books.admits(traced):
                refuse_too_late(index, traced.arrival_seconds)
                self._next, self.moment = (index, traced), to_ns(traced.arrival_seconds)
                return


class HandedArrivals:
    """Requests that another engine has begun. Of those that come at once, who was handed on first comes first."""

    def __init__(self) -> None:
        self._coming: list[tuple[int, int, TracedRequest]] = []
        self._handed = 0

    @property
    def moment(self) -> int:
        return self._coming[0][0] if self._coming else NEVER

    def take(self) -> TracedRequest:
        return heappop(self._coming)[-1]

    def hand(self, request: TracedRequest, moment: int) -> None:
        """This one comes then."""
        self._handed += 1
        heappush(self._coming, (moment, self._handed, request))
