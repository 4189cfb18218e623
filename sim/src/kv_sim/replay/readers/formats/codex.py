"""Rollouts of Codex: a session a file, a line for each item of the conversation, in order.

Consecutive items of the model are one answer, and all items above them are its prompt. A request arrives when the
last of these was written. A line for a compaction has the items that replace the earlier ones.

A forked session begins with a copy of another one, all of it written when the fork began: these are not requests
of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kv_sim.replay.readers.chats.cached import cached_of
from kv_sim.replay.readers.chats.chat import ANSWERS, chat
from kv_sim.replay.readers.chats.messages import unbroken
from kv_sim.replay.readers.fields import number_or_date, text_of, whole
from kv_sim.replay.readers.format import Asked, Line, kept_sessions
from kv_sim.replay.readers.json_values import inside
from kv_sim.replay.readers.record import MalformedError, Record

_OF_A_MODEL: Final = ("reasoning", "function_call", "custom_tool_call", "local_shell_call", "web_search_call")
_COPIED_SECONDS: Final = 1.0
"""Lines written within this time of a fork's begin are copies; a new answer takes longer."""
_FORKED: Final = "asked in a session that this one was forked off"
_PACKED: Final = "encrypted_content"
"""The field with encrypted thoughts."""


@dataclass
class _Answer:
    """An answer, and what it answers."""

    place: int
    """The line where it begins."""
    asked: list[str | MalformedError]
    last: Line
    """The last line of the prompt."""
    session: str | None
    model: str | None
    is_copy: bool
    said: list[str | MalformedError] = field(default_factory=list)
    usage: Line | None = None

    def request(self) -> Iterator[Record]:
        """Its request, once all of it was read."""
        if self.is_copy:
            yield Record(None, 0, 0, None, left_out=_FORKED)
            return
        asked, said = (unbroken(pieces, "in it or above it, ") for pieces in (self.asked, self.said))
        usage = self.usage
        yield Record(
            number_or_date(self.last, "timestamp"),
            0,
            whole(usage, "output_tokens", usual=0) if usage else 0,
            None,
            session=self.session,
            model=self.model,
            text=[*asked, f"<|{ANSWERS}|>"],
            answer=None if usage else "".join(said),
            told_tokens=whole(usage, "input_tokens", usual=0) if usage else None,
            cached_tokens=cached_of(usage),
        )


@dataclass
class _Session:
    """The conversation so far."""

    name: str | None = None
    began: int | float | None = None
    is_fork: bool = False
    model: str | None = None
    begin: list[str] = field(default_factory=list)
    """The text before all items."""
    said: list[str | MalformedError] = field(default_factory=list)
    told_at: Line | None = None
    """The last line of the prompt."""
    answer: _Answer | None = None
    """The answer that is being read, or was read last."""
    is_answering: bool = False

    def ask(self, place: int, line: Line) -> None:
        """A line begins an answer."""
        last = line if self.told_at is None else self.told_at
        is_copy = self.is_fork and self._was_there(line)
        self.answer = _Answer(place, [*self.begin, *self.said], last, self.name, self.model, is_copy)
        self.is_answering = True

    def end_answer(self) -> Asked:
        """The answer before, if there is one, is complete: nothing counts it any more."""
        if self.answer is not None:
            yield self.answer.place, self.answer.request()

    def _was_there(self, line: Line) -> bool:
        """Whether a line was written when the session began."""
        time = _time_of(line)
        return time is not None and self.began is not None and time - self.began <= _COPIED_SECONDS


def _requests(lines: Sequence[Line]) -> Asked:
    session = _Session()
    for place, line in enumerate(lines):
        payload = line.get("payload")
        if not isinstance(payload, dict):
            continue
        if line.get("type") != "response_item":
            _hear(session, line, payload)
            continue
        pieces, of_model = _pieces(payload), _is_of_model(payload)
        if of_model and not session.is_answering:
            yield from session.end_answer()
            session.ask(place, line)
        if of_model and session.answer is not None:
            session.answer.said += pieces
        else:
            session.told_at, session.is_answering = line, False
        session.said += pieces
    yield from session.end_answer()


def _hear(session: _Session, line: Line, payload: Mapping[str, Any]) -> None:
    """Take in a line that isn't an item."""
    kind = line.get("type")
    if kind == "session_meta":
        session.is_fork |= payload.get("forked_from_id") is not None or session.name is not None
    if kind == "session_meta" and session.name is None:
        session.name, session.began = text_of(payload, "id"), _time_of(line)
        told = payload.get("instructions") or inside(payload.get("base_instructions"), "text")
        session.begin = [f"<|instructions|>{told}"] if isinstance(told, str) else []
    elif kind == "turn_context":
        session.model = text_of(payload, "model") or session.model
    elif kind == "compacted":
        items = payload.get("replacement_history")
        if not isinstance(items, list):
            items = [{"type": "message", "role": "user", "content": payload.get("message")}]
        session.said = [piece for item in items for piece in _pieces(item)]
        session.told_at, session.is_answering = line, False
    elif kind == "event_msg" and payload.get("type") == "token_count" and session.answer is not None:
        usage = inside(payload.get("info"), "last_token_usage")
        if session.answer.usage is None and isinstance(usage, dict):  # otherwise it is only about limits
            session.answer.usage = usage


def _time_of(line: Line) -> int | float | None:
    try:
        return number_or_date(line, "timestamp")
    except MalformedError:
        return None


def _is_of_model(item: Mapping[str, Any]) -> bool:
    return item.get("type") in _OF_A_MODEL or item.get("role") == ANSWERS


def _pieces(item: Any) -> list[str | MalformedError]:
    """The text of an item."""
    if isinstance(item, dict):
        item = {name: value for name, value in item.items() if name != _PACKED}
    try:
        return [*chat({"input": [item]})[:-1]]
    except MalformedError as error:
        return [error]


CODEX = kept_sessions(
    "codex",
    ("timestamp", "type", "payload"),
    _requests,
    assumes="tools, which a rollout leaves out, are not counted",
)
