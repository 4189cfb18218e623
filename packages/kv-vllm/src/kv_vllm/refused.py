"""In which engines our connectors don't begin, and why: nobody else would notice what is wrong with each."""

from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.platforms import current_platform

from kv_api import ConfigError


def refuse_worker_of_another_engine(vllm_config: Any) -> None:
    """Refuse to begin beside a worker side that vLLM has kept of another engine in this process.

    It keeps one until its engine shuts down, which an engine that didn't start never does. What the next one is
    told would be done by a connector that was made for other caches, and another configuration. Of one engine both
    sides have the same cache configuration, whoever made copies around it.
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
    """On CPUs without AMX vLLM computes with MLA every prompt as if nothing were before it, and says so.

    It turns its own prefix cache off there; a connector it asks all the same, and what that loads is passed over.
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
    """Refuse ranks that share the tokens of a block, unless a connector knows, and those that share a prompt."""
    parallel = vllm_config.parallel_config
    refused = ["prefill_context_parallel_size"]
    if not shares_tokens:
        refused.append("decode_context_parallel_size")
    for name in refused:
        size = getattr(parallel, name, 1)
        if size != 1:
            connector = vllm_config.kv_transfer_config.kv_connector
            raise ConfigError(f"parallel_config.{name}: got {size}; {connector} supports only 1")
