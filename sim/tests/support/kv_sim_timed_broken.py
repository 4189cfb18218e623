"""Connectors that corrupt."""

from collections import Counter
from typing import Any

from kv_offload.connector import OffloadingConnector
from kv_offload.scheduler.side import OffloadingSchedulerSide
from kv_sim.replay.timed.connectors.host_memory import ReplayWorkerSide


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
    """Has something to do in so many steps, it says, when nobody else has."""

    steps = 0

    def has_pending_push_work(self) -> bool:
        self.steps -= 1
        return self.steps >= 0


class RestlessConnector(OffloadingConnector):
    scheduler_class = RestlessSide


class UndecidedSide(OffloadingSchedulerSide):
    """Puts the first request off so many times, the second one twice as often, and nobody else."""

    steps = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._looks: Counter[str] = Counter()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        name = request.request_id
        self._looks[name] += 1
        if self._looks[name] <= self.steps * {"0": 1, "1": 2}.get(name, 0):
            return None, False
        del self._looks[name]
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class UndecidedConnector(OffloadingConnector):
    scheduler_class = UndecidedSide


class RememberingSide(OffloadingSchedulerSide):
    """Forgets nobody."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seen: list[str] = []

    def on_new_request(self, request: Any) -> None:
        self._seen.append(request.request_id)
        super().on_new_request(request)


class RememberingConnector(OffloadingConnector):
    scheduler_class = RememberingSide


class KeepingSide(OffloadingSchedulerSide):
    """Holds a GPU block of its own for ever."""

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        super().bind_gpu_block_pool(gpu_block_pool)
        gpu_block_pool.touch([1])


class KeepingConnector(OffloadingConnector):
    scheduler_class = KeepingSide


class MiscountingSide(OffloadingSchedulerSide):
    """Its own recount fails."""

    def check(self) -> None:
        raise AssertionError("one too many")


class MiscountingConnector(OffloadingConnector):
    scheduler_class = MiscountingSide
