"""Planted in the examples: connectors that rely on something that a real engine doesn't promise."""

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any

from kv_api import (
    CacheHitSource,
    ForwardContext,
    KVConnectorMetadata,
    KVConnectorOutput,
    KVConnectorStats,
    KVConnectorTransferResults,
    Request,
    SchedulerOutput,
)
from kv_api.stats import CountedStats
from kv_sim.examples.later import Jobs, LaterConnector, LaterScheduler, LaterWorker
from kv_sim.examples.layerwise import LayerwiseConnector, LayerwiseWorker
from kv_sim.examples.memory import MemoryConnector, MemoryScheduler, Plan


class _TakesFromTheStep(LaterScheduler):
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Jobs:
        metadata = super().build_connector_meta(scheduler_output)
        finished = scheduler_output.finished_req_ids
        assert isinstance(finished, set)
        while finished:
            finished.pop()
        return metadata


class TakesFromTheStep(LaterConnector):
    """The scheduler's side removes finished ids from the ``SchedulerOutput`` that goes to the workers."""

    scheduler_class = _TakesFromTheStep


class _KeepsMetadataToItself(LayerwiseWorker):
    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        self._own = connector_metadata

    def clear_connector_metadata(self) -> None:
        del self._own

    def _get_connector_metadata(self) -> KVConnectorMetadata:
        return self._own


class KeepsMetadataToItself(LayerwiseConnector):
    """It keeps its metadata from the base class, so ``has_connector_metadata`` is False and layers skip hooks."""

    worker_class = _KeepsMetadataToItself


@dataclass
class PlanWithCall(Plan):
    """Metadata that holds a function."""

    when_done: Callable[[], None] = field(default=lambda: None)


class _CallInMetadata(MemoryScheduler):
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Plan:
        plan = super().build_connector_meta(scheduler_output)
        return PlanWithCall(plan.loads, plan.stores, lambda: None)


class CallInMetadata(MemoryConnector):
    """A step's metadata holds a function, which can't be pickled and sent to a worker's process."""

    scheduler_class = _CallInMetadata


class _Matches(CountedStats):
    def is_empty(self) -> bool:
        return not self.data


class _Bytes(_Matches):
    pass


class _CountsMatches(LaterScheduler):
    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        return _Matches({"steps": 1})


class _CountsBytes(LaterWorker):
    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        return _Bytes({"bytes": 1})


class StatsOfTwoKinds(LaterConnector):
    """The scheduler's side and the workers report statistics of different classes, which can't be added up."""

    scheduler_class = _CountsMatches
    worker_class = _CountsBytes


class _WaitsForLoads(LaterWorker):
    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        super().start_load_kv(forward_context, **kwargs)
        self._copies.wait(list(self._loads))


class WaitsForLoads(LaterConnector):
    """A worker waits for its asynchronous loads when it begins them, and so delays the step."""

    worker_class = _WaitsForLoads


class _SourceOfItsOwn(LaterScheduler):
    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        counts = super().get_external_cache_hit_sources(request, num_external_tokens)
        own: Any = "attic"
        return {own: sum(counts.values())}


class SourceOfItsOwn(LaterConnector):
    """It reports hits from a source for which engines have no counter."""

    scheduler_class = _SourceOfItsOwn


class _CountsStepsUnderWay(LaterScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._under_way = 0

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Jobs:
        self._under_way += 1
        return super().build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._under_way -= 1
        super().update_connector_output(connector_output)

    def has_pending_push_work(self) -> bool:
        return self._under_way > 0 or super().has_pending_push_work()


class CountsStepsUnderWay(LaterConnector):
    """It counts steps that haven't reported; in one process an empty step with nothing to tell never does."""

    scheduler_class = _CountsStepsUnderWay


class _CutsHashes(LaterScheduler):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        hashes = request.block_hashes
        assert isinstance(hashes, list)
        del hashes[(request.num_tokens - 1) // self._block_size :]
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class CutsHashes(LaterConnector):
    """To leave a token to compute, it cuts off the hash of the last block: from the request's own list."""

    scheduler_class = _CutsHashes


class _ForgetsAStepLater(LaterScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ended: Set[str] = set()

    def _forget(self, request_id: str) -> None:
        return

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Jobs:
        for request_id in self._ended:
            self._local_tokens.pop(request_id, None)
        self._ended = scheduler_output.finished_req_ids
        return super().build_connector_meta(scheduler_output)


class _EmptiesWhatItGets(LaterWorker):
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = super().get_transfer_results(finished_req_ids)
        finished_req_ids.clear()
        return results


class EndedIdsEmptied(LaterConnector):
    """The scheduler's side keeps a step's set of ended ids; in one process the worker empties that set."""

    scheduler_class = _ForgetsAStepLater
    worker_class = _EmptiesWhatItGets


class _ObjectInParams(LaterScheduler):
    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        hold, _ = super().request_finished(request, block_ids)
        return hold, {"blocks": range(len(block_ids))}


class ObjectInParams(LaterConnector):
    """A request's returned ``kv_transfer_params`` have an object that can't be sent to the API server."""

    scheduler_class = _ObjectInParams
