"""AIBrix's offloading connectors on a machine without a GPU, with copies of our own, in the runner that they want.

What looks up, saves, keeps, evicts and loads is AIBrix's, its store in host memory included. Ours are the kernels
that copy, pinned memory, and what vLLM said of a layer's shape until its attention backends no longer did.
"""

import os
import sys
import warnings
from types import SimpleNamespace
from unittest.mock import patch

import torch
from kv_vllm_aibrix_runner import Runner

FLASHINFER = "vllm.v1.attention.backends.flashinfer"
"""What AIBrix asks there is only its backend's name. It wants FlashInfer, which isn't here."""
sys.modules[FLASHINFER] = SimpleNamespace(FlashInferBackend=SimpleNamespace(get_name=lambda: "FLASHINFER"))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM compiles something when it is imported
    from aibrix_kvcache import cache_manager
    from aibrix_kvcache.integration.vllm.kv_connector import aibrix_offloading_connector_type1 as type1
    from aibrix_kvcache.integration.vllm.kv_connector import aibrix_offloading_connector_type2 as type2
    from aibrix_kvcache.memory import allocator
    from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend

del sys.modules[FLASHINFER]


class Backend(FlashAttentionBackend):
    """vLLM's, saying as it did what a layer's cache looks like: blocks, then keys and values."""

    @staticmethod
    def get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size):
        return (num_blocks, 2, block_size, num_kv_heads, head_size)


class Torch:
    """torch, for a module that has a GPU."""

    def empty(self, *size, device, **named):
        """In the only memory that there is."""
        return torch.empty(*size, **named)

    def __getattr__(self, name):
        return getattr(torch, name)


# -- kernels -----------------------------------------------------------------------------------


def _places(layer, slots, block_size):
    """Where tokens are in a layer of vLLM's: ``(blocks, heads, tokens of a block, 2 x size)``."""
    assert layer.shape[2] == block_size, f"blocks of {layer.shape[2]} tokens, and not of {block_size}"
    return slots // block_size, slice(None), slots % block_size


def to_gpu(blocks, layers, slots, block_size, cache_dtype, k_scales, v_scales, layout, blocks_first):
    """Fits ``reshape_and_cache_multi_layer``: from AIBrix's blocks, ``(layers, 2, tokens, heads, size)``."""
    for number, layer in enumerate(layers):
        keys, values = torch.cat([block[number] for block in blocks], dim=1)[:, : len(slots)]
        layer[_places(layer, slots, block_size)] = torch.cat([keys, values], dim=2)


def from_gpu(blocks, layers, slots, block_size, cache_dtype, k_scales, v_scales, layout, blocks_first):
    """Fits ``reshape_and_offload_multi_layer``."""
    for number, layer in enumerate(layers):
        read = layer[_places(layer, slots, block_size)]
        tokens = torch.stack(read.split(read.shape[2] // 2, dim=2))
        size = blocks[0].shape[2]
        for index, block in enumerate(blocks):
            part = tokens[:, index * size : (index + 1) * size]
            block[number, :, : part.shape[1]] = part


# -- in AIBrix's place -------------------------------------------------------------------------

cache_manager.TESTING_DISABLE_PIN_MEMORY = True
allocator.tqdm = lambda numbers, said: numbers
for module in (type1, type2):
    module.torch = Torch()
    module.reshape_and_cache_multi_layer = to_gpu
    module.reshape_and_offload_multi_layer = from_gpu

TOKEN_BYTES = 8
"""Of a token in a layer."""


class OnCpu(type1.AIBrixOffloadingConnector):
    """AIBrix's first type, which copies all layers at once, with settings of ours.

    ``room``: so many of its blocks fit into host memory. ``policy``: LRU, FIFO or S3FIFO. ``blocks``: vLLM's in
    one of its own. ``skip``: fewer of vLLM's blocks aren't looked up; AIBrix says 8.
    """

    runner_v1 = Runner
    BACKEND = Backend

    def __init__(self, config, role, kv_cache_config):
        told = config.kv_transfer_config.kv_connector_extra_config
        tokens = told.get("blocks", 1) * config.cache_config.block_size
        layers = config.model_config.model_arch_config.total_num_hidden_layers
        room = told.get("room", 64) * tokens * layers * TOKEN_BYTES
        settings = {
            "AIBRIX_KV_CACHE_OL_TIME_MEASUREMENT_ENABLED": "0",
            "AIBRIX_KV_CACHE_OL_BREAKDOWN_MEASUREMENT_ENABLED": "0",
            "AIBRIX_KV_CACHE_OL_L1_CACHE_CAPACITY_GB": str(room / 1024**3),
            "AIBRIX_KV_CACHE_OL_L1_CACHE_EVICTION_POLICY": told.get("policy", "S3FIFO"),
            "AIBRIX_KV_CACHE_OL_BLOCK_SIZE": str(tokens) if "blocks" in told else "-1",
            "AIBRIX_KV_CACHE_OL_CHUNK_SIZE": str(4 * tokens),
            "VLLM_AIBRIX_SYNC_GRANULARITY": "NONE",
        }
        for module in (type1, type2):
            module.OFFLOADING_CONNECTOR_SKIP_THRESHOLD = told.get("skip", 1)
        slabs = patch.object(allocator.TensorPoolAllocator, "SLAB_MAX_NBYTES", room)
        backend = patch.object(type1, "get_attn_backend", lambda *said, **named: self.BACKEND)
        with patch.dict(os.environ, settings), slabs, backend:
            super().__init__(config, role, kv_cache_config)


class ByLayer(OnCpu, type2.AIBrixOffloadingConnector):
    """AIBrix's second type, which loads and saves layer by layer."""

    SCHEDULER_CLASS = type2.AIBrixOffloadingConnector.SCHEDULER_CLASS
    WORKER_CLASS = type2.AIBrixOffloadingConnector.WORKER_CLASS
