"""What a kernel is told of a job: three numbers a page; and what it knows already: where each step of a page is.

A page of a group is in several tensors, and is moved in *steps* of at most 4 KiB. Where a step is in a tensor
depends on the block; where it is in a slot depends on the slot, and on the page's offset in it. The kernel adds
both up for each step, so what the host has to do for a job doesn't grow with the number of layers. The slot may be
one of host memory, or of a buffer that looks like it.

The numbers of a job's pages are a *table*, in pinned memory. A stream uploads it before the job's kernels run;
when the job has ended, the table is used again. Tables have powers of two of rows.
"""

from collections import defaultdict
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy as np

from kv_api import Direction
from kv_offload_cpu.copy.cuda.engine import Stream
from kv_offload_cpu.copy.engine import Numbers
from kv_offload_cpu.copy.ranges.addresses import widest_word
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan, Parts

STEP_BYTES = 4 << 10
"""What a program moves of a page at once, at most."""

COLUMNS = 3
"""Of a job's table: the block, the address of the slot (rather, of the row that it would be in), the offset."""

_FEWEST_ROWS = 256


class Kernels(Enum):
    """Which kernel moves the steps."""

    GATHER = "gather"
    """The threads of a multiprocessor, by registers; Triton's."""
    BULK = "bulk"
    """The multiprocessor's bulk copies, by shared memory; words of 16 bytes only."""
    PLAIN = "plain"
    """The threads of many short programs, which only move within the device's memory."""


class Table(Protocol):
    """Pinned memory with room for the numbers of so many pages, and as much on the device."""

    @property
    def numbers(self) -> Numbers:
        """The numbers in pinned memory, which the host writes, column after column."""


class Steps(NamedTuple):
    """The steps of a group's page, as a kernel knows them, column after column.

    ``on_device`` has their addresses in block 0, strides, places in a row, and sizes of pages and of steps.
    """

    on_device: Any
    num_steps: int
    word: int


class Launch(NamedTuple):
    """One kernel: some rows of a table of ``num_rows``, by ``programs`` programs.

    Programs of ``Kernels.PLAIN`` are as many as there is for them to do.
    """

    direction: Direction
    table: Table
    num_rows: int
    rows: range
    steps: Steps
    programs: int


class KernelDriver(Protocol):
    """What a gathering kernel asks of a device."""

    def new_table(self, num_rows: int) -> Table:
        """A table of so many pages, on the host and on the device."""

    def new_steps(self, numbers: Numbers, count: int, word: int, kernels: Kernels) -> Any:
        """Put the numbers of so many steps on the device, for good, and make the kernels ready that move them."""

    def upload(self, stream: Stream, table: Table, num_rows: int) -> None:
        """Have ``stream`` copy the first so many rows of a table to the device."""

    def run_kernel(self, stream: Stream, launch: Launch) -> None:
        """Have ``stream`` run a kernel that moves some of a table's pages, in any order."""


def group_steps(
    driver: KernelDriver, plan: CopyPlan, slots_at: int, slots_apart: int, kernels: Kernels = Kernels.GATHER
) -> list[Steps]:
    """The steps of each group, for slots whose rows begin at ``slots_at`` and are so far apart."""
    found = []
    for parts in plan.parts:
        counts = -(-parts.sizes // STEP_BYTES)
        of_part = np.repeat(np.arange(len(counts)), counts)
        begins = (np.arange(len(of_part)) - np.repeat(np.cumsum(counts) - counts, counts)) * STEP_BYTES
        columns = (
            parts.addresses[of_part] + begins,
            parts.strides[of_part],
            parts.host_begins[of_part] + begins,
            parts.sizes[of_part],
            np.minimum(parts.sizes[of_part] - begins, STEP_BYTES),
        )
        numbers = np.concatenate(columns)
        word = word_of(parts, slots_at, slots_apart)
        found.append(Steps(driver.new_steps(numbers, len(of_part), word, kernels), len(of_part), word))
    return found


def word_of(parts: Parts, slots_at: int, slots_apart: int) -> int:
    """The widest word in which a group's pages can be moved."""
    columns = (parts.addresses, parts.strides, parts.host_begins, parts.sizes)
    return widest_word([*columns, np.array([slots_at, slots_apart])])


class Tables:
    """Tables of one lane, lent to a job and taken back.

    **Invariant** (``check``): a table is lent, or in the shelf of its size.
    """

    def __init__(self, driver: KernelDriver) -> None:
        self._driver = driver
        self._shelves: defaultdict[int, list[Table]] = defaultdict(list)
        self._made = 0
        self._lent = 0

    def borrow(self, num_rows: int) -> Table:
        """A table with room for at least so many pages."""
        needed = max(_FEWEST_ROWS, 1 << (num_rows - 1).bit_length())
        shelf = self._shelves[needed]
        if not shelf:
            shelf.append(self._driver.new_table(needed))
            self._made += 1
        self._lent += 1
        return shelf.pop()

    def give_back(self, table: Table) -> None:
        """Take back a table that no kernel and no upload reads any more."""
        self._lent -= 1
        self._shelves[len(table.numbers) // COLUMNS].append(table)

    def check(self) -> None:
        """Recount the tables."""
        kept = sum(map(len, self._shelves.values()))
        assert kept + self._lent == self._made, f"kept {kept} + lent {self._lent} != made {self._made}"
        found = {rows: {len(table.numbers) for table in shelf} for rows, shelf in self._shelves.items()}
        assert all(sizes <= {COLUMNS * rows} for rows, sizes in found.items()), f"tables in wrong shelves: {found}"


def columns_of(table: Table, num_rows: int) -> Numbers:
    """A table's numbers as one row for each column."""
    return table.numbers[: COLUMNS * num_rows].reshape(COLUMNS, num_rows)
