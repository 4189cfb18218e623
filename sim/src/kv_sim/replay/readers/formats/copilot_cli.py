"""Sessions of GitHub's Copilot CLI: events.jsonl, lines of ``type``, ``data``, ``timestamp``; dates.

The prompt of an answer is all of the conversation before it: the user's messages, as they were worded for the
model; answers with tool calls; tool results. A subagent's first prompt is that of the call that began it.
After a compaction a summary replaces everything before it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kv_sim.replay.readers.chats.chat import ANSWERS
from kv_sim.replay.readers.chats.messages import (
    LEFT_OUT,
    Above,
    Heard,
    Said,
    counted_in,
    malformed,
    request,
    said,
    time_in,
)
from kv_sim.replay.readers.chats.parts import as_json
from kv_sim.replay.readers.fields import text_of
from kv_sim.replay.readers.format import Asked, Line, kept_sessions
from kv_sim.replay.readers.json_values import inside, listed
from kv_sim.replay.readers.record import Record

_TURN, _ANSWER, _BACK = "assistant.turn_start", "assistant.message", "tool.execution_complete"
_SUMMARY: Final = "session.compaction_complete"
_TOLD: Final = {"user.message": "user", "system.message": "system"}
_SAYS: Final = (_ANSWER, _BACK, *_TOLD)
_BEGINS: Final = ("session.", "user.", "assistant.", "tool.", "system.", "subagent.", "hook.")


@dataclass
class _Talk:
    """The conversation of a session, or of one subagent in it."""

    above: list[Line] = field(default_factory=list)
    answer: list[Line] = field(default_factory=list)
    """The last answer, which may go on."""
    asked: tuple[int, Iterator[Record]] | None = None
    """The line where it began, and its request."""

    def end_answer(self) -> Asked:
        """The last answer is complete, if there is one."""
        if self.asked is not None:
            yield self.asked
        self.asked = None


def _requests(lines: Sequence[Line]) -> Asked:
    """Each answer, with all messages before it; consecutive messages of the model are one answer."""
    talks: dict[str | None, _Talk] = {}
    heard = Heard(lambda line: [_said(line)])
    session = model = None
    for place, line in enumerate(lines):
        kind, data = line.get("type"), line.get("data")
        if not isinstance(data, dict):
            yield place, malformed(f"data: expected an object, got {type(data).__name__}")
            continue
        whose = text_of(data, "parentToolCallId") or text_of(line, "agentId")
        session = text_of(data, "sessionId") or session
        own = text_of(data, "model") if kind == _ANSWER and whose is None else None
        model = own or text_of(data, "newModel") or text_of(data, "selectedModel") or model
        if kind == _SUMMARY and isinstance(data.get("summaryContent"), str):
            talks.setdefault(whose, _Talk()).above = [line]
        if kind == _TURN and whose in talks:
            yield from talks[whose].end_answer()
        if kind not in _SAYS:
            continue
        if whose not in talks:
            talks[whose] = _Talk([] if whose is None else [_begun_by(whose, talks.values())])
        talk = talks[whose]
        if kind != _ANSWER:
            yield from talk.end_answer()
        elif talk.asked is not None:
            talk.answer.append(line)
        else:
            talk.answer = [line]
            whole = f"{session} {whose or ''}"
            talk.asked = place, _request(heard.of(talk.above), talk.answer, whole, model)
        talk.above.append(line)
    for talk in talks.values():
        yield from talk.end_answer()


def _begun_by(call: str, talks: Iterable[_Talk]) -> Line:
    """A subagent's first prompt: that of the call that began it."""
    for line in (line for talk in talks for line in talk.above if line.get("type") == _ANSWER):
        for asked in _calls_of(line):
            prompt = inside(inside(asked, "arguments"), "prompt")
            if inside(asked, "toolCallId") == call and isinstance(prompt, str):
                return {"type": "user.message", "data": {"content": prompt}, "timestamp": line.get("timestamp")}
    return {"type": "user.message", "data": {"content": ""}}


def _calls_of(line: Line) -> list[Any]:
    return listed(line["data"].get("toolRequests"))


def _said(line: Line) -> Said:
    """The part of a line that is sent to the model."""
    kind, data, time = line["type"], line["data"], time_in(line, "timestamp", "event")
    if kind == _SUMMARY:
        return said("user", data["summaryContent"], "data", time)
    if kind == _BACK:
        back = data.get("result", data.get("error"))
        content = inside(back, "content") or inside(back, "message")
        return said("tool", content if isinstance(content, str) else as_json(back or ""), "data", time)
    if kind != _ANSWER:
        told = text_of(data, "transformedContent") or data.get("content")
        return said(_TOLD[kind], told, "data", time)
    calls = [as_json([inside(one, "name"), inside(one, "arguments")]) for one in _calls_of(line)]
    return said(ANSWERS, [text_of(data, "content") or "", *calls], "data", time)


def _request(above: Above, lines: list[Line], session: str, model: str | None) -> Iterator[Record]:
    first = lines[0]
    thoughts = [text_of(one["data"], "reasoningText") or "" for one in lines]
    counts = [count for one in lines if (count := counted_in(one["data"], ("outputTokens",), "data"))]
    yield from request(
        above,
        "timestamp",
        time_in(first, "timestamp", "event"),
        session,
        text_of(first["data"], "model") or model,
        sum(counts) if counts else None,
        "".join([*thoughts, *(_said(one).words for one in lines)]),
    )


COPILOT_CLI = kept_sessions(
    "copilot-cli",
    ("type", "data", "id", "timestamp"),
    _requests,
    matches=lambda record: isinstance(record["type"], str) and record["type"].startswith(_BEGINS),
    looked_for="a type as session.start",
    assumes=LEFT_OUT,
)
