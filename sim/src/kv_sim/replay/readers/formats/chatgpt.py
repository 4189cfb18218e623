"""Chats exported by ChatGPT: conversations.json, a chat a record, whose messages name their parent; seconds.

Consecutive messages of the model, such as a thought and a tool call, are one answer. A tool's result makes a new
request. Thoughts aren't sent again, nor are messages that ChatGPT only shows, such as how long it thought.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.chat import ANSWERS
from kv_sim.replay.readers.chats.messages import Said, names_above, placed, request, said, time_in
from kv_sim.replay.readers.fields import session_of, text_of
from kv_sim.replay.readers.format import kept_chats
from kv_sim.replay.readers.json_values import inside, listed
from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.required import object_at

_TEXTS: Final = ("text", "result", "user_profile", "user_instructions", "model_set_context")
"""Fields with the text of a content without parts, whatever its type."""
_THOUGHTS: Final = "thoughts"
_MEDIA: Final = ("image", "audio", "video", "file")


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    nodes = object_at(record["mapping"], "mapping")
    placed(nodes, "mapping")
    spoken = {name: _said(node.get("message"), f"mapping.{name}.message") for name, node in nodes.items()}
    for name, node in nodes.items():
        if not _is_answer(node) or _is_answer(nodes.get(text_of(node, "parent") or "")):
            continue
        message, place = node["message"], f"mapping.{name}.message"
        parts = [*_goes_on(nodes, name)]
        model = next((found for one in parts if (found := _model_of(nodes[one]))), None)
        yield from request(
            [spoken[one] for one in names_above(nodes, name, "parent")],
            place,
            time_in(message, "create_time", place),
            session_of(record) or text_of(record, "id"),
            model or text_of(record, "default_model_slug"),
            text="".join(_thought(nodes[one]) + spoken[one].words for one in parts),
        )


def _said(message: Any, place: str) -> Said:
    if not isinstance(message, dict):
        return Said(())
    role, content = inside(message.get("author"), "role"), message.get("content")
    time = time_in(message, "create_time", place)
    if isinstance(content, str):
        return said(str(role), content, place, time)
    parts = inside(content, "parts")
    if isinstance(parts, list):
        return said(str(role), [part for one in parts if (part := _part(one))], place, time)
    return said(str(role), [text for one in _TEXTS if isinstance(text := inside(content, one), str)], place, time)


def _part(part: Any) -> Any:
    """A part as an API gets it: text, or an object with a type."""
    kind = str(inside(part, "content_type")).partition("_")[0]
    return {**part, "type": kind} if kind in _MEDIA and not isinstance(part.get("text"), str) else part


def _is_answer(node: Any) -> bool:
    return bool(inside(inside(inside(node, "message"), "author"), "role") == ANSWERS)


def _goes_on(nodes: Mapping[str, Any], name: str) -> Iterator[str]:
    """The model's messages from there on, until one of somebody else."""
    seen = set()
    while name not in seen:
        seen.add(name)
        yield name
        there = [one for one in listed(nodes[name].get("children")) if isinstance(one, str)]
        name = next((one for one in there if _is_answer(nodes.get(one))), name)


def _model_of(node: Mapping[str, Any]) -> str | None:
    told = inside(node["message"], "metadata")
    return text_of(told, "model_slug") if isinstance(told, dict) else None


def _thought(node: Mapping[str, Any]) -> str:
    found = [inside(one, "content") for one in listed(inside(node["message"].get("content"), _THOUGHTS))]
    return "".join(one for one in found if isinstance(one, str))


CHATGPT = kept_chats(
    "chatgpt",
    ("mapping",),
    _parse,
    matches=lambda record: (
        isinstance(record["mapping"], dict)
        and any(
            isinstance(message := inside(node, "message"), dict) and "author" in message
            for node in record["mapping"].values()
        )
    ),
    looked_for="nodes in it with a message of an author",
    assumes="what ChatGPT adds (its system prompt, tools, what it remembers and finds in files) is not counted",
)
