"""``Curve``: what a cache of each capacity would have answered, all capacities at once.

Three sums, by capacity in blocks: hits, hits on blocks that are full, and tokens in the blocks that were hit. From
them come the ratios, each by its definition:

* *block*: blocks hit / blocks of all prompts, a last partial block counted like a full one;
* *token*: tokens in blocks hit / tokens of all prompts;
* *full block*: full blocks hit / full blocks of all prompts.
"""

from dataclasses import dataclass

import numpy as np

from kv_sim.replay.columns import Columns, Ints


@dataclass(frozen=True)
class Totals:
    """What ratios are taken of."""

    blocks: int
    full_blocks: int
    tokens: int
    block_tokens: int

    @classmethod
    def of(cls, columns: Columns) -> "Totals":
        """The totals of a trace."""
        return cls(columns.references, int(columns.full_counts.sum()), columns.input_tokens, columns.block_tokens)

    def plus(self, more: "Totals") -> "Totals":
        """Both together; they have blocks of one size."""
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
    """Sums of hits."""

    blocks: int
    full_blocks: int
    tokens: int

    def plus(self, more: "Hits") -> "Hits":
        """Both together."""
        return Hits(self.blocks + more.blocks, self.full_blocks + more.full_blocks, self.tokens + more.tokens)

    def ratios(self, totals: Totals) -> Ratios:
        """As shares of everything; 0 of nothing is 0."""
        return Ratios(
            self.blocks / max(1, totals.blocks),
            self.tokens / max(1, totals.tokens),
            self.full_blocks / max(1, totals.full_blocks),
        )


class Curve:
    """Hits by capacity. A capacity beyond the last one has the hits of the last one."""

    def __init__(self, hits: Ints, partial_hits: Ints, partial_missing: Ints, block_tokens: int) -> None:
        self._hits = hits
        self._partial_hits = partial_hits
        self._partial_missing = partial_missing
        self._block_tokens = block_tokens

    def at(self, capacity: int) -> Hits:
        """The hits of a cache of ``capacity`` blocks."""
        index = min(max(capacity, 0), len(self._hits) - 1)
        hits = int(self._hits[index])
        partial = int(self._partial_hits[index])
        return Hits(hits, hits - partial, hits * self._block_tokens - int(self._partial_missing[index]))


class CurveBuilder:
    """Adds up the capacities from which on blocks are hits."""

    def __init__(self, columns: Columns, greatest: int) -> None:
        size = greatest + 2
        self._greatest = greatest
        self._block_tokens = columns.block_tokens
        self._counts = columns.counts.tolist()
        self._last_missing = (self._block_tokens * columns.counts - columns.block_input_tokens).tolist()
        self._steps: list[int] = [0] * size  # changes of the slope of hits
        self._jumps: list[int] = [0] * size
        self._partial: list[int] = [0] * size
        self._missing: list[int] = [0] * size

    def add_rising(self, request: int, start: int, length: int, depth: int) -> None:
        """Blocks of a request that become hits one by one: the first at capacity ``depth``."""
        if depth > self._greatest:
            return
        end = depth + length
        self._steps[depth] += 1
        self._steps[min(end, self._greatest + 1)] -= 1
        if start + length == self._counts[request]:
            self._add_last(request, end - 1)

    def add_at_once(self, request: int, start: int, length: int, depth: int) -> None:
        """Blocks of a request that are hits from capacity ``depth`` on, all of them."""
        if depth > self._greatest:
            return
        self._jumps[depth] += length
        if start + length == self._counts[request]:
            self._add_last(request, depth)

    def build(self) -> Curve:
        """The sums."""
        end = self._greatest + 1
        slopes = np.cumsum(np.array(self._steps[:end], dtype=np.int64))
        hits = np.cumsum(slopes + np.array(self._jumps[:end], dtype=np.int64))
        partial, missing = (
            np.cumsum(np.array(part[:end], dtype=np.int64)) for part in (self._partial, self._missing)
        )
        return Curve(hits, partial, missing, self._block_tokens)

    def _add_last(self, request: int, depth: int) -> None:
        missing = self._last_missing[request]
        if missing and depth <= self._greatest:
            self._partial[depth] += 1
            self._missing[depth] += missing
