"""The tokens of a partly filled block that don't change any more, although others are still appended.

An engine that hands over states may hand over the state at the end of a prompt, whose last tokens are in a
block that isn't full. A store of these tokens copies the whole block; tokens that a running step appends meanwhile
do no harm. Later steps hand over more tokens of the same block. So a copy is checked against the tokens that
its rank's worker knew of when the copy began, not those that the scheduler, which is ahead, has handed over since.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Offer(NamedTuple):
    """A request's computed tokens end within a block, and the state after them is handed over."""

    request_id: str
    block: int
    tokens: int
    """How many of the block's tokens that state has seen."""


def offers(
    request_id: str, handed: Iterable[tuple[int, int, int]], table: Sequence[int], block_size: int
) -> list[Offer]:
    """A request's offers. ``handed``: for each state its group, block, and the tokens that it has seen."""
    ends = (divmod(boundary, block_size) for _, _, boundary in handed)
    return [Offer(request_id, table[index], tokens) for index, tokens in ends if tokens]


class Settled:
    """The settled tokens that a rank's worker knows of."""

    def __init__(self) -> None:
        self._tokens: dict[int, tuple[str, int]] = {}

    def begin_step(self, new_blocks: Iterable[int], handed: Iterable[Offer]) -> None:
        """A step begins: forget blocks that other requests have got, and remember the step's offers."""
        for block in new_blocks:
            self._tokens.pop(block, None)
        for request_id, block, tokens in handed:
            self._tokens[block] = request_id, tokens

    def of(self, blocks: Iterable[int]) -> dict[int, tuple[str, int]]:
        """By block, if tokens are appended to it: the request that does, and how many first tokens are settled."""
        return {block: self._tokens[block] for block in blocks if block in self._tokens}
