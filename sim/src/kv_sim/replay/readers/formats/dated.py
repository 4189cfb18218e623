"""Conversations whose messages have times: WildChat's, and exports of chat front ends.

A request arrives with the message before its answer. WildChat has only the times at which answers were complete;
there these are taken. If only the conversation has a time, it begins then; but in WildChat that is the time of the
last answer.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.chat import answers_in, is_conversation, spoken_in
from kv_sim.replay.readers.fields import TIMES, time_of
from kv_sim.replay.readers.format import kept_chats
from kv_sim.replay.readers.guess import UNITS, guess_unit
from kv_sim.replay.readers.record import MalformedError, Moment, Record
from kv_sim.replay.readers.requests.turns import TURN_SECONDS
from kv_sim.replay.readers.required import errors_at

_BY_ITS_END: Final = "conversation_hash"
"""A field of WildChat's records, whose time is that of the last turn."""


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    field = spoken_in(record)
    if isinstance(record.get(field), list) and not _are_dated(record[field]):
        yield from _from_its_begin(record, field)
        return
    for place, request in answers_in(record, field):
        before = _time(record[field], place - 1, field) if place else None
        request.time = _time(record[field], place, field) if before is None else before
        if request.time is None:
            raise MalformedError(f"{field}[{place}].{TIMES[0]}: expected when it was sent, as of others, got none")
        yield request


def _from_its_begin(record: Mapping[str, Any], field: str) -> Iterator[Record]:
    begin = time_of(record)
    if begin is None:
        raise MalformedError(f"{TIMES[0]}: expected when it began, or when a message was sent, got none")
    unit = 1.0 if isinstance(begin, Moment) else UNITS[guess_unit([Record(begin, 0, 0, None)], 1.0) or "s"]
    requests = [request for _, request in answers_in(record, field)]
    first = 1 - len(requests) if _BY_ITS_END in record else 0
    for turn, request in enumerate(requests, first):
        request.time = type(begin)(begin + turn * TURN_SECONDS / unit)
        yield request


def _time(messages: list[Mapping[str, Any]], place: int, field: str) -> int | float | None:
    with errors_at(f"{field}[{place}]"):
        return time_of(messages[place])


def _is_dated(record: Mapping[str, Any]) -> bool:
    if not is_conversation(record):
        return False
    try:
        return time_of(record) is not None or _are_dated(record[spoken_in(record)])
    except MalformedError:  # it has the name of a time, but isn't one
        return _are_dated(record[spoken_in(record)])


def _are_dated(messages: Any) -> bool:
    return isinstance(messages, list) and any(
        isinstance(message, dict) and message.get(name) is not None for message in messages for name in TIMES
    )


DATED = kept_chats(
    "conversations-dated",
    (),
    _parse,
    matches=_is_dated,
    looked_for="conversation, conversations, or messages that end with an answer, and a timestamp, or one in them",
    assumes="a request without a time of its own arrived when its answer was whole, or, of a conversation that "
    "only has a time as a whole, a minute after the one before",
)
