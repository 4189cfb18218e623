"""Checked by mypy and pyright, never run: a connector as somebody else would annotate it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kv_api import (
    BlockIds,
    ForwardContext,
    KVCacheBlocks,
    KVCacheEvent,
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorOutput,
    KVConnectorRole,
    KVTransferConfig,
    Request,
    SchedulerOutput,
    SchedulerSide,
    SupportsHMA,
    Tensor,
    TwoSidedHMAConnector,
    VllmConfig,
    WorkerSide,
)


@dataclass
class Plan(KVConnectorMetadata):
    loads: dict[str, list[int]] = field(default_factory=dict[str, list[int]])


class OneClass(KVConnectorBase_V1, SupportsHMA):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return len(request.block_hashes) - num_computed_tokens, False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        (first, *_) = blocks.get_block_ids()
        self.seen: tuple[str, int] = (request.request_id, first[0] + num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Plan:
        return Plan({new.req_id: new.block_ids[0] for new in scheduler_output.scheduled_new_reqs})

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, request.kv_transfer_params

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self.sent: set[str] | None = connector_output.finished_sending

    def take_events(self) -> Iterable[KVCacheEvent]:
        return []

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        self.layers: list[str] = [*plan.loads, *forward_context.no_compile_layers]

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return


class Scheduler(SchedulerSide):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return None, False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        return

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Plan:
        return Plan()


class Worker(WorkerSide):
    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return


class TwoClasses(TwoSidedHMAConnector):
    scheduler_class = Scheduler
    worker_class = Worker


def create(config: VllmConfig) -> list[KVConnectorBase_V1]:
    return [
        OneClass(config, KVConnectorRole.SCHEDULER, None),
        TwoClasses(config, KVConnectorRole.WORKER),
    ]


transfer = KVTransferConfig(kv_connector="OneClass", kv_role="kv_both", kv_load_failure_policy="recompute")
