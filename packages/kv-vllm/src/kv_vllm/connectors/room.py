"""Warns, once when a server starts, of host memory that is no larger than the GPU's own prefix cache.

Computed blocks are in both, and both keep the most recently used ones. So such a host memory has hardly any block
that the GPU hasn't: it is written, but never read, and nothing else would show that. With ``store_when: evicted``
it has the blocks that the GPU has evicted.
"""

from logging import getLogger
from typing import Any

from kv_api import OffloadingManager
from kv_offload.options import StoreWhen

_log = getLogger("kv_vllm")


def warn_of_little_room(manager: OffloadingManager, vllm_config: Any, kv_cache_config: Any) -> None:
    """Warn of host memory that is no larger than the GPU's prefix cache. For other media there is no warning."""
    facts: Any = next(iter(manager.config_info()), {})
    chunks = facts.get("cpu_num_chunks")
    is_late = vllm_config.kv_transfer_config.kv_connector_extra_config.get("store_when") == StoreWhen.EVICTED
    if kv_cache_config is None or chunks is None or is_late or not vllm_config.cache_config.enable_prefix_caching:
        return
    in_host, on_gpu = chunks * facts["cpu_blocks_per_chunk"], kv_cache_config.num_blocks
    if in_host <= on_gpu:
        size = facts["cpu_kv_cache_size_bytes"]
        _log.warning(
            "OffloadingConnector: host memory has room for %d blocks, and the GPU's prefix cache for %d. Both "
            "keep the most recently used blocks, so host memory will have almost no hits. Set cpu_bytes_to_use "
            "to %d (twice the GPU's; now %d), or store_when to 'evicted', which stores what the GPU evicts",
            in_host,
            on_gpu,
            -(-2 * on_gpu * size // in_host),
            size,
        )
