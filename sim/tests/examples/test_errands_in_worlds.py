"""A connector whose stores are errands: what threads of its own would do, in worlds."""

from typing import Any

import numpy as np
import pytest

from kv_api import KVCaches, KVConnectorTransferResults
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.examples.later import Jobs, LaterConnector, LaterWorker
from kv_sim.fuzz import run_seed
from kv_sim.memory.errands import Errand, Errands
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant

CLAIMS = SUBJECTS["later"].traits


class ErrandsWorker(LaterWorker):
    """Stores in errands, which read the GPU's blocks one by one."""

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        super().register_kv_caches(kv_caches)
        self._layers = list(kv_caches.values())
        self._device: Any = self._layers[0].device
        self._errands = Errands(self._device)
        self._under_way: dict[str, Errand[None]] = {}

    def wait_for_save(self) -> None:
        jobs = self._get_connector_metadata()
        assert isinstance(jobs, Jobs)
        for request_id, pages in jobs.stores.items():
            self._under_way[request_id] = self._errands.submit(self._store, pages)

    def _store(self, pages: list[tuple[int, int]]) -> None:
        for block, slot in pages:
            page = np.stack([layer.read(block) for layer in self._layers])
            self._device.write_host(self._first_slot + slot, page)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = super().get_transfer_results(finished_req_ids)
        for request_id in [name for name, errand in self._under_way.items() if self.is_over(errand)]:
            errand = self._under_way.pop(request_id)
            results.finished_sending.add(request_id)
            if errand.done() and errand.exception():
                self._failed_stores.add(request_id)
        return results

    def is_over(self, errand: Errand[None]) -> bool:
        return errand.done()


class HastyWorker(ErrandsWorker):
    """Lets go of blocks before they were read."""

    def is_over(self, errand: Errand[None]) -> bool:
        return True


class WaitingWorker(ErrandsWorker):
    """Waits for them, as whoever joins a thread."""

    def is_over(self, errand: Errand[None]) -> bool:
        return errand.exception() is None or True


class ErrandsConnector(LaterConnector):
    worker_class = ErrandsWorker


class HastyConnector(LaterConnector):
    worker_class = HastyWorker


class WaitingConnector(LaterConnector):
    worker_class = WaitingWorker


def subject(name: str, traits: frozenset[Trait] = CLAIMS) -> Subject:
    return Subject(name, __name__, traits=traits)


@pytest.mark.parametrize("name", ["ErrandsConnector", "WaitingConnector"])
def test_errands_come_late_fail_and_are_waited_for(name: str) -> None:
    runs = [run_seed(subject(name), seed) for seed in range(25)]
    assert [run.failure for run in runs if run.failure] == []
    assert sum(run.coverage.situations["match: asynchronous load"] for run in runs) > 20
    assert sum(run.coverage.situations["a copy fails"] for run in runs) > 2


def test_a_block_that_is_let_go_before_an_errand_has_read_it_is_found() -> None:
    failures = (run_seed(subject("HastyConnector", CLAIMS - {Trait.FAILURES}), seed).failure for seed in range(25))
    found = next(failure for failure in failures if failure is not None)
    assert found.violation.invariant in (Invariant.CONTENT, Invariant.OWNERSHIP), found.violation
