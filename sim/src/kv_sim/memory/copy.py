"""``Copy``: one copy of blocks, or an errand: what it moves, its progress, and how it ended.

``copies`` decides when it goes on and how it ends.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from kv_api import Direction


class State(Enum):
    """The states of a copy."""

    RUNNING = "running"
    LOST = "lost"
    DONE = "done"
    FAILED = "failed"


@dataclass
class Copy:
    """One copy: ``pairs`` of (GPU block, host slot), of which the first ``copied`` are done."""

    copy_id: int
    direction: Direction
    pairs: tuple[tuple[int, int], ...]
    stream: str
    after_step: int
    """It may not start before this launched step has retired."""
    copied: int = 0
    state: State = State.RUNNING
    owners: tuple[str, ...] = ()
    """The holders of the blocks when the copy was submitted, for messages."""
    was_lost: bool = False
    is_over: bool = False
    """It is lost, and will never be found again."""
    given_up_to: set[int] = field(default_factory=set)
    """Blocks that it may still write late, since nothing has used them since it was lost."""
    settled: dict[int, tuple[str, int]] = field(default_factory=dict)
    """The settled tokens of its blocks when it was submitted (``settled``)."""
    over: str = ""
    """By which call its worker said that the job is over; from then on it may touch no GPU block."""
    errand: Callable[[], None] | None = None
    """The function to call instead of copying (``errands``). Then there are no pairs."""

    filled: set[int] = field(default_factory=set)
    """GPU blocks that an errand has written."""

    @property
    def fills(self) -> set[int]:
        """The GPU blocks that it fills; of an errand, those that it has written so far."""
        return {block for block, _ in self.pairs} if self.direction is Direction.LOAD else self.filled

    @property
    def size(self) -> int:
        """How many pages it moves; an errand is done at once."""
        return len(self.pairs) if self.errand is None else 1

    @property
    def blocks_left(self) -> list[int]:
        """GPU blocks that are yet to be read or written."""
        return [block for block, _ in self.pairs[self.copied :]]

    def __str__(self) -> str:
        return f"{'errand' if self.errand else f'{self.direction.value} copy'} {self.copy_id}"


@dataclass
class Result:
    """The end of a copy, as ``poll`` reports it."""

    copy_id: int
    success: bool
