"""Which method copies best on this device: found out by trying, before the first job, in memory that nobody uses.

Where one method overtakes another differs with the device, the direction, the size of pages, and how many there
are, so ``cuda-best`` knows none of it beforehand. Each method carries ranges, as large as this worker's and four
times as large, few and many, to the device and back. What is timed is all that a job takes, from the host's first
number until the bytes are there. Whoever was fastest gets a row of the table that jobs are looked up in.

A method that fails gets no row, and neither does one that brings back other bytes than it took. ``auto`` follows a
table of others, and has no more of this than a proof that the bytes are right.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from kv_offload_cpu.copy.addresses import oriented
from kv_offload_cpu.copy.cuda import Event, Method, Stream, Streams
from kv_offload_cpu.copy.cuda_batch import SOURCE_ORDER, BatchDriver
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

_PROOF_ROWS = 64
_FACTOR = 4
_ONE_EACH = 0x0101_0101_0101_0101


class Case(NamedTuple):
    """A job that is tried."""

    direction: Direction
    size: int
    num_ranges: int


Seconds = dict[Case, float]
"""What a method takes for each."""


class ProvingDriver(Streams, BatchDriver, Protocol):
    """What a proof asks of a device."""

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


def prove_batches(driver: ProvingDriver) -> None:
    """Send numbers to the device and back, as a load and a store would; an error if others come back."""
    sent, back = driver.new_table(_PROOF_ROWS).numbers, driver.new_table(_PROOF_ROWS).numbers
    sent[:], back[:] = np.arange(1, len(sent) + 1), 0
    begins = np.arange(0, sent.nbytes, 2 * sent.itemsize)
    sizes = np.full(len(begins), 2 * sent.itemsize)
    stage, stream = driver.new_stage(sent.nbytes), driver.new_stream()
    driver.hold(stream, driver.mark_compute())
    for direction, host in ((Direction.LOAD, sent), (Direction.STORE, back)):
        found = oriented(begins + stage, begins + host.ctypes.data, sizes, direction)
        driver.copy_batch(stream, found, SOURCE_ORDER[direction])
    driver.drain(stream)
    driver.free_stage(stage)
    if not np.array_equal(sent, back):
        raise RuntimeError(f"of {len(sent)} numbers {np.count_nonzero(sent != back)} came back changed")


class TrialDriver(ProvingDriver, Protocol):
    """What a trial asks of a device."""

    def mark(self, stream: Stream) -> Event:
        """An event after all that ``stream`` was given so far."""

    def wait_for(self, event: Event) -> None:
        """Return when all before ``event`` has been done."""


class Trial:
    """Tries methods on ``stream``, with ranges of ``range_bytes`` and more. To be closed."""

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
        num_rows = -(-num_bytes // 24)  # a row is three numbers of 8 bytes
        self._sent, self._back = driver.new_table(num_rows).numbers, driver.new_table(num_rows).numbers
        self._sent[:] = np.random.default_rng(0).integers(1 << 62, size=len(self._sent))
        self._stage = driver.new_stage(num_bytes)
        driver.hold(stream, driver.mark_compute())

    def run(self, method: Method) -> Seconds:
        """What a method takes; an error if it fails, or other bytes come back."""
        found: Seconds = {}
        for size, count in self._jobs:
            self._sent += _ONE_EACH  # other bytes than those of the tries before, which may still be there
            for direction, host in ((Direction.LOAD, self._sent), (Direction.STORE, self._back)):
                ranges = self._ranges(host, size, count)
                seconds = [self._time(method, direction, ranges) for _ in range(TIMES)]
                found[Case(direction, size, count)] = min(seconds)
            sent, back = (numbers.view(np.uint8)[: size * count] for numbers in (self._sent, self._back))
            wrong = np.count_nonzero(sent != back)
            if wrong:
                raise RuntimeError(f"of {count} ranges of {size} bytes {wrong} bytes came back changed")
        return found

    def rows(self, found: Mapping[CopyEngineChoice, Seconds]) -> Iterator[Row]:
        """The table by what was seen: smaller ranges first, and of them many first."""
        sizes = sorted({size for size, _ in self._jobs})
        for direction in Direction if found else ():
            for size in sizes:
                below = size * _FACTOR // 2 if size < sizes[-1] else sys.maxsize
                for count in sorted((count for each, count in self._jobs if each == size), reverse=True):
                    case = Case(direction, size, count)
                    best = min(found, key=lambda choice, case=case: found[choice][case])  # type: ignore[misc]
                    least = count if count > COUNTS[0] else FEWEST_RANGES
                    yield Row(direction, least, below, best, Basis.MEASURED)

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
