"""Configurations in which vLLM finds a connector of ours."""

from types import SimpleNamespace

OFFLOADING = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 20},
}


def transfer_of(name, extra):
    """What names a connector of ours, for vLLM."""
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector=name,
        kv_connector_module_path="kv_vllm",
        kv_role="kv_both",
        kv_connector_extra_config=extra,
    )


def config_of(name, extra, **parallel):
    """As much of an engine's configuration as a connector of this name reads."""
    return SimpleNamespace(
        kv_transfer_config=transfer_of(name, extra),
        cache_config=SimpleNamespace(block_size=16, enable_prefix_caching=True),
        parallel_config=SimpleNamespace(
            **{"rank": 0, "world_size": 1, "tensor_parallel_size": 1, "pipeline_parallel_size": 1, **parallel}
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=False,
            max_num_seqs=4,
            max_num_batched_tokens=64,
            async_scheduling=False,
        ),
    )
