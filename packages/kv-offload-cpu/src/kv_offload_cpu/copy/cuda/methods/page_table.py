"""What a kernel is given for a job: a table of three numbers a page, and, once for all jobs, the steps of a page.

A page of a group is in several tensors, and is moved in *steps* of at most 4 KiB. A step's place in a tensor
depends on the block; its place in a slot depends on the slot, and on the page's offset in the slot. The kernel
computes both for each step, so the host's work for a job doesn't grow with the number of layers. The slot is in
host memory, or in a buffer of the same layout.

The numbers of a job's pages are a *table*, in pinned memory. A stream uploads it before the job's kernels run.
When the job has ended, another job uses the table. The number of a table's rows is a power of two.
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
"""Bytes of a page that a program moves at once, at most."""

COLUMNS = 3
"""Columns of a table: the block, the address of the slot's row, and the page's offset in the slot."""

_FEWEST_ROWS = 256


class Kernels(Enum):
    """The kernels that move steps."""

    GATHER = "gather"
    """Threads move words through registers; the kernel in Triton."""
    BULK = "bulk"
    """Bulk copies through shared memory; words of 16 bytes only."""
    PLAIN = "plain"
    """Threads of many short programs; only for moves within the device's memory."""


class Table(Protocol):
    """Pinned memory for the numbers of some pages, and as much memory on the device."""

    @property
    def numbers(self) -> Numbers:
        """The numbers in pinned memory, one column after the other; the host writes them."""


class Steps(NamedTuple):
    """The steps of a group's page, in memory of the device, one column after the other.

    ``on_device`` has each step's address in block 0, its stride, its place in a row, the size of its page and its
    own size.
    """

    on_device: Any
    num_steps: int
    word: int


class Launch(NamedTuple):
    """The launch of a kernel for some rows of a table of ``num_rows`` rows, with ``programs`` programs.

    ``Kernels.PLAIN`` ignores ``programs`` and has as many as the steps need.
    """

    direction: Direction
    table: Table
    num_rows: int
    rows: range
    steps: Steps
    programs: int


class KernelDriver(Protocol):
    """The device as methods with kernels use it."""

    def new_table(self, num_rows: int) -> Table:
        """Make a table of ``num_rows`` rows, on the host and on the device."""

    def new_steps(self, numbers: Numbers, count: int, word: int, kernels: Kernels) -> Any:
        """Put the numbers of ``count`` steps on the device, until the shutdown; prepare the kernels for them."""

    def upload(self, stream: Stream, table: Table, num_rows: int) -> None:
        """Have ``stream`` copy the first ``num_rows`` rows of a table to the device."""

    def run_kernel(self, stream: Stream, launch: Launch) -> None:
        """Have ``stream`` run a kernel that moves the pages of some of a table's rows, in any order."""


def group_steps(
    driver: KernelDriver, plan: CopyPlan, slots_at: int, slots_apart: int, kernels: Kernels = Kernels.GATHER
) -> list[Steps]:
    """The steps of each group, for slots whose rows begin at ``slots_at``, ``slots_apart`` bytes apart."""
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
    """The tables of one lane, each lent to a job and then taken back.

    **Invariant** (``check``): a table is lent to a job, or on the shelf of its size.
    """

    def __init__(self, driver: KernelDriver) -> None:
        self._driver = driver
        self._shelves: defaultdict[int, list[Table]] = defaultdict(list)
        self._made = 0
        self._lent = 0

    def borrow(self, num_rows: int) -> Table:
        """A table with at least ``num_rows`` rows."""
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
