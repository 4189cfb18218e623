"""A whole job in one kernel, that moves bytes between GPU blocks and host memory with ordinary loads and stores.

The driver's copies have a price each, which small pages can't pay. A kernel's price is one launch: its programs
take pieces of the job, many at a time, and read or write pinned host memory across the link word by word. It
occupies multiprocessors for as long as it runs, so it is few programs, no more than it takes to fill the link.

Where the pieces are is written to a *table*, pinned, that the stream uploads, and the kernel reads on the device:
all targets, then all sources, then all sizes. Tables are reused when their job has ended, and grow in powers of
two.
"""

from collections import defaultdict
from typing import NamedTuple, Protocol

import numpy as np

from kv_offload_cpu.copy.addresses import Moves, moves, split, word_bytes
from kv_offload_cpu.copy.cuda import Stream
from kv_offload_cpu.copy.descriptors import Ranges
from kv_offload_cpu.copy.engine import Direction, Numbers

STEP_BYTES = 4 << 10
"""What a program moves of a piece at once; less is no piece."""

ENOUGH_PIECES = 512
"""So many pieces keep all programs at work to about the same time; more are only made if pages are. A guess."""

_FEWEST_ROWS = 256


class Table(Protocol):
    """Room for pieces: three numbers for each."""

    @property
    def numbers(self) -> Numbers:
        """The pinned numbers, which the host writes: targets of all pieces, then sources, then sizes."""


class KernelDriver(Protocol):
    """What a gathering kernel asks of a device."""

    @property
    def mapped_shift(self) -> int:
        """What to add to an address in host memory for the device's own loads and stores."""

    def new_table(self, num_rows: int) -> Table:
        """A table of so many rows, on the host and on the device."""

    def upload(self, stream: Stream, table: Table, num_rows: int) -> None:
        """Give ``stream`` the copy of a table of so many rows to the device."""

    def run_kernel(self, stream: Stream, table: Table, num_rows: int, rows: range, word: int) -> None:
        """Give ``stream`` the moves of some of a table's rows in any order, in words of so many bytes."""


class Tables:
    """Tables of one lane, lent to a job and taken back.

    **Invariant** (``check``): a table is lent, or in the shelf of its size.
    """

    def __init__(self, driver: KernelDriver) -> None:
        self._driver = driver
        self._shelves: defaultdict[int, list[Table]] = defaultdict(list)
        self._made = 0
        self._lent = 0

    def borrow(self, found: Moves) -> Table:
        """A table of these moves."""
        num_rows = len(found.sizes)
        needed = max(_FEWEST_ROWS, 1 << (num_rows - 1).bit_length())
        shelf = self._shelves[needed]
        if not shelf:
            shelf.append(self._driver.new_table(needed))
            self._made += 1
        table = shelf.pop()
        self._lent += 1
        np.concatenate(found, out=table.numbers[: 3 * num_rows])
        return table

    def give_back(self, table: Table) -> None:
        """Nothing reads it any more."""
        self._lent -= 1
        self._shelves[len(table.numbers) // 3].append(table)

    def check(self) -> None:
        """Recount the tables."""
        kept = sum(map(len, self._shelves.values()))
        assert kept + self._lent == self._made, f"kept {kept} + lent {self._lent} != made {self._made}"
        found = {rows: {len(table.numbers) for table in shelf} for rows, shelf in self._shelves.items()}
        assert all(sizes <= {3 * rows} for rows, sizes in found.items()), f"tables in wrong shelves: {found}"


class Gather(NamedTuple):
    """A job in a table."""

    table: Table
    num_rows: int
    word: int


def longest_piece(num_bytes: int) -> int:
    """How long a piece of a job may be, so that there are enough; a multiple of the widest word."""
    return -(-num_bytes // (ENOUGH_PIECES * STEP_BYTES)) * STEP_BYTES


class OneKernel:
    """One kernel for each job."""

    def __init__(self, driver: KernelDriver, stream: Stream) -> None:
        self.streams = (stream,)
        self.tables = Tables(driver)
        self._driver = driver

    def prepare(self, direction: Direction, ranges: Ranges) -> Gather | None:
        if not len(ranges.sizes):
            return None
        if shift := self._driver.mapped_shift:
            ranges = ranges._replace(host=ranges.host + shift)
        found = split(*moves(ranges, direction), longest_piece(ranges.num_bytes))
        return Gather(self.tables.borrow(found), len(found.sizes), word_bytes(found))

    def give(self, prepared: Gather | None) -> None:
        if prepared is not None:
            (table, num_rows, word), [stream] = prepared, self.streams
            self._driver.upload(stream, table, num_rows)
            self._driver.run_kernel(stream, table, num_rows, range(num_rows), word)

    def take_back(self, prepared: Gather | None) -> None:
        if prepared is not None:
            self.tables.give_back(prepared.table)
