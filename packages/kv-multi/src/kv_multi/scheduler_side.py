"""The scheduler's half of a MultiConnector: who loads, who holds a finished request's blocks, who is switched off.

It keeps four small books, each with its own file and invariants: ``choice`` (the match of each request), ``loads``
(who is loading), ``saves`` (who holds blocks) and ``release`` (two reports of one request), and asks every child
through ``quarantine``. Where several children answer, the rule is written at ``MultiConnector``'s method.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, cast

from kv_api import (
    BlockIds,
    BlockPool,
    CacheHitSource,
    ConfigError,
    KVCacheBlocks,
    KVCacheConfig,
    KVCacheEvent,
    KVCacheManager,
    KVConnectorHandshakeMetadata,
    KVConnectorOutput,
    KVConnectorStats,
    PartialTails,
    Request,
    SchedulerOutput,
    SchedulerSide,
    SupportsHMA,
    VllmConfig,
    supports_hma,
)
from kv_multi.blocks import Ids, blocks_to_load, none_of
from kv_multi.children import Child, Options
from kv_multi.choice import Choices
from kv_multi.loads import LoadsInFlight
from kv_multi.metadata import (
    MultiKVConnectorMetadata,
    MultiKVConnectorWorkerMetadata,
    PlannedLoad,
    expect_slots,
)
from kv_multi.params import merge_params
from kv_multi.quarantine import Quarantine, shut_down_all
from kv_multi.release import LastReport
from kv_multi.saves import Holds
from kv_multi.stats import Origin, collect
from kv_multi.view import handshakes_for, output_for

Finish = tuple[bool, dict[str, Any] | None]


class MultiSchedulerSide(SchedulerSide, SupportsHMA):
    """Joins the scheduler halves of several connectors."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig | None,
        children: tuple[Child, ...],
        options: Options,
        origins: dict[str, Origin],
    ) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._children = children
        self._names = [child.name for child in children]
        self._origins = origins
        self._choices = Choices(options.load_policy)
        self._holds = Holds()
        self._loads = LoadsInFlight()
        self._last_report = LastReport()
        self._quarantine = Quarantine(children, options.on_child_error, self._on_switch_off)
        self.outermost = True
        """Whether our caller is an engine, rather than another MultiConnector."""

    def _on_switch_off(self, child: Child) -> None:
        self._loads.check_can_lose(child.place)

    # -- start ---------------------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        self._kv_cache_manager = kv_cache_manager
        for child in self._children:
            child.connector.bind_kv_cache_manager(kv_cache_manager)

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        for child in self._children:
            child.connector.bind_gpu_block_pool(gpu_block_pool)

    def get_finished_count(self) -> int | None:
        counts = {child.name: child.connector.get_finished_count() for child in self._children}
        different = set(counts.values())
        if None in different:
            return None
        if len(different) > 1:
            said = ", ".join(f"{name!r} {count}" for name, count in counts.items())
            raise ValueError(f"the connectors expect different numbers of reports of a transfer: {said}")
        [count] = different
        if self._quarantine.may_happen:
            raise ConfigError(
                f"on_child_error: 'quarantine' needs a report of every worker, but the connectors expect {count}; "
                "choices: raise"
            )
        return count

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        for child in self._children:
            child.connector.set_xfer_handshake_metadata(handshakes_for(child, metadata))

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        for child in self._children:
            child.connector.set_xfer_handshake_metadata_pp_aware(handshakes_for(child, metadata))

    @property
    def requires_kv_delivery(self) -> bool:
        return any(child.connector.requires_kv_delivery for child in self._children)

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        return all(child.connector.supports_divergent_local_hybrid_hits for child in self._children)

    # -- a request comes, is matched and gets its blocks --------------------------------------

    def on_new_request(self, request: Request) -> None:
        for book in (self._choices, self._holds, self._loads, self._last_report):
            book.forget(request.request_id)
        for child in self._children:
            self._quarantine.ask(child, child.connector.on_new_request, None, request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        answers = (
            self._quarantine.ask(
                child, child.connector.get_num_new_matched_tokens, (0, False), request, num_computed_tokens
            )
            for child in self._children
        )
        return self._choices.decide(request.request_id, num_computed_tokens, answers)

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        match = self._choices.get(request.request_id)
        if match is None:
            raise RuntimeError(
                f"request {request.request_id!r}: asked which groups its load fills, but no connector was chosen: "
                "its last query found nothing"
            )
        chosen = self._children[match.child]
        return self._quarantine.ask(chosen, chosen.connector.get_loaded_kv_cache_group_ids, (), request)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        loader = self._start_load(request.request_id, blocks, num_external_tokens) if num_external_tokens else None
        for child in self._children:
            own_tokens = num_external_tokens if child.place == loader else 0
            self._quarantine.ask(
                child, child.connector.update_state_after_alloc, None, request, blocks, own_tokens
            )
        if loader is not None and self._quarantine.is_off(self._children[loader]):
            self._loads.check_can_lose(loader)

    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        unknown = super().get_external_cache_hit_sources(request, num_external_tokens)
        match = self._choices.get(request.request_id)
        if match is None:
            return unknown
        chosen = self._children[match.child]
        ask = chosen.connector.get_external_cache_hit_sources
        return self._quarantine.ask(chosen, ask, unknown, request, num_external_tokens)

    def _start_load(self, request_id: str, blocks: KVCacheBlocks, num_tokens: int) -> int:
        match = self._choices.get(request_id)
        if match is None:
            raise RuntimeError(
                f"request {request_id!r}: told to load {num_tokens} tokens, but no connector was chosen: its last "
                "query found nothing"
            )
        if match.asynchronous or self._quarantine.may_happen:
            block_ids = None
            if self._quarantine.may_happen:
                block_ids = blocks_to_load(self._vllm_config, blocks, match.num_computed_tokens, num_tokens)
            self._loads.start(request_id, PlannedLoad(match.child, match.asynchronous, block_ids))
        return match.child

    # -- every step ----------------------------------------------------------------------------

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> MultiKVConnectorMetadata:
        slots = tuple(
            self._quarantine.ask(child, child.connector.build_connector_meta, None, scheduler_output)
            for child in self._children
        )
        async_saves = self._holds.tell()
        extra = {request_id: len(held) - 1 for request_id, held in async_saves.items() if len(held) > 1}
        quarantined = self._quarantine.reasons()
        self._quarantine.mark_told(quarantined)
        return MultiKVConnectorMetadata(slots, extra or None, async_saves, self._loads.tell(), quarantined)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        meta = connector_output.kv_connector_worker_meta
        if meta is not None:
            if not isinstance(meta, MultiKVConnectorWorkerMetadata):
                raise TypeError(
                    f"kv_connector_worker_meta: expected MultiKVConnectorWorkerMetadata, got {type(meta).__name__}"
                )
            expect_slots("kv_connector_worker_meta", meta.metadata, self._names)
            self._quarantine.obey(meta.quarantined)
        for child in self._children:
            own = output_for(child, connector_output, self._holds, self._loads)
            self._quarantine.ask(child, child.connector.update_connector_output, None, own)
        self._holds.release(connector_output.finished_sending or ())
        self._loads.finish(connector_output.finished_recving or ())
        self._last_report.filter(connector_output)

    def take_events(self) -> Iterable[KVCacheEvent]:
        drained = [self._quarantine.ask(child, _take_events, [], child) for child in self._children]
        return chain.from_iterable(drained)

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        counted = {
            child.name: self._quarantine.ask(child, child.connector.get_kv_connector_stats, None)
            for child in self._children
        }
        return collect(counted, self._origins, self._quarantine.reasons())

    # -- a request ends ------------------------------------------------------------------------

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        return self._finish(request, block_ids, lambda child: child.connector.request_finished)

    def request_finished_all_groups(self, request: Request, block_ids: BlockIds) -> Finish:
        without = [child.name for child in self._children if not supports_hma(child.connector)]
        if not without:
            return self._finish(
                request, block_ids, lambda child: cast(SupportsHMA, child.connector).request_finished_all_groups
            )
        if len(block_ids) != 1:
            raise RuntimeError(
                f"request {request.request_id!r} has blocks of {len(block_ids)} KV cache groups, but these "
                f"connectors know one: {', '.join(without)}"
            )
        return self.request_finished(request, block_ids[0])

    def register_finished_partial_tail(
        self, request: Request, block_ids: BlockIds, partial_tail_offloads: PartialTails
    ) -> bool:
        holders = [
            child.place
            for child in self._children
            if child.saves
            and self._quarantine.ask(
                child,
                child.connector.register_finished_partial_tail,
                False,
                request,
                block_ids,
                partial_tail_offloads,
            )
        ]
        self._holds.add(request.request_id, holders)
        return bool(holders)

    def _finish(
        self, request: Request, block_ids: Ids, method: Callable[[Child], Callable[[Request, Ids], Finish]]
    ) -> Finish:
        request_id = request.request_id
        nothing: Finish = (False, None)
        loader = self._loads.loader(request_id)
        answers = [
            self._quarantine.ask(
                child,
                method(child),
                nothing,
                request,
                # Until its load has ended there is nothing in the blocks but what the loader is writing.
                block_ids if loader is None or child.place == loader else none_of(block_ids),
            )
            for child in self._children
        ]
        stopping = self._quarantine.untold()
        self._holds.add(
            request_id,
            # The worker half of a child that is being switched off may read the blocks until it is told.
            [
                c.place
                for c, answer in zip(self._children, answers, strict=True)
                if answer[0] or c.name in stopping
            ],
        )
        self._choices.forget(request_id)
        held = bool(self._holds.holders(request_id))
        if held and self.outermost and loader is not None:
            # The engine holds the blocks for the load already; both reports will come, and it takes one.
            self._last_report.watch(request_id)
            held = False
        params = {name: own for name, (_, own) in zip(self._names, answers, strict=True) if own is not None}
        return held, merge_params(params)

    # -- questions at any time ------------------------------------------------------------------

    def has_pending_push_work(self) -> bool:
        asked = [self._quarantine.ask(c, c.connector.has_pending_push_work, False) for c in self._children]
        return any(asked) or bool(self._quarantine.untold())

    def has_pending_block_frees(self) -> bool:
        asked = [self._quarantine.ask(c, c.connector.has_pending_block_frees, False) for c in self._children]
        return any(asked)

    def reset_cache(self) -> bool:
        answers = [self._quarantine.ask(child, child.connector.reset_cache, None) for child in self._children]
        return all(answer is not False for answer in answers)

    def shutdown(self) -> None:
        shut_down_all(list(self._quarantine.live()))

    def check(self) -> None:
        """Recount every book."""
        self._choices.check(len(self._children))
        self._holds.check(len(self._children))
        self._loads.check(len(self._children))
        self._last_report.check()
        self._quarantine.check()


def _take_events(child: Child) -> list[KVCacheEvent]:
    return list(child.connector.take_events())
