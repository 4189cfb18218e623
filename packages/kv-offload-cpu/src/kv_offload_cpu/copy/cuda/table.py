"""Which method copies a job best, by direction, bytes and the size of ranges: a table, and a method for it.

Every row was measured: ``auto`` is the default, so it must not make anybody's copies slower. It follows a row only
if the row's method works on this machine (``choose``). ``cuda-best`` makes a table of its own, measured by trials
(``trial``) on the device.
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
    """The method for jobs of at least ``least_bytes``, in ranges of less than ``below_bytes`` on average.

    It holds only for workers whose part of a chunk has ``least_slot_bytes`` to ``most_slot_bytes``.
    """

    direction: Direction
    least_bytes: int
    below_bytes: int
    method: CopyEngineChoice
    least_slot_bytes: int = 0
    most_slot_bytes: int = sys.maxsize


FEWEST_RANGES: Final = 4
"""A job of fewer ranges is copied range by range: no method is faster."""

TABLE: Final = tuple(
    Row(direction, least_bytes, below_bytes, method, *slot_bytes)
    for direction in Direction
    for least_bytes, below_bytes, method, slot_bytes in (
        (64 << 20, 64 << 10, CopyEngineChoice.CUDA_STAGED, (256 << 10, HALF_BYTES)),
        (0, 64 << 10, CopyEngineChoice.CUDA_BULK, ()),
        (0, sys.maxsize, CopyEngineChoice.CUDA_BATCH, ()),
    )
)
"""The first row that fits a job decides; a job that no row fits is copied range by range. Measured on an H200 by
``benchmarks/copy_engines.py``; ``docs/gpu_copies.md`` has the figures. No row uses the buffer for slots that are
larger than half of it."""


STAND_INS: Final = {CopyEngineChoice.CUDA_BULK: CopyEngineChoice.CUDA_GATHER}
"""The method that is used instead where the pages, or the device, rule a method out."""


def is_odd(plan: CopyPlan) -> bool:
    """Whether pages or slots are no multiples of the widest word, which a method with a stand-in requires."""
    row_bytes = plan.layout.row_bytes
    return any(word_of(parts, plan.host_address, row_bytes) < WIDEST_WORD_BYTES for parts in plan.parts)


def fitting(table: Sequence[Row], plan: CopyPlan) -> tuple[Row, ...]:
    """The rows that jobs of ``plan`` can match, with methods that can copy its pages."""
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
    """A method that hands each job to the method that ``table`` names for it. All of them are for one lane.

    A job begins and ends on the lane's stream, whichever method copies it, so the jobs stay in order.
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
