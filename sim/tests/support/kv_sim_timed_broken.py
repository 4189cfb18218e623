"""Connectors that corrupt."""

from typing import Any

from kv_offload.connector import OffloadingConnector
from kv_offload.scheduler import OffloadingSchedulerSide
from kv_sim.replay.timed.medium import ReplayWorkerSide


class Backwards:
    """Block tables from the last block to the first."""

    def __init__(self, blocks: Any) -> None:
        self._blocks = blocks

    def get_block_ids(self) -> tuple[list[int], ...]:
        return tuple(table[::-1] for table in self._blocks.get_block_ids())


class BackwardsSide(OffloadingSchedulerSide):
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, Backwards(blocks), num_external_tokens)


class BackwardsConnector(OffloadingConnector):
    """Loads chunks into the wrong blocks."""

    scheduler_class = BackwardsSide


class HastySide(ReplayWorkerSide):
    """Begins stores before the step that computes what they copy."""

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        super().handle_preemptions(kv_connector_metadata)
        for job_id, job in kv_connector_metadata.store_jobs.items():
            self._begin_store(job_id, job)

    def wait_for_save(self) -> None:
        pass


class HastyConnector(OffloadingConnector):
    worker_class = HastySide


class SilentSide(ReplayWorkerSide):
    """Never says that a load ended."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        results = super().get_transfer_results(finished_req_ids)
        results.finished_recving.clear()
        return results


class SilentConnector(OffloadingConnector):
    worker_class = SilentSide


class PlainConnector(OffloadingConnector):
    """Nothing is wrong with it, but it is none of ours."""


class RestlessSide(OffloadingSchedulerSide):
    """Always has something to do, it says."""

    def has_pending_push_work(self) -> bool:
        return True


class RestlessConnector(OffloadingConnector):
    scheduler_class = RestlessSide
