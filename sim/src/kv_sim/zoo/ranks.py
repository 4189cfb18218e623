"""Planted in ``LaterConnector``: ranks that don't agree with each other, or with the scheduler."""

from kv_api import Direction, KVCaches
from kv_sim.examples.later import LaterConnector, LaterScheduler, LaterWorker, Pages


class _SmallerRanks(LaterWorker):
    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        device = next(iter(kv_caches.values())).device
        slots = int(self._kv_transfer_config.kv_connector_extra_config["host_slots"])
        self._first_slot = device.allocate_host(slots // 2 if device.rank else slots)
        self._copies = device.copies.open()


class SmallerRanks(LaterConnector):
    """Each rank derives its room from its own page size; the scheduler knows the first one's only."""

    worker_class = _SmallerRanks


class _SkipsWhenBusy(LaterWorker):
    def _submit(self, direction: Direction, pages: Pages) -> int:
        if direction is Direction.STORE and self._stores:
            pages = []
        return super()._submit(direction, pages)


class SkipsWhenBusy(LaterConnector):
    """A rank that is still busy storing leaves the next store out; another rank, which was faster, doesn't."""

    worker_class = _SkipsWhenBusy


class _OneReportIsEnough(LaterScheduler):
    def get_finished_count(self) -> int:
        return 1


class OneReportIsEnough(LaterConnector):
    """One rank's report counts for all."""

    scheduler_class = _OneReportIsEnough
