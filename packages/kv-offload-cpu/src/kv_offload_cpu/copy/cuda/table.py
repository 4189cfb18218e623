"""Which method copies a job best, by direction, bytes and the size of ranges: one table, and whoever follows it.

Every row was measured, since ``auto``, which nobody asks for, must not make anybody's copies slower. Before it
follows a row, the row's method has to work on this machine (``choose``). ``cuda-best`` has a table of its own,
which a ``trial`` measures on the device.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kv_api import Direction
from kv_offload_cpu.copy.cuda.engine import Method, Stream
from kv_offload_cpu.copy.cuda.methods.page_table import word_of
from kv_offload_cpu.copy.cuda.methods.staged import HALF_BYTES
from kv_offload_cpu.copy.engine import PageCopies
from kv_offload_cpu.copy.ranges.addresses import WIDEST_WORD_BYTES
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan, Extent
from kv_offload_cpu.options import CopyEngineChoice


class Row(NamedTuple):
    """Jobs of this direction, of at least so many bytes, in ranges of less than so many on average.

    A row counts only for workers that hold at least and at most so many bytes of a chunk.
    """

    direction: Direction
    least_bytes: int
    below_bytes: int
    method: CopyEngineChoice
    least_slot_bytes: int = 0
    most_slot_bytes: int = sys.maxsize


FEWEST_RANGES: Final = 4
"""A job of fewer goes range by range: there is nothing to win."""

TABLE: Final = tuple(
    Row(direction, least_bytes, below_bytes, method, *slot_bytes)
    for direction in Direction
    for least_bytes, below_bytes, method, slot_bytes in (
        (64 << 20, 64 << 10, CopyEngineChoice.CUDA_STAGED, (256 << 10, HALF_BYTES)),
        (0, 64 << 10, CopyEngineChoice.CUDA_BULK, ()),
        (0, sys.maxsize, CopyEngineChoice.CUDA_BATCH, ()),
    )
)
"""The first row that fits counts; where none does, range by range. Measured on an H200 by
``benchmarks/copy_engines.py``; ``docs/performance.md`` has the figures. A buffer has no row for slots that would
make it larger."""


STAND_INS: Final = {CopyEngineChoice.CUDA_BULK: CopyEngineChoice.CUDA_GATHER}
"""What copies instead where pages or a device don't let a method."""


def is_odd(plan: CopyPlan) -> bool:
    """Whether its pages or slots are no multiples of the widest word: too odd for a method with a stand-in."""
    row_bytes = plan.layout.row_bytes
    return any(word_of(parts, plan.host_address, row_bytes) < WIDEST_WORD_BYTES for parts in plan.parts)


def fitting(table: Sequence[Row], plan: CopyPlan) -> tuple[Row, ...]:
    """The rows that jobs of ``plan`` can be like, with methods that can copy its pages."""
    layout, takes_others = plan.layout, is_odd(plan)
    return tuple(
        row._replace(method=STAND_INS.get(row.method, row.method)) if takes_others else row
        for row in table
        if row.least_slot_bytes <= layout.slot_bytes <= row.most_slot_bytes
        and plan.least_range_bytes < row.below_bytes
    )


def pick(table: Sequence[Row], direction: Direction, extent: Extent) -> CopyEngineChoice:
    """The method for a job."""
    count, num_bytes = extent
    if count >= FEWEST_RANGES:
        for row in table:
            if row.direction is direction and row.least_bytes <= num_bytes and num_bytes < row.below_bytes * count:
                return row.method
    return CopyEngineChoice.CUDA


class ByTable:
    """A method that hands each job to another one, as ``table`` says. All of them are of one lane.

    Every method's jobs begin and end on the lane's stream, so they stay in order whoever copies them.
    """

    def __init__(
        self,
        table: Sequence[Row],
        methods: Mapping[CopyEngineChoice, Method],
        extent: Callable[[PageCopies], Extent],
    ) -> None:
        self.streams: list[Stream] = []
        self.stages = [address for method in methods.values() for address in method.stages]
        self.methods = methods
        self._table = table
        self._extent = extent
        for method in methods.values():
            self.streams += [stream for stream in method.streams if stream not in self.streams]

    def prepare(self, direction: Direction, copies: PageCopies) -> tuple[Method, Any]:
        method = self.methods[pick(self._table, direction, self._extent(copies))]
        return method, method.prepare(direction, copies)

    def give(self, prepared: tuple[Method, Any]) -> None:
        method, job = prepared
        method.give(job)

    def take_back(self, prepared: tuple[Method, Any]) -> None:
        method, job = prepared
        method.take_back(job)
