"""A whole job in a few calls of the driver: its batched copy, ``cuMemcpyBatchAsync``.

A batch as a whole keeps the order of its stream; the copies within a batch have no order. The caller says when the
driver may read the sources:

- A store reads GPU blocks that the model will have written when the stream gets there, so they are read in the
  stream's order. Read earlier, they could hold old bytes.
- A load reads resident chunks. Nobody writes them from the job's submission to its end, so the driver may read
  them at any time, which lets it prefetch.

The driver's third choice, reading all sources before the call returns, would make ``submit`` wait for the copies.
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
    """When the stream gets to the batch."""
    ANY = "any"
    """At any time from the call until the batch has ended."""


SOURCE_ORDER = {Direction.STORE: SourceOrder.STREAM, Direction.LOAD: SourceOrder.ANY}
"""The source order of each direction, for copies between GPU blocks and chunks."""


CALL_COPIES = 512
"""Copies of one call, at most; ``benchmarks/copy_engines.py --calls`` measures other numbers."""

FIRST_COPIES = 32
"""Copies of a job's first call. Each call after it has twice as many, until they have ``CALL_COPIES``: the device
begins when a call returns, and half a thousand copies keep the driver busy for a quarter of a millisecond."""

CALL_BYTES = 32 << 20
"""Bytes of one call, at most, unless a single copy has more: calls of large copies have fewer of them."""

MOST_RANGES = 8 * CALL_COPIES
"""How much of a large job is prepared at once, in ranges."""


class Batch:
    """A job's moves in the driver's form: contiguous columns, and their addresses. Each call takes a part."""

    def __init__(self, found: Moves, order: SourceOrder) -> None:
        self.order = order
        self.moves = Moves(*(np.ascontiguousarray(column, np.int64) for column in found))
        self.addresses = tuple(int(column.ctypes.data) for column in self.moves)
        self._ends = found.sizes.cumsum()

    def __len__(self) -> int:
        return len(self._ends)

    def calls(self, begin: int, end: int, most: Iterator[int]) -> Iterator[tuple[int, int]]:
        """Copies ``begin`` to ``end`` cut into calls; ``most`` yields the most copies of each next call."""
        return calls_of(self._ends, begin, end, most)


class BatchDriver(Protocol):
    """The device as ``OneBatch`` uses it."""

    def copy_batch(self, stream: Stream, batch: Batch, begin: int, end: int) -> None:
        """Give ``stream`` copies ``begin`` to ``end`` of a batch, at least one, in one call."""

    def go(self, stream: Stream) -> None:
        """Start the work that ``stream`` was given."""


class OneBatch:
    """Copies a job by calls of many copies each; the first ones run while the host prepares the next."""

    stages = ()

    def __init__(
        self, driver: BatchDriver, stream: Stream, plan: CopyPlan, call_copies: int = CALL_COPIES
    ) -> None:
        self.streams = (stream,)
        self._call_copies = call_copies
        self._driver = driver
        self._plan = plan
        self._shelf: list[Scratch] = []
        """Memory for a batch's numbers, free for the next batch: nothing that is still to be given reads it."""

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
        """Nothing to do: the arrays belong to this job alone."""


def calls_of(ends: Numbers, begin: int, end: int, most: Iterator[int]) -> Iterator[tuple[int, int]]:
    """Copies ``begin`` to ``end`` cut into calls of at most ``CALL_BYTES`` bytes.

    ``most`` yields the most copies of each next call. ``ends[i]`` is the sum of the sizes up to copy ``i``,
    included.
    """
    while begin < end:
        before = ends[begin - 1] if begin else 0
        fitting = int(ends.searchsorted(before + CALL_BYTES, side="right"))
        last = max(begin + 1, min(fitting, begin + next(most), end))
        yield begin, last
        begin = last


def growing(most: int) -> Iterator[int]:
    """The most copies of each call of a job: few at first, then doubling up to ``most``."""
    copies = min(FIRST_COPIES, most)
    while True:
        yield copies
        copies = min(2 * copies, most)


def portions(copies: PageCopies, num_ranges: int) -> Iterator[PageCopies]:
    """A job in parts: a small one first, so that the device can begin soon, and each later one twice as large.

    A job without ranges, whose layers are all on other workers, has no parts.
    """
    begin, ranges = 0 if num_ranges else len(copies), CALL_COPIES
    while begin < len(copies):
        pages = max(1, ranges * len(copies) // num_ranges)
        yield copies.part(begin, begin + pages)
        begin += pages
        ranges = min(2 * ranges, MOST_RANGES)
