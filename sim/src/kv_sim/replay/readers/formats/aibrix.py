"""AIBrix's workloads: a time, and the prompts that are sent then; milliseconds.

Its client sends the earlier turns of a session with each prompt, so a later prompt in the file is only the new
part.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.chats.chat import chat, user
from kv_sim.replay.readers.fields import number, text_of, whole
from kv_sim.replay.readers.format import Container, Format, Turns
from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.required import errors_at, objects_at, text_at


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    time = number(record, "timestamp")
    for place, request in objects_at(record["requests"], "requests"):
        text = chat(user(text_at(request.get("prompt"), f"{place}.prompt")))
        with errors_at(place):
            answer = whole(request, "output_length", usual=0)
        yield Record(time, 0, answer, None, text_of(request, "session_id"), text=text)


AIBRIX = Format(
    "aibrix",
    Container.JSON,
    ("timestamp", "requests"),
    _parse,
    unit_seconds=1e-3,
    turns=Turns.ADDED,
    is_text=True,
)
