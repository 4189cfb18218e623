"""The scheduler's side: it takes the engine's calls, and hands each to the parts that decide, in their order."""

from collections.abc import Iterable
from typing import Any, ClassVar

from kv_api import (
    BlockIds,
    BlockPool,
    CacheHitSource,
    KVCacheBlocks,
    KVCacheConfig,
    KVCacheEvent,
    KVConnectorHandshakeMetadata,
    KVConnectorOutput,
    KVError,
    OffloadingManager,
    OffloadingSpec,
    PartialTails,
    Request,
    ScheduleEndContext,
    SchedulerOutput,
    SchedulerSide,
    SupportsHMA,
    VllmConfig,
)
from kv_offload.clock import Clock, read_clock
from kv_offload.describe import EngineDescription
from kv_offload.metadata import OffloadingConnectorMetadata
from kv_offload.metrics import OffloadingConnectorStats, kinds_of
from kv_offload.scheduler.loading.matching import Matching
from kv_offload.scheduler.outcomes import Outcomes
from kv_offload.scheduler.state.books import Books
from kv_offload.scheduler.state.jobs import STORE
from kv_offload.scheduler.storing.handed_states import HandedStates
from kv_offload.scheduler.storing.storing import Storing
from kv_offload.scheduler.storing.tails import Tails


class OffloadingSchedulerSide(SchedulerSide, SupportsHMA):
    """Decides what is loaded and stored."""

    clock: ClassVar[Clock] = staticmethod(read_clock)
    """Measures how long lookups take; nothing depends on it."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig | None,
        engine: EngineDescription,
        spec: OffloadingSpec,
    ) -> None:
        super().__init__(vllm_config, kv_cache_config)
        # First, since it asks a spec that anybody may have written: a manager may have locked its medium.
        self._kinds = kinds_of(type(spec).build_metric_definitions(dict(engine.config.extra_config)))
        self._books = Books(engine, spec.get_manager())
        self._matching = Matching(self._books, lambda: self.clock())
        self._storing = Storing(self._books)
        hands_over = engine.can_store and any(group.is_handed_over for group in engine.layout.groups)
        self._handed_states = HandedStates(self._books) if hands_over else None
        self._tails = Tails(self._books) if hands_over and engine.layout.has_tails else None
        self._outcomes = Outcomes(self._books)
        self._has_sent_info = False

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        self._books.pins.bind(gpu_block_pool)
        if self._books.evictions is not None:
            self._books.evictions.bind(gpu_block_pool)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Ignored: these workers send no handshake metadata.

        vLLM's MultiConnector hands one child's metadata to every child.
        """

    @property
    def manager(self) -> OffloadingManager:
        """The medium's manager. A wrapper that watches it is set here, before the first request arrives."""
        return self._books.manager

    @manager.setter
    def manager(self, manager: OffloadingManager) -> None:
        self._books.manager = manager

    @property
    def group_ids(self) -> tuple[int, ...]:
        """The KV cache groups that are offloaded, by their places in the engine's block tables."""
        return tuple(group.group_id for group in self._books.layout.groups)

    # -- requests and their blocks ---------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        with self._books.lock():
            self._books.begin_life(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        self._books.open_region()
        return self._matching.match(request, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        return self.group_ids

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        books, tables = self._books, blocks.get_block_ids()
        state = books.states.get(request.request_id)
        books.note_fresh(state, tables)
        if state is not None:
            state.deferrals = 0
        if num_external_tokens == 0:
            return
        if state is None:
            raise KVError(
                f"request {request.request_id}: the engine loads {num_external_tokens} tokens, but never called "
                "get_num_new_matched_tokens for this request"
            )
        books.open_region()
        self._matching.begin_load(state, tables, num_external_tokens)

    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        if num_external_tokens == 0:
            return {}
        return self._matching.sources(self._books.states[request.request_id], num_external_tokens)

    # -- every step ------------------------------------------------------------------------------

    def skip_steps(self, steps: int) -> None:
        """Count steps that weren't reported: replays leave out steps in which nothing can be decided.

        In each of them every running request may compute one token, and none of them fills a chunk.
        """
        self._books.agenda.skip(steps)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> OffloadingConnectorMetadata:
        books = self._books
        books.open_region()
        try:
            preempted = scheduler_output.preempted_req_ids or ()
            self._storing.follow_blocks(scheduler_output, preempted)
            if books.engine.can_store and not books.engine.holds_blocks:
                self._storing.store_what_is_due(scheduler_output)
            if self._handed_states is not None:
                self._handed_states.store(scheduler_output)
            if self._tails is not None:
                self._tails.store(scheduler_output)
            meta = books.meta
            arrived = [new.req_id for new in scheduler_output.scheduled_new_reqs]
            books.manager.on_schedule_end(ScheduleEndContext(arrived, preempted))
        finally:
            books.begin_step()
            books.close_region()
        return meta

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        with self._books.lock():
            self._outcomes.take(connector_output)

    def take_events(self) -> Iterable[KVCacheEvent]:
        books = self._books
        with books.lock():
            events = list(books.manager.take_events())
        return books.events.translate(events) if events else ()

    def get_kv_connector_stats(self) -> OffloadingConnectorStats | None:
        books = self._books
        stats = books.stats
        with books.lock():
            counted = books.manager.get_stats()
            if counted is not None:
                stats.add_counts(counted, self._kinds)
            if not self._has_sent_info and books.rooms.are_known:
                stats.set_info(books.manager.config_info())
                self._has_sent_info = True
        if stats.is_empty():
            return None
        books.stats = OffloadingConnectorStats()
        return stats

    # -- ends ------------------------------------------------------------------------------------

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        state = self._books.end_life(request.request_id)
        if state is None:
            return False, None
        self._matching.end_deferral(state, self.clock())
        with self._books.lock():
            is_storing = self._storing.store_at_end(state, block_ids)
            self._books.manager.on_request_finished(state.context)
        return is_storing and self._books.engine.holds_blocks, None

    def register_finished_partial_tail(
        self, request: Request, block_ids: BlockIds, partial_tail_offloads: PartialTails
    ) -> bool:
        state = self._books.states.get(request.request_id)
        if state is None or self._tails is None:
            return False
        return self._tails.store_at_end(state, block_ids, partial_tail_offloads)

    # -- questions at any time -------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a store that doesn't happen is only a miss later."""
        return False

    def has_pending_push_work(self) -> bool:
        if self._books.jobs.has_work or self._books.meta.has_fences:
            return True
        with self._books.lock():
            return self._books.manager.has_pending_work()

    def has_pending_block_frees(self) -> bool:
        jobs = self._books.jobs
        return self._books.engine.holds_blocks and any(
            job.direction is STORE for job in (*jobs.live.values(), *jobs.stale.values())
        )

    def reset_cache(self) -> bool:
        """Forget everything. Jobs in flight go on, and the medium hears when the last of them has ended."""
        with self._books.lock():
            self._outcomes.reset()
        return True

    def shutdown(self) -> None:
        self._books.pins.unpin_all()
        self._books.close_region()
        self._books.manager.shutdown()

    def check(self) -> None:
        """Recount everything."""
        self._books.check()
        self._outcomes.check()
