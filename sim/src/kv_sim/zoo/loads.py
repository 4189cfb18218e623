"""Planted in the examples: wrong handling of loads that share a slot, have parts, fail, or outlive a reset."""

from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

from kv_api import (
    Direction,
    ForwardContext,
    KVCacheBlocks,
    KVCaches,
    KVConnectorOutput,
    KVConnectorTransferResults,
    Request,
    SchedulerOutput,
)
from kv_sim.examples.later import Jobs, LaterConnector, LaterScheduler, LaterWorker, Pages
from kv_sim.examples.layerwise import LayerwiseConnector, LayerwiseWorker
from kv_sim.examples.patient import PatientConnector, PatientScheduler


class _FirstLoadUnpins(LaterScheduler):
    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._pin_once()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._pin_once()
        super().update_connector_output(connector_output)

    def _pin_once(self) -> None:
        for slot in (slot for slots in self._loading.values() for slot in slots):
            slot.pins = 1

    def check(self) -> None:
        """The pins are wrong on purpose."""


class FirstLoadUnpins(LaterConnector):
    """A slot that several requests load is pinned only once, so the first load that ends unpins it for all."""

    scheduler_class = _FirstLoadUnpins


class _ForgetsWhatResumes(LaterScheduler):
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Jobs:
        for request_id in scheduler_output.preempted_req_ids or ():
            self._jobs.loads.pop(request_id, None)
        return super().build_connector_meta(scheduler_output)


class ForgetsWhatResumes(LaterConnector):
    """It forgets preempted requests at the end of planning, when they may have blocks and a new load again."""

    scheduler_class = _ForgetsWhatResumes


@dataclass(eq=False)
class _InParts:
    """A load of two copies."""

    request_id: str
    pages: Pages
    is_told: bool = False
    left: int = 2


class _ToldAtFirstFailure(LaterWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._parts: dict[int, _InParts] = {}

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        jobs = self._get_connector_metadata()
        assert isinstance(jobs, Jobs)
        for request_id, pages in jobs.loads.items():
            load, half = _InParts(request_id, pages), len(pages) // 2
            for part in (pages[:half], pages[half:]):
                self._parts[self._submit(Direction.LOAD, part)] = load

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        poll, others = self._copies.poll, []
        results = KVConnectorTransferResults()
        for result in poll():
            load = self._parts.pop(result.copy_id, None)
            if load is None:
                others.append(result)
                continue
            load.left -= 1
            if load.is_told or (result.success and load.left):
                continue
            load.is_told = True
            results.finished_recving.add(load.request_id)
            if not result.success:
                results.failed_recving.add(load.request_id)
                self._failed_blocks.update(block for block, _ in load.pages)
        self._copies.poll = lambda: others
        results.finished_sending = super().get_transfer_results(finished_req_ids).finished_sending
        self._copies.poll = poll
        return results


class ToldAtFirstFailure(LaterConnector):
    """A load has two parts.

    When one fails, the load is reported as ended while the other part still writes blocks.
    """

    worker_class = _ToldAtFirstFailure


class _ResetFreesLoaded(LaterScheduler):
    def reset_cache(self) -> bool:
        busy = {slot.number for slots in self._storing.values() for slot in slots}
        found, self._slots = self._slots, OrderedDict()
        self._free_slots += [slot.number for slot in found.values() if slot.number not in busy]
        return True


class ResetFreesLoaded(LaterConnector):
    """A reset frees slots that a load is reading, and the load's end frees them a second time."""

    scheduler_class = _ResetFreesLoaded


class _KeepsWhatRestsOnFailures(PatientScheduler):
    def _forget_what_rests_on(self, invalid: Set[int]) -> None:
        return


class KeepsWhatRestsOnFailures(PatientConnector):
    """Blocks that a step computed from a failed load are stored, and later found."""

    scheduler_class = _KeepsWhatRestsOnFailures


class _WaitsInTheLastLayer(LayerwiseWorker):
    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        super().register_kv_caches(kv_caches)
        *_, self._last = kv_caches

    def wait_for_layer_load(self, layer_name: str) -> None:
        if layer_name == self._last:
            super().wait_for_layer_load(layer_name)


class WaitsInTheLastLayer(LayerwiseConnector):
    """A step waits for its load only in the last layer, when earlier layers have already read unfilled blocks."""

    worker_class = _WaitsInTheLastLayer


class _TrustsItsAnswer(LaterScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answers: dict[str, int] = {}

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        count, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        self._answers[request.request_id] = count or 0
        return count, is_async

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, self._answers.pop(request.request_id, 0))

    def _forget(self, request_id: str) -> None:
        super()._forget(request_id)
        self._answers.pop(request_id, None)


class TrustsItsAnswer(LaterConnector):
    """It loads every match that it reported, although the engine may not have accepted that match."""

    scheduler_class = _TrustsItsAnswer
