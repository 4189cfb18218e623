"""Host memory as an offloading medium: which KV chunks are kept there, which leave, and the copies.

Start at ``CPUOffloadingSpec``, which makes the manager for the scheduler and the worker for each worker process.

=================== ===================================================================================
``spec``            from a configuration to both sides
``options``         what an operator can set; ``sizing``: how many chunks that makes, and of which size
**deciding**        the scheduler's side
``manager``         answers the scheduler; ``at_once``: the same without copies, for replays
``chunks/``         which chunks are there, come in, and are waited for
``policy/``         which chunk leaves; each policy is a file
``slots/``          lists and sets of slot numbers, for both of these
**copying**         the worker's side
``worker``          turns jobs into pages, and reports each once
``memory``          the memory itself; ``shared_region``: where all workers share it
``available``       how much memory the machine has left
``copy/``           moves the bytes
**between them**    what one tells the other
``load_store_spec`` in which slots a job finds its chunks
``stats``           what is counted; ``info``: what is published once
=================== ===================================================================================

What needs numpy is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from kv_api import Direction
from kv_api.exports import imported_later
from kv_offload_cpu.at_once import AtOnceManager
from kv_offload_cpu.info import CPUOffloadingInfo
from kv_offload_cpu.load_store_spec import CPULoadStoreSpec, Stored
from kv_offload_cpu.manager import CPUOffloadingManager
from kv_offload_cpu.options import CopyEngineChoice, CopySubmission, MemoryChoice, Options
from kv_offload_cpu.policy import POLICIES, CachePolicy, Parked, Run, find_policy
from kv_offload_cpu.sizing import HostLayout, plan_layout
from kv_offload_cpu.slots.pins import Pins
from kv_offload_cpu.spec import CPUOffloadingSpec
from kv_offload_cpu.stats import METRICS, CPUOffloadingStats

if TYPE_CHECKING:
    from kv_offload_cpu.copy.engine import CopyEngine, CopyResult, HostMemory, PageCopies, Urgency
    from kv_offload_cpu.worker import CPUOffloadingWorker, StoreRole, WorkerCounts

_LATER = {
    "kv_offload_cpu.copy.engine": ("CopyEngine", "CopyResult", "HostMemory", "PageCopies", "Urgency"),
    "kv_offload_cpu.worker": ("CPUOffloadingWorker", "StoreRole", "WorkerCounts"),
}
"""Modules that are imported at the first use of one of their names."""

_MODULE_OF = {name: module for module, names in _LATER.items() for name in names}

__all__ = [
    "METRICS",
    "POLICIES",
    "AtOnceManager",
    "CPULoadStoreSpec",
    "CPUOffloadingInfo",
    "CPUOffloadingManager",
    "CPUOffloadingSpec",
    "CPUOffloadingStats",
    "CPUOffloadingWorker",
    "CachePolicy",
    "CopyEngine",
    "CopyEngineChoice",
    "CopyResult",
    "CopySubmission",
    "Direction",
    "HostLayout",
    "HostMemory",
    "MemoryChoice",
    "Options",
    "PageCopies",
    "Parked",
    "Pins",
    "Run",
    "StoreRole",
    "Stored",
    "Urgency",
    "WorkerCounts",
    "find_policy",
    "plan_layout",
]


if not TYPE_CHECKING:
    __getattr__ = imported_later(globals(), _MODULE_OF)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
