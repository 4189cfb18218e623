"""Makes the schedule that a world of the testbed replays, from the calls that a ``RecordingConnector`` wrote.

A world computes by itself what an engine and a connector decide: answers, blocks, which request waits. What it
takes from outside are its actions, so a schedule has the arrivals, aborts and resets of the live engine in the
order in which they came between its steps, its steps, and when copies ended. Answers and blocks stay in the file
of calls.

Prompts become prefixes of a few conversations, by which a world describes shared prefixes. Each block hash stands
for everything before it. The first prompt of a conversation is its trunk. A prompt that goes on where the trunk
ends makes the trunk longer, and a prompt that leaves the trunk has the rest for itself. So a schedule can't say
that two prompts share tokens beyond a fork, nor that a prompt has tokens that a request generated. The summary has
the number of these tokens.

A request that is longer than a world of these sizes has room for is left out, and counted: a live engine has more
room if a group has a window, since it frees the blocks that slid out. An aborted request counts up to its abort.

Not in a schedule at all: that a copy ended in the step in which it began; what a copy did wrong; drafts. Nor is
there what no connector is told of: resets of the engine's prefix cache alone, and the next turns of sessions.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kv_api import ConfigError
from kv_vllm.recording.world import FORMAT, VERSION


@dataclass
class Summary:
    """Counts of what a schedule has, and of what it can't express."""

    requests: int = 0
    steps: int = 0
    shared_tokens: int = 0
    """Tokens of prompts whose blocks an earlier prompt had, too."""
    lost_tokens: int = 0
    """Those of them that aren't shared in the schedule."""
    left_out: int = 0
    """Requests that aren't in the schedule, since a world of these sizes has no room for them."""

    def __str__(self) -> str:
        told = (
            f"{self.requests} requests, {self.steps} steps; {self.shared_tokens} tokens of prompts are shared, "
            f"{self.lost_tokens} of them not in the schedule"
        )
        return told + (f"; {self.left_out} requests longer than its world are left out" if self.left_out else "")


# -- the history ---------------------------------------------------------------------------------


class Conversations:
    """Gives each prompt a conversation and how much of it is shared.

    ``_trunk``: how many hashes each conversation has. ``_place``: of each hash of a trunk, its conversation and
    how many hashes end with it. ``_seen``: all hashes of prompts, to count what can't be said.
    """

    def __init__(self, hash_tokens: int) -> None:
        self._hash_tokens = hash_tokens
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
        summary.shared_tokens += known * self._hash_tokens
        summary.lost_tokens += (known - depth) * self._hash_tokens
        self._seen.update(hashes)
        if depth == self._trunk[conversation]:
            for end in range(depth, len(hashes)):
                self._place[hashes[end]] = conversation, end + 1
            depth = self._trunk[conversation] = len(hashes)
        shared = depth * self._hash_tokens
        return {"conversation": conversation, "shared_tokens": shared, "own_tokens": prompt_tokens - shared}

    def check(self) -> None:
        """Recount: each trunk has its hashes, once each."""
        for conversation, hashes in enumerate(self._trunk):
            ends = sorted(end for where, end in self._place.values() if where == conversation)
            assert ends == list(range(1, hashes + 1)), f"conversation {conversation} of {hashes} has {ends}"
        assert self._seen >= self._place.keys(), "a trunk has hashes of no prompt"


def room_tokens(world: Mapping[str, Any]) -> int:
    """Tokens of the longest request of a world, in which all groups keep all blocks, beside the null block."""
    blocks = sum(int(group.get("parts", 1)) for group in world["groups"])
    return (int(world["num_blocks"]) - 1) // blocks * int(world["block_size"])


def actions_of(
    calls: Iterable[Mapping[str, Any]], hash_tokens: int, room: int
) -> tuple[list[dict[str, Any]], Summary]:
    """The actions, as lines of a schedule file. ``room``: how many tokens a request may come to."""
    listed, summary = list(calls), Summary()
    ends = {call["request"]: call for call in listed if call["call"] == "end"}
    conversations = Conversations(hash_tokens)
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
        hash_tokens = world["block_size"] // world.get("hashes_per_block", 1)
        actions, summary = actions_of(listed, hash_tokens, room_tokens(world))
    except KeyError as error:
        raise ConfigError(f"{calls}: {error} is missing, which every recorder writes") from error
    header = {"format": "kv-sim schedule", "version": 1, "violation": None, "subject": subject, "world": world}
    lines = (json.dumps(line, ensure_ascii=False) for line in (header, *actions))
    schedule.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return summary
