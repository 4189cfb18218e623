"""Chats exported by DeepSeek: conversations.json, a chat a record, whose messages name their parent; dates.

A message has fragments with its question, thoughts, search results and answer; older messages have fields instead,
and no role: the user begins, and the roles alternate. Thoughts aren't sent again.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.chat import ANSWERS
from kv_sim.replay.readers.chats.messages import Said, names_above, placed, request, said, time_in
from kv_sim.replay.readers.fields import text_of
from kv_sim.replay.readers.format import kept_chats
from kv_sim.replay.readers.json_values import inside, objects_in
from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.required import errors_at, object_at

_TIME: Final = "inserted_at"
_FRAGMENTS: Final = "fragments"
_REQUEST, _RESPONSE, _THOUGHT = "REQUEST", "RESPONSE", "THINK"
_THOUGHTS: Final = "reasoning_content"


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    nodes = object_at(record["mapping"], "mapping")
    placed(nodes, "mapping")
    messages = {name: node["message"] for name, node in nodes.items() if isinstance(node.get("message"), dict)}
    above = {name: [one for one in names_above(nodes, name, "parent") if one in messages] for name in messages}
    answers = {name for name, message in messages.items() if _is_answer(message, len(above[name]))}
    spoken = {
        name: _said(message, f"mapping.{name}.message", is_answer=name in answers)
        for name, message in messages.items()
    }
    for name in messages:
        if name in answers:
            place, message = f"mapping.{name}.message", messages[name]
            yield from request(
                [spoken[one] for one in above[name]],
                place,
                time_in(message, _TIME, place),
                text_of(record, "id"),
                text_of(message, "model") or None,
                text=_thought(message) + spoken[name].words,
            )


def _is_answer(message: Mapping[str, Any], depth: int) -> bool:
    """Whether a message with ``depth`` messages above it is a model's."""
    fragments = message.get(_FRAGMENTS)
    if isinstance(fragments, list) and fragments:
        return not any(inside(one, "type") == _REQUEST for one in fragments)
    return depth % 2 == 1


def _said(message: Mapping[str, Any], place: str, *, is_answer: bool) -> Said:
    time = time_in(message, _TIME, place)
    with errors_at(place):
        parts: list[Any] = [*_texts(message, (_REQUEST, _RESPONSE), "content")]
        if not is_answer:
            parts += [{**file, "type": "file"} for file in objects_in(message, "files")]
    return said(ANSWERS if is_answer else "user", parts, place, time)


def _thought(message: Mapping[str, Any]) -> str:
    return "".join(_texts(message, (_THOUGHT,), _THOUGHTS))


def _texts(message: Mapping[str, Any], kinds: tuple[str, ...], field: str) -> Iterator[str]:
    """The texts of a message's fragments of some kinds; without fragments, that of a field."""
    if message.get(_FRAGMENTS) is None:
        yield text_of(message, field) or ""
        return
    for one in objects_in(message, _FRAGMENTS):
        if one.get("type") in kinds:
            yield text_of(one, "content") or ""


DEEPSEEK = kept_chats(
    "deepseek",
    ("mapping", "inserted_at"),
    _parse,
    assumes="what DeepSeek adds (its system prompt, what it finds) is not counted",
)
