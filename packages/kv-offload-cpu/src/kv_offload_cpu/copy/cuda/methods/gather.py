"""A whole job in one kernel for each group, which moves bytes between GPU blocks and host memory itself.

Each copy of the driver costs a fixed time, which is too much for a small page. A kernel costs one launch for each
group. Its programs take many steps of the job's pages at a time, and read or write pinned host memory across the
link: word by word with ordinary loads and stores, or step by step with bulk copies. A kernel occupies
multiprocessors while it runs, so it has only as many programs as it takes to fill the link.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np

from kv_api import Direction
from kv_offload_cpu.copy.cuda.engine import Stream
from kv_offload_cpu.copy.cuda.methods.page_table import (
    KernelDriver,
    Kernels,
    Launch,
    Table,
    Tables,
    columns_of,
    group_steps,
)
from kv_offload_cpu.copy.engine import PageCopies
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan, by_group

PROGRAMS: Final = {Direction.LOAD: 3, Direction.STORE: 2}
"""Programs of a kernel, by direction; each takes a multiprocessor. On an H200 two nearly fill the link. Stores
that fill the link completely slow down memory access of all multiprocessors; loads don't. ``copy_engines.py
--programs`` measures what a matrix product beside them loses."""


BULK_PROGRAMS: Final = dict.fromkeys(Direction, 2)
"""Programs of the kernel of bulk copies; each has more bytes in flight than a program of the other kernel."""


class GatherDriver(KernelDriver, Protocol):
    """The device as ``OneKernel`` uses it."""

    @property
    def mapped_shift(self) -> int:
        """The difference between the device's address of a byte of host memory and the host's."""


class Gather(NamedTuple):
    """A job that is written to a table."""

    direction: Direction
    table: Table
    num_rows: int
    groups: list[tuple[int, range]]


class OneKernel:
    """Copies a job by one kernel for each group; the number of programs depends on the direction."""

    stages = ()

    def __init__(
        self,
        driver: GatherDriver,
        stream: Stream,
        plan: CopyPlan,
        programs: Mapping[Direction, int] = PROGRAMS,
        kernels: Kernels = Kernels.GATHER,
    ) -> None:
        self.streams = (stream,)
        self.tables = Tables(driver)
        self._driver = driver
        self._programs = programs
        self._row_bytes = plan.layout.row_bytes
        self._address = plan.host_address + driver.mapped_shift
        self._steps = group_steps(driver, plan, self._address, self._row_bytes, kernels)

    def prepare(self, direction: Direction, copies: PageCopies) -> Gather | None:
        if not len(copies):
            return None
        num_rows = len(copies)
        table = self.tables.borrow(num_rows)
        blocks, slots, offsets = columns_of(table, num_rows)
        groups, end = [], 0
        for group, chosen in by_group(copies.groups):
            begin, end = end, end + len(copies.blocks[chosen])
            blocks[begin:end], offsets[begin:end] = copies.blocks[chosen], copies.offsets[chosen]
            np.multiply(copies.chunks[chosen], self._row_bytes, out=slots[begin:end])
            if self._steps[group].num_steps:  # else other workers have all layers of the group
                groups.append((group, range(begin, end)))
        slots += self._address
        return Gather(direction, table, num_rows, groups)

    def give(self, prepared: Gather | None) -> None:
        if prepared is None:
            return
        (direction, table, num_rows, groups), [stream] = prepared, self.streams
        self._driver.upload(stream, table, num_rows)
        for group, rows in groups:
            launch = Launch(direction, table, num_rows, rows, self._steps[group], self._programs[direction])
            self._driver.run_kernel(stream, launch)

    def take_back(self, prepared: Gather | None) -> None:
        if prepared is not None:
            self.tables.give_back(prepared.table)
