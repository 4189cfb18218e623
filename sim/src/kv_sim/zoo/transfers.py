"""Planted in ``LaterConnector`` and ``PatientConnector``: copies that begin, end or are reported wrongly."""

from dataclasses import replace
from typing import Any

from kv_api import (
    Direction,
    ForwardContext,
    KVConnectorMetadata,
    KVConnectorOutput,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    Request,
)
from kv_sim.examples.later import LaterConnector, LaterScheduler, LaterWorker, Pages, Slot
from kv_sim.examples.patient import PatientConnector, PatientScheduler, PatientWorker, Plan


class _StoresTooEarly(LaterWorker):
    def _submit(self, direction: Direction, pages: Pages) -> int:
        pairs = [(block, slot + self._first_slot) for block, slot in pages]
        copy: int = self._copies.submit(direction, pairs, after_compute=False)
        return copy


class StoresTooEarly(LaterConnector):
    """Copies don't wait for the compute stream, so a store may read blocks before the step has written them."""

    worker_class = _StoresTooEarly


class _NoFlush(PatientWorker):
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        self._collect()


class NoFlush(PatientConnector):
    """It doesn't wait for stores under way before their blocks are given to other requests and overwritten."""

    worker_class = _NoFlush


class _LoadNotAwaited(PatientWorker):
    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        if plan.loads:
            self._copies.submit(Direction.LOAD, [(block, slot + self._first_slot) for block, slot in plan.loads])


class LoadNotAwaited(PatientConnector):
    """A load within the step is begun before its forward pass, which doesn't wait for it."""

    worker_class = _LoadNotAwaited


class _AsksByWaiting(LaterWorker):
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        self._copies.wait([*self._loads])
        return super().get_transfer_results(finished_req_ids)


class AsksByWaiting(LaterConnector):
    """When it is asked which loads have ended, it waits for them."""

    worker_class = _AsksByWaiting


class _FailedStoreIndexed(LaterWorker):
    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        self._failed_stores.clear()
        return None


class FailedStoreIndexed(LaterConnector):
    """Workers don't report failed stores, so half-written slots are found like any other."""

    worker_class = _FailedStoreIndexed


class _FailedLoadIsFine(LaterWorker):
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = super().get_transfer_results(finished_req_ids)
        results.failed_recving.clear()
        self._failed_blocks.clear()
        return results


class FailedLoadIsFine(LaterConnector):
    """A failed load is reported as successful, so its request goes on with unfilled blocks."""

    worker_class = _FailedLoadIsFine


class _FailedBlocksToldAgain(LaterWorker):
    def get_block_ids_with_load_errors(self) -> set[int]:
        return set(self._failed_blocks)


class FailedBlocksToldAgain(LaterConnector):
    """A failed load's block ids are reported again in every later step, when other requests have these blocks."""

    worker_class = _FailedBlocksToldAgain


class _FailedLoadToldAgain(LaterWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._failed_once: set[str] = set()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        self._failed_once -= finished_req_ids
        results = super().get_transfer_results(finished_req_ids)
        self._failed_once |= results.failed_recving
        results.failed_recving |= self._failed_once
        return results


class FailedLoadToldAgain(LaterConnector):
    """A failed load's request is reported again in every later step, so its next load counts as failed, too."""

    worker_class = _FailedLoadToldAgain


class _FailedLoadIsSilent(LaterWorker):
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = super().get_transfer_results(finished_req_ids)
        results.finished_recving -= results.failed_recving
        return results


class FailedLoadIsSilent(LaterConnector):
    """A failed load is never reported as ended, so its request waits for ever."""

    worker_class = _FailedLoadIsSilent


class _AbortedLoadIsSilent(LaterWorker):
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        self._loads = {copy: load for copy, load in self._loads.items() if load[0] not in finished_req_ids}
        return super().get_transfer_results(finished_req_ids)


class AbortedLoadIsSilent(LaterConnector):
    """An aborted request's load is never reported, although the engine holds its blocks until then."""

    worker_class = _AbortedLoadIsSilent


class _AlwaysHolds(LaterScheduler):
    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        hold, params = super().request_finished(request, block_ids)
        if not (hold or self._is_loading(request.request_id)):
            self._storing[request.request_id], self._jobs.stores[request.request_id] = [], []
        return request.request_id in self._storing, params


class AlwaysHolds(LaterConnector):
    """No bug: it holds every request that ended until the workers report it, even if it has nothing to store."""

    scheduler_class = _AlwaysHolds


class _HoldsWhileLoading(_AlwaysHolds):
    def _is_loading(self, request_id: str) -> bool:
        return False


class HoldsWhileLoading(LaterConnector):
    """It asks to hold an aborted request's blocks for a store while the request's load is still under way."""

    scheduler_class = _HoldsWhileLoading


class _SampledTokenStored(LaterScheduler):
    def _full_blocks(self, request: Request) -> int:
        return request.num_tokens // self._block_size


class SampledTokenStored(LaterConnector):
    """A finished request's last sampled token, which was never computed, counts as computed and is stored."""

    scheduler_class = _SampledTokenStored


class _EvictsPinned(LaterScheduler):
    def _victim(self) -> Slot | None:
        return next((slot for slot in self._slots.values() if slot.is_ready), None)


class EvictsPinned(LaterConnector):
    """A slot that a load reads from is evicted, and the next store writes into it."""

    scheduler_class = _EvictsPinned


class _LeaksFailedStores(LaterScheduler):
    def _release(self, slot: Slot) -> None:
        if slot.is_ready:
            super()._release(slot)


class LeaksFailedStores(LaterConnector):
    """The slots of a failed store are dropped from the index but never freed."""

    scheduler_class = _LeaksFailedStores


class _LeaksMatches(LaterScheduler):
    def _forget(self, request_id: str) -> None:
        return


class LeaksMatches(LaterConnector):
    """A match's records are removed only by the allocation, which never comes if the request is aborted before."""

    scheduler_class = _LeaksMatches


class _StoresSurviveReset(LaterScheduler):
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        for request_id in connector_output.finished_sending or ():
            for slot in self._storing[request_id]:
                self._slots.setdefault(slot.block_hash, slot)
        super().update_connector_output(connector_output)


class StoresSurviveReset(LaterConnector):
    """A store that was under way at a reset is still entered into the index when it ends."""

    scheduler_class = _StoresSurviveReset


class _KnowsItsStores(LaterScheduler):
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        known = {name for name in connector_output.finished_sending or () if name in self._storing}
        super().update_connector_output(replace(connector_output, finished_sending=known))


class _ReportsEveryEnd(LaterWorker):
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = super().get_transfer_results(finished_req_ids)
        results.finished_sending |= finished_req_ids.difference(self._stores.values())
        return results


class ReportsEveryEnd(LaterConnector):
    """Requests without stores are reported as finished storing, although their blocks were freed already."""

    scheduler_class = _KnowsItsStores
    worker_class = _ReportsEveryEnd


class _AsksForEver(PatientScheduler):
    def _lookup_began(self, request_id: str) -> int:
        self._lookups[request_id] = self._steps
        return self._steps


class AsksForEver(PatientConnector):
    """Every query restarts its lookup, so none is ever answered."""

    scheduler_class = _AsksForEver
