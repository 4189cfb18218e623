"""vLLM's LMCacheConnectorV1 on a machine without a GPU: with copies of our own, and an end.

In one process with its engine LMCache has no copies for a CPU ("No supported cpu connector found"), and would do
without a cache. All else is LMCache's: what it looks up, stores, keeps, evicts and loads, and its lookup server.
In a server each rank is a process, in which LMCache finds by a name what it has; here each rank has a name.
"""

import functools
import gc
import itertools
import warnings

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its logging makes something of OpenTelemetry's that is deprecated
    from lmcache.integration.vllm import utils
    from lmcache.integration.vllm.vllm_service_factory import VllmServiceFactory
    from lmcache.integration.vllm.vllm_v1_adapter import LoadSpec
    from lmcache.v1 import gpu_connector
    from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface
    from lmcache.v1.lookup_client import factory
    from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector import LMCacheConnectorV1

NAMES = (f"rank {number}" for number in itertools.count())


class TensorCopies(GPUConnectorInterface):
    """Between LMCache's memory, ``(2, layers, tokens, heads x size)``, and vLLM's tensors of a layer each,
    ``(blocks, heads, tokens of a block, 2 x size)``."""

    def __init__(self, metadata):
        self.layers, _, _, self.heads, self.size = metadata.kv_shape

    def get_shape(self, num_tokens):
        return torch.Size([2, self.layers, num_tokens, self.heads * self.size])

    def _places(self, start, end, slot_mapping, kvcaches):
        """Where in each layer the tokens are."""
        slots = slot_mapping[start:end]
        block_size = kvcaches[0].shape[2]
        return slots // block_size, slice(None), slots % block_size

    def to_gpu(self, memory_obj, start, end, *, slot_mapping, kvcaches, vllm_cached_tokens=0, **others):
        """Without those that vLLM has, whose blocks others may read."""
        first = min(end, max(start, vllm_cached_tokens))
        places = self._places(first, end, slot_mapping, kvcaches)
        for number, layer in enumerate(kvcaches):
            kept = memory_obj.tensor[:, number, first - start :].unflatten(2, (self.heads, self.size))
            layer[places] = torch.cat([*kept], dim=2)

    def from_gpu(self, memory_obj, start, end, *, slot_mapping, kvcaches, **others):
        places = self._places(start, end, slot_mapping, kvcaches)
        for number, layer in enumerate(kvcaches):
            read = torch.stack(layer[places].split(self.size, dim=2))
            memory_obj.tensor[:, number] = read.flatten(2)

    def batched_to_gpu(self, memory_objs, starts, ends, **others):
        for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
            self.to_gpu(memory_obj, start, end, **others)

    def batched_from_gpu(self, memory_objs, starts, ends, **others):
        for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(memory_obj, start, end, **others)


def tensor_copies(config, metadata, engine, layout_hints=None):
    """What LMCache calls for its copies."""
    return TensorCopies(metadata)


def no_offload_server(self):
    """Nobody asks it here; and its end closes a socket that its thread waits for, which ends the whole process."""


gpu_connector.CreateGPUConnector = tensor_copies
VllmServiceFactory.maybe_create_offload_server = no_offload_server
factory.ZmqRouterServerTransport = functools.partial(factory.ZmqRouterServerTransport, recv_timeout_ms=20)


class OnCpu(LMCacheConnectorV1):
    """With those copies, and ending what it has begun.

    vLLM's class has no ``shutdown``; that of LMCache leaves its lookup server's context and an event loop open.
    """

    def __init__(self, vllm_config, role, kv_cache_config):
        self._name = utils.ENGINE_NAME = next(NAMES)
        utils._config_instance = None
        super().__init__(vllm_config, role, kv_cache_config)

    def shutdown(self):
        utils.ENGINE_NAME = self._name
        engine, server = self._lmcache_engine.lmcache_engine, self._lmcache_engine.lookup_server
        self._lmcache_engine.shutdown()
        if server is not None:
            server.transport.ctx.term()
        if engine is not None:
            engine.storage_manager.thread.join()
            engine.storage_manager.loop.close()


class Mended(OnCpu):
    """And without what it was found to get wrong, so that a hunt finds more."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        """Of a request that reads no cache the answer is dropped; if it is preempted, LMCache relies on it."""
        tag(request)
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if request.skip_reading_prefix_cache:
            self._lmcache_engine.load_specs[request.request_id] = LoadSpec(num_computed_tokens, 0, can_load=False)
        return answer

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        tag(request)
        super().update_state_after_alloc(request, blocks, num_external_tokens)


def tag(request):
    """Say whose KV it is where LMCache looks for what goes into its keys, which are of tokens alone.

    Each turn of a session has a place of its own for it.
    """
    adapter = request.lora_request.lora_name if request.lora_request else None
    said = {"lmcache.tag.salt": request.cache_salt, "lmcache.tag.adapter": adapter}
    tags = {name: value for name, value in said.items() if value is not None}
    request.sampling_params.extra_args = {"kv_transfer_params": tags}


gc.collect()
gc.freeze()
"""LMCache collects when it is made, and the testbed where something is left open: all that is here stays."""
