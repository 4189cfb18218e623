"""Sessions of GitHub's Copilot CLI: events.jsonl, lines of ``type``, ``data``, ``timestamp``; dates.

What a model was asked is all that was said before: by a user, as it was put into words for the model; by models,
with the tools that they called; by these tools. A subagent has its own prompt, that of the call that began it.
Where a session was compacted, a summary takes the place of all that came before.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kv_sim.replay.readers.asked import inside
from kv_sim.replay.readers.chat import ANSWERS
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.messages import LEFT_OUT, Answered, Heard, Said, counted_in, request, said, time_in
from kv_sim.replay.readers.parts import as_json
from kv_sim.replay.readers.record import MalformedError, Record, text_of
from kv_sim.replay.readers.text import ASSUMED

Line = Mapping[str, Any]

_FIELDS: Final = ("type", "data", "id", "timestamp")
_ANSWER, _BACK, _SUMMARY = "assistant.message", "tool.execution_complete", "session.compaction_complete"
_TOLD: Final = {"user.message": "user", "system.message": "system"}
_SAYS: Final = (_ANSWER, _BACK, *_TOLD)
_BEGINS: Final = ("session.", "user.", "assistant.", "tool.", "system.", "subagent.", "hook.")


def _gather(lines: Sequence[Line]) -> Iterator[tuple[int, Line]]:
    """Each answer, with all that stands above it; several messages of a model in a turn are one."""
    above: dict[str | None, list[Line]] = {}
    heard = Heard(lambda line: [_said(line)])
    open_answers: dict[str | None, tuple[int, dict[str, Any]]] = {}
    session = model = None
    for place, line in enumerate(lines):
        kind, data = line.get("type"), line.get("data")
        if not isinstance(data, dict):
            yield place, {"broken": f"data: expected an object, got {type(data).__name__}"}
            continue
        whose = text_of(data, "parentToolCallId") or text_of(line, "agentId")
        session = text_of(data, "sessionId") or session
        own = text_of(data, "model") if kind == _ANSWER and whose is None else None
        model = own or text_of(data, "newModel") or text_of(data, "selectedModel") or model
        if kind == _SUMMARY and isinstance(data.get("summaryContent"), str):
            above[whose] = [line]
        if kind not in _SAYS:
            if kind == "assistant.turn_start" and whose in open_answers:
                yield open_answers.pop(whose)
            continue
        stack = above.setdefault(whose, [_begun_by(whose, above)] if whose is not None else [])
        if kind != _ANSWER and whose in open_answers:
            yield open_answers.pop(whose)
        if kind == _ANSWER and whose in open_answers:
            open_answers[whose][1]["answer"].append(line)
        elif kind == _ANSWER:
            about = {"session": f"{session} {whose or ''}", "model": model}
            open_answers[whose] = (place, {**about, "above": heard.of(stack), "answer": [line]})
        stack.append(line)
    yield from open_answers.values()


def _begun_by(call: str, above: Mapping[str | None, list[Line]]) -> Line:
    """What a subagent is asked first: what the call says that began it."""
    for line in (line for lines in above.values() for line in lines if line.get("type") == _ANSWER):
        for asked in _calls_of(line):
            prompt = inside(inside(asked, "arguments"), "prompt")
            if inside(asked, "toolCallId") == call and isinstance(prompt, str):
                return {"type": "user.message", "data": {"content": prompt}, "timestamp": line.get("timestamp")}
    return {"type": "user.message", "data": {"content": ""}}


def _calls_of(line: Line) -> list[Any]:
    calls = line["data"].get("toolRequests")
    return calls if isinstance(calls, list) else []


def _said(line: Line) -> Said:
    """What of a line is sent."""
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


def _parse(record: Line) -> Iterator[Record]:
    if "broken" in record:
        raise MalformedError(record["broken"])
    first, told = (
        record["answer"][0],
        [counted_in(one["data"], ("outputTokens",), "data") for one in record["answer"]],
    )
    thoughts = [text_of(one["data"], "reasoningText") or "" for one in record["answer"]]
    counts = [one for one in told if one]
    yield from request(
        record["above"],
        Answered(
            time_in(first, "timestamp", "event"),
            record["session"],
            text_of(first["data"], "model") or record["model"],
            sum(counts) if counts else None,
            "".join([*thoughts, *(_said(one).words for one in record["answer"])]),
        ),
        "timestamp",
    )


COPILOT_CLI = Format(
    "copilot-cli",
    f"sessions of Copilot CLI, events.jsonl: type, data, id, timestamp (dates); {ASSUMED}",
    Container.JSON,
    _FIELDS,
    _parse,
    gather=_gather,
    overlaps=True,
    sessions_go_on=True,
    matches=lambda record: isinstance(record["type"], str) and record["type"].startswith(_BEGINS),
    looked_for="a type as session.start",
    is_text=True,
    assumes=LEFT_OUT,
)
