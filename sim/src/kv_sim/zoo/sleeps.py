"""Planted in ``PatientConnector`` and ``LaterConnector``: bugs that show when the engine pauses or sleeps."""

from typing import Any

from kv_api import KVCacheConfig, Request, VllmConfig
from kv_sim.examples.later import LaterConnector, LaterWorker
from kv_sim.examples.patient import PatientConnector, PatientScheduler


class _CountsOnSteps(PatientScheduler):
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._here: set[str] = set()

    def on_new_request(self, request: Request) -> None:
        super().on_new_request(request)
        self._here.add(request.request_id)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._here.discard(request.request_id)
        return super().request_finished(request, block_ids)

    def has_pending_push_work(self) -> bool:
        return super().has_pending_push_work() and not self._here


class CountsOnSteps(PatientConnector):
    """It reports no pending work while there are requests, as if steps came; a paused engine takes none."""

    scheduler_class = _CountsOnSteps


class _LetsGoForGood(LaterWorker):
    def unregister_kv_caches(self) -> None:
        self._copies = None


class LetsGoForGood(LaterConnector):
    """Before the engine sleeps, a worker drops what it made for the registered caches, and never remakes it."""

    worker_class = _LetsGoForGood
