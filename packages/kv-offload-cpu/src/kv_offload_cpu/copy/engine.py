"""The interface of a copy engine, which copies the pages of whole jobs, asynchronously, and may fail.

The worker uses engines only by this protocol. So a testbed can put in its own engine, which is late, loses or
repeats completions, and leaves copies half done; the worker must be right above that one, too.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kv_api import Direction

Numbers: TypeAlias = NDArray[np.int64]


class Urgency(Enum):
    """Whether a job may overtake those queued before it."""

    ORDINARY = "ordinary"
    EXPEDITED = "expedited"
    """A step waits for this load, so it overtakes ordinary loads that have not begun."""


@dataclass(frozen=True, eq=False)
class PageCopies:
    """A job's pages: block ``blocks[i]`` of group ``groups[i]`` is block ``offsets[i]`` of chunk ``chunks[i]``."""

    groups: Numbers
    blocks: Numbers
    chunks: Numbers
    offsets: Numbers

    def __len__(self) -> int:
        return len(self.blocks)

    def part(self, begin: int, end: int) -> "PageCopies":
        """The pages from ``begin`` up to ``end``."""
        return PageCopies(
            self.groups[begin:end], self.blocks[begin:end], self.chunks[begin:end], self.offsets[begin:end]
        )


@dataclass
class CopyResult:
    """How a job ended, with the bytes that moved and the time that they took, if known.

    An engine may report a job's result twice, or never. The worker makes one ``TransferResult`` for each job of
    it.
    """

    job_id: int
    success: bool
    num_bytes: int | None = None
    seconds: float | None = None


class HostMemory(Protocol):
    """The memory of the chunks; anything else that it can do is between it and the copy engine."""

    def release(self) -> None:
        """Free the memory. Nothing touches it any more. May be repeated."""


class CopyEngine(Protocol):
    """Copies pages; a failure of a copy is reported by a ``CopyResult``, not by an exception.

    Jobs of one direction run in the order of their submission; loads and stores don't wait for each other.
    """

    def submit(
        self, job_id: int, direction: Direction, copies: PageCopies, *, urgency: Urgency = Urgency.ORDINARY
    ) -> None:
        """Begin a job after all work that the device was given before. If this raises, nothing was begun."""

    def poll(self) -> list[CopyResult]:
        """The jobs that ended since the last call."""

    def wait(self, job_ids: Collection[int]) -> None:
        """Return when none of these jobs will touch memory any more. Ids of unknown and ended jobs are ignored.

        A job that has no result by then is lost.
        """

    def shutdown(self) -> None:
        """Finish or cancel every job; afterwards nothing touches memory. May be repeated."""
