"""Measures which method copies best on this device, before the first job, in memory that nobody else uses.

Which method is fastest depends on the device, the direction, the size of pages, and their number, so ``cuda-best``
assumes nothing. Each method copies pages, as large as this worker's and four times as large, few and many, to the
device and back. The time of a job is measured from the host's first calculation until the bytes have arrived. The
fastest method gets a row of the table in which jobs are looked up.

A method that fails, or that returns wrong bytes, gets no row. ``auto`` follows a fixed table, so it uses a trial
only to learn whether a method works; tiny ranges are enough for that.
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
"""Numbers of ranges that are tried. Jobs of fewer ranges are copied as those of the smallest number."""

MOST_BYTES = 16 << 20
"""Bytes of one try, at most, and so of the memory that is allocated for it."""

MOST_TENSORS = 16
"""Tensors that a page's ranges are in, at most."""

TIMES = 4
"""How often each case is tried. The shortest time counts, so that of the first try, which warms up, does no
harm."""


class Shape(NamedTuple):
    """The form of a worker's pages: the bytes of a range, and the number of tensors."""

    range_bytes: int
    num_tensors: int


TINY = Shape(16, 4)
"""Bytes of ranges in a trial that only finds out whether a method works."""

_FACTOR = 4


class Case(NamedTuple):
    """A job of a trial."""

    direction: Direction
    size: int
    num_ranges: int


Seconds = dict[Case, float]
"""The seconds that a method takes for each case."""

MakeMethod: TypeAlias = Callable[[CopyPlan], Method]


class TrialDriver(Streams, Protocol):
    """The device as a trial uses it."""

    def mark_compute(self) -> Event:
        """An event after all work that the compute stream was given so far."""

    def new_table(self, num_rows: int) -> Table:
        """Make a table in pinned memory."""

    def new_stage(self, num_bytes: int) -> int:
        """Allocate memory on the device; returns its address."""

    def free_stage(self, address: int) -> None:
        """Free memory of the device that nothing uses any more."""

    def drain(self, stream: Stream) -> None:
        """Return when ``stream`` is idle."""

    def wait_for(self, event: Event) -> None:
        """Return when all work before ``event`` is done."""


class Trial:
    """Tries methods on ``stream``, with ranges of a shape and larger ones. Its user must close it.

    Pinned memory has chunks of one block: a try loads the first half of them, and stores to the other half.
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
        driver.hold(stream, driver.mark_compute())  # compute may still use the memory that is allocated next
        self._memory = driver.new_table(max(1, -(-2 * num_bytes // (8 * COLUMNS)))).numbers
        # Other bytes than the previous trial's, whose memory this may be.
        self._memory[:] = np.random.default_rng().integers(1 << 62, size=len(self._memory))
        self._stage = driver.new_stage(num_bytes)

    def run(self, make_method: MakeMethod) -> Seconds:
        """The seconds that a method takes; raises if it fails or brings back wrong bytes."""
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
        """Free the memory."""
        for stream in (self._stream, *(stream for method in self._methods for stream in method.streams)):
            self._driver.drain(stream)
        for stage in (self._stage, *(stage for method in self._methods for stage in method.stages)):
            self._driver.free_stage(stage)

    def _plan(self, size: int, num_blocks: int) -> CopyPlan:
        """A plan for tensors one after the other on the device, and twice as many chunks as they have blocks."""
        slot = self._tensors * size
        places = range(self._stage, self._stage + num_blocks * slot, num_blocks * size)
        tensors = [TensorPages(num_blocks, size, size, address) for address in places]
        refs = [CanonicalKVCacheRef(index, size) for index in range(self._tensors)]
        layout = HostLayout(2 * num_blocks, 1, slot, 1, slot)
        return CopyPlan(tensors, [refs], layout, 0, self._memory.ctypes.data)

    def _try(self, method: Method, size: int, count: int, num_blocks: int) -> Seconds:
        """Load pages, store them again, and compare the bytes."""
        slot = self._tensors * size
        sent, came = (self._memory.view(np.uint8)[begin * slot :][: count * slot] for begin in (0, num_blocks))
        sent += 1  # the device and the other half still have the bytes of the previous try
        random, found, zeros = np.random.default_rng(count), Seconds(), np.zeros(count, np.int64)
        blocks, chunks = random.permutation(count), random.permutation(count)
        num_ranges = count * self._tensors
        # In another order, so that no page finds its own bytes in a method's buffer, left there by the load.
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
    """The table from trials of the same jobs: smaller ranges first, and among equal ones more ranges first."""
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
