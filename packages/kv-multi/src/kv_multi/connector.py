"""``MultiConnector``: several connectors as one. The first child that has the tokens loads, all of them store.

Every member of the connector interface stands below with the rule by which the children answer it, and hands over
to the half of its object's role (``scheduler_side``, ``worker_side``) or, asked of the class, to ``questions``.
"Each" means every child in the order of the configuration; one that is switched off (``quarantine``) is left out.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from kv_api import (
    AttentionMetadata,
    BlockIds,
    BlockPool,
    CacheHitSource,
    CopyBlocksOp,
    ForwardContext,
    KVCacheBlocks,
    KVCacheConfig,
    KVCacheEvent,
    KVCacheManager,
    KVCaches,
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorKVEvents,
    KVConnectorMetadata,
    KVConnectorOutput,
    KVConnectorPromMetrics,
    KVConnectorRole,
    KVConnectorStats,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    PartialTails,
    Request,
    SchedulerOutput,
    SupportsHMA,
    Tensor,
    TransferConfig,
    VllmConfig,
    WrongSideError,
)
from kv_api.stats import PromMetric
from kv_multi import questions
from kv_multi.children import build_children, parse_children, parse_options
from kv_multi.metadata import MultiKVConnectorMetadata
from kv_multi.prom import build_metrics
from kv_multi.scheduler_side import MultiSchedulerSide
from kv_multi.stats import MultiKVConnectorStats, origins, rebuild
from kv_multi.worker_side import MultiWorkerSide


class MultiConnector(KVConnectorBase_V1, SupportsHMA):
    """Hands every call to its children by a stated rule."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        role: KVConnectorRole,
        kv_cache_config: KVCacheConfig | None = None,
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        options = parse_options(self._kv_transfer_config.kv_connector_extra_config)
        known = origins(parse_children(self._kv_transfer_config))
        children = build_children(vllm_config, role, kv_cache_config)
        self._connectors: list[KVConnectorBase_V1] = [child.connector for child in children]
        self._half: MultiSchedulerSide | MultiWorkerSide
        if role is KVConnectorRole.SCHEDULER:
            self._half = MultiSchedulerSide(vllm_config, kv_cache_config, children, options, known)
        else:
            self._half = MultiWorkerSide(vllm_config, kv_cache_config, children, options, known)
        for child in self._connectors:
            if isinstance(child, MultiConnector) and isinstance(child._half, MultiSchedulerSide):
                child._half.outermost = False
        self.child_names: tuple[str, ...] = tuple(child.name for child in children)
        """The children's names, in the order of the configuration."""

    @property
    def sub_connectors(self) -> list[KVConnectorBase_V1]:
        """The children, in the order of the configuration."""
        return list(self._connectors)

    @property
    def _scheduler(self) -> MultiSchedulerSide:
        if not isinstance(self._half, MultiSchedulerSide):
            raise self._wrong_side("scheduler", "worker")
        return self._half

    @property
    def _worker(self) -> MultiWorkerSide:
        if not isinstance(self._half, MultiWorkerSide):
            raise self._wrong_side("worker", "scheduler")
        return self._half

    def _wrong_side(self, wanted: str, found: str) -> WrongSideError:
        return WrongSideError(
            f"{type(self).__name__}: a method of the {wanted} side was called, but this object was created for "
            f"the {found} side (role {self._role.name})"
        )

    # -- the class -----------------------------------------------------------------------------

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """What those that want one want. Different wishes are an error that names who wants what."""
        return questions.required_layout(vllm_config)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Whether any does."""
        return questions.any_requires_piecewise(extra_config)

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: TransferConfig) -> bool:
        """Whether all do."""
        return questions.all_support_sleep_mode(kv_transfer_config)

    @classmethod
    def all_children_support_hma(cls, kv_transfer_config: TransferConfig) -> bool:
        """Whether all do. The factory asks, since being a ``SupportsHMA`` says nothing of the children."""
        return questions.all_support_hma(kv_transfer_config)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        """Each one's class builds its part; the payload says which class that is."""
        return MultiKVConnectorStats() if data is None else rebuild(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetric]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics | None:
        """Each one's class, with the label ``child``; a metric that several want is registered once."""
        children = questions.children_of(vllm_config)
        return build_metrics(vllm_config, children, metric_types, labelnames, per_engine_labelvalues)

    # -- both sides ----------------------------------------------------------------------------

    @property
    def role(self) -> KVConnectorRole:
        """Its own, which is that of all its children."""
        return self._role

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """Each one's, under its name, and who is switched off. None when there is nothing."""
        return self._half.get_kv_connector_stats()

    def shutdown(self) -> None:
        """Each, whatever the others raise; what they raised is raised at the end."""
        self._half.shutdown()

    def check(self) -> None:
        """Recount everything that is remembered; for tests."""
        self._half.check()

    # -- the scheduler's side: start -----------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        """Each."""
        self._scheduler.bind_kv_cache_manager(kv_cache_manager)

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        """Each. ``bind_kv_cache_manager`` doesn't come here: each child passes its pool on itself."""
        self._scheduler.bind_gpu_block_pool(gpu_block_pool)

    def get_finished_count(self) -> int | None:
        """What all say; None when any says so. Different numbers are an error that names who said what."""
        return self._scheduler.get_finished_count()

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        """Each gets its own workers' metadata, by name, and nobody else's; one that has none gets ``{}``."""
        self._scheduler.set_xfer_handshake_metadata(metadata)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """As ``set_xfer_handshake_metadata``."""
        self._scheduler.set_xfer_handshake_metadata_pp_aware(metadata)

    @property
    def requires_kv_delivery(self) -> bool:
        """Whether any does."""
        return self._scheduler.requires_kv_delivery

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """Whether all do."""
        return self._scheduler.supports_divergent_local_hybrid_hits

    # -- the scheduler's side: a request's life ------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        """Each."""
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """The answer of the first that has tokens, or with ``load_policy: longest`` of the first that has most.

        That one is the chosen one from now on, until the next query or the end of the request; a query that finds
        nothing leaves none. The first None is the answer at once, ``(None, False)``, and the rest isn't asked.
        """
        return self._scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        """The chosen one's. An error when none was chosen."""
        return self._scheduler.get_loaded_kv_cache_group_ids(request)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Each gets the blocks; the chosen one with the tokens, the others with 0."""
        self._scheduler.update_state_after_alloc(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        """The chosen one's; of unknown source when none was chosen."""
        return self._scheduler.get_external_cache_hit_sources(request, num_external_tokens)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Each. True when any says so, parameters merged; two that set one key are an error that names them.

        When the load of the request is in flight the answer is False, as the contract wants it: the blocks are
        held for the load, and freed when both it and every child's store were reported (``release``).
        """
        return self._scheduler.request_finished(request, block_ids)

    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        """As ``request_finished``. When any child knows one group only, each is called for that one group."""
        return self._scheduler.request_finished_all_groups(request, block_ids)

    def register_finished_partial_tail(
        self, request: Request, block_ids: BlockIds, partial_tail_offloads: PartialTails
    ) -> bool:
        """Each that saves; True when any says so, and then those are waited for."""
        return self._scheduler.register_finished_partial_tail(request, block_ids, partial_tail_offloads)

    # -- the scheduler's side: every step ------------------------------------------------------

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> MultiKVConnectorMetadata:
        """A slot for each; None for one that is switched off."""
        return self._scheduler.build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Each, with a copy that has its own payloads and no other's transfers.

        The engine's object stays as it is, but for the first of two reports that a request is due (``release``).
        """
        self._scheduler.update_connector_output(connector_output)

    def take_events(self) -> Iterable[KVCacheEvent]:
        """All of all, in order."""
        return self._scheduler.take_events()

    def has_pending_push_work(self) -> bool:
        """Whether any has, or the workers don't know yet that a child is switched off."""
        return self._scheduler.has_pending_push_work()

    def has_pending_block_frees(self) -> bool:
        """Whether any has."""
        return self._scheduler.has_pending_block_frees()

    def reset_cache(self) -> bool:
        """Each; True unless any says False."""
        return self._scheduler.reset_cache()

    # -- the worker's side: start and sleep ----------------------------------------------------

    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        """The only one's. Two are an error that names them."""
        return self._worker.get_mem_pool_context()

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        """Each."""
        self._worker.register_kv_caches(kv_caches)

    def unregister_kv_caches(self) -> None:
        """Each."""
        self._worker.unregister_kv_caches()

    def restore_kv_caches(self) -> None:
        """Each."""
        self._worker.restore_kv_caches()

    def set_host_xfer_buffer_ops(self, copy_operation: CopyBlocksOp) -> None:
        """Each."""
        self._worker.set_host_xfer_buffer_ops(copy_operation)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """Each one's that has any, by name. None when none has."""
        return self._worker.get_handshake_metadata()

    # -- the worker's side: every step ---------------------------------------------------------

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Each, with its slot."""
        self._worker.handle_preemptions(kv_connector_metadata)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Each, with its slot; what the scheduler says of stores and loads is taken over."""
        self._worker.bind_connector_metadata(connector_metadata)

    def has_connector_metadata(self) -> bool:
        """Its own answer, which is that of all its children."""
        return self._worker.has_connector_metadata()

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Each."""
        self._worker.start_load_kv(forward_context, **kwargs)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Each."""
        self._worker.wait_for_layer_load(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> None:
        """Each that saves."""
        self._worker.save_kv_layer(layer_name, kv_layer, attn_metadata, **kwargs)

    def finish_forward(self) -> None:
        """Each."""
        self._worker.finish_forward()

    def reset_capture_state(self) -> None:
        """Each."""
        self._worker.reset_capture_state()

    def wait_for_save(self) -> None:
        """Each, also one that doesn't save (``saves``)."""
        self._worker.wait_for_save()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """As ``get_transfer_results``; None where nothing ended."""
        return self._worker.get_finished(finished_req_ids)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """A store when the last child that holds the request reported it, a load when its loader did; once."""
        return self._worker.get_transfer_results(finished_req_ids)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """All of all, and the blocks of loads that were lost with a child."""
        return self._worker.get_block_ids_with_load_errors()

    def get_kv_connector_kv_cache_events(self) -> KVConnectorKVEvents | None:
        """Each one's, kept apart by name. None when none has any."""
        return self._worker.get_kv_connector_kv_cache_events()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """A slot for each. None when all have None and no child was switched off."""
        return self._worker.build_connector_worker_meta()

    def clear_connector_metadata(self) -> None:
        """Each, and its own."""
        self._worker.clear_connector_metadata()
