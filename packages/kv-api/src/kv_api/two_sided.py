"""A connector written as two classes: a ``SchedulerSide`` and a ``WorkerSide``, joined under one name.

The public class names both; each object creates only the side that its role needs, and hands every call to it.
A call for the other side is a ``WrongSideError`` instead of a quiet default:

    class MyConnector(TwoSidedConnector):
        scheduler_class = MySchedulerSide
        worker_class = MyWorkerSide

Use ``TwoSidedHMAConnector`` when the scheduler's side has ``request_finished_all_groups``.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar, cast

from kv_api.connector import KVConnectorBase_V1, KVConnectorRole, SupportsHMA
from kv_api.engine import (
    AttentionMetadata,
    BlockIds,
    BlockPool,
    CopyBlocksOp,
    ForwardContext,
    KVCacheBlocks,
    KVCacheConfig,
    KVCacheManager,
    KVCaches,
    PartialTails,
    Request,
    SchedulerOutput,
    Tensor,
    VllmConfig,
)
from kv_api.errors import ConfigError, KVError, WrongSideError
from kv_api.events import KVCacheEvent, KVConnectorKVEvents
from kv_api.metadata import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)
from kv_api.output import KVConnectorOutput, KVConnectorTransferResults
from kv_api.scheduler_side import SchedulerSide
from kv_api.side import ConnectorSide
from kv_api.stats import CacheHitSource, KVConnectorStats
from kv_api.worker_side import WorkerSide

_Side = TypeVar("_Side", bound=ConnectorSide)


class _AbsentSide:
    """Stands where the side of the other role would be; touching it says what went wrong."""

    def __init__(self, owner: str, role: KVConnectorRole) -> None:
        self._owner = owner
        self._role = role

    def __getattr__(self, name: str) -> Any:
        here, there = ("scheduler", "worker")
        if self._role is KVConnectorRole.WORKER:
            here, there = there, here
        raise WrongSideError(
            f"{self._owner}.{name} belongs to the {there} side, "
            f"but this object was created for the {here} side (role {self._role.name})"
        )


class TwoSidedConnector(KVConnectorBase_V1):
    """Hands each call to the side of the object's role."""

    scheduler_class: ClassVar[type[SchedulerSide]]
    worker_class: ClassVar[type[WorkerSide]]

    def __init__(
        self,
        vllm_config: VllmConfig,
        role: KVConnectorRole,
        kv_cache_config: KVCacheConfig | None = None,
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._check_sides(role)
        absent: Any = _AbsentSide(type(self).__name__, role)
        self._scheduler: SchedulerSide = absent
        self._worker: WorkerSide = absent
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = self.build_side(self.scheduler_class, vllm_config, kv_cache_config)
        else:
            self._worker = self.build_side(self.worker_class, vllm_config, kv_cache_config)

    def _check_sides(self, role: object) -> None:
        name = type(self).__name__
        if not isinstance(role, KVConnectorRole):
            raise ConfigError(
                f"{name}: expected a role of kv_api.KVConnectorRole, got {role!r} of {type(role).__module__}; "
                f"to run it inside vLLM, wrap the class with kv_vllm.inside_vllm({name})"
            )
        for side, kind in (("scheduler_class", SchedulerSide), ("worker_class", WorkerSide)):
            if not hasattr(self, side):
                raise KVError(
                    f"{name} has no {side}; a TwoSidedConnector sets scheduler_class and worker_class in its "
                    "class body"
                )
            found = getattr(self, side)
            if not (isinstance(found, type) and issubclass(found, kind)):
                raise KVError(f"{name}.{side}: expected a class derived from {kind.__name__}, got {found!r}")

    def build_side(
        self, side_class: type[_Side], vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None
    ) -> _Side:
        """Make the side of the object's role. To be overridden where a side is made of more than these two."""
        return side_class(vllm_config, kv_cache_config)

    @property
    def side(self) -> SchedulerSide | WorkerSide:
        """The side that this object has."""
        return self._scheduler if self._role is KVConnectorRole.SCHEDULER else self._worker

    # -- both sides ---------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        return self.side.get_kv_connector_stats()

    def shutdown(self) -> None:
        self.side.shutdown()

    # -- the scheduler's side ----------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        self._scheduler.bind_kv_cache_manager(kv_cache_manager)

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        self._scheduler.bind_gpu_block_pool(gpu_block_pool)

    def get_finished_count(self) -> int | None:
        return self._scheduler.get_finished_count()

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        self._scheduler.set_xfer_handshake_metadata(metadata)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        self._scheduler.set_xfer_handshake_metadata_pp_aware(metadata)

    @property
    def requires_kv_delivery(self) -> bool:
        return self._scheduler.requires_kv_delivery

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        return self._scheduler.supports_divergent_local_hybrid_hits

    def on_new_request(self, request: Request) -> None:
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        return self._scheduler.get_loaded_kv_cache_group_ids(request)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self._scheduler.update_state_after_alloc(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        return self._scheduler.get_external_cache_hit_sources(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return self._scheduler.build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._scheduler.update_connector_output(connector_output)

    def take_events(self) -> Iterable[KVCacheEvent]:
        return self._scheduler.take_events()

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self._scheduler.request_finished(request, block_ids)

    def register_finished_partial_tail(
        self, request: Request, block_ids: BlockIds, partial_tail_offloads: PartialTails
    ) -> bool:
        return self._scheduler.register_finished_partial_tail(request, block_ids, partial_tail_offloads)

    def has_pending_push_work(self) -> bool:
        return self._scheduler.has_pending_push_work()

    def has_pending_block_frees(self) -> bool:
        return self._scheduler.has_pending_block_frees()

    def reset_cache(self) -> bool | None:
        return self._scheduler.reset_cache()

    # -- the worker's side -------------------------------------------------------------

    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        return self._worker.get_mem_pool_context()

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        self._worker.register_kv_caches(kv_caches)

    def unregister_kv_caches(self) -> None:
        self._worker.unregister_kv_caches()

    def restore_kv_caches(self) -> None:
        self._worker.restore_kv_caches()

    def set_host_xfer_buffer_ops(self, copy_operation: CopyBlocksOp) -> None:
        self._worker.set_host_xfer_buffer_ops(copy_operation)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return self._worker.get_handshake_metadata()

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        self._worker.handle_preemptions(kv_connector_metadata)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        self._worker.bind_connector_metadata(connector_metadata)

    def has_connector_metadata(self) -> bool:
        return self._worker.has_connector_metadata()

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        self._worker.start_load_kv(forward_context, **kwargs)

    def wait_for_layer_load(self, layer_name: str) -> None:
        self._worker.wait_for_layer_load(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> None:
        self._worker.save_kv_layer(layer_name, kv_layer, attn_metadata, **kwargs)

    def finish_forward(self) -> None:
        self._worker.finish_forward()

    def reset_capture_state(self) -> None:
        self._worker.reset_capture_state()

    def wait_for_save(self) -> None:
        self._worker.wait_for_save()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return self._worker.get_finished(finished_req_ids)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        return self._worker.get_transfer_results(finished_req_ids)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.get_block_ids_with_load_errors()

    def get_kv_connector_kv_cache_events(self) -> KVConnectorKVEvents | None:
        return self._worker.get_kv_connector_kv_cache_events()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return self._worker.build_connector_worker_meta()

    def clear_connector_metadata(self) -> None:
        self._worker.clear_connector_metadata()


class TwoSidedHMAConnector(TwoSidedConnector, SupportsHMA):
    """The same for a scheduler's side that works with several KV cache groups."""

    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        return cast(SupportsHMA, self._scheduler).request_finished_all_groups(request, block_ids)
