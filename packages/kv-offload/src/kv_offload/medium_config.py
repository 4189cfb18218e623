"""``OffloadingConfig``: what a medium is told of the engine.

What is not in ``kv_api``'s protocols is read with ``getattr`` and a default, as in ``describe``.
"""

from kv_api import (
    KVCacheConfig,
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
    VllmConfig,
)
from kv_api.blocks import bytes_per_block
from kv_api.model_variant import variant_of
from kv_offload.shape.layout import Group, Layout


def medium_config(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, layout: Layout) -> OffloadingConfig:
    """The configuration for a medium."""
    transfer, cache = vllm_config.kv_transfer_config, vllm_config.cache_config
    assert transfer is not None
    events = getattr(vllm_config, "kv_events_config", None)
    extra = transfer.kv_connector_extra_config
    return OffloadingConfig(
        groups=tuple(
            OffloadingGroupConfig(
                group.tokens_per_block,
                tuple(kv_cache_config.kv_cache_groups[group.group_id].layer_names),
                group.group_id,
                _window_chunks(group),
            )
            for group in layout.groups
        ),
        worker_kv_bytes_per_block=bytes_per_block(
            kv_cache_config, [group.bytes_per_block for group in layout.groups]
        ),
        enable_kv_cache_events=bool(getattr(events, "enable_kv_cache_events", False)),
        extra_config=extra,
        engine_id=transfer.engine_id or "",
        model=_model(vllm_config),
        cache=OffloadingCacheConfig(layout.tokens_per_hash, layout.groups[0].blocks_per_chunk),
        parallel=parallel_config(vllm_config),
        replicated_layout=_is_replicated(vllm_config, kv_cache_config),
        canonical_layout=bool(extra.get("canonical_layout")),
        kv_cache_layout=getattr(cache, "kv_cache_layout", None),
    )


def _window_chunks(group: Group) -> int | None:
    """How many chunks a request needs, of states one; None: all of them."""
    if group.reads_all:
        return None
    return max(1, -(-group.window_tokens // group.tokens_per_chunk))


def _model(vllm_config: VllmConfig) -> OffloadingModelConfig:
    model = getattr(vllm_config, "model_config", None)
    dtype = getattr(vllm_config.cache_config, "cache_dtype", "auto")
    if dtype == "auto":
        dtype = getattr(model, "dtype", "auto")
    name, variant = getattr(model, "model", ""), variant_of(model)
    return OffloadingModelConfig(
        f"{name} ({variant})" if variant else str(name),
        str(dtype).removeprefix("torch."),
        int(getattr(model, "max_model_len", 0) or 0),
    )


def _is_replicated(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> bool:
    """Whether all workers hold the same bytes, as with MLA, so that one copy is enough.

    Only where nothing but tensor parallelism cuts the engine, into processes of one machine: the copy is the first
    worker's, and the others must get at it.
    """
    parallel = vllm_config.parallel_config
    workers = parallel.tensor_parallel_size
    return bool(
        getattr(getattr(vllm_config, "model_config", None), "use_mla", False)
        and workers == parallel.world_size > 1
        and getattr(kv_cache_config, "kv_tp_replicas", 1) == workers
        and getattr(parallel, "decode_context_parallel_size", 1) == 1
        and getattr(parallel, "distributed_executor_backend", None) == "mp"
        and getattr(parallel, "nnodes_within_dp", 1) == 1
    )


def parallel_config(vllm_config: VllmConfig) -> OffloadingParallelConfig:
    """How the engine is cut into workers, and which of them this is."""
    parallel = vllm_config.parallel_config
    return OffloadingParallelConfig(
        rank=parallel.rank,
        world_size=parallel.world_size,
        tp_size=parallel.tensor_parallel_size,
        pp_size=parallel.pipeline_parallel_size,
        pcp_size=getattr(parallel, "prefill_context_parallel_size", 1),
        dcp_size=getattr(parallel, "decode_context_parallel_size", 1),
        data_parallel_index=getattr(parallel, "data_parallel_index", 0),
        data_parallel_size=getattr(parallel, "data_parallel_size", 1),
        data_parallel_rank_local=getattr(parallel, "data_parallel_rank_local", None),
        is_parallelism_agnostic=False,
        cp_kv_cache_interleave_size=getattr(parallel, "cp_kv_cache_interleave_size", 1),
    )
