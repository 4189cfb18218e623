"""``Curve``: the hits of a cache at every capacity.

It has three sums by capacity in blocks: hits, hits on full blocks, and tokens in the blocks that were hit. The
ratios are defined as:

* *block*: blocks hit / blocks of all prompts, where a partial last block counts like a full one;
* *token*: tokens in blocks hit / tokens of all prompts;
* *full block*: full blocks hit / full blocks of all prompts.
"""

from array import array
from dataclasses import dataclass

import numpy as np

from kv_sim.replay.columns import Columns, Ints


@dataclass(frozen=True)
class Totals:
    """The denominators of the ratios."""

    blocks: int
    full_blocks: int
    tokens: int
    block_tokens: int

    @classmethod
    def of(cls, columns: Columns) -> "Totals":
        """The totals of a trace."""
        return cls(columns.references, int(columns.full_counts.sum()), columns.input_tokens, columns.block_tokens)

    def plus(self, more: "Totals") -> "Totals":
        """The sum of both; their blocks must have the same size."""
        return Totals(
            self.blocks + more.blocks,
            self.full_blocks + more.full_blocks,
            self.tokens + more.tokens,
            self.block_tokens,
        )


@dataclass(frozen=True)
class Ratios:
    """Hit ratios by their definitions."""

    block: float
    token: float
    full_block: float


@dataclass(frozen=True)
class Hits:
    """How many blocks were hit, how many of them were full, and how many tokens they have."""

    blocks: int
    full_blocks: int
    tokens: int

    def plus(self, more: "Hits") -> "Hits":
        """The sum of both."""
        return Hits(self.blocks + more.blocks, self.full_blocks + more.full_blocks, self.tokens + more.tokens)

    def minus(self, fewer: "Hits") -> "Hits":
        """These hits without ``fewer``, which are among them."""
        return Hits(self.blocks - fewer.blocks, self.full_blocks - fewer.full_blocks, self.tokens - fewer.tokens)

    def ratios(self, totals: Totals) -> Ratios:
        """The hits as ratios of ``totals``; 0 if a total is 0."""
        return Ratios(
            self.blocks / max(1, totals.blocks),
            self.tokens / max(1, totals.tokens),
            self.full_blocks / max(1, totals.full_blocks),
        )


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
