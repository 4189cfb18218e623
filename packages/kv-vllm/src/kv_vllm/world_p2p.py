"""Our ``P2PConnector`` as vLLM loads it, over the testbed's wire: for the engine ``vllm``."""

from kv_api import KVCacheConfig, KVCaches, VllmConfig
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.wire import Wire
from kv_sim.memory.device import Device
from kv_sim.p2p import TimedP2PWorkerSide, WorldWire
from kv_vllm.connectors.p2p import P2PConnector
from kv_vllm.driver.surroundings.tensors import device_of


class TensorP2PWorkerSide(TimedP2PWorkerSide):
    """A worker's side that finds its device by a tensor."""

    def device_of(self, kv_caches: KVCaches) -> Device:
        return device_of(next(iter(kv_caches.values())))


class DrivenP2PConnector(P2PConnector):
    """`P2PConnector` as vLLM loads it, over the wire of the testbed."""

    worker_class = TensorP2PWorkerSide

    def make_wire(
        self, kv_caches: KVCaches, options: Options, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None
    ) -> Wire:
        return WorldWire(device_of(next(iter(kv_caches.values()))))
