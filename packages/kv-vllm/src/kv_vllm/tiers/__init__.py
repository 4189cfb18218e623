"""vLLM's ``TieringOffloadingSpec`` under the testbed: tiers below host memory, over the testbed's copies.

A tier is an unchanged one of any package, with its files and threads. The world decides when its jobs end.

=============== =============================================================================================
``spec``        what a configuration names (``spec_module_path: kv_vllm.tiers``): vLLM's own manager of tiers
``rows``        the host memory that a tier sees
``watch``       watches what a tier does with it
``connector``   ``OffloadingConnector`` for tests that judge the tier, and not vLLM
``memory_tier`` an example: a correct tier in memory
=============== =============================================================================================
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
