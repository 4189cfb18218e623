"""Which method copies a job best, by direction, size of page and count: one table, and whoever follows it.

A row that nobody has measured is a *guess*, from how the methods work. ``auto`` follows no guess: it should cost
somebody's speed only if they asked for it. **Nobody has run ``benchmarks/copy_engines.py`` on a GPU**, so no row
is measured. What others *published* is that one call of the driver for a whole batch is hardly ever slower than a
call for each range, and much faster for small ones; that is no property of our code. So ``auto`` follows those
rows, where such a call has proved itself on the machine; see ``choose``. Measuring a row, and saying so, is all it
takes. ``cuda-best`` has a table of its own, which a ``trial`` measures on the device.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from kv_offload_cpu.copy.cuda import Method, Stream
from kv_offload_cpu.copy.descriptors import Ranges
from kv_offload_cpu.copy.engine import Direction
from kv_offload_cpu.options import CopyEngineChoice


class Basis(Enum):
    """Where a row comes from."""

    GUESS = auto()
    PUBLISHED = auto()
    MEASURED = auto()


class Row(NamedTuple):
    """Jobs of this direction, of at least so many ranges, of less than so many bytes each on average."""

    direction: Direction
    least_ranges: int
    below_bytes: int
    method: CopyEngineChoice
    basis: Basis


FEWEST_RANGES: Final = 4
"""A job of fewer goes range by range: there is nothing to win."""

TABLE: Final = (
    Row(Direction.LOAD, 16, 32 << 10, CopyEngineChoice.CUDA_GATHER, Basis.GUESS),
    Row(Direction.LOAD, FEWEST_RANGES, 2 << 20, CopyEngineChoice.CUDA_BATCH, Basis.PUBLISHED),
    Row(Direction.STORE, 16, 32 << 10, CopyEngineChoice.CUDA_GATHER, Basis.GUESS),
    Row(Direction.STORE, FEWEST_RANGES, 2 << 20, CopyEngineChoice.CUDA_BATCH, Basis.PUBLISHED),
)
"""The first row that fits counts; where none does, range by range. ``cuda-staged`` wins nowhere, as we guess. What
was published: llm-d-kv-cache#607 and, on another make of GPU, vllm#40549."""


def known(table: Sequence[Row]) -> tuple[Row, ...]:
    """The rows that ``auto`` may follow."""
    return tuple(row for row in table if row.basis is not Basis.GUESS)


def pick(table: Sequence[Row], direction: Direction, ranges: Ranges) -> CopyEngineChoice:
    """The method for a job."""
    count = len(ranges.sizes)
    for row in table:
        if row.direction is direction and row.least_ranges <= count and ranges.num_bytes < row.below_bytes * count:
            return row.method
    return CopyEngineChoice.CUDA


class ByTable:
    """A method that hands each job to another one, as ``table`` says. All of them are of one lane.

    Every method's jobs begin and end on the lane's stream, so they stay in order whoever copies them.
    """

    def __init__(self, table: Sequence[Row], methods: Mapping[CopyEngineChoice, Method]) -> None:
        self.streams: list[Stream] = []
        self.methods = methods
        self._table = table
        for method in methods.values():
            self.streams += [stream for stream in method.streams if stream not in self.streams]

    def prepare(self, direction: Direction, ranges: Ranges) -> tuple[Method, Any]:
        method = self.methods[pick(self._table, direction, ranges)]
        return method, method.prepare(direction, ranges)

    def give(self, prepared: tuple[Method, Any]) -> None:
        method, job = prepared
        method.give(job)

    def take_back(self, prepared: tuple[Method, Any]) -> None:
        method, job = prepared
        method.take_back(job)
