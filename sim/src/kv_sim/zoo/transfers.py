"""Planted in ``LaterConnector`` and ``PatientConnector``: copies that begin, end or count at the wrong time."""

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
    """Copies don't wait for the compute stream: what a step has yet to write is stored as it is now."""

    worker_class = _StoresTooEarly


class _NoFlush(PatientWorker):
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        self._collect()


class NoFlush(PatientConnector):
    """Stores under way are not waited for when their blocks are taken away and written anew."""

    worker_class = _NoFlush


class _LoadNotAwaited(PatientWorker):
    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        if plan.loads:
            self._copies.submit(Direction.LOAD, [(block, slot + self._first_slot) for block, slot in plan.loads])


class LoadNotAwaited(PatientConnector):
    """A load of the step is begun before its forward pass, and nobody waits for its end."""

    worker_class = _LoadNotAwaited


class _FailedStoreIndexed(LaterWorker):
    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        self._failed_stores.clear()
        return None


class FailedStoreIndexed(LaterConnector):
    """Workers don't say which stores failed, so torn pages are found like any other."""

    worker_class = _FailedStoreIndexed


class _FailedLoadIsFine(LaterWorker):
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = super().get_transfer_results(finished_req_ids)
        results.failed_recving.clear()
        self._failed_blocks.clear()
        return results


class FailedLoadIsFine(LaterConnector):
    """A load that failed is reported like one that didn't, and its request goes on with what is in its blocks."""

    worker_class = _FailedLoadIsFine


class _FailedBlocksToldAgain(LaterWorker):
    def get_block_ids_with_load_errors(self) -> set[int]:
        return set(self._failed_blocks)


class FailedBlocksToldAgain(LaterConnector):
    """Blocks that a load left unfilled are told in every later step, too, when others have them."""

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
    """That a load failed is told in every later step, too: its request's next one counts as failed."""

    worker_class = _FailedLoadToldAgain


class _FailedLoadIsSilent(LaterWorker):
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = super().get_transfer_results(finished_req_ids)
        results.finished_recving -= results.failed_recving
        return results


class FailedLoadIsSilent(LaterConnector):
    """A load that failed is never reported as ended, and there is no timeout."""

    worker_class = _FailedLoadIsSilent


class _AbortedLoadIsSilent(LaterWorker):
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        self._loads = {copy: load for copy, load in self._loads.items() if load[0] not in finished_req_ids}
        return super().get_transfer_results(finished_req_ids)


class AbortedLoadIsSilent(LaterConnector):
    """The load of an aborted request is forgotten, while the engine holds its blocks until it is reported."""

    worker_class = _AbortedLoadIsSilent


class _AlwaysHolds(LaterScheduler):
    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        hold, params = super().request_finished(request, block_ids)
        if not (hold or self._is_loading(request.request_id)):
            self._storing[request.request_id], self._jobs.stores[request.request_id] = [], []
        return request.request_id in self._storing, params


class AlwaysHolds(LaterConnector):
    """No bug: it holds every request that ended until the workers say so, also when there is nothing to store."""

    scheduler_class = _AlwaysHolds


class _HoldsWhileLoading(_AlwaysHolds):
    def _is_loading(self, request_id: str) -> bool:
        return False


class HoldsWhileLoading(LaterConnector):
    """An aborted request's blocks are to be held for a store while its load is under way."""

    scheduler_class = _HoldsWhileLoading


class _SampledTokenStored(LaterScheduler):
    def _full_blocks(self, request: Request) -> int:
        return request.num_tokens // self._block_size


class SampledTokenStored(LaterConnector):
    """The watermark of a finished request counts the token that was sampled last and never computed."""

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
    """The slots of a store that failed are dropped from the index and never given back."""

    scheduler_class = _LeaksFailedStores


class _LeaksMatches(LaterScheduler):
    def _forget(self, request_id: str) -> None:
        return


class LeaksMatches(LaterConnector):
    """What a match left behind is only cleaned up by an allocation, which an abort may forestall."""

    scheduler_class = _LeaksMatches


class _StoresSurviveReset(LaterScheduler):
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        for request_id in connector_output.finished_sending or ():
            for slot in self._storing[request_id]:
                self._slots.setdefault(slot.block_hash, slot)
        super().update_connector_output(connector_output)


class StoresSurviveReset(LaterConnector):
    """A store that was under way at a reset is entered into the index when it ends."""

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
    """Requests that had nothing to store are reported as stored, too, when their blocks are free already."""

    scheduler_class = _KnowsItsStores
    worker_class = _ReportsEveryEnd


class _AsksForEver(PatientScheduler):
    def _lookup_began(self, request_id: str) -> int:
        self._lookups[request_id] = self._steps
        return self._steps


class AsksForEver(PatientConnector):
    """Every question begins its lookup anew, so none is ever answered."""

    scheduler_class = _AsksForEver
