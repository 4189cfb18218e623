"""How others copy pages, as methods of the CUDA engine: a call for each page, or one for the whole job.

Both are made by the thread that submits the job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kv_offload_cpu import Direction, PageCopies
from kv_offload_cpu.copy.cuda.methods.batch import SOURCE_ORDER, Batch
from kv_offload_cpu.copy.ranges.addresses import moves
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan, Scratch


class Loop:
    """What stands for a batch where every copy is a call."""

    def __init__(self, bindings: Any) -> None:
        self._copy = bindings.cuMemcpyAsync

    def __call__(self, stream: Any, batch: Batch, begin: int, end: int) -> None:
        """Give a stream copies."""
        rows = zip(*(column[begin:end].tolist() for column in batch.moves), strict=True)
        for target, source, size in rows:
            [result] = self._copy(target, source, size, stream.cuda_stream)
            if int(result):
                raise RuntimeError(f"cuMemcpyAsync returned error {int(result)}")


class OtherBatches:
    """A driver with another ``copy_batch``, which is made at once."""

    def __init__(self, copy_batch: Callable[..., None]) -> None:
        self.copy_batch = copy_batch

    def go(self, stream: Any) -> None:
        """It is gone already."""


class OneCall:
    """The method of one call of the driver for a whole job."""

    stages = ()

    def __init__(self, driver: Any, stream: Any, plan: CopyPlan) -> None:
        self.streams = (stream,)
        self._driver = driver
        self._plan = plan
        self._scratch = Scratch()

    def prepare(self, direction: Direction, copies: PageCopies) -> Batch:
        """All copies."""
        return Batch(moves(self._plan.checked_ranges(copies, self._scratch), direction), SOURCE_ORDER[direction])

    def give(self, prepared: Batch) -> None:
        """The call."""
        self._driver.copy_batch(self.streams[0], prepared, 0, len(prepared))

    def take_back(self, prepared: Batch) -> None:
        """Nothing was borrowed."""
