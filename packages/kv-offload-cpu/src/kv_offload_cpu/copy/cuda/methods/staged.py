"""A job by way of a buffer on the device: a kernel joins pages there, and the driver copies what is joined.

Pages of a chunk are scattered over the GPU, one in each tensor, but its slot in host memory is one stretch of
bytes. So a kernel gathers pages into slots of a buffer that look like those of host memory, at the speed of the
device's memory, and one copy takes each; a load goes the other way round. That pays where chunks are large and
pages small: nothing that crosses the link is smaller than what a worker holds of a chunk, and multiprocessors are
taken for an instant at a time.

**Theory of operation.** The buffer has two halves, and a job is cut into pieces that fill one each. While the
copies of one piece run, on the lane's stream, the kernel works on the other half, on a stream of its own. Each
stream waits, by events, for the other one's work on the half that it wants; so does the next job, which begins
with the half that was not used last. The host works out the first pieces, gives them to the streams, and works
out the others while those are copied.

When the kernel reads or writes the buffer is the streams' order, so copies out of it read in stream order, too.
Those out of host memory may read at any time: see ``batch``.

**Invariant.** ``_free[half]`` is behind all that was given for that half.
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
"""Of half a buffer, of which each of three lanes has one; more where one slot needs more. Its copy should take
longer than the host needs for the next piece, even if that has slots of 64 KiB and goes both ways. Between two
kernels that take all multiprocessors each half gets its turn once, so larger ones would carry more beside long
kernels; but one that begins while few multiprocessors are left keeps these for the longer, the larger it is."""

PROGRAMS = 128
"""Of a kernel that goes from the device's memory to the device's: nearly all multiprocessors, for an instant. For
the copy a few would do; with as many it is over sooner."""


class StageDriver(Streams, BatchDriver, KernelDriver, Protocol):
    """What staging asks of a device."""

    def new_stage(self, num_bytes: int) -> int:
        """The address of memory on the device, which is kept until the shutdown."""

    def free_stage(self, address: int) -> None:
        """Give back memory on the device that nothing uses."""


class Part(NamedTuple):
    """Pages of a job in a table, cut into pieces."""

    table: Table
    num_rows: int
    pieces: list[Piece]


class Staged(NamedTuple):
    """A job: the parts that were worked out, and the pages that will be once these are on their way."""

    direction: Direction
    parts: list[Part]
    rest: PageCopies


class TwoHalves:
    """A buffer of two halves for a lane."""

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
            driver.free_stage(self.stages[0])  # nobody else will learn of it
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
        """Work out a part of a job."""
        num_rows = len(copies)
        if not num_rows:
            return
        part = Part(self.tables.borrow(num_rows), num_rows, [])
        job.parts.append(part)
        columns = columns_of(part.table, num_rows)
        part.pieces.extend(self._cutter.cut(job.direction, copies, columns, self._half, small_first=small_first))
        self._half = (self._half + len(part.pieces)) % 2

    def _give_last(self, job: Staged) -> None:
        """Give the streams the part that was worked out last."""
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
        if steps.num_steps:  # else its layers are other workers'
            launch = Launch(direction, part.table, part.num_rows, piece.rows, steps, PROGRAMS)
            self._driver.run_kernel(self.streams[1], launch)
