"""Eviction policies, found by name; each is one file, one paper.

========== =========================================================================================
``lru``    the least recently used chunk is evicted, of one request the tail first; the default
``arc``    chunks used once against chunks used again, with shares that adapt
``s3fifo`` three queues: a chunk has to prove itself in a small one
``sieve``  one queue, and a hand that evicts chunks that weren't used since it last passed them
========== =========================================================================================

``base`` is their interface. They are made of ``recency``, an order in which a request's chunks stay together, and
of queues (``fifo``). A pinned chunk whose turn it is to be evicted is ``parked``.

No policy is the best for all traffic: it depends on how many prompts are repeated, and when. Any other name is an
attribute of the module that ``cache_policy_module_path`` names: a subclass of `CachePolicy`.
"""

import importlib
from typing import Final

from kv_api import ConfigError, UnknownNameError
from kv_api.errors import unknown_name
from kv_offload_cpu.policy.arc import ARCPolicy
from kv_offload_cpu.policy.base import CachePolicy, Run
from kv_offload_cpu.policy.lru import LRUPolicy
from kv_offload_cpu.policy.parked import Parked
from kv_offload_cpu.policy.s3fifo import S3FIFOPolicy
from kv_offload_cpu.policy.sieve import SievePolicy

__all__ = [
    "POLICIES",
    "ARCPolicy",
    "CachePolicy",
    "LRUPolicy",
    "Parked",
    "Run",
    "S3FIFOPolicy",
    "SievePolicy",
    "find_policy",
]

POLICIES: Final[dict[str, type[CachePolicy]]] = {
    "arc": ARCPolicy,
    "lru": LRUPolicy,
    "s3fifo": S3FIFOPolicy,
    "sieve": SievePolicy,
}
"""The policies of this package, by the name that ``eviction_policy`` gives."""


def find_policy(name: str, module_path: str | None = None) -> type[CachePolicy]:
    """The class of a policy. ``module_path`` is imported only for names that aren't in `POLICIES`."""
    if name in POLICIES:
        return POLICIES[name]
    if module_path is None:
        raise UnknownNameError(unknown_name("eviction_policy", name, POLICIES))
    where = f"policy {name!r} from cache_policy_module_path {module_path!r}"
    try:
        module = importlib.import_module(module_path)
    except Exception as error:
        raise ConfigError(f"{where}: the module can't be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if found is None:
        raise UnknownNameError(f"{where}: the module has no such attribute")
    if not isinstance(found, type) or not issubclass(found, CachePolicy):
        raise ConfigError(f"{where}: expected a subclass of {CachePolicy.__module__}.CachePolicy, got {found!r}")
    return found
