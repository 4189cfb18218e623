"""``--kv-transfer-config`` for a server with what was found worth it: host memory, files on a disk, or both."""

import json
import shlex
from collections.abc import Mapping
from typing import Any, Final

from kv_offload import StoreWhen
from kv_offload_cpu.policy import POLICIES
from kv_offload_file import FileOffloadingSpec

PULLS: Final = "P2PConnector"
"""What serves other engines, and pulls from them."""
_EXTRA: Final = "kv_connector_extra_config"
_MODULE: Final = "kv_connector_module_path"
_OURS: Final = "kv_vllm"
_POLICY: Final = "kv_load_failure_policy"


def host_config(
    cpu_bytes: int, policy: str, policy_module: str | None = None, *, store_when: StoreWhen = StoreWhen.COMPUTED
) -> dict[str, Any]:
    """A server with so much host memory for KV, over all its workers."""
    return _server("OffloadingConnector", _host(cpu_bytes, policy, policy_module) | _stored(store_when))


def disk_config(
    folder: str,
    disk_bytes: int,
    cpu_bytes: int,
    policy: str,
    policy_module: str | None = None,
    *,
    store_threshold: int = 0,
    store_when: StoreWhen = StoreWhen.COMPUTED,
    shared: bool = False,
) -> dict[str, Any]:
    """A server with so much room for KV in files in ``folder``, behind so much host memory; 0: behind none.

    What is offered ``store_threshold`` times goes into files. ``shared`` are those that other servers of the
    machine have in the folder, too.
    """
    files = {
        "spec_name": "FileOffloadingSpec",
        "spec_module_path": "kv_offload_file",
        "file_dir": folder,
        "file_bytes_to_use": disk_bytes,
        **({"file_shared": True} if shared else {}),
        **({"store_threshold": store_threshold} if store_threshold else {}),
        **_leaves(policy, policy_module),
        **_stored(store_when),
    }
    if not cpu_bytes:
        return _server("OffloadingConnector", files)
    media = [_host(cpu_bytes, policy, policy_module) | _stored(store_when), {"name": "files", **files}]
    children = [
        {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": medium}
        for medium in media
    ]
    return _server("MultiConnector", {"load_policy": "longest", "connectors": children})


def prefill_config(other: Mapping[str, Any]) -> dict[str, Any]:
    """A server that computes prompts for others, and has the connector of another configuration, if any."""
    if not other:
        return _server(PULLS, {}, "kv_producer")
    serves = {"kv_connector": PULLS, _MODULE: _OURS, "kv_role": "kv_producer"}
    extra = other.get(_EXTRA, {})
    if other["kv_connector"] == "MultiConnector":
        return {**other, _EXTRA: {**extra, "connectors": [serves, *extra["connectors"]]}}
    child = {key: value for key, value in other.items() if key != _POLICY}
    return _server("MultiConnector", {"connectors": [serves, child]})


def decode_config() -> dict[str, Any]:
    """A server for which others compute prompts."""
    return _server(PULLS, {}, "kv_consumer")


def as_argument(config: Mapping[str, Any]) -> str:
    """What is pasted behind ``vllm serve``, in a shell's quotes."""
    return f"--kv-transfer-config {shlex.quote(json.dumps(config))}"


def told_apart(servers: int) -> str:
    """What the configuration of each of several servers that share files has besides, in words."""
    numbers = f"0 to {servers - 1}"
    return f'each has a "file_engine" of its own besides, {numbers}, but for replicas of one --data-parallel-size'


def disk_bytes_for(blocks: int, block_bytes: int, *, shared: bool = False) -> int:
    """The room in files that so many blocks take: each in a slot, with a row, and what neighbours are told."""
    listed = FileOffloadingSpec.LISTED_BYTES if shared else 0
    return blocks * (FileOffloadingSpec.slot_bytes_for(block_bytes) + FileOffloadingSpec.ROW_BYTES + listed)


def _server(connector: str, extra: dict[str, Any], role: str = "kv_both") -> dict[str, Any]:
    return {"kv_connector": connector, _MODULE: _OURS, "kv_role": role, _POLICY: "recompute", _EXTRA: extra}


def _host(cpu_bytes: int, policy: str, policy_module: str | None) -> dict[str, Any]:
    return {"cpu_bytes_to_use": cpu_bytes, **_leaves(policy, policy_module)}


def _stored(store_when: StoreWhen) -> dict[str, Any]:
    """When what is computed is stored, where it isn't at once."""
    return {} if store_when is StoreWhen.COMPUTED else {"store_when": store_when.value}


def _leaves(policy: str, policy_module: str | None) -> dict[str, Any]:
    """Who leaves when there is no room."""
    module = {} if policy in POLICIES or policy_module is None else {"cache_policy_module_path": policy_module}
    return {"eviction_policy": policy, **module}
