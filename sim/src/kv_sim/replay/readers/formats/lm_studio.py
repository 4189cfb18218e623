"""Conversations of LM Studio, a file each (*.conversation.json): messages, each with versions; milliseconds.

A regenerated answer is another version, and another request; later messages continue from the selected version.
An answer consists of blocks: a model that calls a tool continues with the tool's result, which is a new request.
The name of a block begins with the time of its begin; without one, a minute between two turns is assumed. Thoughts
aren't sent again.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.chat import ANSWERS
from kv_sim.replay.readers.chats.messages import Said, counted_in, placed, request, said
from kv_sim.replay.readers.chats.parts import as_json
from kv_sim.replay.readers.fields import number_or_date, text_of
from kv_sim.replay.readers.format import kept_chats
from kv_sim.replay.readers.json_values import inside, listed, objects_in
from kv_sim.replay.readers.record import MalformedError, Moment, Record
from kv_sim.replay.readers.requests.turns import TURN_SECONDS
from kv_sim.replay.readers.required import errors_at

Part = Mapping[str, Any]

_SYSTEM: Final = "llm.prediction.systemPrompt"
_BLOCK: Final = "contentBlock"
_BACK: Final = "toolCallResult"
_CALL: Final = "toolCallRequest"
_DIGITS: Final = 13
"""Digits of milliseconds since 1970."""


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    begin = number_or_date(record, "createdAt")
    begin = begin if isinstance(begin, Moment) else Moment(begin / 1000)
    system = _system_of(record)
    above = [said("system", system, "systemPrompt")] if system else []
    for turn, (place, message) in enumerate(placed(record["messages"], "messages")):
        versions = placed(message.get("versions"), f"{place}.versions")
        time = Moment(begin + turn // 2 * TURN_SECONDS)
        again: list[list[Said]] = []
        for where, version in versions:
            if version.get("role") != ANSWERS:
                again.append([said(str(version.get("role")), _parts(version, where), where)])
                continue
            own: list[Said] = []
            for blocks, back in _steps_of(version, where):
                yield from _request([*above, *own], blocks, version, time, where)
                own += [said(ANSWERS, _sent(blocks, where), where), said("tool", _sent(back, where), where)]
            again.append(own)
        chosen = message.get("currentlySelected", 0)
        if not isinstance(chosen, int) or not 0 <= chosen < len(again):
            raise MalformedError(
                f"{place}.currentlySelected: expected one of {len(again)} versions, got {chosen!r:.40}"
            )
        above += again[chosen]


def _system_of(record: Mapping[str, Any]) -> str | None:
    """The system prompt."""
    fields = listed(inside(record.get("perChatPredictionConfig"), "fields"))
    own = [inside(one, "value") for one in fields if inside(one, "key") == _SYSTEM]
    return next((one for one in (*own, record.get("systemPrompt")) if isinstance(one, str) and one), None)


def _steps_of(version: Part, where: str) -> Iterator[tuple[list[Part], list[Part]]]:
    """The blocks of an answer in turns: the model's, and then tool results."""
    with errors_at(where):
        steps = objects_in(version, "steps") if "steps" in version else [version]
    mine: list[Part] = []
    back: list[Part] = []
    for block in steps:
        if block.get("type", _BLOCK) not in (_BLOCK, "singleStep"):
            continue
        if any(inside(part, "type") == _BACK for part in _parts(block, where)):
            back.append(block)
            continue
        if back:
            yield mine, back
            mine, back = [], []
        mine.append(block)
    yield mine, back


def _request(above: list[Said], blocks: list[Part], version: Part, usual: Moment, where: str) -> Iterator[Record]:
    made = [found for block in blocks if isinstance(found := block.get("genInfo"), dict)]
    stats = inside(made[-1], "stats") if made else None
    name = inside(made[-1], "identifier") if made else inside(version.get("senderInfo"), "senderName")
    yield from request(
        above,
        where,
        _begin_of(blocks, usual),
        "the conversation",
        None if name is None else str(name),
        counted_in(stats, ("predictedTokensCount",), f"{where}.genInfo.stats"),
        said(ANSWERS, [_text(part) for block in blocks for part in _parts(block, where)], where).words,
        counted_in(stats, ("promptTokensCount",), f"{where}.genInfo.stats") or None,
    )


def _begin_of(blocks: list[Part], usual: Moment) -> Moment:
    """When the model began these blocks."""
    digits = next((str(block.get("stepIdentifier")).partition("-")[0] for block in blocks), "")
    return Moment(int(digits) / 1000) if len(digits) == _DIGITS and digits.isdecimal() else usual


def _parts(block: Part, where: str) -> list[Any]:
    content = block.get("content")
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise MalformedError(f"{where}.content: expected text or a list of parts, got {type(content).__name__}")
    return content


def _sent(blocks: list[Part], where: str) -> list[Any]:
    """The parts of these blocks that are sent again."""
    kept = [one for one in blocks if inside(one.get("style"), "type") != "thinking"]
    return [_text(part) for block in kept for part in _parts(block, where)]


def _text(part: Any) -> Any:
    """A part as an API gets it: text, or an object."""
    kind = inside(part, "type")
    if kind == _CALL:
        return as_json({name: part.get(name) for name in ("name", "parameters")})
    if kind == _BACK:
        return text_of(part, "content") or ""
    return part


def _is_kept(record: Mapping[str, Any]) -> bool:
    messages = record["messages"]
    first = messages[0] if isinstance(messages, list) and messages else None
    return isinstance(inside(first, "versions"), list)


LM_STUDIO = kept_chats(
    "lm-studio",
    ("createdAt", "messages"),
    _parse,
    matches=_is_kept,
    looked_for="versions in each of them",
    assumes="tools, and what is found in files, are not counted",
)
