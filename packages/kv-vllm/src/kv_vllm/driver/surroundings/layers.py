"""The attention layers of a world, from which connectors only learn the attention backend.

A real backend refuses blocks of few tokens. A world's blocks are small on purpose, and nothing is computed, so its
backend accepts blocks of any size.
"""

from functools import cache
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionBackend, MultipleOf
from vllm.v1.attention.selector import get_attn_backend

from kv_sim.config import STATE, WorldConfig
from kv_vllm.vllm_world import layer_name


@cache
def _backend(head_size: int, dtype: Any, cache_dtype: str) -> type[AttentionBackend]:
    """The attention backend of this machine, changed to accept blocks of any size."""
    found = get_attn_backend(head_size=head_size, dtype=dtype, kv_cache_dtype=cache_dtype, use_mla=False)

    class WorldBackend(found):  # type: ignore[misc, valid-type]
        @staticmethod
        def get_supported_kernel_block_sizes(*args: Any) -> list[int | MultipleOf]:
            return [MultipleOf(1)]

    return WorldBackend


class WorldLayer(AttentionLayerBase):  # type: ignore[misc]
    """An attention layer with the attributes that vLLM reads; it computes nothing. Its KV isn't quantised."""

    def __init__(self, backend: type[AttentionBackend]) -> None:
        self._backend = backend
        self._k_scale = self._v_scale = torch.ones(())

    def get_attn_backend(self) -> type[AttentionBackend]:
        return self._backend

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        """Never called: the groups are the world's."""
        return None


def attention_layers(world: WorldConfig, config: Any) -> dict[str, Any]:
    """The attention layers by name: of all groups except those of states."""
    model = config.model_config
    with set_current_vllm_config(config):
        backend = _backend(model.get_head_size(), model.dtype, config.cache_config.cache_dtype)
    return {
        layer_name(number, layer): WorldLayer(backend)
        for number, group in enumerate(world.groups)
        if group != STATE
        for layer in range(world.layers)
    }
