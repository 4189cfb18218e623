"""Tasks of Cline and Roo Code: api_conversation_history.json, messages with ``ts``; milliseconds.

If Roo Code has condensed a task, a summary replaces the messages that name it. Cline's ``cached`` are the tokens
read from and written to a cache, together, beside the rest of the prompt.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from kv_sim.replay.readers.chats.chat import ANSWERS
from kv_sim.replay.readers.chats.messages import Above, Heard, Said, counted_in, request, said, time_in
from kv_sim.replay.readers.chats.parts import as_json
from kv_sim.replay.readers.fields import text_of
from kv_sim.replay.readers.format import Asked, Line, kept_sessions
from kv_sim.replay.readers.json_values import inside
from kv_sim.replay.readers.record import Record

_THOUGHT: Final = ("thinking", "reasoning")
_CONDENSED: Final = "condenseId"
_PARENT: Final = "condenseParent"


def _requests(lines: Sequence[Line]) -> Asked:
    """Each answer, with all messages before it."""
    above: list[Line] = []
    heard = Heard(lambda line: [_said(line)])
    for place, line in enumerate(lines):
        if line.get("role") == ANSWERS and not line.get("isSummary"):
            yield place, _request(heard.of(above), line)
        if (name := line.get(_CONDENSED)) is not None and line.get("isSummary"):
            above = [one for one in above if one.get(_PARENT) != name]
        above.append(line)


def _request(above: Above, answer: Line) -> Iterator[Record]:
    tokens = inside(answer.get("metrics"), "tokens")
    yield from request(
        above,
        "ts",
        time_in(answer, "ts", "answer"),
        "the task",
        inside(answer.get("modelInfo"), "modelId"),
        counted_in(tokens, ("completion",), "metrics.tokens"),
        _said(answer).words,
        counted_in(tokens, ("prompt", "cached"), "metrics.tokens") or None,
    )


def _said(line: Line) -> Said:
    content = line.get("content")
    told = [*map(_part, content)] if isinstance(content, list) else content
    return said(str(line.get("role")), told, "content", time_in(line, "ts", "message"))


def _part(part: Any) -> Any:
    """A thought as text, without its signature."""
    kind = inside(part, "type")
    if kind in _THOUGHT:
        return text_of(part, "thinking") or text_of(part, "text") or ""
    if kind == "tool_use":
        return as_json([part.get("name"), part.get("input")])
    return as_json(part.get("content")) if kind == "tool_result" else part


CLINE = kept_sessions(
    "cline",
    ("role", "content", "ts"),
    _requests,
    unit_seconds=1e-3,
    matches=lambda record: record["role"] in ("user", ANSWERS) and isinstance(record["ts"], (int, float)),
    looked_for="a role of user or assistant",
    assumes="the system prompt and tools, which such a file leaves out, are not counted",
)
