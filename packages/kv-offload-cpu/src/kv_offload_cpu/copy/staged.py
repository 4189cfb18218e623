"""A job by way of a buffer on the device: a kernel joins pages there, and the driver copies what is joined.

Pages of a chunk are scattered over the GPU, one in each tensor, but its slot in host memory is one stretch of
bytes. So a kernel gathers pages in the order of host memory, at the speed of the device's memory, and one copy
takes each stretch; a load goes the other way round. That pays where chunks are large and pages small. Slots of
different chunks are rarely neighbours, so the copies are as many as the chunks: the driver takes those of a piece
as a batch.

**Theory of operation.** The buffer has two halves. A job is cut into pieces that fill one each, and while the
copies of one piece run, on the lane's stream, the kernel works on the other half, on a stream of its own. Each
stream waits, by events, for the other one's work on the half that it wants. A job begins and ends on the lane's
stream, so between two jobs both halves are free, and nothing is remembered from one to the next.

When the kernel reads or writes the buffer is the streams' order, so copies out of it read in stream order, too.
Those out of host memory may read at any time: see ``cuda_batch``.
"""

from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from kv_offload_cpu.copy.addresses import Moves, oriented, split, word_bytes
from kv_offload_cpu.copy.cuda import Event, Stream, Streams
from kv_offload_cpu.copy.cuda_batch import SOURCE_ORDER, BatchDriver
from kv_offload_cpu.copy.descriptors import Ranges
from kv_offload_cpu.copy.engine import Direction, Numbers
from kv_offload_cpu.copy.gather import KernelDriver, Table, Tables, longest_piece

HALF_BYTES = 16 << 20
"""Of half a buffer; there is a buffer for each of three lanes. A piece is half of that to all of it, which should
take longer to copy than to submit. A guess until measured."""

_ALIGN = 16


class StageDriver(Streams, BatchDriver, KernelDriver, Protocol):
    """What staging asks of a device."""

    def new_stage(self, num_bytes: int) -> int:
        """The address of memory on the device, which is kept until the shutdown."""


class Stage(NamedTuple):
    """A job cut for a buffer: piece ``i`` has the pages from ``page_ends[i]`` to ``page_ends[i + 1]``.

    ``device`` and the next two are of pages: the address in a tensor, the place in the buffer, the size. ``host``
    and the rest are of stretches: the address in host memory, place and size, and the ends of the pieces.
    """

    device: Numbers
    page_stage: Numbers
    page_sizes: Numbers
    page_ends: list[int]
    host: Numbers
    stage: Numbers
    sizes: Numbers
    ends: list[int]


def cut(ranges: Ranges, half_bytes: int) -> Stage:
    """Where pages lie in a buffer, in their order, and the stretches that they join to. Pure."""
    _, device, host, sizes = ranges
    # Half of a half at most: then a piece that begins within one half's length never outgrows it.
    device, host, sizes = split(device, host, sizes, min(half_bytes // 2, longest_piece(half_bytes // 2)))
    begins = np.concatenate(([True], host[1:] != host[:-1] + sizes[:-1]))
    firsts = np.flatnonzero(begins)
    lengths = np.add.reduceat(sizes, firsts)
    room = -(-lengths // _ALIGN) * _ALIGN
    # In a buffer without an end: stretch after stretch, each of which begins aligned.
    stage = host + np.repeat(np.cumsum(room) - room - host[firsts], np.diff([*firsts, len(sizes)]))
    piece = stage // (half_bytes // 2)
    cuts = np.flatnonzero(np.concatenate(([True], piece[1:] != piece[:-1])))
    base = stage[cuts] // _ALIGN * _ALIGN
    halves = np.arange(len(cuts)) % 2 * half_bytes
    stage += np.repeat(halves - base, np.diff([*cuts, len(sizes)]))
    begins[cuts] = True  # a stretch ends with its piece
    firsts = np.flatnonzero(begins)
    return Stage(
        device,
        stage,
        sizes,
        [*cuts.tolist(), len(sizes)],
        host[firsts],
        stage[firsts],
        np.add.reduceat(sizes, firsts),
        [*np.searchsorted(firsts, cuts).tolist(), len(firsts)],
    )


class Staged(NamedTuple):
    """A job, ready to go: the table of its kernels, their rows in each piece, and its copies in each piece."""

    direction: Direction
    table: Table
    word: int
    rows: list[range]
    copies: list[Moves]

    @property
    def num_rows(self) -> int:
        """Of the whole table."""
        return self.rows[-1].stop


class TwoHalves:
    """A buffer of two halves for a lane."""

    def __init__(self, driver: StageDriver, stream: Stream, half_bytes: int = HALF_BYTES) -> None:
        assert half_bytes % (2 * _ALIGN) == 0, f"a half of {half_bytes} bytes, not of {2 * _ALIGN} × n"
        kernels = driver.new_stream()
        self.streams = (stream, kernels)
        self.tables = Tables(driver)
        self._driver = driver
        self._half_bytes = half_bytes
        self._address = driver.new_stage(2 * half_bytes)

    def prepare(self, direction: Direction, ranges: Ranges) -> Staged | None:
        if not len(ranges.sizes):
            return None
        stage, buffer = cut(ranges, self._half_bytes), self._address
        copies = oriented(stage.stage + buffer, stage.host, stage.sizes, direction)
        kernels = oriented(stage.device, stage.page_stage + buffer, stage.page_sizes, direction)
        table = self.tables.borrow(kernels)
        return Staged(
            direction,
            table,
            word_bytes(kernels),
            [range(*span) for span in pairwise(stage.page_ends)],
            [Moves(*(column[slice(*span)] for column in copies)) for span in pairwise(stage.ends)],
        )

    def give(self, prepared: Staged | None) -> None:
        if prepared is None:
            return
        copies, kernels = self.streams
        self._driver.hold(kernels, self._driver.mark(copies))
        self._driver.upload(kernels, prepared.table, prepared.num_rows)
        if prepared.direction is Direction.STORE:
            self._store(prepared)
        else:
            self._load(prepared)

    def take_back(self, prepared: Staged | None) -> None:
        if prepared is not None:
            self.tables.give_back(prepared.table)

    def _store(self, job: Staged) -> None:
        driver, (copies, kernels) = self._driver, self.streams
        copied: list[Event] = []
        for piece, (rows, found) in enumerate(zip(job.rows, job.copies, strict=True)):
            if piece >= 2:
                driver.hold(kernels, copied[piece - 2])
            driver.run_kernel(kernels, job.table, job.num_rows, rows, job.word)
            driver.hold(copies, driver.mark(kernels))
            driver.copy_batch(copies, found, SOURCE_ORDER[Direction.STORE])
            copied.append(driver.mark(copies))

    def _load(self, job: Staged) -> None:
        driver, (copies, kernels) = self._driver, self.streams
        scattered: list[Event] = []
        for piece, (rows, found) in enumerate(zip(job.rows, job.copies, strict=True)):
            if piece >= 2:
                driver.hold(copies, scattered[piece - 2])
            driver.copy_batch(copies, found, SOURCE_ORDER[Direction.LOAD])
            driver.hold(kernels, driver.mark(copies))
            driver.run_kernel(kernels, job.table, job.num_rows, rows, job.word)
            scattered.append(driver.mark(kernels))
        driver.hold(copies, scattered[-1])
