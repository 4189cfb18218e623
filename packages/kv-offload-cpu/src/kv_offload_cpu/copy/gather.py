"""A whole job in one kernel, that moves bytes between GPU blocks and host memory with ordinary loads and stores.

The driver's copies have a price each, which small pages can't pay. A kernel's price is one launch: its programs
take pieces of the job, many at a time, and read or write pinned host memory across the link word by word. It
occupies multiprocessors for as long as it runs, so it is few programs, no more than it takes to fill the link.

Where the pieces are is written to a *table*: pinned rows, that the stream uploads, and the kernel reads on the
device. Tables are reused when their job has ended, and grow in powers of two.
"""

from collections import defaultdict
from typing import NamedTuple, Protocol

import numpy as np

from kv_offload_cpu.copy.addresses import Moves, moves, split, word_bytes
from kv_offload_cpu.copy.cuda import Stream
from kv_offload_cpu.copy.descriptors import Ranges
from kv_offload_cpu.copy.engine import Direction, Numbers

PIECE_BYTES = 16 << 10
"""No piece is longer, so that programs end at about the same time. A guess until measured."""

_FEWEST_ROWS = 256


class Table(Protocol):
    """Room for pieces: rows of target, source and size."""

    @property
    def rows(self) -> Numbers:
        """The pinned rows, which the host writes."""


class KernelDriver(Protocol):
    """What a gathering kernel asks of a device."""

    @property
    def tensor_addresses(self) -> Numbers:
        """Where each tensor begins."""

    @property
    def mapped_host_address(self) -> int:
        """Where host memory begins, for the device's own loads and stores."""

    def new_table(self, num_rows: int) -> Table:
        """A table of so many rows, on the host and on the device."""

    def upload(self, stream: Stream, table: Table, num_rows: int) -> None:
        """Give ``stream`` the copy of a table's first rows to the device."""

    def run_kernel(self, stream: Stream, table: Table, begin: int, end: int, word: int) -> None:
        """Give ``stream`` the moves of rows ``begin`` to ``end`` in any order, in words of so many bytes."""


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
        """A table with these moves in its first rows."""
        needed = max(_FEWEST_ROWS, 1 << (len(found.sizes) - 1).bit_length())
        shelf = self._shelves[needed]
        if not shelf:
            shelf.append(self._driver.new_table(needed))
            self._made += 1
        table = shelf.pop()
        self._lent += 1
        np.stack(found, axis=1, out=table.rows[: len(found.sizes)])
        return table

    def give_back(self, table: Table) -> None:
        """Nothing reads it any more."""
        self._lent -= 1
        self._shelves[len(table.rows)].append(table)

    def check(self) -> None:
        """Recount the tables."""
        kept = sum(map(len, self._shelves.values()))
        assert kept + self._lent == self._made, f"kept {kept} + lent {self._lent} != made {self._made}"
        sizes = {needed: [len(table.rows) for table in shelf] for needed, shelf in self._shelves.items()}
        assert all({*rows} <= {needed} for needed, rows in sizes.items()), f"tables in wrong shelves: {sizes}"


class Gather(NamedTuple):
    """A job in a table."""

    table: Table
    num_rows: int
    word: int


class OneKernel:
    """One kernel for each job."""

    def __init__(self, driver: KernelDriver, stream: Stream) -> None:
        self.streams = (stream,)
        self.tables = Tables(driver)
        self._driver = driver

    def prepare(self, direction: Direction, ranges: Ranges) -> Gather | None:
        driver = self._driver
        found = moves(ranges, driver.tensor_addresses, driver.mapped_host_address, direction)
        if not len(found.sizes):
            return None
        found = split(*found, PIECE_BYTES)
        return Gather(self.tables.borrow(found), len(found.sizes), word_bytes(found))

    def give(self, prepared: Gather | None) -> None:
        if prepared is not None:
            [stream] = self.streams
            self._driver.upload(stream, prepared.table, prepared.num_rows)
            self._driver.run_kernel(stream, prepared.table, 0, prepared.num_rows, prepared.word)

    def take_back(self, prepared: Gather | None) -> None:
        if prepared is not None:
            self.tables.give_back(prepared.table)
