"""aiperf's inputs: a record for each request, or for each session, or its ``inputs.json``; milliseconds.

A request is ``text_input``, a ``payload`` for an API, or messages. In a record of a session each of the ``turns``
adds to the one before, and a later record with the same ``session_id`` continues the session. Payloads are whole
prompts, except in ``inputs.json``, where aiperf writes only what a turn adds, after its system prompt. A turn may
have a ``delay`` after the previous answer instead of a time: how long that answer took isn't in the file, so the
delay counts from the arrival of the previous turn.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise, takewhile
from typing import Any, Final

from kv_sim.replay.readers.chats.asked import for_each, has_failed
from kv_sim.replay.readers.chats.chat import ANSWERS, chat, is_request, prompts_in, speaker_of, user
from kv_sim.replay.readers.chats.counts import answered_in, cached_in, last_of, told_in
from kv_sim.replay.readers.fields import number, text_of
from kv_sim.replay.readers.format import Container, Format, Turns
from kv_sim.replay.readers.formats.mooncake import delay_of
from kv_sim.replay.readers.json_values import inside, listed, object_in
from kv_sim.replay.readers.record import DelayedRecord, MalformedError, Moment, Record
from kv_sim.replay.readers.requests.turns import TURN_SECONDS
from kv_sim.replay.readers.required import errors_at, list_at, object_at, objects_at

_MINUTE: Final = TURN_SECONDS * 1000
_SENT: Final = "request_start_ns"
_PLAYS: Final = ("x_correlation_id", "conversation_id")
"""Fields that name a session. One conversation may be several sessions."""


# -- a record a request --------------------------------------------------------------------------


def _parse_request(record: Mapping[str, Any]) -> Iterator[Record]:
    if isinstance(sent := record.get("metadata"), dict) and sent.get(_SENT) is not None:
        yield from _parse_sent(record, sent)
        return
    session, asked = text_of(record, "session_id"), _asked(record)
    time = None if record.get("timestamp") is None else number(record, "timestamp")
    delay = delay_of(record) if time is None and session and record.get("delay") is not None else None
    prompts, answered, model = prompts_in(record, asked), _answered(record), text_of(asked, "model")
    if session:
        request: Record = DelayedRecord(time, 0, answered, None, session, model=model, delay=delay)
    else:
        request = Record(time, 0, answered, None, session, model=model)
    yield from for_each(prompts, request)


def _parse_sent(record: Mapping[str, Any], sent: Mapping[str, Any]) -> Iterator[Record]:
    """A request that aiperf has sent, as ``--export-level raw`` writes it: nanoseconds since 1970."""
    asked, responses = _asked(record), record.get("responses")
    came = last_of([found for text in _texts_in(responses) if (found := object_in(text)) is not None])
    request = Record(
        Moment(number(sent, _SENT) / 1e9),
        0,
        answered_in({"response_body": came}) or 0,
        None,
        next((name for field in _PLAYS if (name := text_of(sent, field)) is not None), None),
        model=text_of(asked, "model"),
        told_tokens=told_in({"response_body": came}),
        cached_tokens=cached_in({"response_body": came}),
        has_failed=has_failed(record),
    )
    yield from for_each(prompts_in(record, asked), request)


def _texts_in(responses: Any) -> Iterator[Any]:
    """The texts of a response, whole or in pieces."""
    for response in listed(responses):
        yield inside(response, "text")
        yield from (inside(packet, "value") for packet in listed(inside(response, "packets")))


def _asked(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request to an API in a record."""
    if record.get("payload") is not None:
        return object_at(record["payload"], "payload")
    if record.get("messages") is not None:
        return record
    return user(_text(record, ""))


def _answered(record: Mapping[str, Any]) -> int:
    return answered_in(record) or 0


def _text(record: Mapping[str, Any], place: str) -> str:
    """The text of a turn, if it is a single text."""
    field = "text_input" if "text_input" in record else "text"
    text = record.get(field)
    if text is None and record.get("texts") is not None:
        raise MalformedError(f"{place}texts: expected one text, as text or text_input, got several")
    if not isinstance(text, str):
        got = type(text).__name__ if field in record else "no such field"
        raise MalformedError(f"{place}{field}: expected text, got {got}")
    return text


def _is_request(record: Mapping[str, Any]) -> bool:
    payload = record.get("payload")
    if isinstance(record.get("text_input"), str) or (isinstance(payload, dict) and is_request(payload)):
        return True
    if not isinstance(record.get("messages"), list):
        return False
    has_time = isinstance(record.get("timestamp"), (int, float)) and "output_length" in record
    return has_time or "delay" in record or "message_mode" in record


AIPERF = Format(
    "aiperf",
    Container.JSON,
    (),
    _parse_request,
    unit_seconds=1e-3,
    matches=_is_request,
    looked_for="text_input, payload, or messages with output_length",
    is_text=True,
)


# -- a record a session --------------------------------------------------------------------------


def _parse_turns(record: Mapping[str, Any]) -> Iterator[Record]:
    turns, session = list_at(record["turns"], "turns"), text_of(record, "session_id")
    before: list[dict[str, str]] = []
    for index, (place, turn) in enumerate(objects_at(turns, "turns")):
        said = {"role": text_of(turn, "role") or "user", "content": _text(turn, f"{place}.")}
        if not index and index + 1 < len(turns) and _is_said_before(turn):
            before = [said]  # sent together with what follows it
            continue
        with errors_at(place):
            time, delay = _when(turn)
            tokens = _answered(turn)
        text = chat({"messages": [*before, said]})
        yield DelayedRecord(time, 0, tokens, None, session, text=text, delay=delay)
        before = []


def _is_said_before(turn: Mapping[str, Any]) -> bool:
    """Whether a first turn is sent together with the next one."""
    own = ("timestamp", "delay", "output_length", "extra")
    return turn.get("role") == "system" and all(turn.get(field) is None for field in own)


def _when(turn: Mapping[str, Any]) -> tuple[int | float | None, int | float | None]:
    """When a turn arrives, or how long after the turn before; None for both: the file doesn't say."""
    if turn.get("timestamp") is not None:
        return number(turn, "timestamp"), None
    return None, None if turn.get("delay") is None else delay_of(turn)


def _have_text(record: Mapping[str, Any]) -> bool:
    turns = record["turns"]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return False
    return any("text" in turn for turn in turns) and all(speaker_of(turn) != ANSWERS for turn in turns)


TURNS = Format(
    "aiperf-turns",
    Container.JSON,
    ("turns",),
    _parse_turns,
    unit_seconds=1e-3,
    merges_sessions=True,
    sessions_go_on=True,
    turns=Turns.ADDED,
    matches=_have_text,
    looked_for="of which some have text",
    is_text=True,
    assumes="a minute for the time before a turn that has none",
)


# -- inputs.json ---------------------------------------------------------------------------------


def _parse_inputs(record: Mapping[str, Any]) -> Iterator[Record]:
    found = [_payloads_of(session, place) for place, session in enumerate(list_at(record["data"], "data"))]
    if _only_add(found):
        found = [_whole(payloads) for payloads in found]
    for place, payloads in enumerate(found):
        for turn, payload in enumerate(payloads):
            request = Record(turn * _MINUTE, 0, 0, None, session=str(place), model=text_of(payload, "model"))
            yield from for_each(prompts_in(payload, payload), request)


def _payloads_of(session: Any, place: int) -> list[Mapping[str, Any]]:
    payloads = session.get("payloads", session.get("payload")) if isinstance(session, dict) else None
    return [payload for _, payload in objects_at(payloads, f"data[{place}].payloads")]


def _only_add(sessions: list[list[Mapping[str, Any]]]) -> bool:
    """Whether there are later turns, none of which begins with the messages of the turn before."""
    turns = [(_said(before), _said(turn)) for payloads in sessions for before, turn in pairwise(payloads)]
    return bool(turns) and all(before and turn and turn[: len(before)] != before for before, turn in turns)


def _whole(payloads: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Turns with what aiperf sends before what each adds; messages with which each of them begins come once."""
    said, made = list[Any](), list[Mapping[str, Any]]()
    for payload in payloads:
        turn = _said(payload)
        again = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(said, turn, strict=False)))
        said = [*said, *([{"role": ANSWERS, "content": ""}] if said else []), *turn[again:]]
        made.append({**payload, _field_of(payload): said})
    return made


def _field_of(payload: Mapping[str, Any]) -> str:
    return "messages" if "messages" in payload else "input"


def _said(payload: Mapping[str, Any]) -> list[Any]:
    """The messages of a payload; none: it has other prompts."""
    return listed(payload.get(_field_of(payload)))


def _have_payloads(record: Mapping[str, Any]) -> bool:
    found = [one for one in listed(record["data"]) if isinstance(one, dict)]
    return any("payloads" in one or isinstance(one.get("payload"), list) for one in found)


INPUTS = Format(
    "aiperf-inputs",
    Container.JSON,
    ("data",),
    _parse_inputs,
    unit_seconds=1e-3,
    merges_sessions=True,
    matches=_have_payloads,
    looked_for="of sessions with payloads",
    is_text=True,
    assumes="a minute for the time between two turns; turns that only say what they add have those before them, "
    "without answers",
)
