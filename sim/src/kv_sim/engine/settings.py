"""The engine's configuration for a connector: its ``kv_api.VllmConfig`` and ``kv_api.KVCacheConfig``."""

from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

from kv_api import AttentionKind
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.engine.place import Place
from kv_sim.subject import Subject

KINDS = {
    "full": AttentionKind.FULL,
    "sliding": AttentionKind.SLIDING_WINDOW,
    "state": AttentionKind.STATE_SPACE,
}


def vllm_config(config: WorldConfig, subject: Subject, rank: int = 0, place: Place | None = None) -> Any:
    """The configuration for the worker of ``rank``; the scheduler's is that of rank 0.

    ``model_config`` has only the model's path and data type, and only in worlds of two engines.
    """
    place = place or Place()
    model = SimpleNamespace(model=place.model, dtype=config.dtype)
    of_model = {"model_config": model} if place.count > 1 or place.shares_store else {}
    return SimpleNamespace(
        **of_model,
        kv_transfer_config=subject.transfer_config(config, place.engine_id),
        cache_config=SimpleNamespace(
            block_size=min(map(config.tokens_of, range(len(config.groups)))),
            enable_prefix_caching=config.prefix_caching,
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=config.tp_size,
            pipeline_parallel_size=config.pp_size,
            world_size=config.world_size,
            rank=rank,
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=len(config.groups) == 1,
            max_num_batched_tokens=config.max_step_tokens,
            max_num_seqs=config.max_running,
            async_scheduling=config.async_scheduling,
        ),
        kv_events_config=SimpleNamespace(enable_kv_cache_events=True),
        use_v2_model_runner=config.runner == 2,
        max_concurrent_batches=config.max_concurrent_steps,
    )


def kv_cache_config(config: WorldConfig, rank: int = 0) -> Any:
    """Groups and tensors of a rank; the scheduler gets those of rank 0.

    As in vLLM, a block belongs to one group, and layer i of every group that has one shares a tensor.
    """
    names = [_layer_names(group, layers) for group, layers in enumerate(config.layers_of(rank))]
    return SimpleNamespace(
        num_blocks=config.num_blocks,
        kv_cache_groups=[
            SimpleNamespace(layer_names=layers, kv_cache_spec=_spec(config, group))
            for layers, group in zip(names, config.groups, strict=True)
        ],
        kv_cache_tensors=[
            SimpleNamespace(
                size=config.num_blocks * config.page_bytes, shared_by=[name for name in layers if name]
            )
            for layers in zip_longest(*names)
        ],
        prefix_cacheable_group_ids=tuple(range(len(config.groups))),
        hash_block_size=config.block_size // config.hashes_per_block,
        needs_kv_cache_zeroing=config.zero_new_blocks,
    )


def _layer_names(group: int, layers: int) -> list[str]:
    return [layer_name(group, layer) for layer in range(layers)]


def layer_name(group: int, layer: int) -> str:
    """The name of a layer of a group."""
    return f"group{group}.layer{layer}"


def _spec(config: WorldConfig, group: GroupConfig) -> Any:
    return SimpleNamespace(
        kind=KINDS[group.kind],
        block_size=config.block_size // group.parts,
        sliding_window=group.window if group.kind == "sliding" else None,
        page_size_bytes=config.page_bytes,
        hands_over_states=group.kind == "state" and config.hands_over_states,
    )
