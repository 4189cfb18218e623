"""Planted in ``MultiConnector``: calls and answers that go to the wrong children, or are merged wrongly."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from kv_api import (
    BlockIds,
    CacheHitSource,
    KVCacheBlocks,
    KVCacheConfig,
    KVCacheEvent,
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorOutput,
    KVConnectorStats,
    Request,
    VllmConfig,
)
from kv_multi import MultiConnector
from kv_multi.blocks import none_of
from kv_multi.choice import Choices, Match
from kv_multi.loads import LoadReports
from kv_multi.requests import Finish
from kv_multi.saves import SaveReports
from kv_multi.scheduler_side import MultiSchedulerSide
from kv_multi.stats import MultiKVConnectorStats
from kv_multi.worker_side import MultiWorkerSide
from kv_sim.examples.later import LaterConnector, LaterScheduler
from kv_sim.examples.memory import MemoryConnector


class LosersLoadToo(MultiConnector):
    """Every child is told to load, not only the chosen one."""

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        for child in self.sub_connectors if num_external_tokens else ():
            child.update_state_after_alloc(request, blocks, num_external_tokens)


class _NoBlocks:
    """Empty block tables, as many as the given ones."""

    def __init__(self, blocks: KVCacheBlocks) -> None:
        self._tables = none_of(blocks.get_block_ids())

    def get_block_ids(self) -> BlockIds:
        return self._tables


class _TellsTheLoader(MultiSchedulerSide):
    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        loader = self._start_load(request.request_id, blocks, num_external_tokens) if num_external_tokens else None
        for child in self._children:
            told = (blocks, num_external_tokens) if child.place == loader else (_NoBlocks(blocks), 0)
            child.connector.update_state_after_alloc(request, *told)


class LosersGetNoBlocks(MultiConnector):
    """Children that don't load get empty block tables, so they don't wait for their stores of these blocks."""

    scheduler_class = _TellsTheLoader


class _Echo(LaterScheduler):
    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if not num_external_tokens:
            self._jobs.loads.setdefault(request.request_id, [])

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        known = {name for name in connector_output.finished_recving or () if name in self._loading}
        super().update_connector_output(replace(connector_output, finished_recving=known))


class Echo(LaterConnector):
    """No bug: a child that reports an empty load for each request that another child loads."""

    scheduler_class = _Echo


class _Union(LoadReports):
    def report(self, child: int, finished: Iterable[str], failed: Iterable[str]) -> None:
        self._finished.update(finished)
        self._failed.update(failed)


class _UnitingWorker(MultiWorkerSide):
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._loads = _Union()


class UnionOfLoads(MultiConnector):
    """The children's reports of loads are united, although only one child was loading."""

    worker_class = _UnitingWorker


class _FirstSaveCounts(SaveReports):
    def expect(self, async_saves: Mapping[str, tuple[int, ...]]) -> None:
        super().expect({request_id: children[:1] for request_id, children in async_saves.items()})


class _HastyWorker(MultiWorkerSide):
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._saves = _FirstSaveCounts()


class FirstSaveCounts(MultiConnector):
    """The first child's report of a store frees the blocks, although other children still read them."""

    worker_class = _HastyWorker


class _Sticky(Choices):
    def decide(
        self, request_id: str, num_computed_tokens: int, answers: Iterable[tuple[int | None, bool]]
    ) -> tuple[int | None, bool]:
        before: Match | None = self.get(request_id)
        answer = super().decide(request_id, num_computed_tokens, answers)
        if before is not None:
            self._matches[request_id] = before
        return answer


class _StickyScheduler(MultiSchedulerSide):
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._choices = _Sticky(self._options.load_policy)


class StaleChoice(MultiConnector):
    """The child that was chosen at the first query stays chosen, even if a later query finds another one."""

    scheduler_class = _StickyScheduler


class _NestedScheduler(MultiSchedulerSide):
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._is_outermost = False


class FirstReportFrees(MultiConnector):
    """A request that is aborted while one child loads it is held for another child's store."""

    scheduler_class = _NestedScheduler


class NoPreemptions(MultiConnector):
    """``handle_preemptions`` is not passed to the children: the base class's default does nothing."""

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        return


class AllGroupsAlone(MemoryConnector):
    """No bug: a child that hears of ended requests only by ``request_finished_all_groups``."""

    request_finished = KVConnectorBase_V1.request_finished


class _TellsOfOneGroup(MultiSchedulerSide):
    def request_finished_all_groups(self, request: Request, block_ids: BlockIds) -> Finish:
        return self.request_finished(request, list(block_ids[0]))


class ChildrenHearOfOneGroup(MultiConnector):
    """Children that know several groups are told of an ended request as if they knew one, which they ignore."""

    scheduler_class = _TellsOfOneGroup


class OneForgets(MultiConnector):
    """A reset calls the children in ``all(generator)``, which stops at the first one that returns None."""

    def reset_cache(self) -> bool:
        self.sub_connectors[0].reset_cache()
        return True


class _StatsByClass(MultiSchedulerSide):
    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        stats = super().get_kv_connector_stats()
        if isinstance(stats, MultiKVConnectorStats):
            last_of = {type(counted): name for name, counted in stats.data.items()}
            stats.data = {name: stats.data[name] for name in last_of.values()}
        return stats


class StatsByClass(MultiConnector):
    """The children's statistics are kept by class, so of two children of a class only one's are reported."""

    scheduler_class = _StatsByClass


class _LastCounts(MultiKVConnectorStats):
    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        self.data.update(other.data)
        return self


class StatsOfTheLastStep(MultiConnector):
    """Where the statistics of several steps are added up to be logged, a child's last ones replace the earlier."""

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        built = super().build_kv_connector_stats(data)
        return _LastCounts(built.data, built.origins) if isinstance(built, MultiKVConnectorStats) else built


class EventsOfTheFirst(MultiConnector):
    """KV cache events are taken only from the first child that has any; the others' are lost."""

    def take_events(self) -> Iterable[KVCacheEvent]:
        taken = [list(child.take_events()) for child in self.sub_connectors]
        return next(filter(None, taken), [])


class SourcesUnknown(MultiConnector):
    """The child isn't asked for the source of its hits, so all hits count as of unknown source."""

    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        return {CacheHitSource.EXTERNAL_UNSPECIFIED: num_external_tokens}
