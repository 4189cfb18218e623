"""Host memory as an offloading medium: which KV chunks are kept there, and which leave.

Start at ``CPUOffloadingManager``; ``kv_offload_cpu.policy`` has what decides who leaves.
"""

from kv_offload_cpu.load_store_spec import CPULoadStoreSpec
from kv_offload_cpu.manager import CPUOffloadingManager
from kv_offload_cpu.policy import POLICIES, CachePolicy, Run, find_policy
from kv_offload_cpu.stats import METRICS, CPUOffloadingStats

__all__ = [
    "METRICS",
    "POLICIES",
    "CPULoadStoreSpec",
    "CPUOffloadingManager",
    "CPUOffloadingStats",
    "CachePolicy",
    "Run",
    "find_policy",
]
