"""``NoConnector`` finds and stores nothing, so the engine runs as it would without a connector."""

from typing import Any

from kv_api import (
    BlockIds,
    ForwardContext,
    KVCacheBlocks,
    KVConnectorMetadata,
    Request,
    SchedulerOutput,
    SchedulerSide,
    SupportsHMA,
    TwoSidedHMAConnector,
    WorkerSide,
)


class NoSchedulerSide(SchedulerSide, SupportsHMA):
    """Finds nothing."""

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, None


class NoWorkerSide(WorkerSide):
    """Moves nothing."""

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass


class NoConnector(TwoSidedHMAConnector):
    """A connector that finds and stores nothing."""

    scheduler_class = NoSchedulerSide
    worker_class = NoWorkerSide
