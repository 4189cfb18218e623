"""The header of a file of calls: a live engine as a world of the testbed, and its connector as a subject.

An engine is refused if a schedule can't have its blocks: blocks of states, or of other tokens than hashes are for.
"""

from collections.abc import Mapping, Sequence
from math import gcd, lcm
from typing import Any, Final

from kv_api import AttentionKind, ConfigError
from kv_api.blocks import bytes_per_block, tokens_per_hash
from kv_api.groups import GroupDescription

FORMAT: Final = "kv-vllm calls"
VERSION: Final = 1

KINDS: Final = {AttentionKind.FULL: "full", AttentionKind.SLIDING_WINDOW: "sliding"}
WORLD_SPEC: Final = {"spec_name": "WorldCPUOffloadingSpec", "spec_module_path": "kv_sim.offload"}
WORLD_SPECS: Final = {
    "FileOffloadingSpec": {"spec_name": "WorldFileOffloadingSpec", "spec_module_path": "kv_sim.offload"}
}
"""The world's medium for a medium of the engine; for any other it is host memory."""
NOT_THE_WORLDS: Final = (
    *("cpu_bytes_to_use", "copy_engine", "copy_threads", "copy_submission", "host_memory", "shared_memory_dir"),
    *("file_dir", "file_bytes_to_use", "file_tag", "file_staging_bytes", "file_threads", "file_direct"),
    *("file_shared", "file_engine"),
)
"""Options in bytes, which a world doesn't have."""


def world_of(vllm_config: Any, kv_cache_config: Any, groups: Sequence[GroupDescription]) -> dict[str, Any]:
    """The header of a file of calls: the engine as a world, and the connector as a subject."""
    parallel, scheduler = vllm_config.parallel_config, vllm_config.scheduler_config
    transfer = vllm_config.kv_transfer_config
    run_ahead = max(0, getattr(vllm_config, "max_concurrent_batches", 1) - 1)
    _refuse_what_no_world_has(vllm_config, kv_cache_config, groups)
    span = lcm(*(group.tokens_per_block for group in groups))
    hashes = span // _hash_tokens(groups)
    block_bytes = bytes_per_block(kv_cache_config, bytes_of(groups, kv_cache_config))
    given = transfer.kv_connector_extra_config
    host_bytes = given.get("cpu_bytes_to_use") or given.get("file_bytes_to_use") or 64 * block_bytes
    world = {
        "num_blocks": kv_cache_config.num_blocks,
        "block_size": span,
        **({"hashes_per_block": hashes} if hashes > 1 else {}),
        "groups": [_group(group, span) for group in groups],
        "layers": 1,
        "tp_size": parallel.tensor_parallel_size,
        "pp_size": parallel.pipeline_parallel_size,
        "max_running": scheduler.max_num_seqs,
        "max_step_tokens": scheduler.max_num_batched_tokens,
        "run_ahead": run_ahead,
        "async_scheduling": bool(scheduler.async_scheduling),
        "runner": 2 if getattr(vllm_config, "use_v2_model_runner", False) else 1,
        "role": transfer.kv_role,
        "failure_policy": transfer.kv_load_failure_policy,
        "host_slots": max(1, int(host_bytes) // (block_bytes * parallel.world_size)),
    }
    return {"format": FORMAT, "version": VERSION, "world": world, "subject": subject_of(vars(transfer))}


def bytes_of(groups: Sequence[GroupDescription], kv_cache_config: Any) -> list[int]:
    """The bytes of a block in all layers of each group."""
    layers = [len(group.layer_names) for group in kv_cache_config.kv_cache_groups]
    return [group.page_size_bytes * count for group, count in zip(groups, layers, strict=True)]


def _group(group: GroupDescription, span: int) -> dict[str, Any]:
    parts = span // group.tokens_per_block
    told = {"kind": KINDS[group.kind], "window": group.window_tokens}
    return {**told, "parts": parts} if parts > 1 else told


def _hash_tokens(groups: Sequence[GroupDescription]) -> int:
    """Tokens of a hash in a world."""
    return gcd(*(group.tokens_per_block for group in groups))


def _refuse_what_no_world_has(vllm_config: Any, kv_cache_config: Any, groups: Sequence[GroupDescription]) -> None:
    for number, group in enumerate(groups):
        if group.kind not in KINDS:
            raise ConfigError(
                f"KV cache group {number}: its kind is {group.kind}, and a schedule has only {', '.join(KINDS)}"
            )
    sizes = [group.tokens_per_block for group in groups]
    found, most = tokens_per_hash(vllm_config, kv_cache_config, sizes), _hash_tokens(groups)
    if found != most:
        raise ConfigError(
            f"kv_cache_config.hash_block_size: got {found}, and a schedule has hashes of {most} tokens, the most "
            f"that divide the blocks of all groups ({', '.join(map(str, sizes))} tokens)"
        )


def subject_of(transfer: Mapping[str, Any]) -> dict[str, Any]:
    """The connector for a world: ours over the world's copies, any other unchanged."""
    connector = _in_a_world(transfer)
    extra = connector["kv_connector_extra_config"]
    return {
        "kv_connector": connector["kv_connector"],
        "module_path": connector["kv_connector_module_path"],
        "extra_config": extra,
        "traits": ["failures", "groups", "ranks", "repeats", "reset", "unequal", "zeroing"],
        "blocks_per_chunk": extra.get("blocks_per_chunk") or 1,
    }


def _in_a_world(transfer: Mapping[str, Any]) -> dict[str, Any]:
    name, extra = transfer["kv_connector"], dict(transfer.get("kv_connector_extra_config") or {})
    path = transfer.get("kv_connector_module_path")
    if name == "OffloadingConnector":
        kept = {key: value for key, value in extra.items() if key not in NOT_THE_WORLDS}
        spec = WORLD_SPECS.get(extra.get("spec_name", ""), WORLD_SPEC)
        name, path, extra = "TimedOffloadingConnector", "kv_sim.offload", {**kept, **spec}
    elif name == "MultiConnector":
        path = "kv_multi"
        extra["connectors"] = [
            {**child, **_in_a_world(child)} for child in extra.get("connectors", []) if isinstance(child, Mapping)
        ]
    return {"kv_connector": name, "kv_connector_module_path": path, "kv_connector_extra_config": extra}
