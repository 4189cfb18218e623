"""``Curve``: the hits of a cache at every capacity.

It has three sums by capacity in blocks: hits, hits on full blocks, and tokens in the blocks that were hit.
"""

from array import array

import numpy as np

from kv_sim.replay.caches.ratios import Hits
from kv_sim.replay.columns import Columns, Ints


class Curve:
    """Hits by capacity. A capacity beyond the last one has the hits of the last one."""

    def __init__(self, rising: "_Sums", at_once: "_Sums", partial: "_Sums", last: int, block_tokens: int) -> None:
        self._rising = rising
        self._at_once = at_once
        self._partial = partial
        self._last = last
        self._block_tokens = block_tokens

    def at(self, capacity: int) -> Hits:
        """The hits of a cache of ``capacity`` blocks."""
        capacity = min(capacity, self._last)
        slope, begins = self._rising.up_to(capacity)
        [jumps] = self._at_once.up_to(capacity)
        partial, missing = self._partial.up_to(capacity)
        hits = slope * (capacity + 1) - begins + jumps
        return Hits(hits, hits - partial, hits * self._block_tokens - missing)


class _Sums:
    """Numbers that each belong to a capacity, and their sums over all capacities up to a given one."""

    def __init__(self, capacities: "array[int]", *numbers: Ints) -> None:
        where = np.array(capacities, dtype=np.int64)
        order = np.argsort(where, kind="stable")
        self._capacities = where[order]
        self._sums = [np.concatenate(([0], np.cumsum(one[order]))) for one in numbers]

    def up_to(self, capacity: int) -> list[int]:
        place = int(np.searchsorted(self._capacities, capacity, side="right"))
        return [int(one[place]) for one in self._sums]


class CurveBuilder:
    """Collects the capacities from which blocks are hits. Its memory grows with the calls, not with capacities."""

    def __init__(self, columns: Columns, greatest: int) -> None:
        self._greatest = greatest
        self._block_tokens = columns.block_tokens
        self._counts = columns.counts.tolist()
        self._last_missing = (self._block_tokens * columns.counts - columns.block_input_tokens).tolist()
        self._begins, self._ends = array("q"), array("q")  # of runs whose blocks become hits one by one
        self._depths, self._lengths = array("q"), array("q")  # of runs whose blocks become hits together
        self._partial, self._missing = array("q"), array("q")  # of last blocks that aren't full

    def add_rising(self, request: int, start: int, length: int, depth: int) -> None:
        """Blocks of a request that become hits one by one with the capacity: the first at capacity ``depth``."""
        if depth > self._greatest:
            return
        self._begins.append(depth)
        self._ends.append(depth + length)
        if start + length == self._counts[request]:
            self._add_last(request, depth + length - 1)

    def add_at_once(self, request: int, start: int, length: int, depth: int) -> None:
        """Blocks of a request that all become hits at capacity ``depth``."""
        if depth > self._greatest:
            return
        self._depths.append(depth)
        self._lengths.append(length)
        if start + length == self._counts[request]:
            self._add_last(request, depth)

    def build(self) -> Curve:
        """The curve of everything that was added."""
        rising = self._begins + self._ends
        slopes = np.repeat(np.array([1, -1], dtype=np.int64), len(self._begins))
        return Curve(
            _Sums(rising, slopes, slopes * np.array(rising, dtype=np.int64)),
            _Sums(self._depths, np.array(self._lengths, dtype=np.int64)),
            _Sums(self._partial, np.ones(len(self._partial), np.int64), np.array(self._missing, dtype=np.int64)),
            self._greatest,
            self._block_tokens,
        )

    def _add_last(self, request: int, depth: int) -> None:
        missing = self._last_missing[request]
        if missing:
            self._partial.append(depth)
            self._missing.append(missing)
