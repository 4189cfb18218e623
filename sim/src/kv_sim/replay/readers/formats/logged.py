"""Exports of Langfuse and of LangSmith: requests among other observations.

Records that aren't requests to a model are left out: spans, tool calls, agents.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.asked import for_each, has_failed
from kv_sim.replay.readers.chats.cached import cached_of
from kv_sim.replay.readers.chats.chat import prompts_in, user
from kv_sim.replay.readers.chats.counts import answered_in, cached_in, count_in, told_in
from kv_sim.replay.readers.fields import number_or_date, session_of, text_of, whole
from kv_sim.replay.readers.format import Format
from kv_sim.replay.readers.json_values import inside, json_in
from kv_sim.replay.readers.record import MalformedError, Record

_STARTS: Final = ("startTime", "start_time")
_LEFT_OUT: Final = "whatever isn't a request to a model is left out"


def _start_of(record: Mapping[str, Any]) -> int | float:
    """When it began, not when it was stored."""
    there = [field for field in _STARTS if field in record]
    field = next((field for field in there if record[field] is not None), (*there, _STARTS[0])[0])
    return number_or_date(record, field)


def _kind(record: Mapping[str, Any], field: str) -> str:
    kind = record[field]
    if not isinstance(kind, str) or not kind:
        raise MalformedError(f"{field}: expected what was observed, as text, got {kind!r:.60}")
    return kind


def _without_blanks(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record without empty cells of a table."""
    return {name: value for name, value in record.items() if value != ""}


def _requests(record: Mapping[str, Any], field: str, request: Record) -> Iterator[Record]:
    yield from for_each(prompts_in(record, _asked(record, field)), request)


def _asked(record: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """The request: messages, an object with messages, or a user's text."""
    found = json_in(record.get(field))
    if isinstance(found, dict):
        return found
    if not isinstance(found, (str, list)):
        got = "none" if found is None else type(found).__name__
        raise MalformedError(
            f"{field}: expected what a model was asked, as text, messages or an object, got {got}"
        )
    return user(found) if isinstance(found, str) else {"messages": found}


# -- Langfuse ------------------------------------------------------------------------------------

_GENERATION: Final = "GENERATION"
_BROKEN: Final = "ERROR"
_OWN: Final = (
    ("traceId", "trace_id"),
    ("usageDetails", "usage_details", "parentObservationId", "parent_observation_id"),
)
_USAGES: Final = ("usageDetails", "usage_details", "usage")
_WHOLE: Final = "input"
_CACHED: Final = ("cache_read_input_tokens", "input_cached_tokens", "input_cache_read", "cached_tokens")


def _parse_langfuse(record: Mapping[str, Any]) -> Iterator[Record]:
    if _kind(record, "type") != _GENERATION:
        return
    record = _without_blanks(record)
    usage = next((one for field in _USAGES if (one := json_in(record.get(field)))), None)
    answer, told = _sum_of(usage, "output"), _sum_of(usage, "input")
    if told is not None and _is_within(usage):
        told = count_in(usage, _WHOLE)
    model = next((name for field in ("model", "provided_model_name") if (name := text_of(record, field))), None)
    request = Record(
        _start_of(record),
        0,
        answered_in(record) or 0 if answer is None else answer,
        None,
        session_of(record),
        model=model,
        told_tokens=told_in(record) if told is None else told or None,
        cached_tokens=cached_in(record) if usage is None else cached_of(usage, *_CACHED),
        has_failed=record.get("level") == _BROKEN or has_failed(record),
    )
    yield from _requests(record, "input", request)


def _is_within(usage: Any) -> bool:
    """Whether a prompt's length includes its cached tokens, as with LiteLLM; the total shows it."""
    lengths = [count_in(usage, field) or 0 for field in (_WHOLE, "output")]
    return lengths[0] > 0 and count_in(usage, "total") == sum(lengths)


def _sum_of(usage: Any, word: str) -> int | None:
    """The sum of all counts whose names have the word; each token is in one of them."""
    counts = {} if not isinstance(usage, dict) else {name: usage[name] for name in usage if word in name}
    there = [name for name, value in counts.items() if value is not None and not isinstance(value, (dict, list))]
    return sum(whole(counts, name) for name in there) if there else None


LANGFUSE = Format(
    "langfuse",
    None,
    ("type", "input"),
    _parse_langfuse,
    matches=lambda record: all(any(field in record for field in names) for names in _OWN),
    looked_for="traceId, usageDetails or parentObservationId, or trace_id, usage_details or parent_observation_id",
    is_text=True,
    assumes=_LEFT_OUT,
)


# -- LangSmith -----------------------------------------------------------------------------------

_WITHIN: Final = ("generations", "message", "kwargs", "output", "messages")
_DEEPEST: Final = 8


def _parse_langsmith(record: Mapping[str, Any]) -> Iterator[Record]:
    if _kind(record, "run_type") != "llm":
        return
    record = _without_blanks(record)
    if (usage := _usage_in(json_in(record.get("outputs")), 0)) is not None:
        record = {"usage": usage, **record}
    inputs = json_in(record.get("inputs"))
    if isinstance(inputs, dict):
        inputs = _plain(inputs)
    extra = json_in(record.get("extra"))
    metadata, called = inside(extra, "metadata"), inside(extra, "invocation_params")
    if isinstance(inputs, dict) and (tools := inside(called, "tools")):
        inputs = {"tools": tools, **inputs}
    names = ("session_id", "thread_id", "conversation_id")
    session = next((str(name) for field in names if (name := inside(metadata, field)) is not None), None)
    model = inside(metadata, "ls_model_name") or inside(called, "model")
    request = Record(
        _start_of(record),
        0,
        answered_in(record) or 0,
        None,
        session,
        model=model and str(model),
        told_tokens=told_in(record),
        cached_tokens=cached_in(record),
        has_failed=has_failed(record),
    )
    yield from _requests({**record, "inputs": inputs}, "inputs", request)


def _usage_in(outputs: Any, depth: int) -> Any:
    """The token counts that LangChain keeps with an answer: a message, a list, or generations of them."""
    if isinstance(outputs, list) and depth < _DEEPEST:
        return next((found for one in outputs if (found := _usage_in(one, depth + 1)) is not None), None)
    if not isinstance(outputs, dict) or depth >= _DEEPEST:
        return None
    if isinstance(outputs.get("usage_metadata"), dict):
        return outputs["usage_metadata"]
    return _usage_in([outputs[field] for field in _WITHIN if field in outputs], depth)


def _plain(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """LangChain's inputs as a request to an API."""
    if "prompts" in inputs:
        return {"prompt": inputs["prompts"]}
    messages = inputs.get("messages")
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], list):
        [messages] = messages  # a batch of one
    return {**inputs, "messages": messages} if isinstance(messages, list) else inputs


LANGSMITH = Format(
    "langsmith",
    None,
    ("run_type", "start_time", "inputs"),
    _parse_langsmith,
    is_text=True,
    assumes=_LEFT_OUT,
)
