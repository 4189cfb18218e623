"""Spans and events of OpenTelemetry: those of requests to a model, by their attributes; nanoseconds, or dates.

Attributes follow OpenTelemetry's own conventions, or OpenInference's, as in Phoenix. They have the prompt if it
was captured, otherwise its number of tokens. A span within the span of a request is the same request, seen by the
next service (a server's span in a client's), and isn't counted again, wherever the two are. But if the outer one
has only the prompt's length, or not even that, and those within it have more, these count instead. An event of a
log that names the span of a request is that request, too: the two complete each other.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from kv_sim.replay.readers.chats.cached import cached_of
from kv_sim.replay.readers.chats.chains import Chains
from kv_sim.replay.readers.chats.chat import chat
from kv_sim.replay.readers.chats.counts import count_in
from kv_sim.replay.readers.fields import whole
from kv_sim.replay.readers.format import Format
from kv_sim.replay.readers.formats.spans.asked import PROMPT, WHOLE, asked_of, response_in
from kv_sim.replay.readers.formats.spans.logfire import Streams, began
from kv_sim.replay.readers.formats.spans.otlp import (
    KIND,
    PACKETS,
    Named,
    SpanOrEvent,
    attributes_of,
    first,
    is_jaeger,
    is_span,
    spans_and_events_in,
    spans_of,
    text_in,
)
from kv_sim.replay.readers.formats.spans.scattered import Scattered
from kv_sim.replay.readers.json_values import inside
from kv_sim.replay.readers.record import MalformedError, Moment, Record

_ASKS: Final = ("chat", "text_completion", "completion", "generate_content")
_INPUTS: Final = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
_OUTPUTS: Final = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
_CACHED: Final = (
    *("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"),
    *("gen_ai.usage.details.cache_read_tokens", "gen_ai.usage.details.cache_read_input_tokens"),
    *("gen_ai.usage.details.cached_tokens", "llm.usage.cache_read_input_tokens"),
    *("llm.token_count.prompt_details.cache_read", "ai.usage.cachedInputTokens"),
    "ai.usage.inputTokenDetails.cacheReadTokens",
)
_SESSIONS: Final = ("gen_ai.conversation.id", "session.id")
_MODELS: Final = ("gen_ai.request.model", "gen_ai.response.model", "llm.model_name")
_AGENT: Final = "agent_name"
"""What Pydantic AI's runs of an agent have, which count the tokens of all requests in them, and no operation."""
_RUN: Final = "langsmith.span.kind"
_OF_MODEL: Final = "llm"
"""LangSmith's kind of a span, which calls the operation of a prompt's template chat, too."""
_BROKEN: Final = ("2", "STATUS_CODE_ERROR", "ERROR")
_KEPT: Final = (*_INPUTS, *_OUTPUTS, *_CACHED, *_SESSIONS, *_MODELS, "error.type")
_OURS: Final = ("gen_ai.", "llm.", "openinference.", "ai.prompt.", "mlflow.", "langfuse.observation.")
_COLUMNS: Final = tuple(f"attributes.{name}" for name in _OURS)


def _look_through(records: Iterable[Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], Iterator[Record]]:
    """The parser of records, after a look at all of them: spans of one request may be in several."""
    above: dict[int, int] = {}
    weights, pairs, streams, chains = dict[int, int](), _Pairs(), Streams(), Chains()
    scattered = Scattered()
    for record in records:
        with suppress(MalformedError):  # the parser reports it
            for seen in spans_and_events_in(record):
                streams.see(seen)
                if seen.own is None:
                    continue
                if seen.parent is not None:
                    above[seen.own] = seen.parent
                if not scattered.see(seen) and _asks(seen):
                    weights[seen.own] = max(weights.get(seen.own, 0), pairs.see(seen))
    for seen in filter(_asks, scattered.all()):
        assert seen.own is not None
        weights[seen.own] = max(weights.get(seen.own, 0), pairs.see(seen))
    dull = {one for name in weights for one in _above(name, above) if weights.get(one, 2) < weights[name]}
    counted = weights.keys() - dull

    def parse(record: Mapping[str, Any]) -> Iterator[Record]:
        seen_here = (scattered.whole(seen) for seen in spans_and_events_in(record))
        found = [seen for seen in seen_here if seen is not None and _asks(seen) and seen.own not in dull]
        found = [seen for seen in found if not streams.is_told_again(seen)]
        outer = [one for one in found if one.own is None or counted.isdisjoint(_above(one.own, above))]
        requests = [request for seen in outer if (request := pairs.one_of(seen, chains)) is not None]
        yield from sorted(requests, key=lambda one: one.time or 0)

    return parse


class _Pairs:
    """Spans and events that are one request: one of the two has the prompt, or at least its length."""

    def __init__(self) -> None:
        self._told: dict[int, dict[bool, tuple[int, int | float, Named]]] = {}
        """Span number -> for span and event: its weight, its time, its attributes."""
        self._several: set[tuple[int, bool]] = set()

    def see(self, seen: SpanOrEvent) -> int:
        """Note a request's span or event with a number. Returns what it has, as ``_weight`` does."""
        assert seen.own is not None
        told = self._told.setdefault(seen.own, {})
        if seen.is_event in told:
            self._several.add((seen.own, seen.is_event))
        named = {name: seen.named[name] for name in _KEPT if seen.named.get(name) is not None}
        weight = _weight(seen)
        told[seen.is_event] = (weight, seen.time, named)
        return weight

    def one_of(self, seen: SpanOrEvent, chains: Chains) -> Record | None:
        """The request of one of a pair, completed by the other; None: the other counts instead."""
        told = self._told.get(seen.own or 0, {})
        if seen.own is None or len(told) < 2 or any((seen.own, kind) in self._several for kind in told):
            return _request(seen, chains)
        own, (weight, time, named) = told[seen.is_event], told[not seen.is_event]
        if (own[0], not seen.is_event) < (weight, seen.is_event):
            return None
        begin = min(own[1], time) if isinstance(time, Moment) is isinstance(own[1], Moment) else own[1]
        request = _request(seen._replace(named={**named, **seen.named}), chains)
        request.time = begin
        return request


def _weight(seen: SpanOrEvent) -> int:
    """2 if it has the prompt, 1 if it has the prompt's length, otherwise 0."""
    return 2 if asked_of(seen) is not None else int(first(seen.named, _INPUTS) is not None)


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    return _look_through([record])(record)


def _above(name: int, above: Mapping[int, int]) -> Iterator[int]:
    """The spans around one, the nearest first; each once, even if spans name each other as parents."""
    seen = {name}
    while (found := above.get(name)) is not None and found not in seen:
        seen.add(found)
        yield found
        name = found


def _request(seen: SpanOrEvent, chains: Chains) -> Record:
    named = seen.named
    prompt, chain = asked_of(seen), None
    if (answered := response_in(named)) is not None:
        prompt, chain = chains.whole(*answered)
    told = first(named, _INPUTS)
    return Record(
        began(seen),
        0 if prompt is not None else whole(named, told or _INPUTS[0]),
        whole(named, first(named, _OUTPUTS) or _OUTPUTS[0], usual=0),
        None,
        session=text_in(named, _SESSIONS) or chain,
        model=text_in(named, _MODELS),
        text=None if prompt is None else chat(prompt),
        told_tokens=None if told is None else count_in(named, told),
        cached_tokens=cached_of(dict(named), *_CACHED),
        has_failed="error.type" in named or _status_of(seen.span) in _BROKEN,
    )


def _status_of(span: Mapping[str, Any]) -> str:
    return str(span.get("status_code", span.get("otel_status_code", inside(span.get("status"), "code"))))


def _asks(seen: SpanOrEvent) -> bool:
    """Whether a span or an event is of a request to a model."""
    if seen.named.get(_RUN, _OF_MODEL) != _OF_MODEL:
        return False
    operation = seen.named.get("gen_ai.operation.name")
    if operation is not None:
        return operation in _ASKS
    if _AGENT in seen.named:
        return False
    kind = seen.named.get(KIND)
    if kind is not None:
        return bool(kind == "LLM")
    return bool(seen.messages) or first(seen.named, (*_INPUTS, *WHOLE, PROMPT, f"{PROMPT}.0.content")) is not None


def _is_traced(record: Mapping[str, Any]) -> bool:
    """Whether a record has OpenTelemetry spans or events, and at least one is about a model."""
    if not record.keys().isdisjoint(PACKETS) or is_jaeger(record):
        return True
    try:
        spans = spans_of(record)
    except MalformedError:
        return any(name.startswith(_COLUMNS) for name in record)
    if any(attributes_of(one) is not None and is_span(one) for one in spans[:1]):
        return True
    named: list[Named | Mapping[str, Any]] = [one for span in spans if (one := attributes_of(span)) is not None]
    return any(str(name).startswith(_OURS) for one in named for name in one)


OTEL = Format(
    "otel",
    None,
    (),
    _parse,
    look_through=_look_through,
    matches=_is_traced,
    looked_for="resourceSpans, resourceLogs, spans or attributes with gen_ai, llm or openinference",
    unit_seconds=1e-9,
    is_text=True,
    assumes="spans that are no request to a model are left out",
)
