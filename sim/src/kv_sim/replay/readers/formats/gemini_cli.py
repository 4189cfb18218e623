"""Sessions of Gemini CLI: a file each, a document of messages, or a line for each message and each update of one.

A message is written again, whole, when more is known of it, such as its tool results: the last version counts,
unless it is a copy with less. If a session was rewound, its earlier messages still count. A resumed session is
copied from a document to lines; a request that is in two files counts once.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from kv_sim.replay.readers.chats.cached import cached_of
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
from kv_sim.replay.readers.json_values import inside, listed, objects_in
from kv_sim.replay.readers.record import Record

_ANSWER: Final = "gemini"
_SENT: Final = ("user", _ANSWER)
"""Types of messages that are sent; others are only shown."""
_BACK: Final = "$rewindTo"
_SET: Final = "$set"
_COUNTS: Final = "tokens"
_CALLED, _GIVEN_BACK = "functionCall", "functionResponse"


def _requests(lines: Sequence[Line]) -> Asked:
    """Each answer, with all messages before it."""
    newest: dict[str, Line] = {}
    for one in (one for line in lines for one in _messages_in(line) if isinstance(one.get("id"), str)):
        newest[one["id"]] = _fuller(newest.get(one["id"]), one)
    known: dict[str, Line] = {}
    """The fullest version of each message so far: later versions may have shortened tool results."""
    called = {str(call.get("id")) for line in lines for one in _messages_in(line) for call in _calls(one)}
    heard = Heard(lambda message: _said(message, called))
    path: dict[str, None] = {}
    seen: set[str] = set()
    session = None
    for place, line in enumerate(lines):
        session = text_of(line, "sessionId") or session
        if isinstance(back := line.get(_BACK), str):
            names = [*path]
            path = dict.fromkeys(names[: names.index(back)] if back in path else [])
        took_place = inside(line.get(_SET), "messages")
        if isinstance(took_place, list):
            path = {}
        for message in _messages_in(line):
            name = message.get("id")
            if not isinstance(name, str):
                yield place, malformed("messages: expected each with an id, got one without")
                continue
            known[name] = _fuller(known.get(name), message)
            if name in path:
                continue
            if message.get("type") == _ANSWER and name not in seen and not isinstance(took_place, list):
                above = heard.of(known[one] for one in path)
                yield place, _request(above, newest[name], session)
            seen.add(name)
            path[name] = None


def _fuller(before: Line | None, message: Line) -> Line:
    """The fuller of two versions of a message.

    A copy of an answer in a resumed session lacks its counts, its model, and its tool results.
    """
    return before if before is not None and before.get(_COUNTS) and not message.get(_COUNTS) else message


def _messages_in(line: Line) -> list[Line]:
    """The messages of a document or of a line that changes it; or a line that is itself a message."""
    told = line.get("messages", inside(line.get(_SET), "messages"))
    if isinstance(told, list):
        return [one for one in told if isinstance(one, dict)]
    return [line] if "id" in line and "type" in line else []


def _request(above: Above, answer: Line, session: str | None) -> Iterator[Record]:
    place, tokens = f"message {answer['id']}", answer.get(_COUNTS)
    yield from request(
        above,
        place,
        time_in(answer, "timestamp", place),
        session,
        text_of(answer, "model"),
        counted_in(tokens, ("output", "thoughts"), f"{place}.tokens"),
        "".join(_thoughts(answer)) + _answer(answer, place).words,
        counted_in(tokens, ("input", "tool"), f"{place}.tokens") or None,
        cached_tokens=cached_of(tokens, "cached"),
        name=answer["id"],
    )


def _said(message: Line, called: set[str]) -> Iterator[Said]:
    """A message's text, and its tool results."""
    kind, place = message.get("type"), f"message {message['id']}"
    if kind not in _SENT:
        return
    if kind == _ANSWER:
        yield _answer(message, place)
        for call in _calls(message):
            if (back := call.get("result")) is not None:
                yield said("tool", _parts(back), place, time_in(call, "timestamp", place))
        return
    content = _parts(message.get("content"))
    told = [part for part in content if not _is_known(part, called)] if isinstance(content, list) else content
    yield said("user", told, place, time_in(message, "timestamp", place))


def _answer(message: Line, place: str) -> Said:
    """An answer's text and its tool calls."""
    content = _parts(message.get("content"))
    told = content if isinstance(content, list) else [content or ""]
    if not any(inside(part, _CALLED) for part in told):
        told = [*told, *(as_json({name: call.get(name) for name in ("name", "args")}) for call in _calls(message))]
    return said(ANSWERS, [part for part in told if part != ""], place, time_in(message, "timestamp", place))


def _parts(content: Any) -> Any:
    return [content] if isinstance(content, dict) else content


def _is_known(part: Any, called: set[str]) -> bool:
    """Whether it is a tool result that its call has, too."""
    return str(inside(inside(part, _GIVEN_BACK), "id")) in called


def _calls(message: Line) -> list[Line]:
    return [one for one in listed(message.get("toolCalls")) if isinstance(one, dict)]


def _thoughts(message: Line) -> Iterator[str]:
    for thought in objects_in(message, "thoughts") if message.get("thoughts") else []:
        yield from (text for name in ("subject", "description") if (text := text_of(thought, name)))


def _is_session(record: Line) -> bool:
    if "sessionId" not in record:
        return False
    return "projectHash" in record or ("messageId" in record and "message" in record)


GEMINI_CLI = kept_sessions(
    "gemini-cli",
    (),
    _requests,
    comes_once=True,
    matches=_is_session,
    looked_for="sessionId and projectHash",
    assumes=LEFT_OUT,
)
