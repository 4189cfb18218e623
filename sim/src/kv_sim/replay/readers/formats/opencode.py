"""Sessions as ``opencode export`` writes them: a session a record, of messages, each of parts; milliseconds.

Each step of an answer is a request: a step ends with its token counts, and its tool results are in the next
prompt. After a compaction, earlier messages aren't sent any more.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.cached import cached_of
from kv_sim.replay.readers.chats.chat import ANSWERS
from kv_sim.replay.readers.chats.messages import Said, counted_in, placed, request, said, time_in
from kv_sim.replay.readers.chats.parts import as_json
from kv_sim.replay.readers.fields import text_of
from kv_sim.replay.readers.format import kept_chats
from kv_sim.replay.readers.json_values import inside, objects_in
from kv_sim.replay.readers.record import Record

_ENDS: Final = "step-finish"
_MEDIA_SENT_AS_TEXT: Final = ("text/plain", "application/x-directory")


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    above: list[tuple[str | None, Said]] = []
    session = inside(record["info"], "id")
    for place, message in placed(record["messages"], "messages"):
        info = message.get("info")
        if not isinstance(info, dict):
            continue
        name, parts = text_of(info, "id"), objects_in(message, "parts") if message.get("parts") else []
        if info.get("role") != ANSWERS:
            above.append((name, said("user", [*map(_sent, parts)], place, _time(info, "created", place))))
            continue
        spoken: list[tuple[str | None, Said]] = []
        steps = _steps_of(parts)
        for number, step in enumerate(steps):
            tokens = next((part.get("tokens") for part in step if part.get("type") == _ENDS), None)
            tokens = info.get("tokens") if tokens is None and len(steps) == 1 else tokens
            answer = said(ANSWERS, [*map(_answered, step)], place, _time(info, "created", place))
            counts = {**tokens, **_counts(tokens.get("cache"))} if isinstance(tokens, dict) else None
            yield from request(
                [one for _, one in (*above, *spoken)],
                place,
                _time(info, "created", place),
                None if session is None else str(session),
                text_of(info, "modelID"),
                counted_in(counts, ("output", "reasoning"), f"{place}.tokens"),
                answer.words,
                counted_in(counts, ("input", "read", "write"), f"{place}.tokens") or None,
                cached_tokens=cached_of(counts, "read"),
                name=name and f"{name} {number}",
                has_failed=bool(info.get("error")),
            )
            spoken.append((name, answer))
            spoken += [(name, one) for part in step for one in _given_back(part, place)]
        if info.get("summary") is True:  # in a user's message it is an object that describes changes
            above = [one for one in above if one[0] is not None and one[0] == text_of(info, "parentID")]
        above += spoken


def _counts(cache: Any) -> Mapping[str, Any]:
    return cache if isinstance(cache, dict) else {}


def _steps_of(parts: list[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    steps: list[list[Mapping[str, Any]]] = [[]]
    for part in parts:
        steps[-1].append(part)
        if part.get("type") == _ENDS:
            steps.append([])
    return [step for step in steps if step] or [[]]


def _sent(part: Mapping[str, Any]) -> Any:
    kind = part.get("type")
    if kind == "text" and not part.get("ignored"):
        return text_of(part, "text") or ""
    if kind == "file" and part.get("mime") not in _MEDIA_SENT_AS_TEXT:
        return part
    return ""


def _answered(part: Mapping[str, Any]) -> Any:
    kind, state = part.get("type"), part.get("state")
    if kind in ("text", "reasoning"):
        return text_of(part, "text") or ""
    return as_json([part.get("tool"), inside(state, "input")]) if kind == "tool" else ""


def _given_back(part: Mapping[str, Any], place: str) -> Iterator[Said]:
    if part.get("type") != "tool":
        return
    state = part.get("state")
    told, error, time = inside(state, "output"), inside(state, "error"), inside(state, "time")
    text = told if isinstance(told, str) else as_json(error if told is None else told)
    yield said("tool", text, place, time_in(time, "end", place) if isinstance(time, dict) else None)


def _time(info: Mapping[str, Any], field: str, place: str) -> int | float | None:
    time = info.get("time")
    return time_in(time, field, f"{place}.info.time") if isinstance(time, dict) else None


OPENCODE = kept_chats(
    "opencode",
    ("info", "messages"),
    _parse,
    unit_seconds=1e-3,
    comes_once=True,
    matches=lambda record: (
        isinstance(record["info"], dict)
        and isinstance(record["messages"], list)
        and record["messages"] != []
        and all(isinstance(inside(one, "info"), dict) for one in record["messages"])
    ),
    looked_for="info in each of them",
    assumes="the system prompt and tools, which an export leaves out, are not counted",
)
