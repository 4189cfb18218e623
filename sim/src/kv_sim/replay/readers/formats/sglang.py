"""Requests to SGLang's own API, a line each: text, or token ids, which are exact. And SGLang's request log.

The log has two or three events for each request. The last one counts: it has the answer's length and duration, and
so the request's arrival. If the prompt isn't logged, it has the prompt's length.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from kv_sim.replay.readers.chats.asked import for_each, own_request
from kv_sim.replay.readers.chats.cached import cached_of
from kv_sim.replay.readers.chats.counts import count_in
from kv_sim.replay.readers.fields import number, prompts_of, text_of, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.json_values import inside, object_in
from kv_sim.replay.readers.record import MalformedError, Moment, Record

_FIELDS: Final = ("text", "input_ids")


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    field = "text" if record.get("text") is not None else "input_ids"
    try:
        prompts = prompts_of({"prompt": record.get(field)})
    except MalformedError as error:
        raise MalformedError(str(error).replace("prompt", field, 1)) from None
    yield from for_each(prompts, own_request(record))


SGLANG = Format(
    "sglang",
    Container.JSON,
    ("sampling_params",),
    _parse,
    matches=lambda record: any(isinstance(record.get(field), (str, list)) for field in _FIELDS),
    looked_for="text or input_ids",
    is_text=True,
)


# -- the log -------------------------------------------------------------------------------------

_RECEIVED: Final = ("request.received", "request.received.openai")
"""The second one has what a chat was, from level 2 on, and no ``rid``."""
_FINISHED: Final = "request.finished"
_CUT: Final = "..."
_MOST_OF_A_CUT_ONE: Final = 2048
"""The most characters of a text (half of them from its begin), or entries of a list, at the log's second level."""


def _parse_log(record: Mapping[str, Any]) -> Iterator[Record]:
    if record["event"] != _FINISHED:
        return
    asked, told = record["obj"], inside(record.get("out"), "meta_info")
    if not isinstance(asked, dict) or not isinstance(told, dict):
        field = "out.meta_info" if isinstance(asked, dict) else "obj"
        raise MalformedError(f"{field}: expected an object")
    end = own_request({"timestamp": record["timestamp"]}).time
    took = number(told, "e2e_latency") if told.get("e2e_latency") is not None else 0
    answer = told.get("completion_tokens")
    request = Record(
        end if end is None else Moment(end - took) if isinstance(end, Moment) else end - took,
        0,
        0 if answer is None else whole(told, "completion_tokens"),
        None,
        model=text_of(asked, "lora_path"),
        told_tokens=count_in(told, "prompt_tokens"),
        cached_tokens=cached_of(told),
    )
    there = [field for field in ("input_ids", "text") if asked.get(field) is not None]
    if not there:
        yield replace(request, input_tokens=whole(told, "prompt_tokens"))
        return
    _refuse_cut(asked[there[0]], there[0])
    yield from for_each(prompts_of({"prompt": asked[there[0]]}), request)


def _refuse_cut(value: Any, field: str) -> None:
    """Refuse a prompt whose middle is left out."""
    is_cut = isinstance(value, list) and _CUT in value
    if isinstance(value, str) and len(value) == _MOST_OF_A_CUT_ONE + len(_CUT):
        is_cut = value.startswith(_CUT, _MOST_OF_A_CUT_ONE // 2)
    if is_cut:
        raise MalformedError(
            f"obj.{field}: expected a whole prompt, got one without its middle (SGLang logs all of it with "
            "--log-requests-level 3)"
        )


SGLANG_LOG = Format(
    "sglang-log",
    Container.JSON,
    ("timestamp", "event", "obj"),
    _parse_log,
    overlaps=True,
    matches=lambda record: record["event"] in (*_RECEIVED, _FINISHED),
    looked_for=f"an event that is {_RECEIVED[0]} or {_FINISHED}",
    is_text=True,
    assumes="a request that hasn't finished in the log is left out",
)


# -- its metrics ---------------------------------------------------------------------------------

_PARAMETERS: Final = "request_parameters"


def _parse_measured(record: Mapping[str, Any]) -> Iterator[Record]:
    asked = object_in(record[_PARAMETERS])
    if asked is None:
        raise MalformedError(
            f"{_PARAMETERS}: expected the JSON of what was asked, got {record[_PARAMETERS]!r:.40}"
        )
    received = "request_received_ts"
    request = Record(
        None if record.get(received) is None else number(record, received),
        0,
        whole(record, "completion_tokens", usual=0),
        None,
        session=text_of(asked, "session_id"),
        model=text_of(asked, "lora_path"),
        told_tokens=count_in(record, "prompt_tokens"),
        cached_tokens=cached_of(record),
        name=text_of(record, "id"),
    )
    there = [field for field in ("input_ids", "text") if asked.get(field) is not None]
    if not there:
        yield replace(request, input_tokens=whole(record, "prompt_tokens"), told_tokens=None)
        return
    try:
        prompts = prompts_of({"prompt": asked[there[0]]})
    except MalformedError as error:
        raise MalformedError(f"{_PARAMETERS}.{str(error).replace('prompt', there[0], 1)}") from None
    yield from for_each(prompts, request)


SGLANG_METRICS = Format(
    "sglang-metrics",
    Container.JSON,
    (_PARAMETERS, "prompt_tokens"),
    _parse_measured,
    overlaps=True,
    is_text=True,
)
