"""Sessions of goose: JSON lines, the first of which describes the session, or ``goose session export``; seconds.

A message for the user only isn't sent to the model.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from kv_sim.replay.readers.chats.chat import ANSWERS
from kv_sim.replay.readers.chats.messages import LEFT_OUT, Above, Heard, Said, request, said, time_in
from kv_sim.replay.readers.chats.parts import as_json
from kv_sim.replay.readers.fields import text_of
from kv_sim.replay.readers.format import Asked, Line, kept_sessions
from kv_sim.replay.readers.json_values import inside, listed
from kv_sim.replay.readers.record import Record

_ALL: Final = "conversation"
_THOUGHT: Final = "thinking"
_CALLED, _GIVEN_BACK = ("toolRequest", "toolCall"), ("toolResponse", "toolResult")
"""Parts that aren't text, and the field of each that is sent."""


def _requests(lines: Sequence[Line]) -> Asked:
    """Each answer, with all messages before it; consecutive messages of the model are one answer."""
    about: Line = {}
    above: list[Line] = []
    heard = Heard(lambda message: [_said(message)])
    answer: list[Line] = []
    asked: tuple[int, Iterator[Record]] | None = None
    """The last answer, which may go on."""
    for place, line in enumerate(lines):
        about = line if "working_dir" in line else about
        told = line.get(_ALL) if "working_dir" in line else [line]
        for message in listed(told):
            if not isinstance(message, dict) or "role" not in message:
                continue
            if not _is_answer(message):
                if asked is not None:
                    yield asked
                asked = None
            elif asked is None:
                answer = [message]
                asked = place, _request(heard.of(above), answer, about)
            else:
                answer.append(message)
            above.append(message)
    if asked is not None:
        yield asked


def _is_answer(message: Line) -> bool:
    is_back = any(inside(part, "type") == _GIVEN_BACK[0] for part in listed(message.get("content")))
    return str(message["role"]).lower() == ANSWERS and not is_back


def _request(above: Above, answer: list[Line], about: Line) -> Iterator[Record]:
    inference = inside(answer[0].get("metadata"), "inference")
    model = inside(inference, "requestedModel") or inside(about.get("model_config"), "model_name")
    yield from request(
        above,
        "created",
        time_in(answer[0], "created", "message"),
        text_of(about, "id") or "the session",
        model and str(model),
        text="".join(_said(one).words for one in answer),
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
    ("working_dir",),
    _requests,
    matches=lambda record: _ALL in record or "message_count" in record,
    looked_for=f"message_count or {_ALL}",
    assumes=LEFT_OUT,
)
