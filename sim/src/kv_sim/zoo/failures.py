"""Planted in kv-offload and kv-multi: failures of a load within a step are not reported, or their effects kept."""

from collections.abc import Iterable
from typing import Any

from kv_api import ForwardContext, KVConnectorOutput
from kv_multi import MultiConnector
from kv_multi.scheduler_side import MultiSchedulerSide
from kv_offload.scheduler.outcomes import Outcomes
from kv_offload.scheduler.state.jobs import Job
from kv_sim.offload.host_memory import TimedOffloadingConnector, TimedWorkerSide
from kv_sim.zoo.offload import PartedScheduler
from kv_sim.zoo.planted import with_parts


class _TellsOfOthers(TimedWorkerSide):
    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        super().start_load_kv(forward_context, **kwargs)
        self._jobs.take_invalid_blocks()


class StepsLoadNotTold(TimedOffloadingConnector):
    """When a load within the step fails, the worker tells only the connector's scheduler side, not the engine."""

    worker_class = _TellsOfOthers


class _EmptiesWhatItTold(TimedWorkerSide):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._told: set[int] = set()

    def get_block_ids_with_load_errors(self) -> set[int]:
        self._told.clear()
        self._told |= super().get_block_ids_with_load_errors()
        return self._told


class FailedBlocksEmptied(TimedOffloadingConnector):
    """Failed blocks are reported in one set, which a worker empties in its next step, maybe before it is read."""

    worker_class = _EmptiesWhatItTold


class _SpoilsNothing(Outcomes):
    def _spoil(self, stores: Iterable[Job]) -> None:
        return


class StoresRestOnFailures(TimedOffloadingConnector):
    """Blocks stored in a step stay readable although a load within that step failed, so they hold wrong KV."""

    scheduler_class = with_parts(PartedScheduler, outcomes=_SpoilsNothing)


class _TellsNoBlocks(MultiSchedulerSide):
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        invalid, connector_output.invalid_block_ids = connector_output.invalid_block_ids, set()
        super().update_connector_output(connector_output)
        connector_output.invalid_block_ids = invalid


class FailedBlocksNotHandedOn(MultiConnector):
    """A child isn't told of another child's failed loads, so it keeps blocks that were computed from them."""

    scheduler_class = _TellsNoBlocks
