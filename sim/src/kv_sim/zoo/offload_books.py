"""Bugs planted in kv-offload's bookkeeping: keys, counts of ranks, resets, requests, events."""

import sys
from collections.abc import Iterable
from typing import Any

from kv_api import (
    BlockIds,
    CacheHitSource,
    OffloadKey,
    Request,
)
from kv_offload.scheduler.loading.matching import Matching
from kv_offload.scheduler.outcomes import Outcomes
from kv_offload.scheduler.state.jobs import STORE, Job
from kv_offload.scheduler.state.progress import Progress
from kv_offload.scheduler.state.request_state import RequestState
from kv_sim.offload.host_memory import TimedOffloadingConnector, TimedWorkerSide
from kv_sim.zoo.offload import PartedScheduler
from kv_sim.zoo.planted import with_parts


class _OneKey(Progress):
    def extend_keys(self, request: Request, tokens: int = sys.maxsize) -> None:
        super().extend_keys(request, tokens)
        for progress in self.groups:
            progress.keys[:] = [OffloadKey(key[:-4] + bytes(4)) for key in progress.keys]

    def check(self) -> None:
        """The keys are wrong on purpose."""


class _GroupsShareKeys(PartedScheduler):
    def on_new_request(self, request: Request) -> None:
        super().on_new_request(request)
        state = self._books.states[request.request_id]
        state.progress = _OneKey(self._books.layout, state.context)


class KeysWithoutGroup(TimedOffloadingConnector):
    """Chunks of different groups have the same key."""

    scheduler_class = _GroupsShareKeys


class _FirstReport(PartedScheduler):
    def on_new_request(self, request: Request) -> None:
        self._books.jobs._world_size = 1
        super().on_new_request(request)


class OneRankIsEnough(TimedOffloadingConnector):
    """A job counts as ended when the first rank has reported it."""

    scheduler_class = _FirstReport


class _FirstRoom(PartedScheduler):
    def on_new_request(self, request: Request) -> None:
        self._books.rooms.may_store = True
        super().on_new_request(request)


class RoomOfTheFirst(TimedOffloadingConnector):
    """The number of slots is the first rank's, although pipeline stages with more layers have room for fewer."""

    scheduler_class = _FirstRoom


class _OneWrites(TimedWorkerSide):
    def register_kv_caches(self, kv_caches: Any) -> None:
        super().register_kv_caches(kv_caches)
        self._writes = self._engine.config.parallel.rank == 0


class ReplicasTakenForGranted(TimedOffloadingConnector):
    """Only the first rank stores, as if all ranks held the same bytes."""

    worker_class = _OneWrites


class _FreshAfterReset(Outcomes):
    def reset(self) -> None:
        books = self._books
        begin, books.jobs.begin_reset = books.jobs.begin_reset, lambda: []  # type: ignore[method-assign]
        super().reset()
        books.jobs.begin_reset = begin  # type: ignore[method-assign]


class ResetForgetsJobs(TimedOffloadingConnector):
    """A reset doesn't mark the jobs in flight, so when they end they count like jobs from after the reset."""

    scheduler_class = with_parts(PartedScheduler, outcomes=_FreshAfterReset)


class _KeepsTheAborted(PartedScheduler):
    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        if request.num_computed_tokens:
            return super().request_finished_all_groups(request, block_ids)
        return False, None


class AbortBeforeAllocationLeaks(TimedOffloadingConnector):
    """A request that ends before its first allocation is never forgotten."""

    scheduler_class = _KeepsTheAborted


class _CountsAll(Matching):
    def sources(self, state: RequestState, tokens: int) -> dict[CacheHitSource, int]:
        return {source: count + state.promise.local for source, count in super().sources(state, tokens).items()}


class LocalHitsAreExternal(TimedOffloadingConnector):
    """Tokens that were already on the GPU count as external hits."""

    scheduler_class = with_parts(PartedScheduler, matching=_CountsAll)


class _TellsNoEvictions(PartedScheduler):
    def take_events(self) -> Iterable[Any]:
        return [event for event in super().take_events() if type(event).__name__ != "BlockRemoved"]


class EvictionsNotTold(TimedOffloadingConnector):
    """KV cache events report stored chunks, but never evicted ones."""

    scheduler_class = _TellsNoEvictions


class _KeepsWhatItLoaded(Outcomes):
    def _complete(self, job: Job) -> None:
        if job.direction is STORE or self._books.engine.can_store:
            super()._complete(job)


class ConsumersNeverUnpin(TimedOffloadingConnector):
    """A ``kv_consumer`` ignores all ended jobs because it stores nothing, so the pins of its loads stay."""

    scheduler_class = with_parts(PartedScheduler, outcomes=_KeepsWhatItLoaded)
