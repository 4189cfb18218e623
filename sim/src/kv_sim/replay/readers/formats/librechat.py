"""Chats of LibreChat: its exports, a chat a record, or its messages in MongoDB, one a record; dates.

Each message names its parent, or is nested in it, or the messages are in a row. An answer may be several requests:
a model that calls a tool continues with the tool's result, which is a new request. Thoughts aren't sent again.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from kv_sim.replay.readers.chats.chat import ANSWERS
from kv_sim.replay.readers.chats.messages import (
    Said,
    counted_in,
    named,
    names_above,
    placed,
    request,
    said,
    time_in,
)
from kv_sim.replay.readers.chats.parts import as_json
from kv_sim.replay.readers.fields import text_of
from kv_sim.replay.readers.format import Asked, Line, kept_sessions
from kv_sim.replay.readers.json_values import inside, objects_in
from kv_sim.replay.readers.record import Record

_ABOVE: Final = "parentMessageId"
_NAME: Final = "messageId"
_BY_USER: Final = "isCreatedByUser"
_TOLD: Final = ("promptPrefix", "system", "instructions")
"""Options of a chat with the system prompt."""
_MEDIA: Final = ("image", "audio", "video")
_THOUGHT, _ERROR = "think", "error"


def _requests(lines: Sequence[Line]) -> Asked:
    """Each chat, with all its messages, and the line of the first one."""
    alone: dict[str, tuple[int, list[Any]]] = {}
    for place, line in enumerate(lines):
        if "messages" in line:
            yield place, _requests_of(line)
        else:
            chat = text_of(line, "conversationId") or ""
            alone.setdefault(chat, (place, []))[1].append(line)
    for name, (place, messages) in alone.items():
        yield place, _requests_of({"conversationId": name, "messages": messages})


def _requests_of(record: Line) -> Iterator[Record]:
    found = placed(_flat(record["messages"], None), "messages")
    messages = named(found, _NAME, _ABOVE)
    places = dict(zip(messages, (place for place, _ in found), strict=False))
    again = {name: [*_said(one, places[name])] for name, one in messages.items()}
    options = record.get("options")
    told = _told_in(options)
    for name, message in messages.items():
        if not message.get(_BY_USER):
            above = [said("system", told, "options")] if told else []
            above += [one for other in names_above(messages, name, _ABOVE) for one in again[other]]
            yield from _requests_for(message, above, places[name], text_of(record, "conversationId"), options)


def _told_in(options: Any) -> str:
    """The system prompt."""
    found = [inside(options, field) for field in _TOLD]
    return next((text for text in found if isinstance(text, str) and text), "")


def _flat(messages: Any, above: str | None) -> Any:
    """The messages in a list, if each may have its children nested in itself."""
    if not isinstance(messages, list):
        return messages
    found: list[Any] = []
    waiting = [(one, above) for one in reversed(messages)]
    while waiting:
        one, over = waiting.pop()
        if isinstance(one, dict) and isinstance(one.get("children"), list):
            waiting += [(below, text_of(one, _NAME)) for below in reversed(one["children"])]
        found.append({_ABOVE: over, **one} if isinstance(one, dict) else one)
    return found


def _requests_for(
    message: Line, above: list[Said], place: str, chat: str | None, options: Any
) -> Iterator[Record]:
    """One request for each call of the model."""
    steps = _steps_of(message)
    time = time_in(message, "createdAt", place)
    tokens = counted_in(message, ("tokenCount",), place) if len(steps) == 1 else None
    model = text_of(message, "model") or (text_of(options, "model") if isinstance(options, dict) else None)
    own: list[Said] = []
    for parts in steps:
        text = "".join(_thought(part) + _text(part) for part in parts)
        failed = bool(message.get("error"))
        yield from request([*above, *own], place, time, chat, model, tokens or None, text, has_failed=failed)
        own += _one(parts, place, None)


def _said(message: Line, place: str) -> Iterator[Said]:
    """The parts of a message that are sent again."""
    time = time_in(message, "createdAt", place)
    if not message.get(_BY_USER):
        for parts in _steps_of(message):
            yield from _one(parts, place, time)
        return
    files = objects_in(message, "files") if message.get("files") else []
    kinds = [str(file.get("type")).partition("/")[0] for file in files]
    beside = [
        {**file, "type": kind if kind in _MEDIA else "file"} for file, kind in zip(files, kinds, strict=True)
    ]
    texts = [_text(part) for parts in _steps_of(message) for part in parts]
    yield said("user", [*texts, *beside], place, time)


def _steps_of(message: Line) -> list[list[Any]]:
    """The parts of a message in steps: each ends with the tool calls after which the model goes on."""
    content = message.get("content")
    parts = content if isinstance(content, list) and content else [message.get("text") or ""]
    steps: list[list[Any]] = [[]]
    for part in parts:
        if steps[-1] and _call_of(steps[-1][-1]) is not None and _call_of(part) is None:
            steps.append([])
        steps[-1].append(part)
    return steps


def _one(parts: list[Any], place: str, time: int | float | None) -> Iterator[Said]:
    """The model's message in a step, and the tool results."""
    yield said(ANSWERS, [_text(part) for part in parts], place, time)
    back = [text for part in parts if (text := text_of(_call_of(part) or {}, "output"))]
    yield said("tool", back, place, time)


def _call_of(part: Any) -> Line | None:
    call = inside(part, "tool_call")
    return call if isinstance(call, dict) else None


def _thought(part: Any) -> str:
    return text_of(part, "think") or "" if inside(part, "type") == _THOUGHT else ""


def _text(part: Any) -> str:
    """The text of a part; thoughts and errors are only shown."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return as_json(part)
    if part.get("type") in (_THOUGHT, _ERROR):
        return ""
    if (call := _call_of(part)) is not None:
        return as_json({name: call.get(name) for name in ("name", "args")})
    text = part.get("text")
    text = inside(text, "value") if isinstance(text, dict) else text
    return text if isinstance(text, str) else as_json(part)


def _is_kept(record: Line) -> bool:
    messages = record.get("messages")
    first = messages[0] if isinstance(messages, list) and messages else record
    return isinstance(first, dict) and _BY_USER in first and _NAME in first


LIBRECHAT = kept_sessions(
    "librechat",
    (),
    _requests,
    matches=_is_kept,
    looked_for=f"{_NAME} and {_BY_USER}, or messages with them",
    assumes="what LibreChat adds (tools, files, what it searches) is not counted",
)
