"""Reads from a connector's configuration where it keeps blocks, so that a replay of a trace can have the same.

That works for an ``OffloadingConnector`` over host memory or files, and for a ``MultiConnector`` of one of each
that loads the longest match, if all other settings are the defaults: a replay models these. For others there is no
answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_USUAL: Final[Mapping[str, Any]] = {
    "block_size": None,
    "blocks_per_chunk": 1,
    "offload_prompt_only": True,
    "store_when": "computed",
    "store_threshold": 0,
    "cache_policy_module_path": None,
    "file_shared": False,
    "save": True,
}
"""Settings that a replay doesn't model."""
_SIZES: Final = {"CPUOffloadingSpec": "cpu_bytes_to_use", "FileOffloadingSpec": "file_bytes_to_use"}


@dataclass(frozen=True)
class Kept:
    """Room for blocks beside the GPU's cache, over all workers; its fields are those of each line of a trace."""

    host_bytes: int | None = None
    disk_bytes: int | None = None
    policy: str | None = None
    """The eviction policy."""


NOT_SAID: Final = Kept()


def kept_by(connector: str, extra: Mapping[str, Any]) -> Kept:
    """Where a connector with this extra config keeps blocks."""
    if connector == "OffloadingConnector":
        return _one(extra)
    children = extra.get("connectors") if connector == "MultiConnector" else None
    if not isinstance(children, list) or (len(children) > 1 and extra.get("load_policy") != "longest"):
        return NOT_SAID
    each = [_child(child) for child in children]
    hosts = [kept.host_bytes for kept in each if kept.host_bytes is not None]
    disks = [kept.disk_bytes for kept in each if kept.disk_bytes is not None]
    policies = {kept.policy for kept in each}
    if len(policies) != 1 or max(len(hosts), len(disks)) > 1:
        return NOT_SAID
    return Kept(next(iter(hosts), None), next(iter(disks), None), policies.pop())


def _child(child: Any) -> Kept:
    if not isinstance(child, Mapping) or child.get("kv_connector") != "OffloadingConnector":
        return NOT_SAID
    return _one(child.get("kv_connector_extra_config") or {})


def _one(extra: Mapping[str, Any]) -> Kept:
    of_size = _SIZES.get(extra.get("spec_name", "CPUOffloadingSpec"), "")
    size = extra.get(of_size)
    if not isinstance(size, int) or any(
        extra.get(key, usual) not in (usual, None) for key, usual in _USUAL.items()
    ):
        return NOT_SAID
    host, disk = (size, None) if of_size == "cpu_bytes_to_use" else (None, size)
    return Kept(host, disk, str(extra.get("eviction_policy", "lru")))
