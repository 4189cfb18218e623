"""Which method copies best on this device: found out by trying, before the first job, in memory that nobody uses.

Where one method overtakes another differs with the device, the direction, the size of pages, and how many there
are, so ``cuda-best`` knows none of it beforehand. Each method carries ranges, as large as this worker's and four
times as large, few and many, to the device and back. What is timed is all that a job takes, from the host's first
number until the bytes are there. Whoever was fastest gets a row of the table that jobs are looked up in.

A method that fails gets no row, and neither does one that brings back other bytes than it took. ``auto`` follows a
table of others, so what it learns of a trial is only whether a method passed; tiny ranges do for that.
"""

import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from kv_offload_cpu.copy.cuda import Event, Method, Stream, Streams
from kv_offload_cpu.copy.descriptors import Ranges
from kv_offload_cpu.copy.engine import Direction, Numbers
from kv_offload_cpu.copy.gather import Table
from kv_offload_cpu.copy.table import FEWEST_RANGES, Basis, Row
from kv_offload_cpu.options import CopyEngineChoice

COUNTS = (16, 64, 256, 1024)
"""How many ranges are tried; fewer go as the fewest do."""

MOST_BYTES = 16 << 20
"""Of one try, and so of the memory that is taken for it."""

TIMES = 4
"""How often each is tried. The best counts, so the first, which warms up, does no harm."""

TINY = 16
"""Bytes of a range, where it is only to be seen whether a method works."""

_FACTOR = 4
_ONE_EACH = 0x0101_0101_0101_0101


class Case(NamedTuple):
    """A job that is tried."""

    direction: Direction
    size: int
    num_ranges: int


Seconds = dict[Case, float]
"""What a method takes for each."""


class TrialDriver(Streams, Protocol):
    """What a trial asks of a device."""

    def mark_compute(self) -> Event:
        """An event after all that the compute stream was given so far."""

    def new_table(self, num_rows: int) -> Table:
        """Pinned numbers."""

    def new_stage(self, num_bytes: int) -> int:
        """The address of memory on the device."""

    def free_stage(self, address: int) -> None:
        """Give back memory on the device that nothing uses any more."""

    def drain(self, stream: Stream) -> None:
        """Return when ``stream`` is idle."""

    def wait_for(self, event: Event) -> None:
        """Return when all before ``event`` has been done."""


class Trial:
    """Tries a method on ``stream``, with ranges of ``range_bytes`` and more. To be closed."""

    def __init__(
        self,
        driver: TrialDriver,
        stream: Stream,
        range_bytes: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        sizes = [range_bytes, _FACTOR * range_bytes]
        self._jobs = [(size, count) for size in sizes for count in COUNTS if size * count <= MOST_BYTES]
        num_bytes = max((size * count for size, count in self._jobs), default=0)
        self._driver, self._stream, self._clock = driver, stream, clock
        driver.hold(stream, driver.mark_compute())  # which may still use the memory that comes next
        num_rows = -(-num_bytes // 24)  # a row is three numbers of 8 bytes
        self._sent, self._back = driver.new_table(num_rows).numbers, driver.new_table(num_rows).numbers
        # Never the bytes of the trial before, whose memory this may be.
        self._sent[:] = np.random.default_rng().integers(1 << 62, size=len(self._sent))
        self._stage = driver.new_stage(num_bytes)

    def run(self, method: Method) -> Seconds:
        """What a method takes; an error if it fails, or other bytes come back."""
        found: Seconds = {}
        for size, count in self._jobs:
            self._sent += _ONE_EACH  # other bytes than those of the try before, which are still there
            for direction, host in ((Direction.LOAD, self._sent), (Direction.STORE, self._back)):
                ranges = self._ranges(host, size, count)
                seconds = [self._time(method, direction, ranges) for _ in range(TIMES)]
                found[Case(direction, size, count)] = min(seconds)
            sent, back = (numbers.view(np.uint8)[: size * count] for numbers in (self._sent, self._back))
            wrong = np.count_nonzero(sent != back)
            if wrong:
                raise RuntimeError(f"of {count} ranges of {size} bytes {wrong} bytes came back changed")
        return found

    def close(self) -> None:
        """Give back the memory."""
        self._driver.drain(self._stream)
        self._driver.free_stage(self._stage)

    def _ranges(self, host: Numbers, size: int, count: int) -> Ranges:
        """Ranges in random order on both sides."""
        random = np.random.default_rng(count)
        device, there = random.permutation(count) * size, random.permutation(count) * size
        return Ranges(
            np.zeros(count, np.int64), device + self._stage, there + host.ctypes.data, np.full(count, size)
        )

    def _time(self, method: Method, direction: Direction, ranges: Ranges) -> float:
        begin = self._clock()
        prepared = method.prepare(direction, ranges)
        method.give(prepared)
        self._driver.wait_for(self._driver.mark(self._stream))
        seconds = self._clock() - begin
        method.take_back(prepared)
        return seconds


def rows_of(found: Mapping[CopyEngineChoice, Seconds]) -> list[Row]:
    """The table by what trials of the same jobs found: smaller ranges first, and of them many first."""
    cases = {case for seconds in found.values() for case in seconds}
    largest = max((case.size for case in cases), default=0)
    rows = []
    for case in sorted(cases, key=lambda case: ([*Direction].index(case.direction), case.size, -case.num_ranges)):
        best = min(found, key=lambda choice, case=case: found[choice][case])  # type: ignore[misc]
        least = case.num_ranges if case.num_ranges > COUNTS[0] else FEWEST_RANGES
        below = case.size * _FACTOR // 2 if case.size < largest else sys.maxsize
        rows.append(Row(case.direction, least, below, best, Basis.MEASURED))
    return rows
