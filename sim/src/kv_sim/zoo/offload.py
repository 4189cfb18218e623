"""Bugs planted in kv-offload's connector, over the testbed's host memory: one part is replaced by a wrong one."""

from collections.abc import Sequence
from typing import Any, ClassVar

from kv_api import (
    BlockIds,
    ForwardContext,
    KVCacheConfig,
    KVConnectorMetadata,
    Request,
    SchedulerOutput,
    VllmConfig,
)
from kv_offload.describe import EngineDescription
from kv_offload.metadata import OffloadingConnectorMetadata
from kv_offload.scheduler.loading.matching import Matching
from kv_offload.scheduler.outcomes import Outcomes
from kv_offload.scheduler.side import OffloadingSchedulerSide
from kv_offload.scheduler.state.jobs import Job
from kv_offload.scheduler.state.progress import Progress
from kv_offload.scheduler.state.request_state import RequestState
from kv_offload.scheduler.storing.batches import Batch, beginning
from kv_offload.scheduler.storing.handed_states import HandedStates
from kv_offload.scheduler.storing.storing import Storing
from kv_offload.scheduler.storing.tails import Tails
from kv_offload.shape.reach import Ends
from kv_sim.offload.host_memory import TimedOffloadingConnector, TimedWorkerSide
from kv_sim.zoo.planted import with_parts


class PartedScheduler(OffloadingSchedulerSide):
    """kv-offload's scheduler side, with parts that can be replaced."""

    matching: ClassVar[type[Matching]] = Matching
    progress: ClassVar[type[Progress]] = Progress
    storing: ClassVar[type[Storing]] = Storing
    handed_states: ClassVar[type[HandedStates]] = HandedStates
    tails: ClassVar[type[Tails]] = Tails
    outcomes: ClassVar[type[Outcomes]] = Outcomes

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig | None,
        engine: EngineDescription,
        spec: Any,
    ) -> None:
        super().__init__(vllm_config, kv_cache_config, engine, spec)
        self._matching = self.matching(self._books, lambda: self.clock())
        self._storing = self.storing(self._books)
        if self._handed_states is not None:
            self._handed_states = self.handed_states(self._books)
        if self._tails is not None:
            self._tails = self.tails(self._books)
        self._outcomes = self.outcomes(self._books)

    def on_new_request(self, request: Request) -> None:
        super().on_new_request(request)
        if self.progress is not Progress:
            state = self._books.states[request.request_id]
            state.progress = self.progress(self._books.layout, state.context, self._books.block_index)


# -- stores ------------------------------------------------------------------------------------


class _CountsSampled(Storing):
    def store_at_end(self, state: RequestState, block_ids: BlockIds) -> bool:
        if state.loads or not self._books.engine.can_store:
            return False
        state.progress.end(block_ids)
        plan = self._plan(state, state.request.num_tokens, is_final=True)
        self._store([plan])
        return plan.is_begun


class SampledTokenOffloaded(TimedOffloadingConnector):
    """A request's last token, which was sampled but never computed, counts as computed and is stored."""

    scheduler_class = with_parts(PartedScheduler, storing=_CountsSampled)


class _BeforeTheStep(TimedWorkerSide):
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, OffloadingConnectorMetadata)
        for job in kv_connector_metadata.store_jobs.values():
            job.is_computed = True
        super().handle_preemptions(kv_connector_metadata)


class StoresBeforeCompute(TimedOffloadingConnector):
    """A store is submitted before the forward pass that computes its blocks."""

    worker_class = _BeforeTheStep


class _NoFlush(PartedScheduler):
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> OffloadingConnectorMetadata:
        meta = super().build_connector_meta(scheduler_output)
        meta.jobs_to_flush.clear()
        return meta


class FreedBlocksNotFenced(TimedOffloadingConnector):
    """It doesn't wait for a store that still reads blocks before these get a new owner."""

    scheduler_class = _NoFlush


class _SkipsChunks(Progress):
    def offers(self, stops: Sequence[int], ends: Ends | None, *, with_loaded: bool) -> Batch:
        return beginning(self._layout, super().offers(stops, ends, with_loaded=with_loaded), 1)


class OneChunkAStep(TimedOffloadingConnector):
    """Of the chunks that a step completes, only the first is stored; the others count as stored."""

    scheduler_class = with_parts(PartedScheduler, progress=_SkipsChunks)


class _EndsWindowsEarly(Progress):
    def offers(self, stops: Sequence[int], ends: Ends | None, *, with_loaded: bool) -> Batch:
        found = super().offers(stops, ends, with_loaded=with_loaded)
        groups = (progress.group for progress in self.groups)
        return [chunks[:-1] if group.has_window else chunks for group, chunks in zip(groups, found, strict=True)]


class WindowEndsNotStored(TimedOffloadingConnector):
    """A sliding-window group's last chunk of a step is never stored, so a repeated prompt finds little."""

    scheduler_class = with_parts(PartedScheduler, progress=_EndsWindowsEarly)


class _BelievesInStores(Outcomes):
    def _complete(self, job: Job) -> None:
        job.has_failed = False
        super()._complete(job)


class FailedStoreReadable(TimedOffloadingConnector):
    """A chunk becomes readable when its store has ended, even if the store failed."""

    scheduler_class = with_parts(PartedScheduler, outcomes=_BelievesInStores)


# -- loads -------------------------------------------------------------------------------------


class _DropsNothing(Outcomes):
    def _fail_load(self, job: Job, *, is_stale: bool) -> None:
        job.owner.progress.rewind()


class BadChunkPromisedAgain(TimedOffloadingConnector):
    """A chunk that failed to load is reported as a hit again, to the same request and to others."""

    scheduler_class = with_parts(PartedScheduler, outcomes=_DropsNothing)


class _RefusesOneRequest(Outcomes):
    def _fail_load(self, job: Job, *, is_stale: bool) -> None:
        super()._fail_load(job, is_stale=True)
        job.owner.refused.update(job.keys)


class BadChunkLeftToOthers(TimedOffloadingConnector):
    """A chunk that failed to load is a miss for its request alone: whoever comes next loads it, and fails, too."""

    scheduler_class = with_parts(PartedScheduler, outcomes=_RefusesOneRequest)


class _UnpinsAtOnce(Matching):
    def begin_load(self, state: RequestState, tables: Sequence[Sequence[int]], tokens: int) -> None:
        super().begin_load(state, tables, tokens)
        job = next(reversed(self._books.jobs.live.values()))
        self._books.manager.complete_load(job.keys, state.context)
        job.keys = ()


class LoadsPinNothing(TimedOffloadingConnector):
    """A load doesn't pin its chunks, so they may be evicted and overwritten while it reads them."""

    scheduler_class = with_parts(PartedScheduler, matching=_UnpinsAtOnce)


class _LoadsWhereItBegins(Matching):
    def begin_load(self, state: RequestState, tables: Sequence[Sequence[int]], tokens: int) -> None:
        super().begin_load(state, tables, tokens)
        job = next(reversed(self._books.meta.load_jobs.values()))
        job.gpu_spec.block_indices = tuple(0 for _ in job.gpu_spec.block_indices)


class SubChunkOffsetIgnored(TimedOffloadingConnector):
    """A load that begins inside a chunk copies the chunk's first blocks instead of the right ones."""

    scheduler_class = with_parts(PartedScheduler, matching=_LoadsWhereItBegins)


class _OneGroupOnly(TimedWorkerSide):
    def register_kv_caches(self, kv_caches: Any) -> None:
        super().register_kv_caches(kv_caches)
        self._jobs._fails_requests = False


class FailureKnowsOneGroup(TimedOffloadingConnector):
    """A failed load is reported by block ids, which an engine with several KV cache groups doesn't accept."""

    worker_class = _OneGroupOnly


class _OneWindowByBlock(TimedWorkerSide):
    def register_kv_caches(self, kv_caches: Any) -> None:
        super().register_kv_caches(kv_caches)
        self._jobs._fails_requests = len(self._engine.layout.groups) > 1


class FailureKnowsNoWindow(TimedOffloadingConnector):
    """A failed load is reported by block if the only group is a window, whose beginning isn't loaded at all."""

    worker_class = _OneWindowByBlock


class _SilentFailures(TimedWorkerSide):
    def get_block_ids_with_load_errors(self) -> set[int]:
        super().get_block_ids_with_load_errors()
        return set()


class FailedLoadNotTold(TimedOffloadingConnector):
    """A failed load is reported as received, and its blocks aren't reported as invalid."""

    worker_class = _SilentFailures


class _NoAbortedLoads(PartedScheduler):
    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        _, params = super().request_finished_all_groups(request, block_ids)
        return self._books.engine.holds_blocks, params


class AlwaysHolds(TimedOffloadingConnector):
    """It holds the blocks of every request that ends, even if it is still loading or has nothing to store."""

    scheduler_class = _NoAbortedLoads


class _Impatient(TimedWorkerSide):
    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        meta = self._get_connector_metadata()
        assert isinstance(meta, OffloadingConnectorMetadata)
        syncs = [job for job in meta.load_jobs.values() if job.sync]
        for job in syncs:
            job.sync = False
        super().start_load_kv(forward_context, **kwargs)
        for job in syncs:
            job.sync = True


class InStepLoadNotAwaited(TimedOffloadingConnector):
    """The forward pass doesn't wait for a load within its own step."""

    worker_class = _Impatient
