"""Bugs planted in kv-offload: what is still under way of a request that was preempted, or whose id came back."""

from collections.abc import Sequence

from kv_api import KVConnectorOutput
from kv_offload.scheduler.loading.matching import Matching
from kv_offload.scheduler.outcomes import Outcomes
from kv_offload.scheduler.state.request_state import RequestState
from kv_sim.offload.host_memory import TimedOffloadingConnector
from kv_sim.zoo.offload import PartedScheduler
from kv_sim.zoo.planted import with_parts


class _LoadsAlone(Matching):
    def begin_load(self, state: RequestState, tables: Sequence[Sequence[int]], tokens: int) -> None:
        assert not state.stores, f"request {state.context.req_id} loads while its stores {state.stores} go on"
        super().begin_load(state, tables, tokens)


class LoadsBesideItsStores(TimedOffloadingConnector):
    """It takes for granted that the stores of a preempted request have ended when the request loads."""

    scheduler_class = with_parts(PartedScheduler, matching=_LoadsAlone)


class _CountsByRequest(Outcomes):
    def take(self, output: KVConnectorOutput) -> None:
        for job in self._books.jobs.live.values():
            job.owner = self._books.states.get(job.owner.context.req_id, job.owner)
        super().take(output)


class JobsOfAnEarlierLife(TimedOffloadingConnector):
    """The end of a copy counts for whichever request has the id now, also for a new one with an old id."""

    scheduler_class = with_parts(PartedScheduler, outcomes=_CountsByRequest)
