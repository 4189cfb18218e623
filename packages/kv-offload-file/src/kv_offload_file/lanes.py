"""The jobs of one direction between a GPU and a file, in their order, with their bays and threads.

Nothing here runs in a thread or waits: the caller asks which chunks are next, and frees their bays.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kv_api import Direction
from kv_offload_cpu.copy.engine import Numbers, PageCopies, Urgency
from kv_offload_file.label import Label


class Threads(Protocol):
    """The methods of a `ThreadPoolExecutor` that are used."""

    def submit(self, fn: Callable[..., None], /, *args: object) -> object:
        """Call a function soon, in one of the threads."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Begin no more calls, and end the threads."""


@dataclass(eq=False)
class Job:
    """Chunks to be stored, or loaded."""

    job_id: int
    direction: Direction
    urgency: Urgency
    copies: PageCopies
    bounds: Numbers
    """Indices into ``copies`` at which each chunk's pages begin, and the end."""
    slots: list[int]
    labels: list[Label]
    since: float
    """The time of its submission."""
    begun: int = 0
    """How many of its chunks have begun, from the first on."""
    batches: int = 0
    """How many of its batches are under way."""
    copying: int = 0
    """How many of these are being copied between GPU and bays."""
    has_failed: bool = False
    num_bytes: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether all of its chunks have begun, and no batch is under way."""
        return not self.batches and self.begun == len(self.slots)

    @property
    def touches_blocks(self) -> bool:
        """Whether it reads or writes GPU blocks, now or later."""
        return self.direction is Direction.LOAD or self.copying > 0 or self.begun < len(self.slots)


@dataclass(eq=False)
class Batch:
    """Chunks of a job that are copied together."""

    job: Job
    first: int
    bays: list[int]
    tasks: int = 0
    """How many tasks of threads have not ended."""
    has_failed: bool = False

    def pages(self) -> PageCopies:
        """Its pages, with bays in place of the file's slots."""
        bounds = self.job.bounds[self.first : self.first + len(self.bays) + 1]
        part = self.job.copies.part(int(bounds[0]), int(bounds[-1]))
        bays = np.repeat(np.asarray(self.bays), np.diff(bounds))
        return PageCopies(part.groups, part.blocks, bays, part.offsets)


class Lane:
    """The bays, threads and jobs of one direction."""

    def __init__(self, bays: list[int], threads: Threads) -> None:
        self.bays = bays
        self.free = [*bays]
        self.threads = threads
        self.queue: deque[Job] = deque()
        self.batches: set[Batch] = set()

    def enqueue(self, job: Job) -> None:
        """Queue a job behind all others; an expedited one behind the other expedited ones."""
        place = len(self.queue)
        if job.urgency is Urgency.EXPEDITED:
            place = sum(other.urgency is Urgency.EXPEDITED for other in self.queue)
        self.queue.insert(place, job)

    def next_batch(self) -> Batch | None:
        """The next chunks for which there are bays."""
        while self.queue and self.queue[0].begun == len(self.queue[0].slots):
            self.queue.popleft()
        if not self.queue or not self.free:
            return None
        job = self.queue[0]
        count = min(len(self.free), len(job.slots) - job.begun, max(1, len(self.bays) // 2))
        batch = Batch(job, job.begun, self.free[:count])
        del self.free[:count]
        job.begun += count
        job.batches += 1
        self.batches.add(batch)
        return batch


def even_parts(count: int, most: int) -> list[range]:
    """The numbers below ``count`` in at most ``most`` parts, all of one size except the last."""
    size = max(1, -(-count // most))
    return [range(begin, min(begin + size, count)) for begin in range(0, count, size)]
