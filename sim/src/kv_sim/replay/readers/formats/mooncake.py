"""Mooncake's JSON lines, which aiperf and Dynamo's replay read, too: prefix ids of 512-token blocks, milliseconds.

A later turn of a session has its whole prompt, or only the new part, which ``turns`` tells apart. It may have
a ``delay`` after the previous answer instead of a ``timestamp``. How long that answer took is not in the file, so
the delay counts from the arrival of the previous turn. If a file has only delays, that of a first turn is null.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.cached import cached_of
from kv_sim.replay.readers.fields import id_list, name_in, number, text_of, whole
from kv_sim.replay.readers.format import Container, Format, Turns
from kv_sim.replay.readers.record import DelayedRecord, Id, MalformedError, Record

_DELAYS: Final = ("delay", "delay_ms")
"""The second one is Dynamo's."""


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    session = name_in(record, "session_id")
    ids: list[Id] = id_list(record, "hash_ids")
    if record.get("timestamp") is None:
        if session is None or record.keys().isdisjoint(_DELAYS):
            raise MalformedError(
                "timestamp: no such field, and no session_id with a delay instead; --columns says where it is"
            )
        told = any(record.get(field) is not None for field in _DELAYS)
        time, delay = None, delay_of(record) if told else None
    else:
        time, delay = number(record, "timestamp"), None
    yield DelayedRecord(
        time,
        whole(record, "input_length"),
        whole(record, "output_length", usual=0),
        ids,
        session,
        is_session_local=True if record.get("hash_id_scope") == "local" else None,
        model=text_of(record, "model"),
        cached_tokens=cached_of(record),
        delay=delay,
    )


def delay_of(record: Mapping[str, Any]) -> int | float:
    """The delay of a turn after the one before."""
    field = next((field for field in _DELAYS if record.get(field) is not None), _DELAYS[0])
    delay = number(record, field)
    if delay < 0:
        raise MalformedError(f"{field}: expected at least 0, got {delay}")
    return delay


MOONCAKE = Format(
    "mooncake",
    Container.JSON,
    ("input_length", "hash_ids"),
    _parse,
    unit_seconds=1e-3,
    block_tokens=512,
    turns=Turns.AUTO,
)
