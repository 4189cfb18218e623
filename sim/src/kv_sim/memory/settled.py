"""Of which tokens a block doesn't change any more although others are still appended to it.

An engine that hands over states may hand over the one at the end of a prompt, whose last tokens are in a
block that isn't full. A store of these takes the whole block; what a running step appends behind them
meanwhile does it no harm. Later steps hand over more tokens of the same block. So a copy is judged by what
its rank's worker had been told when the copy began, not by what the scheduler, which is ahead, has handed
over since.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Offer(NamedTuple):
    """The end of what a request has computed lies within a block, and the state after it is handed over."""

    request_id: str
    block: int
    tokens: int
    """How many of the block's tokens that state has seen."""


def offers(
    request_id: str, handed: Iterable[tuple[int, int, int]], table: Sequence[int], block_size: int
) -> list[Offer]:
    """What a request offers. Of each state that it hands over: its group, block, and tokens that it has seen."""
    ends = (divmod(boundary, block_size) for _, _, boundary in handed)
    return [Offer(request_id, table[index], tokens) for index, tokens in ends if tokens]


class Settled:
    """What a rank's worker knows of this."""

    def __init__(self) -> None:
        self._tokens: dict[int, tuple[str, int]] = {}

    def begin_step(self, new_blocks: Iterable[int], handed: Iterable[Offer]) -> None:
        """A step begins: what was said of blocks that are somebody else's now is over."""
        for block in new_blocks:
            self._tokens.pop(block, None)
        for request_id, block, tokens in handed:
            self._tokens[block] = request_id, tokens

    def of(self, blocks: Iterable[int]) -> dict[int, tuple[str, int]]:
        """For those of some blocks: the request that appends, and how many of the first tokens are settled."""
        return {block: self._tokens[block] for block in blocks if block in self._tokens}
