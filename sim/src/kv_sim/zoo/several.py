"""Planted in ``MultiConnector``: who loads, who stores, and who is told what."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kv_api import (
    BlockIds,
    CacheHitSource,
    KVCacheBlocks,
    KVCacheConfig,
    KVCacheEvent,
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
from kv_multi.saves import SaveReports
from kv_multi.scheduler_side import MultiSchedulerSide
from kv_multi.stats import MultiKVConnectorStats
from kv_multi.worker_side import MultiWorkerSide
from kv_sim.examples.later import LaterConnector, LaterScheduler


class LosersLoadToo(MultiConnector):
    """Every child is told to load, not only the one that was chosen."""

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        for child in self.sub_connectors if num_external_tokens else ():
            child.update_state_after_alloc(request, blocks, num_external_tokens)


class _NoBlocks:
    """As many tables as somebody else's, without blocks."""

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
    """Who doesn't load gets a table without blocks, and waits for no store of its own before others fill them."""

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
    """Not a bug by itself below a MultiConnector: it reports a load of nothing for what others load."""

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
    """The children's reports of loads are united, whoever was loading."""

    worker_class = _UnitingWorker


class _FirstSaveCounts(SaveReports):
    def expect(self, async_saves: Mapping[str, tuple[int, ...]]) -> None:
        super().expect({request_id: children[:1] for request_id, children in async_saves.items()})


class _HastyWorker(MultiWorkerSide):
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._saves = _FirstSaveCounts()


class FirstSaveCounts(MultiConnector):
    """The stores beyond the first are not counted: the first report frees what others still read."""

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
    """The child that was chosen first stays the chosen one, whatever later queries find."""

    scheduler_class = _StickyScheduler


class _NestedScheduler(MultiSchedulerSide):
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._is_outermost = False


class FirstReportFrees(MultiConnector):
    """A request that is aborted while one child loads it is held for the store of another."""

    scheduler_class = _NestedScheduler


class NoPreemptions(MultiConnector):
    """``handle_preemptions`` is not handed on: the base class has a default, so nobody misses it."""

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        return


class OneForgets(MultiConnector):
    """The answers to a reset are joined with ``all`` over a generator, which stops asking at the first None."""

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
    """What children count is kept by class, so that of two of a class one takes the place of the other."""

    scheduler_class = _StatsByClass


class EventsOfTheFirst(MultiConnector):
    """Events are taken from the first child that has some, and those of the others are lost."""

    def take_events(self) -> Iterable[KVCacheEvent]:
        taken = [list(child.take_events()) for child in self.sub_connectors]
        return next(filter(None, taken), [])


class SourcesUnknown(MultiConnector):
    """Where a hit comes from isn't asked of the child that has it, so that all hits count as of unknown source."""

    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        return {CacheHitSource.EXTERNAL_UNSPECIFIED: num_external_tokens}
