"""Refuses engines in which our connectors would go wrong without anybody noticing, each with its reason."""

from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.platforms import current_platform

from kv_api import ConfigError


def refuse_worker_of_another_engine(vllm_config: Any) -> None:
    """Refuse to start beside a worker side that vLLM has kept of another engine in this process.

    vLLM keeps it until its engine shuts down, and an engine that failed to start never does. The next engine's
    metadata would go to that old connector, which was made for other caches and another configuration. Both sides
    of one engine share the cache configuration object, even if others around it were copied.
    """
    worker = get_kv_transfer_group() if has_kv_transfer_group() else None
    config = getattr(worker, "_vllm_config", None)
    if config is None or config.cache_config is vllm_config.cache_config:
        return
    if getattr(config, "instance_id", None) == getattr(vllm_config, "instance_id", ""):
        return
    raise ConfigError(
        f"{vllm_config.kv_transfer_config.kv_connector}: the worker-side connector in this process, a "
        f"{type(worker).__name__}, belongs to another engine. vLLM keeps it when that engine fails to start; "
        "use a new process, or call vllm.distributed.kv_transfer.ensure_kv_transfer_shutdown() before the next "
        "engine"
    )


def refuse_loads_that_nothing_reads(vllm_config: Any) -> None:
    """Refuse MLA models on CPUs without AMX, where vLLM computes every prompt from its start.

    It turns its own prefix cache off there. But it still asks the connector, and then ignores the loaded KV.
    """
    transfer, model = vllm_config.kv_transfer_config, getattr(vllm_config, "model_config", None)
    if not (transfer.is_kv_consumer and getattr(model, "use_mla", False) and current_platform.is_cpu()):
        return
    if not vllm_config.cache_config.enable_prefix_caching:
        raise ConfigError(
            f"{transfer.kv_connector}: on this CPU vLLM computes every prompt of an MLA model from its start "
            "(it has turned prefix caching off), so it would ignore loaded KV, and outputs would be wrong"
        )


def refuse_context_parallelism(vllm_config: Any, *, shares_tokens: bool) -> None:
    """Refuse context parallelism: ranks that share a prompt, or a block's tokens if ``shares_tokens`` is False."""
    parallel = vllm_config.parallel_config
    refused = ["prefill_context_parallel_size"]
    if not shares_tokens:
        refused.append("decode_context_parallel_size")
    for name in refused:
        size = getattr(parallel, name, 1)
        if size != 1:
            connector = vllm_config.kv_transfer_config.kv_connector
            raise ConfigError(f"parallel_config.{name}: got {size}; {connector} supports only 1")
