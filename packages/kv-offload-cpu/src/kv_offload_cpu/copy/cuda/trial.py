"""Which method copies best on this device: found out by trying, before the first job, in memory that nobody uses.

Where one method overtakes another differs with the device, the direction, the size of pages, and how many there
are, so ``cuda-best`` knows none of it beforehand. Each method carries pages of tensors, as large as this worker's
and four times as large, few and many, to the device and back. What is timed is all that a job takes, from the
host's first number until the bytes are there. Whoever was fastest gets a row of the table that jobs are looked up
in.

A method that fails gets no row, and neither does one that brings back other bytes than it took. ``auto`` follows a
table of others, so what it learns of a trial is only whether a method passed; tiny ranges do for that.
"""

import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from kv_api import CanonicalKVCacheRef, Direction
from kv_offload_cpu.copy.cuda.engine import Event, Method, Stream, Streams
from kv_offload_cpu.copy.cuda.methods.page_table import COLUMNS, Table
from kv_offload_cpu.copy.cuda.table import Row
from kv_offload_cpu.copy.engine import PageCopies
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan
from kv_offload_cpu.copy.ranges.tensors import TensorPages
from kv_offload_cpu.options import CopyEngineChoice
from kv_offload_cpu.sizing import HostLayout

COUNTS = (16, 64, 256, 1024)
"""How many ranges are tried; fewer go as the fewest do."""

MOST_BYTES = 16 << 20
"""Of one try, and so of the memory that is taken for it."""

MOST_TENSORS = 16
"""Of those that a page's ranges are in."""

TIMES = 4
"""How often each is tried. The best counts, so the first, which warms up, does no harm."""


class Shape(NamedTuple):
    """What a worker's pages are made of: ranges of so many bytes, in so many tensors."""

    range_bytes: int
    num_tensors: int


TINY = Shape(16, 4)
"""Of ranges, where it is only to be seen whether a method works."""

_FACTOR = 4


class Case(NamedTuple):
    """A job that is tried."""

    direction: Direction
    size: int
    num_ranges: int


Seconds = dict[Case, float]
"""What a method takes for each."""

MakeMethod: TypeAlias = Callable[[CopyPlan], Method]


class TrialDriver(Streams, Protocol):
    """What a trial asks of a device."""

    def mark_compute(self) -> Event:
        """An event after all that the compute stream was given so far."""

    def new_table(self, num_rows: int) -> Table:
        """Make a table of pinned numbers."""

    def new_stage(self, num_bytes: int) -> int:
        """The address of memory on the device."""

    def free_stage(self, address: int) -> None:
        """Give back memory on the device that nothing uses any more."""

    def drain(self, stream: Stream) -> None:
        """Return when ``stream`` is idle."""

    def wait_for(self, event: Event) -> None:
        """Return when all before ``event`` has been done."""


class Trial:
    """Tries methods on ``stream``, with ranges of a shape and larger ones. To be closed.

    Chunks of one block are in pinned memory: the first half is sent to the device, and comes back to the other.
    """

    def __init__(
        self, driver: TrialDriver, stream: Stream, shape: Shape, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._tensors = tensors = min(shape.num_tensors, MOST_TENSORS)
        sizes = [shape.range_bytes, _FACTOR * shape.range_bytes]
        counts = [-(-count // tensors) for count in COUNTS]
        self._jobs = {size: [count for count in counts if size * tensors * count <= MOST_BYTES] for size in sizes}
        num_bytes = max((size * tensors * counts[-1] for size, counts in self._jobs.items() if counts), default=0)
        self._driver, self._stream, self._clock = driver, stream, clock
        self._methods: list[Method] = []
        driver.hold(stream, driver.mark_compute())  # which may still use the memory that comes next
        self._memory = driver.new_table(max(1, -(-2 * num_bytes // (8 * COLUMNS)))).numbers
        # Never the bytes of the trial before, whose memory this may be.
        self._memory[:] = np.random.default_rng().integers(1 << 62, size=len(self._memory))
        self._stage = driver.new_stage(num_bytes)

    def run(self, make_method: MakeMethod) -> Seconds:
        """What a method takes; an error if it fails, or other bytes come back."""
        found: Seconds = {}
        for size, counts in self._jobs.items():
            if counts:
                method = make_method(self._plan(size, counts[-1]))
                self._methods.append(method)
                for stream in method.streams:
                    self._driver.hold(stream, self._driver.mark(self._stream))
                for count in counts:
                    found |= self._try(method, size, count, counts[-1])
        return found

    def close(self) -> None:
        """Give back the memory."""
        for stream in (self._stream, *(stream for method in self._methods for stream in method.streams)):
            self._driver.drain(stream)
        for stage in (self._stage, *(stage for method in self._methods for stage in method.stages)):
            self._driver.free_stage(stage)

    def _plan(self, size: int, num_blocks: int) -> CopyPlan:
        """Tensors on the device, one after the other, and twice as many chunks as they have blocks."""
        slot = self._tensors * size
        places = range(self._stage, self._stage + num_blocks * slot, num_blocks * size)
        tensors = [TensorPages(num_blocks, size, size, address) for address in places]
        refs = [CanonicalKVCacheRef(index, size) for index in range(self._tensors)]
        layout = HostLayout(2 * num_blocks, 1, slot, 1, slot)
        return CopyPlan(tensors, [refs], layout, 0, self._memory.ctypes.data)

    def _try(self, method: Method, size: int, count: int, num_blocks: int) -> Seconds:
        """Send pages and get them back."""
        slot = self._tensors * size
        sent, came = (self._memory.view(np.uint8)[begin * slot :][: count * slot] for begin in (0, num_blocks))
        sent += 1  # other bytes than those of the try before, which the device still has, and what came back
        random, found, zeros = np.random.default_rng(count), Seconds(), np.zeros(count, np.int64)
        blocks, chunks = random.permutation(count), random.permutation(count)
        num_ranges = count * self._tensors
        # Not in the same order: in a method's buffer no page lies where a load may have left its bytes.
        back = PageCopies(zeros, np.roll(blocks, 1), np.roll(chunks, 1) + num_blocks, zeros)
        for direction, copies in (
            (Direction.LOAD, PageCopies(zeros, blocks, chunks, zeros)),
            (Direction.STORE, back),
        ):
            seconds = min(self._time(method, direction, copies) for _ in range(TIMES))
            found[Case(direction, size, num_ranges)] = seconds
        wrong = np.count_nonzero(sent != came)
        if wrong:
            raise RuntimeError(f"of {num_ranges} ranges of {size} bytes, {wrong} bytes came back changed")
        return found

    def _time(self, method: Method, direction: Direction, copies: PageCopies) -> float:
        begin = self._clock()
        prepared = method.prepare(direction, copies)
        method.give(prepared)
        end = self._driver.mark(self._stream)
        self._driver.go(self._stream)
        self._driver.wait_for(end)
        seconds = self._clock() - begin
        method.take_back(prepared)
        return seconds


def rows_of(found: Mapping[CopyEngineChoice, Seconds]) -> list[Row]:
    """The table by what trials of the same jobs found: smaller ranges first, and of them many first."""
    cases = {case for seconds in found.values() for case in seconds}
    largest = max((case.size for case in cases), default=0)
    fewest = min((case.num_ranges for case in cases), default=0)
    rows = []
    for case in sorted(cases, key=lambda case: ([*Direction].index(case.direction), case.size, -case.num_ranges)):
        best = min(found, key=lambda choice, case=case: found[choice][case])  # type: ignore[misc]
        least = case.num_ranges * case.size if case.num_ranges > fewest else 0
        below = case.size * _FACTOR // 2 if case.size < largest else sys.maxsize
        rows.append(Row(case.direction, least, below, best))
    return rows
