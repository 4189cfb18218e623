"""What no policy can beat: the offline optimum (MIN) at a capacity, and a cache that holds everything.

**MIN** keeps, after each request, the blocks that are needed again soonest, and may let a block go at once. Among
blocks that are needed at the same time the deepest goes first. A block's ancestors are needed no later than it, so
what is kept is always a set of prefixes: this is the optimum among those that can only use prefixes, too.

It takes a step for each segment that is used again: its blocks were used by one request and are needed by one
other, so they wait, and are let go, together, deepest first. Segments are numbered in the order in which they are
needed, and of one request from the front, so what is let go first of all that wait has the greatest number.
"""

from collections.abc import Iterator
from functools import cached_property
from heapq import heappop, heappush
from typing import Final

import numpy as np

from kv_sim.replay.caches.curve import Hits
from kv_sim.replay.caches.shape import NOBODY, Shape
from kv_sim.replay.columns import Columns, Ints

_STEPS_AT_ONCE: Final = 1 << 16


def infinite_hits(columns: Columns, shape: Shape) -> Hits:
    """The hits of a cache that holds everything."""
    return Bounds(columns, shape).infinite


def min_hits(columns: Columns, shape: Shape, capacity: int) -> Hits:
    """The hits of the offline optimum."""
    return Bounds(columns, shape).at(capacity)


class Bounds:
    """Those of one trace: what capacities have in common is worked out once."""

    def __init__(self, columns: Columns, shape: Shape) -> None:
        again = np.flatnonzero(shape.user != NOBODY)
        request, self._lengths = shape.request[again], shape.length[again]
        counts, ends = columns.counts[request], shape.start[again] + self._lengths
        missing = columns.block_tokens * counts - columns.block_input_tokens[request]
        self._missing: Ints = np.where(ends == counts, missing, 0)
        """What each segment's last block lacks to be full."""
        self._block_tokens = columns.block_tokens
        self._needed_by, self._used_by = request, shape.user[again]

    @property
    def infinite(self) -> Hits:
        """The hits of a cache that holds everything."""
        return self._hits(self._lengths)

    def at(self, capacity: int) -> Hits:
        """The hits of the offline optimum."""
        if capacity >= self._most_waiting:
            return self.infinite
        return self._hits(np.array(self._kept(capacity), dtype=np.int64))

    @cached_property
    def _steps(self) -> Ints:
        """What happens, one after the other: a segment begins to wait (its number), or is needed (``~`` that).

        A request first gets what it needs.
        """
        number = np.arange(len(self._lengths))
        order = np.argsort(np.concatenate((2 * self._needed_by, 2 * self._used_by + 1)), kind="stable")
        steps: Ints = np.concatenate((~number, number))[order]
        return steps

    @cached_property
    def _most_waiting(self) -> int:
        """The most blocks that ever wait, if none is let go."""
        lengths = self._lengths[np.maximum(self._steps, ~self._steps)]
        return int(np.cumsum(np.where(self._steps < 0, -lengths, lengths)).max(initial=0))

    def _kept(self, capacity: int) -> list[int]:
        """How many blocks of each segment are still there when they are needed.

        The heap has who waits, the greatest number first. Who was needed stays in it; that are the smallest
        numbers, so they are met only when nobody waits.
        """
        left: list[int] = self._lengths.tolist()
        size, heap = 0, list[int]()
        for step in _pieces(self._steps):
            if step < 0:
                size -= left[~step]
                continue
            size += left[step]
            heappush(heap, -step)
            while size > capacity:
                last = -heap[0]
                gone = min(left[last], size - capacity)
                left[last] -= gone
                size -= gone
                if not left[last]:
                    heappop(heap)
        assert not size, f"{size} blocks wait for nobody"
        return left

    def _hits(self, kept: Ints) -> Hits:
        blocks, missing = int(kept.sum()), self._missing[kept == self._lengths]
        partial = int(np.count_nonzero(missing))
        return Hits(blocks, blocks - partial, blocks * self._block_tokens - int(missing.sum()))


def _pieces(numbers: Ints) -> Iterator[int]:
    """All of them, of which few at a time are objects."""
    for first in range(0, len(numbers), _STEPS_AT_ONCE):
        yield from numbers[first : first + _STEPS_AT_ONCE].tolist()
