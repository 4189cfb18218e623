"""A job through a buffer on the device: a kernel gathers pages in the buffer, and the driver copies whole slots.

Pages of a chunk are scattered over the GPU, one in each tensor, but its slot in host memory is one stretch of
bytes. So a kernel gathers pages, at the speed of the device's memory, into slots of a buffer that have the layout
of slots in host memory, and one copy takes each slot; a load goes the other way round. That pays where chunks are
large and pages small: every copy across the link is as large as the worker's part of a chunk, and the kernel takes
multiprocessors only for an instant at a time.

**Theory of operation.** The buffer has two halves, and a job is cut into pieces that fill one half each. While the
copies of one piece run, on the lane's stream, the kernel works on the other half, on a stream of its own. Each
stream waits, by events, for the other stream's work on the half that it uses next. So does the next job, which
begins with the half that was not used last. The host prepares the first pieces, gives them to the streams, and
prepares the others while the first are copied.

The kernel reads and writes the buffer in the streams' order, so copies out of the buffer must read in stream
order, too. Copies out of host memory may read at any time: see ``batch``.

**Invariant.** ``_free[half]`` is an event after all work that was given for that half.
"""

from itertools import repeat
from typing import NamedTuple, Protocol

from kv_api import Direction
from kv_offload_cpu.copy.cuda.engine import Event, Stream, Streams
from kv_offload_cpu.copy.cuda.methods.batch import CALL_COPIES, BatchDriver
from kv_offload_cpu.copy.cuda.methods.page_table import (
    KernelDriver,
    Kernels,
    Launch,
    Table,
    Tables,
    columns_of,
    group_steps,
)
from kv_offload_cpu.copy.cuda.methods.pieces import Cutter, Piece
from kv_offload_cpu.copy.engine import PageCopies
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan

HALF_BYTES = 16 << 20
"""Bytes of half a buffer, or one slot if that is larger; each of the three lanes has a buffer. Copying a half
should take longer than the host needs to prepare the next piece, even with slots of 64 KiB and both directions at
work. Larger halves would move more beside long kernels of the model: between two kernels that take all
multiprocessors each half is used once. But a gathering kernel that starts on the few multiprocessors left keeps
them for longer, the larger a half is."""

PROGRAMS = 128
"""Programs of a kernel that moves pages within the device's memory: nearly all multiprocessors, for an instant. A
few would keep up with the copies; with this many the kernel ends sooner."""


class StageDriver(Streams, BatchDriver, KernelDriver, Protocol):
    """The device as ``TwoHalves`` uses it."""

    def new_stage(self, num_bytes: int) -> int:
        """Allocate memory on the device, until the shutdown; returns its address."""

    def free_stage(self, address: int) -> None:
        """Free memory of the device that nothing uses."""


class Part(NamedTuple):
    """Pages of a job, written to a table and cut into pieces."""

    table: Table
    num_rows: int
    pieces: list[Piece]


class Staged(NamedTuple):
    """A job: the parts that are prepared, and the pages to prepare once those are given to the streams."""

    direction: Direction
    parts: list[Part]
    rest: PageCopies


class TwoHalves:
    """Copies a lane's jobs through a buffer of two halves."""

    def __init__(
        self,
        driver: StageDriver,
        stream: Stream,
        plan: CopyPlan,
        half_bytes: int = HALF_BYTES,
        kernels: Kernels = Kernels.GATHER,
    ) -> None:
        self.streams = (stream, driver.new_stream(beside=stream))
        self.tables = Tables(driver)
        self._driver = driver
        self._cutter = cutter = Cutter(plan, half_bytes)
        self.stages = (driver.new_stage(2 * cutter.half_bytes),)
        cutter.put_at(self.stages[0])
        try:
            self._steps = group_steps(driver, plan, cutter.rows_at, cutter.slots_apart, kernels)
        except BaseException:
            driver.free_stage(self.stages[0])  # the constructor fails, so nobody else can free it
            raise
        self._free: list[Event | None] = [None, None]
        self._half = 0

    def prepare(self, direction: Direction, copies: PageCopies) -> Staged:
        first = self._cutter.first_pages
        if len(copies) < 2 * first:
            first = len(copies)
        job = Staged(direction, [], copies.part(first, len(copies)))
        self._add(job, copies.part(0, first), small_first=True)
        return job

    def give(self, prepared: Staged) -> None:
        self._give_last(prepared)
        if len(prepared.rest):
            self._add(prepared, prepared.rest, small_first=False)
            self._give_last(prepared)
        if prepared.direction is Direction.LOAD and prepared.parts:
            copies, kernels = self.streams
            self._driver.hold(copies, self._driver.mark(kernels))

    def take_back(self, prepared: Staged) -> None:
        for part in prepared.parts:
            self.tables.give_back(part.table)

    def _add(self, job: Staged, copies: PageCopies, *, small_first: bool) -> None:
        """Prepare a part of a job."""
        num_rows = len(copies)
        if not num_rows:
            return
        part = Part(self.tables.borrow(num_rows), num_rows, [])
        job.parts.append(part)
        columns = columns_of(part.table, num_rows)
        part.pieces.extend(self._cutter.cut(job.direction, copies, columns, self._half, small_first=small_first))
        self._half = (self._half + len(part.pieces)) % 2

    def _give_last(self, job: Staged) -> None:
        """Give the streams the part that was prepared last."""
        if not job.parts:
            return
        part = job.parts[-1]
        self._driver.upload(self.streams[1], part.table, part.num_rows)
        for piece in part.pieces:
            if job.direction is Direction.STORE:
                self._store(part, piece)
            else:
                self._load(part, piece)
            if piece is part.pieces[0] and part is job.parts[0]:
                self._driver.go(self.streams[0])
        self._driver.go(self.streams[0])

    def _store(self, part: Part, piece: Piece) -> None:
        driver, (copies, kernels) = self._driver, self.streams
        if (free := self._free[piece.half]) is not None:
            driver.hold(kernels, free)
        self._run_kernel(Direction.STORE, part, piece)
        driver.hold(copies, driver.mark(kernels))
        self._copy(piece)
        self._free[piece.half] = driver.mark(copies)

    def _load(self, part: Part, piece: Piece) -> None:
        driver, (copies, kernels) = self._driver, self.streams
        if (free := self._free[piece.half]) is not None:
            driver.hold(copies, free)
        self._copy(piece)
        driver.hold(kernels, driver.mark(copies))
        self._run_kernel(Direction.LOAD, part, piece)
        self._free[piece.half] = driver.mark(kernels)

    def _copy(self, piece: Piece) -> None:
        for call in piece.batch.calls(*piece.copies, repeat(CALL_COPIES)):
            self._driver.copy_batch(self.streams[0], piece.batch, *call)

    def _run_kernel(self, direction: Direction, part: Part, piece: Piece) -> None:
        steps = self._steps[piece.group]
        if steps.num_steps:  # else other workers have all layers of the group
            launch = Launch(direction, part.table, part.num_rows, piece.rows, steps, PROGRAMS)
            self._driver.run_kernel(self.streams[1], launch)
