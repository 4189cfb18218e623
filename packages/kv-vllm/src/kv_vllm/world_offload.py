"""Our ``OffloadingConnector`` as vLLM loads it, over the testbed's copies: for the engine ``vllm``.

The connector is ``kv_vllm.OffloadingConnector`` with the clock of a world. Its memory is a device's, which is
found by the tensors that vLLM's runner registers.
"""

from kv_api import CanonicalKVCaches, KVCaches
from kv_offload import OffloadingWorkerSide
from kv_offload_cpu import HostMemory
from kv_offload_cpu.copy.engine import CopyEngine
from kv_offload_cpu.sizing import HostLayout
from kv_sim.offload import TimedWorkerSide, WorldCopyEngine, WorldCPUOffloadingSpec, WorldMemory
from kv_vllm.connectors.offloading import OffloadingConnector
from kv_vllm.driver.surroundings.tensors import device_of


class TensorCPUOffloadingSpec(WorldCPUOffloadingSpec):
    """Host memory with the world's copies."""

    def make_copy_engine(self, kv_caches: CanonicalKVCaches, layout: HostLayout, memory: HostMemory) -> CopyEngine:
        device = device_of(kv_caches.tensors[0].tensor)
        return WorldCopyEngine(device, WorldMemory(device, layout))


class TensorWorkerSide(TimedWorkerSide):
    """A worker's side with the device's clock."""

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        self._device = device_of(next(iter(kv_caches.values())))
        OffloadingWorkerSide.register_kv_caches(self, kv_caches)


class DrivenOffloadingConnector(OffloadingConnector):
    """The connector with timeouts in steps."""

    worker_class = TensorWorkerSide
