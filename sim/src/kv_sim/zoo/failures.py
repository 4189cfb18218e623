"""Planted where a load that a step waits for fails: who is told of it, and what is kept of that step."""

from collections.abc import Iterable
from typing import Any

from kv_api import ForwardContext, KVConnectorOutput
from kv_multi import MultiConnector
from kv_multi.scheduler_side import MultiSchedulerSide
from kv_offload.scheduler.outcomes import Outcomes
from kv_offload.scheduler.state.jobs import Job
from kv_sim.offload.host_memory import TimedOffloadingConnector, TimedWorkerSide
from kv_sim.zoo.offload import PartedScheduler


class _TellsOfOthers(TimedWorkerSide):
    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        super().start_load_kv(forward_context, **kwargs)
        self._jobs.take_invalid_blocks()


class StepsLoadNotTold(TimedOffloadingConnector):
    """A load that the step waited for failed, and is told to the scheduler's side alone, not to the engine."""

    worker_class = _TellsOfOthers


class _SpoilsNothing(Outcomes):
    def _spoil(self, stores: Iterable[Job]) -> None:
        return


class _KeepsSpoilt(PartedScheduler):
    outcomes = _SpoilsNothing


class StoresRestOnFailures(TimedOffloadingConnector):
    """What is being stored of a step stays readable when it turns out that a load of that step had failed."""

    scheduler_class = _KeepsSpoilt


class _TellsNoBlocks(MultiSchedulerSide):
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        invalid, connector_output.invalid_block_ids = connector_output.invalid_block_ids, set()
        super().update_connector_output(connector_output)
        connector_output.invalid_block_ids = invalid


class FailedBlocksNotHandedOn(MultiConnector):
    """Children hear of failed loads from their own workers only, so that one keeps what rests on another's."""

    scheduler_class = _TellsNoBlocks
