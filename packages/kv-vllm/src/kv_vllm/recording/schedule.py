"""From the calls that a ``RecordingConnector`` wrote down to the schedule that a world of the testbed replays.

A world computes by itself what an engine and a connector decide: answers, blocks, which request waits. What it
takes from outside are its actions, so a schedule has the arrivals, aborts and resets of the live engine in the
order in which they came between its steps, its steps, and when copies ended. Answers and blocks stay in the file
of calls.

Prompts become prefixes of a few conversations, which is how a world says what they share. Each block hash stands
for everything before it. The first prompt of a conversation is its trunk, one that goes on where a trunk ends
makes it longer, and one that leaves it has the rest for itself. So a schedule can't say that two prompts share
what lies beyond a fork, nor that a prompt has what a request generated: how many tokens that are, the summary
tells.

A request that is longer than a world of these sizes has room for is left out, and counted: where a group has a
window an engine holds more, since it lets go what slid out. One that was aborted would have gone on only so far.

Not in a schedule at all: which step a copy ended in, if it began in the same one; what a copy did wrong; drafts;
what no connector is told of: resets of the engine's prefix cache alone, and that a session's next turn arrives. An
engine is refused whose blocks no schedule can have: those of states, and of sizes that differ from each other or
from what one hash stands for.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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
"""What stands for a medium in a world; for any other it is host memory."""
NOT_THE_WORLDS: Final = (
    *("cpu_bytes_to_use", "copy_engine", "copy_threads", "copy_submission", "host_memory", "shared_memory_dir"),
    *("file_dir", "file_bytes_to_use", "file_tag", "file_staging_bytes", "file_threads", "file_direct"),
)
"""Options about bytes, which a world has none of."""


@dataclass
class Summary:
    """What a schedule holds, and what it can't say."""

    requests: int = 0
    steps: int = 0
    shared_tokens: int = 0
    """Tokens of prompts whose blocks an earlier prompt had, too."""
    lost_tokens: int = 0
    """Of those, the ones that nothing shares in the schedule."""
    left_out: int = 0
    """Requests that aren't in the schedule, since no world of its sizes has room for them."""

    def __str__(self) -> str:
        told = (
            f"{self.requests} requests, {self.steps} steps; {self.shared_tokens} tokens of prompts are shared, "
            f"{self.lost_tokens} of them not in the schedule"
        )
        return told + (f"; {self.left_out} requests longer than its world are left out" if self.left_out else "")


# -- the world -----------------------------------------------------------------------------------


def world_of(vllm_config: Any, kv_cache_config: Any, groups: Sequence[GroupDescription]) -> dict[str, Any]:
    """The header of a file of calls: the engine as a world, and the connector as a subject."""
    parallel, scheduler = vllm_config.parallel_config, vllm_config.scheduler_config
    transfer = vllm_config.kv_transfer_config
    run_ahead = max(0, getattr(vllm_config, "max_concurrent_batches", 1) - 1)
    _refuse_what_no_world_has(vllm_config, kv_cache_config, groups)
    block_bytes = bytes_per_block(kv_cache_config, bytes_of(groups, kv_cache_config))
    given = transfer.kv_connector_extra_config
    host_bytes = given.get("cpu_bytes_to_use") or given.get("file_bytes_to_use") or 64 * block_bytes
    world = {
        "num_blocks": kv_cache_config.num_blocks,
        "block_size": _block_tokens(vllm_config),
        "groups": [{"kind": KINDS[group.kind], "window": group.window_tokens} for group in groups],
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
    """What a block takes in all layers of each group."""
    layers = [len(group.layer_names) for group in kv_cache_config.kv_cache_groups]
    return [group.page_size_bytes * count for group, count in zip(groups, layers, strict=True)]


def _block_tokens(vllm_config: Any) -> int:
    """Tokens of a block, over all ranks that share them."""
    ranks = getattr(vllm_config.parallel_config, "decode_context_parallel_size", 1)
    return int(vllm_config.cache_config.block_size * ranks)


def _refuse_what_no_world_has(vllm_config: Any, kv_cache_config: Any, groups: Sequence[GroupDescription]) -> None:
    block_size = _block_tokens(vllm_config)
    for number, group in enumerate(groups):
        if group.kind not in KINDS:
            raise ConfigError(
                f"KV cache group {number}: its kind is {group.kind}, and a schedule has only {', '.join(KINDS)}"
            )
        if group.tokens_per_block != block_size:
            raise ConfigError(
                f"KV cache group {number}: its blocks have {group.tokens_per_block} tokens, and a schedule has "
                f"one size of blocks, the engine's ({block_size})"
            )
    hash_tokens = tokens_per_hash(vllm_config, kv_cache_config, [group.tokens_per_block for group in groups])
    if hash_tokens != block_size:
        raise ConfigError(
            f"kv_cache_config.hash_block_size: got {hash_tokens}, and a schedule has one hash for each block of "
            f"{block_size} tokens"
        )


def subject_of(transfer: Mapping[str, Any]) -> dict[str, Any]:
    """The connector as a world has it: ours over the world's copies, any other as it is."""
    connector = _in_a_world(transfer)
    extra = connector["kv_connector_extra_config"]
    return {
        "kv_connector": connector["kv_connector"],
        "module_path": connector["kv_connector_module_path"],
        "extra_config": extra,
        "traits": ["failures", "groups", "ranks", "repeats", "reset", "zeroing"],
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


# -- the history ---------------------------------------------------------------------------------


class Conversations:
    """Gives each prompt a conversation and how much of it is shared.

    ``_trunk``: how many blocks each conversation has. ``_place``: of each block hash of a trunk, its conversation
    and how many blocks end with it. ``_seen``: all block hashes of prompts, to count what can't be said.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._trunk: list[int] = []
        self._place: dict[str, tuple[int, int]] = {}
        self._seen: set[str] = set()

    def place(self, hashes: Sequence[str], prompt_tokens: int, summary: Summary) -> dict[str, int]:
        """The fields of a request's spec that say what its prompt is."""
        found = next((self._place[name] for name in reversed(hashes) if name in self._place), None)
        conversation, depth = found or (len(self._trunk), 0)
        if found is None:
            self._trunk.append(0)
        known = next((end for end in range(len(hashes), 0, -1) if hashes[end - 1] in self._seen), 0)
        summary.shared_tokens += known * self._block_size
        summary.lost_tokens += (known - depth) * self._block_size
        self._seen.update(hashes)
        if depth == self._trunk[conversation]:
            for end in range(depth, len(hashes)):
                self._place[hashes[end]] = conversation, end + 1
            depth = self._trunk[conversation] = len(hashes)
        shared = depth * self._block_size
        return {"conversation": conversation, "shared_tokens": shared, "own_tokens": prompt_tokens - shared}

    def check(self) -> None:
        """Recount: each trunk has its blocks, once each."""
        for conversation, blocks in enumerate(self._trunk):
            ends = sorted(end for where, end in self._place.values() if where == conversation)
            assert ends == list(range(1, blocks + 1)), f"conversation {conversation} of {blocks} has {ends}"
        assert self._seen >= self._place.keys(), "a trunk has blocks of no prompt"


def room_tokens(world: Mapping[str, Any]) -> int:
    """Tokens of the longest request of a world: all groups hold all of it, beside the null block."""
    return (int(world["num_blocks"]) - 1) // len(world["groups"]) * int(world["block_size"])


def actions_of(
    calls: Iterable[Mapping[str, Any]], block_size: int, room: int
) -> tuple[list[dict[str, Any]], Summary]:
    """The actions, as lines of a schedule file. ``room``: how many tokens a request may come to."""
    listed, summary = list(calls), Summary()
    ends = {call["request"]: call for call in listed if call["call"] == "end"}
    conversations = Conversations(block_size)
    actions: list[dict[str, Any]] = []
    step = 0
    """Where the last step is in ``actions``."""
    left_out: set[str] = set()
    for call in listed:
        match call["call"]:
            case "arrive":
                sampled = _sampled(call, ends.get(call["request"]), room)
                if call["prompt_tokens"] + sampled > room:
                    summary.left_out += 1
                    left_out.add(call["request"])
                    continue
                summary.requests += 1
                actions.append({"action": "add", "spec": _spec(call, sampled, conversations, summary)})
            case "end" if call["aborted"] and call["request"] not in left_out:
                actions.append({"action": "abort", "request": call["request"]})
            case "reset":
                actions.append({"action": "reset", "running": False, "connector": True})
            case "step":
                summary.steps += 1
                step = len(actions)
                actions.append({"action": "step"})
            case "report" if call["loads"] or call["stores"] or call["jobs"]:
                # What this step reports ended before its hooks ran.
                actions.insert(step, {"action": "settle"})
    conversations.check()
    return actions, summary


def _sampled(call: Mapping[str, Any], end: Mapping[str, Any] | None, room: int) -> int:
    """How many tokens a request samples. One that didn't come to its end would have done as many as it may."""
    if end is None or end["aborted"]:
        return max(1, min(int(call["max_tokens"]), room - int(call["prompt_tokens"])))
    return max(1, int(end["output_tokens"]))


def _spec(call: Mapping[str, Any], sampled: int, conversations: Conversations, summary: Summary) -> dict[str, Any]:
    return {
        "request_id": call["request"],
        **conversations.place(call["hashes"], call["prompt_tokens"], summary),
        "output_tokens": sampled,
        "max_tokens": max(sampled, call["max_tokens"]),
        "skip_reading_prefix_cache": call["skips"],
    }


# -- files ---------------------------------------------------------------------------------------


def read_calls(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the calls. A last line that was cut off is left out: the engine was killed as it wrote it."""
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    head = _object(lines[0])
    if head is None or head.get("format") != FORMAT or head.get("version") != VERSION:
        raise ConfigError(f"{file}: line 1: expected the header of {FORMAT!r}, version {VERSION}")
    calls = []
    for number, line in enumerate(lines[1:], 2):
        call = _object(line)
        if call is not None:
            calls.append(call)
        elif line and number < len(lines):
            raise ConfigError(f"{file}: line {number}: this is no JSON object")
    return head, calls


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def write_schedule_of(calls: Path, schedule: Path) -> Summary:
    """Make the schedule of a file of calls, which stays as it is."""
    if schedule.exists() and schedule.samefile(calls):
        raise ConfigError(f"{schedule}: this is the file of calls; the schedule needs another one")
    head, listed = read_calls(calls)
    try:
        world, subject = head["world"], head["subject"]
        actions, summary = actions_of(listed, world["block_size"], room_tokens(world))
    except KeyError as error:
        raise ConfigError(f"{calls}: {error} is missing, which every recorder writes") from error
    header = {"format": "kv-sim schedule", "version": 1, "violation": None, "subject": subject, "world": world}
    lines = (json.dumps(line, ensure_ascii=False) for line in (header, *actions))
    schedule.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return summary
