"""``LayerwiseConnector``: a ``PatientConnector`` that works in the hooks of layers.

A load begins before the forward pass and is waited for when the pass comes to its first layer; a store begins with
the first layer that is offered. So it needs every hook of every layer, and works only in these hooks.
"""

from typing import Any

from kv_api import Direction, ForwardContext, KVCacheConfig, VllmConfig
from kv_sim.examples.patient import PatientConnector, PatientScheduler, PatientWorker, Plan


class LayerwiseWorker(PatientWorker):
    """Runs the copies of one rank."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._load: int | None = None
        self._has_stored = False

    def _plan(self) -> Plan:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        return plan

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        if loads := self._plan().loads:
            pages = [(block, slot + self._first_slot) for block, slot in loads]
            self._load = self._copies.submit(Direction.LOAD, pages)

    def wait_for_layer_load(self, layer_name: str) -> None:
        load, self._load = self._load, None
        if load is not None:
            self._copies.wait([load])
            if not self._collect().get(load, False):
                self._failed_blocks.update(block for block, _ in self._plan().loads)
                self._ended.failed_slots.update(slot for _, slot in self._plan().loads)

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        if not self._has_stored:
            self._has_stored = True
            super().wait_for_save()

    def wait_for_save(self) -> None:
        assert self._has_stored or not self._plan().stores, f"no layer was offered for {self._plan().stores}"
        self._has_stored = False


class LayerwiseConnector(PatientConnector):
    """Takes its time to look things up, and loads and stores as the forward pass goes from layer to layer."""

    scheduler_class = PatientScheduler
    worker_class = LayerwiseWorker
