"""Sessions of Continue, a file each: ``history`` of messages, each with its context items; no times.

Context items are sent before the user's message. Thoughts aren't sent again. The list of all sessions, in the same
folder, has no messages.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.chat import answers_in
from kv_sim.replay.readers.chats.messages import LEFT_OUT
from kv_sim.replay.readers.fields import text_of
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.json_values import objects_in
from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.requests.turns import TURN_SECONDS
from kv_sim.replay.readers.required import object_at

_HISTORY: Final = "history"
_LISTED: Final = "dateCreated"
"""A field of the list of all sessions."""
_THOUGHT: Final = "thinking"


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    if _HISTORY not in record and _LISTED in record:
        return
    messages = [*_messages(objects_in(record, _HISTORY))]
    for turn, (_, request) in enumerate(answers_in({_HISTORY: messages}, _HISTORY)):
        request.time = turn * TURN_SECONDS
        request.session = text_of(record, "sessionId")
        request.model = text_of(record, "chatModelTitle")
        yield request


def _messages(history: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Messages as an API gets them."""
    for number, item in enumerate(history):
        message = object_at(item.get("message"), f"{_HISTORY}[{number}].message")
        if message.get("role") == _THOUGHT:
            continue
        content = message.get("content")
        parts = [content] if isinstance(content, str) else content
        if context := objects_in(item, "contextItems"):
            put_in = [text_of(one, "content") or "" for one in context]
            parts = [*put_in, *parts] if isinstance(parts, list) else put_in
        yield {"role": message.get("role"), "content": parts, "tool_calls": message.get("toolCalls")}


CONTINUE = Format(
    "continue",
    Container.JSON,
    ("sessionId", "workspaceDirectory"),
    _parse,
    merges_sessions=True,
    matches=lambda record: isinstance(record.get(_HISTORY), list) or _LISTED in record,
    looked_for=f"{_HISTORY} of messages",
    is_text=True,
    assumes=f"a minute for the time between two turns, {LEFT_OUT}",
)
