"""Spans and events of OpenTelemetry: those of requests to a model, by their attributes; nanoseconds, or dates.

Attributes are those of OpenTelemetry's own conventions, or of OpenInference's, as Phoenix has them. What was asked
is there where that is captured, and else how many tokens it had. A span within that of a request is the same
request seen by the next one who takes it, and isn't counted again where both lie in one record.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.asked import count_in, inside
from kv_sim.replay.readers.chat import chat
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.otel_asked import PROMPT, WHOLE, asked_of
from kv_sim.replay.readers.otlp import (
    PACKETS,
    Named,
    Observed,
    attributes_of,
    first,
    is_jaeger,
    observed_in,
    text_in,
)
from kv_sim.replay.readers.record import Record, whole
from kv_sim.replay.readers.text import ASSUMED

_ASKS: Final = ("chat", "text_completion", "completion", "generate_content")
_INPUTS: Final = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
_OUTPUTS: Final = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
_SESSIONS: Final = ("gen_ai.conversation.id", "session.id")
_MODELS: Final = ("gen_ai.request.model", "gen_ai.response.model", "llm.model_name")
_BROKEN: Final = ("2", "STATUS_CODE_ERROR", "ERROR")
_OURS: Final = ("gen_ai.", "llm.", "openinference.", "ai.prompt.")


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    asked = [seen for seen in observed_in(record) if _asks(seen)]
    ours = {seen.own for seen in asked if seen.own is not None}
    for seen in sorted(asked, key=lambda one: one.time):
        if seen.parent not in ours:
            yield _request(seen)


def _request(seen: Observed) -> Record:
    named = seen.named
    prompt = asked_of(seen)
    told = first(named, _INPUTS)
    return Record(
        seen.time,
        0 if prompt is not None else whole(named, told or _INPUTS[0]),
        whole(named, first(named, _OUTPUTS) or _OUTPUTS[0], usual=0),
        None,
        session=text_in(named, _SESSIONS),
        model=text_in(named, _MODELS),
        text=None if prompt is None else chat(prompt),
        told_tokens=None if told is None else count_in(named, told),
        has_failed="error.type" in named or str(inside(seen.span.get("status"), "code")) in _BROKEN,
    )


def _asks(seen: Observed) -> bool:
    """Whether it is a request to a model."""
    operation = seen.named.get("gen_ai.operation.name")
    if operation is not None:
        return operation in _ASKS
    kind = seen.named.get("openinference.span.kind")
    if kind is not None:
        return bool(kind == "LLM")
    return bool(seen.messages) or first(seen.named, (*_INPUTS, *WHOLE, PROMPT, f"{PROMPT}.0.content")) is not None


def _is_traced(record: Mapping[str, Any]) -> bool:
    """Whether it has spans, of which one is about a model."""
    if not record.keys().isdisjoint(PACKETS) or is_jaeger(record):
        return True
    spans = record["spans"] if isinstance(record.get("spans"), list) else [record]
    named: list[Named | Mapping[str, Any]] = [one for span in spans if (one := attributes_of(span)) is not None]
    return any(str(name).startswith(_OURS) for one in named for name in one)


OTEL = Format(
    "otel",
    "OpenTelemetry spans or events, JSON: resourceSpans, resourceLogs, spans or attributes with "
    "gen_ai.input.messages (OpenInference: llm.input_messages), or with gen_ai.usage.input_tokens and no ids; "
    f"{ASSUMED}",
    Container.JSON,
    (),
    _parse,
    matches=_is_traced,
    looked_for="resourceSpans, resourceLogs, spans or attributes with gen_ai, llm or openinference",
    unit_seconds=1e-9,
    is_text=True,
    assumes="spans that are no request to a model are left out",
)
