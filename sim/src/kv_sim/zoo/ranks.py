"""Planted in ``LaterConnector``: ranks that disagree with each other, or with the scheduler."""

from kv_api import Direction, KVCaches
from kv_sim.examples.later import LaterConnector, LaterScheduler, LaterWorker, Pages


class _SmallerRanks(LaterWorker):
    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        device = next(iter(kv_caches.values())).device
        slots = int(self._kv_transfer_config.kv_connector_extra_config["host_slots"])
        self._first_slot = device.allocate_host(slots // 2 if device.rank else slots)
        self._copies = device.copies.open()


class SmallerRanks(LaterConnector):
    """Each rank computes its number of slots from its own page size; the scheduler uses only the first rank's."""

    worker_class = _SmallerRanks


class _SkipsWhenBusy(LaterWorker):
    def _submit(self, direction: Direction, pages: Pages) -> int:
        if direction is Direction.STORE and self._stores:
            pages = []
        return super()._submit(direction, pages)


class SkipsWhenBusy(LaterConnector):
    """A rank that is still storing skips the next store, while a faster rank executes it."""

    worker_class = _SkipsWhenBusy


class _OneReportIsEnough(LaterScheduler):
    def get_finished_count(self) -> int:
        return 1


class OneReportIsEnough(LaterConnector):
    """A job counts as ended on all ranks when one rank reports it."""

    scheduler_class = _OneReportIsEnough
