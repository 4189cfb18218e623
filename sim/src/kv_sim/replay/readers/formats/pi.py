"""Sessions of pi: a file each, a line for each entry, which names its parent.

After a compaction a summary replaces everything above the first entry that was kept. A forked session begins with
a copy of another one; a request that is in two files counts once.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kv_sim.replay.readers.chats.cached import cached_of
from kv_sim.replay.readers.chats.chat import ANSWERS
from kv_sim.replay.readers.chats.messages import (
    LEFT_OUT,
    Above,
    Heard,
    Said,
    counted_in,
    names_above,
    request,
    said,
    time_in,
)
from kv_sim.replay.readers.chats.parts import as_json
from kv_sim.replay.readers.fields import text_of
from kv_sim.replay.readers.format import Asked, Line, kept_sessions
from kv_sim.replay.readers.json_values import inside
from kv_sim.replay.readers.record import Record

_FIRST_KEPT: Final = "firstKeptEntryId"
_ROLES: Final = {"toolResult": "tool"}
"""Roles as an API has them; any other entry that isn't an answer counts as a user's."""
_BROKEN: Final = ("error", "aborted")


def _requests(lines: Sequence[Line]) -> Asked:
    """Each answer, with all entries above it."""
    session = next((text_of(line, "id") for line in lines if line.get("type") == "session"), None)
    entries: dict[str, Line] = {}
    heard = Heard(lambda line: [_said(line)])
    last = None
    for place, line in enumerate(lines):
        if line.get("type") == "session":
            continue
        name = text_of(line, "id") or f"line {place}"
        entries[name] = line if "parentId" in line else {**line, "parentId": last}  # as first versions wrote them
        last = name
        if _role(line) == ANSWERS:
            above = [entries[one] for one in _sent(entries, names_above(entries, name, "parentId"))]
            yield place, _request(heard.of(above), line, session)


def _sent(entries: Mapping[str, Line], above: list[str]) -> list[str]:
    """The entries above an answer that are sent: the summary, but not those that it replaces."""
    places = [place for place, name in enumerate(above) if entries[name].get("type") == "compaction"]
    if not places:
        return above
    last = places[-1]
    kept = text_of(entries[above[last]], _FIRST_KEPT)
    first = above.index(kept) if kept in above[:last] else last
    between = [one for one in above[first:last] if entries[one].get("type") != "compaction"]
    return [above[last], *between, *above[last + 1 :]]


def _request(above: Above, line: Line, session: str | None) -> Iterator[Record]:
    message, usage = line["message"], line["message"].get("usage")
    yield from request(
        above,
        "message",
        _time(line),
        session,
        text_of(message, "model"),
        counted_in(usage, ("output",), "message.usage"),
        _said(line).words,
        counted_in(usage, ("input", "cacheRead", "cacheWrite"), "message.usage") or None,
        cached_tokens=cached_of(usage, "cacheRead"),
        name=f"{text_of(line, 'id')} {text_of(line, 'timestamp')}" if "id" in line else None,
        has_failed=message.get("stopReason") in _BROKEN,
    )


def _said(line: Line) -> Said:
    """The text of an entry; most entries that aren't messages have none."""
    role, time, place = _role(line), _time(line), f"entry {text_of(line, 'id')}"
    if role is None:
        summary = line.get("summary", line.get("content") if line.get("type") == "custom_message" else None)
        return said("user", summary, place, time)
    message = line["message"]
    if message.get("excludeFromContext"):
        return Said((), time)
    content = message.get("content", message.get("summary"))
    if content is None and "command" in message:
        content = [text_of(message, field) or "" for field in ("command", "output")]
    role = role if role == ANSWERS else _ROLES.get(role, "user")
    return said(role, [*map(_part, content)] if isinstance(content, list) else content, place, time)


def _part(part: Any) -> Any:
    kind = inside(part, "type")
    if kind == "thinking":
        return text_of(part, "thinking") or ""
    return as_json([part.get("name"), part.get("arguments")]) if kind == "toolCall" else part


def _role(line: Line) -> str | None:
    message = line.get("message")
    return text_of(message, "role") if line.get("type") == "message" and isinstance(message, dict) else None


def _time(line: Line) -> int | float | None:
    return time_in(line, "timestamp", f"entry {text_of(line, 'id')}")


PI = kept_sessions(
    "pi",
    (),
    _requests,
    comes_once=True,
    matches=lambda record: record.get("type") == "session" and {"id", "timestamp", "cwd"} <= record.keys(),
    looked_for="type session, id, timestamp, cwd in the first line",
    assumes=LEFT_OUT,
)
