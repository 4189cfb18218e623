"""The most hits that any policy can have: the offline optimum (MIN) at a capacity, and a cache of unlimited size.

**MIN** keeps, after each request, the blocks that are needed again soonest, and may drop a block at once. Among
blocks that are needed at the same time it drops the deepest first. A block's ancestors are needed no later than
the block, so MIN always keeps a set of prefixes. It is therefore also the optimum among caches that can use only
prefixes.

The computation takes one step for each segment that is used again. One request used the blocks of a segment last,
and one later request needs them next, so these blocks wait together, and are dropped together, deepest first.
Segments are numbered in the order in which they are needed, and within one request from the front of its prompt.
So the waiting segment with the greatest number is dropped first.
"""

from collections.abc import Iterator
from functools import cached_property
from heapq import heappop, heappush
from typing import Final

import numpy as np

from kv_sim.replay.caches.ratios import Hits
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
    """The bounds of one trace. What doesn't depend on the capacity is computed once."""

    def __init__(self, columns: Columns, shape: Shape) -> None:
        again = np.flatnonzero(shape.user != NOBODY)
        request, self._lengths = shape.request[again], shape.length[again]
        counts, ends = columns.counts[request], shape.start[again] + self._lengths
        missing = columns.block_tokens * counts - columns.block_input_tokens[request]
        self._missing: Ints = np.where(ends == counts, missing, 0)
        """How many tokens each segment's last block lacks to be full."""
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
        """All events in order: a segment begins to wait (its number), or is needed (``~`` its number).

        Within one request the segments that it needs come first.
        """
        number = np.arange(len(self._lengths))
        order = np.argsort(np.concatenate((2 * self._needed_by, 2 * self._used_by + 1)), kind="stable")
        steps: Ints = np.concatenate((~number, number))[order]
        return steps

    @cached_property
    def _most_waiting(self) -> int:
        """The most blocks that ever wait at once, if none is dropped."""
        lengths = self._lengths[np.maximum(self._steps, ~self._steps)]
        return int(np.cumsum(np.where(self._steps < 0, -lengths, lengths)).max(initial=0))

    def _kept(self, capacity: int) -> list[int]:
        """How many blocks of each segment are still there when they are needed.

        The heap has the waiting segments, the greatest number first. Segments that were needed already stay in it.
        They have the smallest numbers, so they come up only when no segment waits.
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
        assert not size, f"{size} blocks still wait at the end of the trace"
        return left

    def _hits(self, kept: Ints) -> Hits:
        blocks, missing = int(kept.sum()), self._missing[kept == self._lengths]
        partial = int(np.count_nonzero(missing))
        return Hits(blocks, blocks - partial, blocks * self._block_tokens - int(missing.sum()))


def _pieces(numbers: Ints) -> Iterator[int]:
    """All numbers in order. Only one portion of them at a time is made into Python integers, to save memory."""
    for first in range(0, len(numbers), _STEPS_AT_ONCE):
        yield from numbers[first : first + _STEPS_AT_ONCE].tolist()
