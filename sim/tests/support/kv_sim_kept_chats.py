"""What programs keep of their chats, and what can be exported of them: a small trace of each format."""

import json
from typing import Any

from kv_sim_records import lines

SAID = "x" * 107
"""Behind its role and before who answers it has 32 tokens, as elsewhere."""
NEXT = "y" * 42
BEGIN = 1_790_000_000


def date(second: float) -> str:
    return f"2026-01-31T10:00:{second:06.3f}Z"


# -- ChatGPT -------------------------------------------------------------------------------------


def node(
    name: str, above: str | None, role: str, content: Any, second: float | None, **more: Any
) -> dict[str, Any]:
    """A node of ChatGPT's: text, or a content of another type."""
    told = {"content_type": "text", "parts": [content]} if isinstance(content, str) else content
    time = BEGIN + second if isinstance(second, int) else second
    message = {"id": name, "author": {"role": role}, "create_time": time, "content": told, "metadata": more}
    return {"id": name, "parent": above, "children": [], "message": message}


def mapping(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    root = {"id": "root", "parent": None, "children": [], "message": None}
    found = {one["id"]: {**one} for one in (root, *nodes)}
    for name, one in found.items():
        one["children"] = [below for below, other in found.items() if other["parent"] == name]
    return {"title": "t", "conversation_id": "c", "mapping": found, "current_node": nodes[-1]["id"], **more}


# -- Claude.ai -----------------------------------------------------------------------------------


def sent(name: str, sender: str, content: Any, second: float, **more: Any) -> dict[str, Any]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    beside = {"attachments": [], "files": [], **more}
    return {"uuid": name, "sender": sender, "text": "", "content": parts, "created_at": date(second), **beside}


# -- Gemini CLI ----------------------------------------------------------------------------------


def of_gemini(name: str, kind: str, content: Any, second: float, **more: Any) -> dict[str, Any]:
    return {"id": name, "timestamp": date(second), "type": kind, "content": content, **more}


# -- ATIF ----------------------------------------------------------------------------------------


def step(source: str, message: Any, second: float | None, **more: Any) -> dict[str, Any]:
    """A step of a trajectory; its number, which nothing needs, is left out."""
    time = {} if second is None else {"timestamp": date(second)}
    return {"source": source, "message": message, **time, **more}


def trajectory(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    agent = {"name": "a", "version": "1", "model_name": "m"}
    return {"schema_version": "ATIF-v1.7", "session_id": "s", "agent": agent, "steps": [*steps], **more}


# -- opencode ------------------------------------------------------------------------------------


def of_opencode(name: str, role: str, second: float, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    time = {"created": 1000 * BEGIN + int(1000 * second)}
    return {"info": {"id": name, "sessionID": "s", "role": role, "time": time, **more}, "parts": [*parts]}


def part(kind: str, **more: Any) -> dict[str, Any]:
    return {"id": "p", "type": kind, **more}


# -- pi ------------------------------------------------------------------------------------------


def entry(name: str, above: str | None, second: float, kind: str = "message", **more: Any) -> dict[str, Any]:
    return {"type": kind, "id": name, "parentId": above, "timestamp": date(second), **more}


HEADER = {"type": "session", "version": 3, "id": "s", "timestamp": date(0), "cwd": "/"}


# -- goose, and Cline ----------------------------------------------------------------------------


def of_goose(role: str, content: Any, second: int, **more: Any) -> dict[str, Any]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {"role": role, "created": BEGIN + second, "content": parts, **more}


def of_cline(role: str, content: Any, second: float, **more: Any) -> dict[str, Any]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {"role": role, "content": parts, "ts": 1000 * BEGIN + int(1000 * second), **more}


ABOUT = {"working_dir": "/", "description": "d", "message_count": 4, "total_tokens": 9}
_ANSWER = "z" * 28

CASES: dict[str, tuple[str, int, list[float]]] = {
    "chatgpt": (
        json.dumps(
            [
                mapping(
                    node("s", "root", "system", "", None),
                    node("a", "s", "user", SAID, 1),
                    node("b", "a", "assistant", _ANSWER, 2),
                    node("c", "b", "user", NEXT, 4),
                    node("d", "c", "assistant", _ANSWER, 5),
                )
            ]
        ),
        16,
        [0, 3],
    ),
    "claude-ai": (
        json.dumps(
            [
                {
                    "uuid": "c",
                    "name": "n",
                    "chat_messages": [
                        sent("a", "human", SAID, 1),
                        sent("b", "assistant", _ANSWER, 2),
                        sent("c", "human", NEXT, 4),
                        sent("d", "assistant", _ANSWER, 5),
                    ],
                }
            ]
        ),
        16,
        [0, 3],
    ),
    "gemini-cli": (
        json.dumps(
            {
                "sessionId": "s",
                "projectHash": "h",
                "messages": [
                    of_gemini("a", "user", [{"text": SAID}], 1),
                    of_gemini(
                        "b", "gemini", [{"text": _ANSWER}], 2, tokens={"input": 40, "output": 4, "thoughts": 3}
                    ),
                    of_gemini("c", "user", [{"text": NEXT}], 4),
                    of_gemini("d", "gemini", [{"text": _ANSWER}], 5, tokens=None),
                ],
            },
            indent=2,
        ),
        16,
        [0, 3],
    ),
    "opencode": (
        json.dumps(
            {
                "info": {"id": "s"},
                "messages": [
                    of_opencode("a", "user", 1, part("text", text=SAID)),
                    of_opencode("b", "assistant", 2, part("text", text=_ANSWER), tokens={"output": 7}),
                    of_opencode("c", "user", 4, part("text", text=NEXT)),
                    of_opencode("d", "assistant", 5, part("text", text=_ANSWER)),
                ],
            },
            indent=2,
        ),
        16,
        [0, 3],
    ),
    "pi": (
        lines(
            HEADER,
            entry("a", None, 1, message={"role": "user", "content": [{"type": "text", "text": SAID}]}),
            entry(
                "b",
                "a",
                2,
                message={
                    "role": "assistant",
                    "content": [{"type": "text", "text": _ANSWER}],
                    "usage": {"input": 40, "output": 7},
                },
            ),
            entry("c", "b", 4, message={"role": "user", "content": [{"type": "text", "text": NEXT}]}),
            entry("d", "c", 5, message={"role": "assistant", "content": [{"type": "text", "text": _ANSWER}]}),
        ),
        16,
        [0, 3],
    ),
    "goose": (
        lines(
            ABOUT,
            of_goose("user", SAID, 1),
            of_goose("assistant", _ANSWER, 2),
            of_goose("user", NEXT, 4),
            of_goose("assistant", _ANSWER, 5),
        ),
        16,
        [0, 3],
    ),
    "atif": (
        json.dumps(
            trajectory(
                step("user", SAID, 1),
                step("agent", _ANSWER, 2, metrics={"prompt_tokens": 40, "completion_tokens": 7}),
                step("user", NEXT, 4),
                step("agent", _ANSWER, 5),
            ),
            indent=2,
        ),
        16,
        [0, 3],
    ),
    "cline": (
        json.dumps(
            [
                of_cline("user", SAID, 1),
                of_cline("assistant", _ANSWER, 2, metrics={"tokens": {"prompt": 40, "completion": 7}}),
                of_cline("user", NEXT, 4),
                of_cline("assistant", _ANSWER, 5),
            ]
        ),
        16,
        [0, 3],
    ),
}
"""The text of a file, the tokens of its blocks, when its requests arrive."""

READ: dict[str, tuple[list[tuple[int, int]], int]] = {name: ([(32, 7), (55, 7)], 2) for name in CASES}
"""Tokens in and out, and how many blocks the second request has of the first one's: it has 128 characters, 28 of
the answer, and 8 + 42 + 13."""
