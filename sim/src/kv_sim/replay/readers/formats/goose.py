"""Sessions of goose: JSON lines, the first of which describes the session, or ``goose session export``; seconds.

A message for the user only isn't sent to the model.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kv_sim.replay.readers.chats.chat import ANSWERS
from kv_sim.replay.readers.chats.messages import LEFT_OUT, Answered, Heard, Said, request, said, time_in
from kv_sim.replay.readers.chats.parts import as_json
from kv_sim.replay.readers.fields import text_of
from kv_sim.replay.readers.format import kept_sessions
from kv_sim.replay.readers.json_values import inside
from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.requests.text import ASSUMED

Line = Mapping[str, Any]

_ALL: Final = "conversation"
_THOUGHT: Final = "thinking"
_CALLED, _GIVEN_BACK = ("toolRequest", "toolCall"), ("toolResponse", "toolResult")
"""Parts that aren't text, and the field of each that is sent."""


def _gather(lines: Sequence[Line]) -> Iterator[tuple[int, Line]]:
    """Each answer, with all messages before it; consecutive messages of the model are one answer."""
    about: Line = {}
    above: list[Line] = []
    heard = Heard(lambda message: [_said(message)])
    asked: dict[str, Any] | None = None
    begun = 0
    for place, line in enumerate(lines):
        about = line if "working_dir" in line else about
        told = line.get(_ALL) if "working_dir" in line else [line]
        for message in told if isinstance(told, list) else []:
            if not isinstance(message, dict) or "role" not in message:
                continue
            if asked is not None and not _is_answer(message):
                yield begun, asked
                asked = None
            elif asked is not None:
                asked["answer"].append(message)
            elif _is_answer(message):
                asked, begun = {"about": about, "above": heard.of(above), "answer": [message]}, place
            above.append(message)
    if asked is not None:
        yield begun, asked


def _is_answer(message: Line) -> bool:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    is_back = any(inside(part, "type") == _GIVEN_BACK[0] for part in parts)
    return str(message["role"]).lower() == ANSWERS and not is_back


def _parse(record: Line) -> Iterator[Record]:
    answer = record["answer"]
    inference = inside(answer[0].get("metadata"), "inference")
    model = inside(inference, "requestedModel") or inside(record["about"].get("model_config"), "model_name")
    yield from request(
        record["above"],
        Answered(
            time_in(answer[0], "created", "message"),
            text_of(record["about"], "id") or "the session",
            model and str(model),
            text="".join(_said(one).words for one in answer),
        ),
        "created",
    )


def _said(message: Line) -> Said:
    time = time_in(message, "created", "message")
    if inside(message.get("metadata"), "agentVisible") is False:
        return Said((), time)
    content = message.get("content")
    told = [*map(_part, content)] if isinstance(content, list) else content
    return said(ANSWERS if _is_answer(message) else "user", told, "message.content", time)


def _part(part: Any) -> Any:
    kind = inside(part, "type")
    if kind == _THOUGHT:
        return text_of(part, _THOUGHT) or ""
    field = next((field for name, field in (_CALLED, _GIVEN_BACK) if kind == name), None)
    return part if field is None else as_json(part.get(field))


GOOSE = kept_sessions(
    "goose",
    f"sessions of goose, JSON lines or JSON: working_dir, messages of role, created (s), content; {ASSUMED}",
    ("working_dir",),
    _parse,
    _gather,
    matches=lambda record: _ALL in record or "message_count" in record,
    looked_for=f"message_count or {_ALL}",
    assumes=LEFT_OUT,
)
