"""Request traces of Dynamo's frontend (``DYN_REQUEST_TRACE=1``): prefix ids of each request's blocks; ms.

A line is written when an answer ends, so overlapping requests aren't in the order of arrival. Other events, such
as tool calls, are between them; some sinks put each event into the field ``event`` of a line.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.cached import cached_of
from kv_sim.replay.readers.fields import id_list, name_of, number, positive, text_of, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.required import errors_at, object_at

_SCHEMA: Final = "dynamo.request.trace."
_END: Final = "request_end"


def _event_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    event = record.get("event")
    return event if isinstance(event, dict) else record


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    event = _event_of(record)
    if event.get("event_type") != _END:
        return
    request = object_at(event.get("request"), "request")
    replay = object_at(request.get("replay"), "request.replay")
    with errors_at("request"):
        time = _arrival_of(event, request)
        answer = whole(request, "output_tokens", usual=0)
    with errors_at("request.replay"):
        tokens, ids = whole(replay, "input_length"), id_list(replay, "input_sequence_hashes")
        size = positive(replay, "trace_block_size")
    context = event.get("agent_context")
    yield Record(
        time,
        tokens,
        answer,
        ids,
        session=text_of(context, "session_id") if isinstance(context, dict) else None,
        block_tokens=size,
        model=text_of(request, "model"),
        name=name_of(request),
        cached_tokens=cached_of(request),
    )


def _arrival_of(event: Mapping[str, Any], request: Mapping[str, Any]) -> int | float:
    """When it was received; if the event doesn't say that, its end minus its duration."""
    if request.get("request_received_ms") is not None or event.get("event_time_unix_ms") is None:
        return number(request, "request_received_ms")
    took = 0 if request.get("total_time_ms") is None else number(request, "total_time_ms")
    return number(event, "event_time_unix_ms") - took


DYNAMO = Format(
    "dynamo",
    Container.JSON,
    (),
    _parse,
    unit_seconds=1e-3,
    overlaps=True,
    names_sessions=True,
    matches=lambda record: str(_event_of(record).get("schema")).startswith(_SCHEMA),
    looked_for=f"a schema that begins with {_SCHEMA}",
)
