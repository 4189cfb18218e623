"""``TieringOffloadingSpec`` of vLLM's, driven: tiers below host memory, over the testbed's copies.

``spec`` is what a configuration names (``spec_module_path: kv_vllm.tiers``): vLLM's own manager of tiers, and the
testbed's copies between GPU and host. A tier is anybody's, unchanged, with its files and threads. Of the host's
memory it sees ``rows`` of bytes; when its jobs end is the world's to decide, and what it does with its rows is
watched (``watch``). ``connector`` is ``OffloadingConnector`` for whoever judges a tier, and not vLLM; the tier of
``memory_tier`` does right, in memory: an example.
"""

from typing import TYPE_CHECKING, Final

from kv_api.exports import imported_later

if TYPE_CHECKING:
    from kv_vllm.tiers.connector import TieredConnector
    from kv_vllm.tiers.memory_tier import MemoryTier
    from kv_vllm.tiers.spec import HostTieringSpec

_EXPORTS: Final = {
    "HostTieringSpec": "kv_vllm.tiers.spec",
    "MemoryTier": "kv_vllm.tiers.memory_tier",
    "TieredConnector": "kv_vllm.tiers.connector",
}

__all__ = ["HostTieringSpec", "MemoryTier", "TieredConnector"]

if not TYPE_CHECKING:
    __getattr__ = imported_later(globals(), _EXPORTS)
