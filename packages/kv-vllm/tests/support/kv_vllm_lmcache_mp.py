"""vLLM's LMCacheMPConnector, which asks LMCache's server, on a machine without a GPU and with that server in this
process (``kv_vllm_lmcache_server``). With LMCache installed the class is LMCache's.

As on a GPU the server copies between its memory and the engine's blocks, and the engine waits for none of that.
"""

import warnings
from types import SimpleNamespace

from kv_vllm_gpu import COMPUTE, Card
from kv_vllm_lmcache_cuda import CURRENT, EVENTS, Device
from kv_vllm_lmcache_server import SERVERS, Client, server_of, world_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its logging makes something of OpenTelemetry's that is deprecated
    from lmcache.integration.vllm import lmcache_mp_connector as connectors
    from lmcache.integration.vllm import vllm_multi_process_adapter as adapters
    from lmcache.v1.multiprocess.transfer_context import worker_transfer
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_mp_connector import LMCacheMPConnector


class Heartbeat(adapters.HeartbeatThread):
    """Without its thread: it beats when somebody has it do so (``_execute``)."""

    def start(self):
        """It is known to the server."""
        CURRENT.server.heartbeats.append(self)

    def stop(self, timeout=0.0):
        """It beats no more."""


class Wrapper:
    """In the place of memory that another process can have."""

    device_type = "cpu"

    def __init__(self, tensor):
        self._tensor = tensor

    def __deepcopy__(self, memo):
        return self

    def to_tensor(self):
        """That memory."""
        return self._tensor


def wrap_kv_caches(kv_caches):
    """What the server gets of the layers."""
    return [Wrapper(tensor) for tensor in kv_caches.values()]


def create_client(url, *, context=None):
    """One that asks the server of the connector that is made now."""
    [name] = SERVERS
    return Client(name)


connectors.print_banner_once = lambda stream: None
adapters.RequestClientFactory = SimpleNamespace(create=create_client)
adapters.HeartbeatThread = Heartbeat
adapters.torch_dev = worker_transfer.torch_dev = Device()
worker_transfer.wrap_kv_caches = wrap_kv_caches
worker_transfer.get_event_ipc_backend = lambda device: EVENTS


class OnCpu(LMCacheMPConnector):
    """LMCache's. ``chunk``, ``room`` and ``lags`` are settings of the server."""

    card = None

    def __init__(self, vllm_config, role, kv_cache_config):
        told = vllm_config.kv_transfer_config.kv_connector_extra_config
        told.setdefault("lmcache.mp.mp_transfer_mode", "lmcache_driven")
        CURRENT.server = server_of(vllm_config.model_config.model, told)
        CURRENT.server.expects_blocks_of(vllm_config.cache_config.block_size)
        self._world = world_of(vllm_config.model_config.model)
        super().__init__(vllm_config, role, kv_cache_config)
        self.server.engines += role is KVConnectorRole.SCHEDULER

    @property
    def server(self):
        """That of its world, which isn't a part of it."""
        return SERVERS[self._world]

    def register_kv_caches(self, kv_caches):
        CURRENT.server = self.server
        self.card = Card(next(iter(kv_caches.values())))
        super().register_kv_caches(kv_caches)

    def start_load_kv(self, forward_context, **kwargs):
        self._works()
        super().start_load_kv(forward_context, **kwargs)

    def wait_for_save(self):
        self._works()
        super().wait_for_save()

    def handle_preemptions(self, kv_connector_metadata):
        self._works()
        super().handle_preemptions(kv_connector_metadata)

    def get_finished(self, finished_req_ids):
        self._works()
        self.server.step_ends()
        return super().get_finished(finished_req_ids)

    def _works(self):
        CURRENT.server, COMPUTE.card = self.server, self.card

    def shutdown(self):
        if self.card is not None:
            self._works()
            self.card.run_out(self.server.turn)
        super().shutdown()
        if self.card is None:
            self.server.leave()
