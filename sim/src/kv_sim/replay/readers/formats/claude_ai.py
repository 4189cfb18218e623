"""Chats exported by Claude.ai: conversations.json, a chat a record, of messages in a row or with parents.

An answer may be several requests: a model that calls a tool continues with the tool's result, which is a new
request. Thoughts are sent again until the turn is over.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.chat import ANSWERS
from kv_sim.replay.readers.chats.messages import Said, named, names_above, placed, request, said, time_in
from kv_sim.replay.readers.chats.parts import as_json
from kv_sim.replay.readers.fields import text_of
from kv_sim.replay.readers.format import kept_chats
from kv_sim.replay.readers.json_values import inside, objects_in
from kv_sim.replay.readers.record import Record

_NAME, _ABOVE = "uuid", "parent_message_uuid"
_THOUGHT: Final = "thinking"
_SHOWN: Final = ("token_budget", "flag")
"""Types of parts that aren't part of the conversation."""


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    found = placed(record["chat_messages"], "chat_messages")
    messages = named(found, _NAME, _ABOVE)
    spoken = {text_of(one, _NAME) or place: _Message(one, place) for place, one in found}
    session, model = text_of(record, "uuid"), text_of(record, "model")
    for name, message in spoken.items():
        above = [part for one in names_above(messages, name, _ABOVE) for part in spoken[one].again]
        yield from message.requests(above, session, model)


class _Message:
    """One message, and the parts of it that are sent again."""

    def __init__(self, message: Mapping[str, Any], place: str) -> None:
        self._place = place
        self._is_answer = message.get("sender") == ANSWERS
        self._role = ANSWERS if self._is_answer else "user"
        self._time = time_in(message, "created_at", place)
        self._steps = _steps_of(message)
        self._beside = [] if self._is_answer else [*_beside(message)]
        self.again = [*self._said(thoughts=False)]

    def requests(self, above: list[Said], session: str | None, model: str | None) -> Iterator[Record]:
        """One request for each call of the model."""
        if not self._is_answer:
            return
        for step, (is_back, parts) in enumerate(self._steps):
            if is_back:
                continue
            own = [*self._said(thoughts=True)][:step]
            text = self._one(is_back, parts, thoughts=True).words
            yield from request([*above, *own], self._place, self._time, session, model, text=text)

    def _said(self, *, thoughts: bool) -> Iterator[Said]:
        for is_back, parts in self._steps or [(False, [])]:
            yield self._one(is_back, parts, thoughts=thoughts)

    def _one(self, is_back: bool, parts: list[Any], *, thoughts: bool) -> Said:
        whole = [one for part in parts if (one := _part(part, thoughts=thoughts))]
        time = next((found for part in reversed(parts) if (found := self._stopped(part)) is not None), None)
        role = "tool" if is_back else self._role
        return said(role, [*whole, *self._beside], self._place, time if is_back else self._time)

    def _stopped(self, part: Any) -> int | float | None:
        """When a tool's result was complete."""
        return time_in(part, "stop_timestamp", self._place) if isinstance(part, dict) else None


def _steps_of(message: Mapping[str, Any]) -> list[tuple[bool, list[Any]]]:
    """The parts of a message in turns, of the model or of tools; the first value of each says whether of tools."""
    content = message.get("content")
    parts = content if isinstance(content, list) and content else [message.get("text") or ""]
    steps: list[tuple[bool, list[Any]]] = []
    for part in parts:
        is_back = inside(part, "type") == "tool_result"
        if not steps or steps[-1][0] is not is_back:
            steps.append((is_back, []))
        steps[-1][1].append(part)
    return steps


def _beside(message: Mapping[str, Any]) -> Iterator[Any]:
    """A message's attachments: texts extracted from files, and files."""
    for attached in objects_in(message, "attachments") if message.get("attachments") else []:
        yield text_of(attached, "extracted_content") or ""
    for file in objects_in(message, "files") if message.get("files") else []:
        yield {**file, "type": "file"}


def _part(part: Any, *, thoughts: bool) -> Any:
    kind = inside(part, "type")
    if kind == _THOUGHT:
        return text_of(part, _THOUGHT) if thoughts else None
    if kind in _SHOWN:
        return None
    if kind in ("tool_use", "tool_result"):
        return as_json({name: part.get(name) for name in ("type", "name", "input", "content") if name in part})
    return part


CLAUDE_AI = kept_chats(
    "claude-ai",
    ("chat_messages",),
    _parse,
    assumes="what Claude.ai adds (its system prompt, tools, what a project knows) is not counted",
)
