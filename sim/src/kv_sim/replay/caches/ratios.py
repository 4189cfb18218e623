"""``Hits``, the ``Totals`` of which they are a part, and their ``Ratios``.

The ratios are defined as:

* *block*: blocks hit / blocks of all prompts, where a partial last block counts like a full one;
* *token*: tokens in blocks hit / tokens of all prompts;
* *full block*: full blocks hit / full blocks of all prompts.
"""

from dataclasses import dataclass

from kv_sim.replay.columns import Columns


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
