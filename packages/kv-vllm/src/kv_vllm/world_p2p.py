"""Our ``P2PConnector`` as vLLM loads it, with the testbed's router and wire: for the engine ``vllm``."""

from kv_api import KVCacheConfig, KVCaches, VllmConfig
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.wire import Wire
from kv_sim.p2p import RoutedSchedulerSide, TimedP2PWorkerSide, WorldWire
from kv_vllm.connectors.p2p import P2PConnector
from kv_vllm.driver.tensors import device_of


class TensorP2PWorkerSide(TimedP2PWorkerSide):
    """Its clock is that of the device."""

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        super().register_kv_caches(kv_caches)
        self._device = device_of(next(iter(kv_caches.values())))  # a tensor's own is where its bytes are


class DrivenP2PConnector(P2PConnector):
    """Hands over to itself."""

    scheduler_class = RoutedSchedulerSide
    worker_class = TensorP2PWorkerSide

    def make_wire(
        self, kv_caches: KVCaches, options: Options, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None
    ) -> Wire:
        return WorldWire(device_of(next(iter(kv_caches.values()))))
