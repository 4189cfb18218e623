"""Bugs planted in kv-offload's connector: requests that wait for ever or not at all, and a wrong rank offset."""

from typing import Any

from kv_api import BlockIds, LookupResult, OffloadKey, Request
from kv_offload.scheduler.loading.lookup import Match
from kv_offload.scheduler.loading.matching import Matching
from kv_offload.scheduler.outcomes import Outcomes
from kv_offload.scheduler.state.request_state import RequestState
from kv_offload_cpu.copy.engine import CopyEngine
from kv_offload_cpu.sizing import HostLayout
from kv_sim.memory.device import Device
from kv_sim.offload.host_memory import (
    TimedOffloadingConnector,
    WorldCopyEngine,
    WorldCPUOffloadingSpec,
    WorldMemory,
)
from kv_sim.zoo.offload import PartedScheduler
from kv_sim.zoo.planted import with_parts


class _WokenBySuccess(Matching):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.awaited: dict[str, OffloadKey] = {}
        """Request -> the chunk in flight for which it is waiting."""

    def match(self, request: Request, local: int) -> tuple[int | None, bool]:
        awaited = self.awaited.get(request.request_id)
        state = self._books.states.get(request.request_id)
        look_up = self._books.manager.lookup
        if awaited and state and look_up(awaited, state.context) is not LookupResult.HIT:
            return None, False
        self.awaited.pop(request.request_id, None)
        answer = super().match(request, local)
        if answer[0] is None:
            state = self._books.states[request.request_id]
            keys = [key for progress in state.progress.groups for key in progress.keys]
            pending = (key for key in keys if look_up(key, state.context) is LookupResult.HIT_PENDING)
            self.awaited[request.request_id] = next(pending)
        return answer


class _WakesBySuccess(PartedScheduler):
    matching = _WokenBySuccess

    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        self._matching.awaited.pop(request.request_id, None)  # type: ignore[attr-defined]
        return super().request_finished_all_groups(request, block_ids)


class WaitsForFailedStores(TimedOffloadingConnector):
    """A request that waits for a chunk's store is woken when the store succeeds, but not when it fails."""

    scheduler_class = _WakesBySuccess


class _TooEarly(Matching):
    def _ask(self, state: RequestState, local: int) -> Match:
        return super()._ask(state, local)._replace(waits=False)


class PromisesWhatIsOnItsWay(TimedOffloadingConnector):
    """Hits include chunks that are still being stored.

    Their load can't begin, so the tokens are computed after all.
    """

    scheduler_class = with_parts(PartedScheduler, matching=_TooEarly)


class _OneAtATime(Matching):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.loading: dict[OffloadKey, int] = {}
        """The job of each chunk that is being loaded."""

    def match(self, request: Request, local: int) -> tuple[int | None, bool]:
        answer = super().match(request, local)
        groups = self._books.states[request.request_id].progress.groups
        is_shared = any(key in self.loading for progress in groups for key in progress.keys)
        return (None, False) if answer[0] and is_shared else answer

    def begin_load(self, *args: Any) -> None:
        super().begin_load(*args)
        begun = max(self._books.jobs.live.values(), key=lambda job: job.job_id)
        self.loading.update(dict.fromkeys(begun.keys, begun.job_id))


class _FreesForTheLiving(Outcomes):
    marks: _OneAtATime

    def _complete(self, job: Any) -> None:
        super()._complete(job)
        if job.owner.context.req_id in self._books.states:
            for key in job.keys:
                self.marks.loading.pop(key, None)


class _LoadsInTurn(PartedScheduler):
    matching = _OneAtATime
    outcomes = _FreesForTheLiving

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._outcomes.marks = self._matching  # type: ignore[attr-defined]


class SharedLoadsInTurn(TimedOffloadingConnector):
    """A request waits while another loads the same chunk; an aborted load's mark stays, so it never goes on."""

    scheduler_class = _LoadsInTurn


class _TellsFirst(PartedScheduler):
    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        state = self._books.states.get(request.request_id)
        store_at_end = self._storing.store_at_end
        self._storing.store_at_end = lambda *asked: False  # type: ignore[method-assign]
        super().request_finished_all_groups(request, block_ids)
        self._storing.store_at_end = store_at_end  # type: ignore[method-assign]
        is_storing = state is not None and store_at_end(state, block_ids)
        return is_storing and self._books.engine.holds_blocks, None


class EndsBeforeItsLastStore(TimedOffloadingConnector):
    """The medium is told that a request has ended before it is asked to store the request's last chunks."""

    scheduler_class = _TellsFirst


class TwiceOffsetSpec(WorldCPUOffloadingSpec):
    """Host memory that is as large as one rank's part, but addressed as if it held all ranks' parts."""

    def make_copy_engine(self, kv_caches: Any, layout: HostLayout, memory: Any) -> CopyEngine:
        device: Device = kv_caches.tensors[0].tensor.device
        own = WorldMemory(device, layout)
        own.first_slot += self.config.parallel.rank * layout.num_chunks * layout.blocks_per_chunk
        return WorldCopyEngine(device, own)


class RankOffsetTwice(TimedOffloadingConnector):
    """A rank's offset within the memory of all ranks is added to a pointer that already begins at its part."""
