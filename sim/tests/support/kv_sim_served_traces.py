"""What servers and their front ends write themselves of what they were asked: a small trace of each format."""

import json
from typing import Any

from kv_sim_records import lines

_SAID = "x" * 107
"""Behind its role and before who answers it has 32 tokens, as elsewhere."""


def dynamo(received: int, hashes: list[int], tokens: int, **more: Any) -> dict[str, Any]:
    """A line of Dynamo's."""
    replay = {"trace_block_size": 16, "input_length": tokens, "input_sequence_hashes": hashes}
    request = {"request_id": f"r{received}", "model": "m", "request_received_ms": received, "output_tokens": 7}
    return {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": received + 1000,
        "request": {**request, "replay": replay, **more},
    }


def measured(second: float, asked: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A line that SGLang writes with --export-metrics-to-file."""
    told = {"prompt_tokens": 40, "completion_tokens": 7, "request_received_ts": 1_790_000_000 + second}
    return {"request_parameters": json.dumps({"rid": "r", **asked}), "id": f"r{second}", **told, **more}


def chat_of(*messages: tuple[str, str | None, str, str, int], **more: Any) -> dict[str, Any]:
    """A chat of Open WebUI: of each message its name, that of the one above it, who says what, and when."""
    found = {
        name: {"id": name, "parentId": above, "role": role, "content": said, "timestamp": 1_790_000_000 + second}
        for name, above, role, said, second in messages
    }
    return {"id": "c", "chat": {"models": ["m"], "history": {"messages": found, "currentId": "d"}, **more}}


_HASHES = [4879255164371896291, 274632075616497421]

CASES: dict[str, tuple[str, int, list[float]]] = {
    "dynamo": (
        lines(
            dynamo(1_790_000_003_500, [*_HASHES, 9], 48),
            {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "tool": {"tool_class": "web_search"}},
            {"timestamp": 5, "event": dynamo(1_790_000_000_500, [*_HASHES, 7], 40)},
        ),
        16,
        [0, 3],
    ),
    "sglang-metrics": (
        lines(
            measured(3.5, {"input_ids": [*range(35)], "sampling_params": {}}),
            measured(0.5, {"input_ids": [*range(40)], "sampling_params": {}}),
        ),
        16,
        [0, 3],
    ),
    "open-webui": (
        json.dumps(
            [
                chat_of(
                    ("a", None, "user", _SAID, 0),
                    ("b", "a", "assistant", "z" * 28, 1),
                    ("c", "b", "user", "y" * 42, 3),
                    ("d", "c", "assistant", "z" * 28, 4),
                )
            ],
            indent=1,
        ),
        16,
        [0, 3],
    ),
}
"""The text of a file, the tokens of its blocks, when its requests arrive."""

READ: dict[str, tuple[list[tuple[int, int]], int]] = {
    "dynamo": ([(40, 7), (48, 7)], 2),
    "sglang-metrics": ([(40, 7), (35, 7)], 2),
    # The second has 128 characters, 28 of the answer, and 8 + 42 + 13.
    "open-webui": ([(32, 7), (55, 7)], 2),
}
"""Tokens in and out, and how many blocks the second request has of the first one's."""
