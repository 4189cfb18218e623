"""What no policy can beat: the offline optimum (MIN) at a capacity, and a cache that holds everything.

**MIN** keeps, after each request, the blocks that are needed again soonest, and may let a block go at once. Among
blocks that are needed at the same time the deepest goes first. A block's ancestors are needed no later than it, so
what is kept is always a set of prefixes: this is the optimum among those that can only use prefixes, too.

It takes a step for each segment: the blocks of a segment were used by one request and are needed again by one
other, so they wait, and are let go, together, deepest first.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from kv_sim.replay.columns import Columns
from kv_sim.replay.curve import Hits
from kv_sim.replay.shape import NOBODY, Shape


def infinite_hits(columns: Columns, shape: Shape) -> Hits:
    """The hits of a cache that holds everything."""
    return _Counter(columns).count(
        zip(shape.request.tolist(), shape.start.tolist(), _reused_lengths(shape), strict=True)
    )


def min_hits(columns: Columns, shape: Shape, capacity: int) -> Hits:
    """The hits of the offline optimum."""
    waiting = _Waiting(capacity)
    kept: list[tuple[int, int, int]] = []
    by_user = _by_user(shape)
    lengths = shape.length.tolist()
    requests, starts, users = shape.request.tolist(), shape.start.tolist(), shape.user.tolist()
    first, total = 0, len(requests)
    for request in range(shape.requests):
        while first < total and requests[first] == request:
            if users[first] != NOBODY:
                kept.append((request, starts[first], waiting.take(first)))
            first += 1
        for segment in by_user.get(request, ()):
            waiting.add(segment, requests[segment], starts[segment], lengths[segment])
        waiting.shrink(request)
    return _Counter(columns).count(kept)


class _Waiting:
    """Segments that are kept until they are needed, at most ``capacity`` blocks of them.

    ``_left`` has the blocks that are left of each; the heap has who is needed last, and of these the deepest,
    first. Segments that were taken stay in the heap; they are needed before all others that are left, so they
    are met only when nothing else is left.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._left: dict[int, int] = {}
        self._size = 0
        self._heap: list[tuple[int, int, int]] = []

    def add(self, segment: int, needed_by: int, start: int, length: int) -> None:
        self._left[segment] = length
        self._size += length
        heappush(self._heap, (-needed_by, -start, segment))

    def take(self, segment: int) -> int:
        """It is needed now: how many of its first blocks are still there."""
        length = self._left.pop(segment, 0)
        self._size -= length
        return length

    def shrink(self, now: int) -> None:
        """Let go of what is needed last."""
        while self._size > self._capacity:
            needed_by, _, segment = self._heap[0]
            assert -needed_by > now, f"{self._size} blocks wait, and the last is needed by {-needed_by} at {now}"
            length = self._left[segment]
            gone = min(length, self._size - self._capacity)
            self._size -= gone
            if gone < length:
                self._left[segment] = length - gone
            else:
                del self._left[segment]
                heappop(self._heap)

    def check(self) -> None:
        """Recount."""
        assert sum(self._left.values()) == self._size, f"{sum(self._left.values())} wait, {self._size} counted"


class _Counter:
    """Adds up hits that begin at some block of a request; the first that is missing ends them."""

    def __init__(self, columns: Columns) -> None:
        self._counts = columns.counts.tolist()
        self._block_tokens = columns.block_tokens
        self._last_missing = (columns.block_tokens * columns.counts - columns.block_input_tokens).tolist()

    def count(self, found: Iterable[tuple[int, int, int]]) -> Hits:
        blocks = partial = missing = 0
        for request, start, length in found:
            blocks += length
            if length and start + length == self._counts[request] and self._last_missing[request]:
                partial += 1
                missing += self._last_missing[request]
        return Hits(blocks, blocks - partial, blocks * self._block_tokens - missing)


def _reused_lengths(shape: Shape) -> list[int]:
    lengths: list[int] = (shape.length * (shape.user != NOBODY)).tolist()
    return lengths


def _by_user(shape: Shape) -> dict[int, list[int]]:
    """For each request, the segments that take its blocks later."""
    found: dict[int, list[int]] = {}
    for segment, user in enumerate(shape.user.tolist()):
        if user != NOBODY:
            found.setdefault(user, []).append(segment)
    return found
