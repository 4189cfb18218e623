"""``HoldingConnector``: holds the blocks of every request that ended for some steps, even if it never had any.

It stores nothing. The workers report a request two steps after they were told of it, and a second time one step
later, which is a violation. So it is driven only as the child of a MultiConnector, which must ignore the second
report.
"""

from dataclasses import dataclass, field
from typing import Any

from kv_api import (
    ForwardContext,
    KVCacheBlocks,
    KVCacheConfig,
    KVConnectorMetadata,
    KVConnectorOutput,
    KVConnectorTransferResults,
    Request,
    SchedulerOutput,
    SchedulerSide,
    TwoSidedConnector,
    VllmConfig,
    WorkerSide,
)

STEPS = 2
"""For how many steps a worker holds the blocks."""


@dataclass
class Ended(KVConnectorMetadata):
    """Requests that are held from this step on."""

    request_ids: list[str] = field(default_factory=list)


class HoldingScheduler(SchedulerSide):
    """Holds the blocks of each request that has ended, until its workers report it."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._untold = Ended()
        self._held: dict[str, None] = {}
        self._steps_to_go = 0

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        return

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Ended:
        self._steps_to_go = max(0, self._steps_to_go - 1)
        ended, self._untold = self._untold, Ended()
        return ended

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._untold.request_ids.append(request.request_id)
        self._held[request.request_id] = None
        return True, None

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        for request_id in connector_output.finished_sending or ():
            self._held.pop(request_id, None)
            self._steps_to_go = STEPS  # for the second report

    def has_pending_push_work(self) -> bool:
        return bool(self._held or self._steps_to_go)


class HoldingWorker(WorkerSide):
    """Counts the steps for which a request is held, and then reports it twice."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._steps_left: dict[str, int] = {}
        """Request -> the steps until its report. Below zero: it was reported once."""

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        ended = self._get_connector_metadata()
        assert isinstance(ended, Ended)
        self._steps_left.update(dict.fromkeys(ended.request_ids, STEPS))

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        for request_id in self._steps_left:
            self._steps_left[request_id] -= 1
        reported = {request_id for request_id, left in self._steps_left.items() if left <= 0}
        self._steps_left = {request_id: left for request_id, left in self._steps_left.items() if left >= 0}
        return KVConnectorTransferResults(finished_sending=reported)


class HoldingConnector(TwoSidedConnector):
    """Holds every request for some steps, and reports its end twice."""

    scheduler_class = HoldingScheduler
    worker_class = HoldingWorker
