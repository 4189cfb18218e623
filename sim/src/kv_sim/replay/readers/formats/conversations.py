"""Whole conversations, a record each: every answer is a request, whose prompt is everything before it.

Such data has no times: a minute between two turns is assumed, and each conversation counts from its own begin.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.chats.chat import answers_in, is_conversation, spoken_in
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.requests.turns import TURN_SECONDS


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    for turn, (_, request) in enumerate(answers_in(record, spoken_in(record))):
        request.time = turn * TURN_SECONDS
        yield request


CONVERSATIONS = Format(
    "conversations",
    Container.JSON,
    (),
    _parse,
    merges_sessions=True,
    matches=is_conversation,
    looked_for="conversations or conversation, or messages that end with an answer",
    is_text=True,
    assumes="a minute for the time between two turns",
)
