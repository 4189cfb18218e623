"""Bugs planted in kv-offload-file's copy engine, which stages chunks in host memory between GPU and file."""

from typing import Any, ClassVar

from kv_api import Direction
from kv_offload_cpu.copy.engine import CopyEngine
from kv_offload_file.engine import FileCopyEngine, Slots
from kv_sim.offload.files import WorldFileCopyEngine, WorldFileOffloadingSpec
from kv_sim.offload.host_memory import TimedOffloadingConnector


class _PlantedSpec(WorldFileOffloadingSpec):
    engine_class: ClassVar[type[WorldFileCopyEngine]]

    def make_engine(self, inner: CopyEngine, slots: Slots, num_blocks: list[int]) -> FileCopyEngine:
        return self.engine_class(inner, slots, self.num_bays, num_blocks)


class _WrittenTooEarly(WorldFileCopyEngine):
    def _copy(self, batch: Any) -> None:
        super()._copy(batch)
        if batch.job.direction is Direction.STORE:
            super()._move(batch)

    def _move(self, batch: Any) -> None:
        if batch.job.direction is Direction.LOAD:
            super()._move(batch)


class WrittenTooEarlySpec(_PlantedSpec):
    """See `WrittenBeforeCopied`."""

    engine_class = _WrittenTooEarly


class WrittenBeforeCopied(TimedOffloadingConnector):
    """A chunk in staging memory is written to the file while it is still being copied from the GPU."""


class _CopiedTooEarly(WorldFileCopyEngine):
    def _move(self, batch: Any) -> None:
        super()._move(batch)
        if batch.job.direction is Direction.LOAD:
            self._copy(batch)

    def _task_ended(self, batch: Any, problem: Exception | None) -> None:
        if batch.job.direction is Direction.STORE:
            super()._task_ended(batch, problem)


class CopiedTooEarlySpec(_PlantedSpec):
    """See `CopiedBeforeRead`."""

    engine_class = _CopiedTooEarly


class CopiedBeforeRead(TimedOffloadingConnector):
    """The copy to the GPU begins while the chunk is still being read from the file into staging memory."""


class _InPart(WorldFileCopyEngine):
    def _end(self, batch: Any, *, success: bool) -> None:
        batch.job.begun = len(batch.job.slots)
        super()._end(batch, success=success)


class InPartSpec(_PlantedSpec):
    """See `FirstPartIsAll`."""

    engine_class = _InPart


class FirstPartIsAll(TimedOffloadingConnector):
    """A job that is larger than the staging memory is reported as ended when its first part has ended."""


class _BothWays(WorldFileCopyEngine):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        stores, loads = (self._lanes[direction] for direction in (Direction.STORE, Direction.LOAD))
        loads.bays, loads.free = stores.bays, [*stores.bays]


class BothWaysSpec(_PlantedSpec):
    """See `BaysForBothWays`."""

    engine_class = _BothWays


class BaysForBothWays(TimedOffloadingConnector):
    """Stores and loads allocate staging memory independently of each other, so they use the same bays at once."""
