"""What a copy engine is: something that copies the pages of whole jobs, asynchronously, and may fail.

The worker knows engines only by this protocol. So a testbed can put one in their place that is late, loses or
repeats completions, and tears copies; and the worker must stay right above it.
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
    """How a job stands to those queued before it."""

    ORDINARY = "ordinary"
    EXPEDITED = "expedited"
    """A step waits for this load: it overtakes ordinary loads that have not begun."""


@dataclass(frozen=True, eq=False)
class PageCopies:
    """A job's pages: block ``blocks[i]`` of group ``groups[i]``, with block ``offsets[i]`` of ``chunks[i]``."""

    groups: Numbers
    blocks: Numbers
    chunks: Numbers
    offsets: Numbers

    def __len__(self) -> int:
        return len(self.blocks)

    def part(self, begin: int, end: int) -> "PageCopies":
        """Some of them that follow each other."""
        return PageCopies(
            self.groups[begin:end], self.blocks[begin:end], self.chunks[begin:end], self.offsets[begin:end]
        )


@dataclass
class CopyResult:
    """How a job ended, with the bytes that moved and the time that took, if known.

    An engine's word: it may come twice, or never. The worker makes of it one ``TransferResult`` for each job.
    """

    job_id: int
    success: bool
    num_bytes: int | None = None
    seconds: float | None = None


class HostMemory(Protocol):
    """Memory that the chunks are in; what else it can do is between it and the copy engine."""

    def release(self) -> None:
        """Give it back. Nothing touches it any more. May be repeated."""


class CopyEngine(Protocol):
    """Copies pages, and reports what goes wrong below as a ``CopyResult``, not as an exception.

    Jobs of one direction run in the order of their submission; loads and stores don't wait for each other.
    """

    def submit(
        self, job_id: int, direction: Direction, copies: PageCopies, *, urgency: Urgency = Urgency.ORDINARY
    ) -> None:
        """Begin a job after everything that the device was given before. When it raises, nothing was begun."""

    def poll(self) -> list[CopyResult]:
        """The jobs that ended since the last call."""

    def wait(self, job_ids: Collection[int]) -> None:
        """Return when none of these jobs will touch memory any more. Unknown and ended ones are no matter.

        A job without a result after that is lost.
        """

    def shutdown(self) -> None:
        """Finish or cancel every job; afterwards nothing touches memory. May be repeated."""
