"""A whole job in a few calls of the driver: its batched copy, ``cuMemcpyBatchAsync``.

The driver keeps a batch as a whole in the order of its stream, and the copies within one in none. When it may read
the sources is ours to say:

- A store reads GPU blocks that the model has written, or will have written when the stream gets there: in the
  stream's order. To read any earlier would be to read what was there before.
- A load reads chunks that are resident. Nobody writes them from the job's submission to its end, so the driver may
  read them whenever it likes, which lets it fetch ahead.

The third choice, to have read all when the call returns, would make the submission wait for the copies.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Protocol
from weakref import finalize

import numpy as np

from kv_api import Direction
from kv_offload_cpu.copy.cuda.engine import Stream
from kv_offload_cpu.copy.engine import Numbers, PageCopies
from kv_offload_cpu.copy.ranges.addresses import Moves, moves
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan, Scratch


class SourceOrder(Enum):
    """When the sources of a batch may be read."""

    STREAM = "stream"
    """When its turn comes in the stream."""
    ANY = "any"
    """From the call on, until the batch has ended."""


SOURCE_ORDER = {Direction.STORE: SourceOrder.STREAM, Direction.LOAD: SourceOrder.ANY}
"""For copies between GPU blocks and chunks."""


CALL_COPIES = 512
"""Copies of one call, at most: ``benchmarks/copy_engines.py --calls`` shows what other numbers give."""

FIRST_COPIES = 32
"""Copies of a job's first call. Each call after it has twice as many, until they have ``CALL_COPIES``: the device
begins when a call returns, and half a thousand copies keep the driver busy for a quarter of a millisecond."""

CALL_BYTES = 32 << 20
"""Bytes of one call, at most, unless it is of one copy: large copies want shorter calls."""

MOST_RANGES = 8 * CALL_COPIES
"""What is prepared at once of a large job."""


class Batch:
    """Moves as the driver takes them: columns without gaps, and where they begin. It is given some at a time."""

    def __init__(self, found: Moves, order: SourceOrder) -> None:
        self.order = order
        self.moves = Moves(*(np.ascontiguousarray(column, np.int64) for column in found))
        self.addresses = tuple(int(column.ctypes.data) for column in self.moves)
        self._ends = found.sizes.cumsum()

    def __len__(self) -> int:
        return len(self._ends)

    def calls(self, begin: int, end: int, most: Iterator[int]) -> Iterator[tuple[int, int]]:
        """Some of them cut into calls, each of as many as ``most`` says."""
        return calls_of(self._ends, begin, end, most)


class BatchDriver(Protocol):
    """What a batched copy asks of a device."""

    def copy_batch(self, stream: Stream, batch: Batch, begin: int, end: int) -> None:
        """Give ``stream`` some copies of a batch, at least one, in one call."""

    def go(self, stream: Stream) -> None:
        """What ``stream`` was given may begin."""


class OneBatch:
    """A job in calls of the driver, each of many copies: its first ones run while the host prepares the next."""

    stages = ()

    def __init__(
        self, driver: BatchDriver, stream: Stream, plan: CopyPlan, call_copies: int = CALL_COPIES
    ) -> None:
        self.streams = (stream,)
        self._call_copies = call_copies
        self._driver = driver
        self._plan = plan
        self._shelf: list[Scratch] = []
        """What no batch has its numbers in that is still to be given."""

    def prepare(self, direction: Direction, copies: PageCopies) -> tuple[Direction, PageCopies]:
        return direction, copies

    def give(self, prepared: tuple[Direction, PageCopies]) -> None:
        direction, copies = prepared
        most, is_first = growing(self._call_copies), True
        for part in portions(copies, self._plan.extent(copies).num_ranges):
            scratch = self._shelf.pop() if self._shelf else Scratch()
            batch = Batch(moves(self._plan.checked_ranges(part, scratch), direction), SOURCE_ORDER[direction])
            finalize(batch, self._shelf.append, scratch)
            for call in batch.calls(0, len(batch), most):
                self._driver.copy_batch(self.streams[0], batch, *call)
                if is_first:
                    self._driver.go(self.streams[0])
                    is_first = False
            self._driver.go(self.streams[0])
            del batch

    def take_back(self, prepared: tuple[Direction, PageCopies]) -> None:
        """The arrays are of this job alone."""


def calls_of(ends: Numbers, begin: int, end: int, most: Iterator[int]) -> Iterator[tuple[int, int]]:
    """Copies ``begin`` to ``end`` cut into calls of no more than ``CALL_BYTES``, each of as many as ``most`` says.

    ``ends[i]`` bytes are those of copy ``i`` and all before it.
    """
    while begin < end:
        before = ends[begin - 1] if begin else 0
        fitting = int(ends.searchsorted(before + CALL_BYTES, side="right"))
        last = max(begin + 1, min(fitting, begin + next(most), end))
        yield begin, last
        begin = last


def growing(most: int) -> Iterator[int]:
    """Copies of each call of a job: few at first, and so many in the end."""
    copies = min(FIRST_COPIES, most)
    while True:
        yield copies
        copies = min(2 * copies, most)


def portions(copies: PageCopies, num_ranges: int) -> Iterator[PageCopies]:
    """A job in parts: a small one first, so that the device needn't wait, and each later one twice as large.

    None of a job without ranges, whose pages are of layers that other workers have.
    """
    begin, ranges = 0 if num_ranges else len(copies), CALL_COPIES
    while begin < len(copies):
        pages = max(1, ranges * len(copies) // num_ranges)
        yield copies.part(begin, begin + pages)
        begin += pages
        ranges = min(2 * ranges, MOST_RANGES)
