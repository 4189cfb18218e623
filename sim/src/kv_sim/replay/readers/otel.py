"""Spans of OpenTelemetry: those of requests to a model, by their attributes; nanoseconds, or dates.

They lie in OTLP's JSON, or in records of ``spans``, or each is a record, whose attributes are an object.

Attributes are those of OpenTelemetry's own conventions, or of OpenInference's, as Phoenix has them. What was asked
is there where that is captured, and else how many tokens it had. A span within that of a request is the same
request seen by the next one who takes it, and isn't counted again where both lie in one record.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.asked import inside, json_in
from kv_sim.replay.readers.chat import chat
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.parts import as_json
from kv_sim.replay.readers.record import MalformedError, Record, number_or_date, whole
from kv_sim.replay.readers.text import ASSUMED

_ASKS: Final = ("chat", "text_completion", "completion", "generate_content")
_INPUTS: Final = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
_OUTPUTS: Final = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
_SESSIONS: Final = ("gen_ai.conversation.id", "session.id")
_MODELS: Final = ("gen_ai.request.model", "gen_ai.response.model", "llm.model_name")
_STARTS: Final = ("startTimeUnixNano", "start_time", "startTime")
_IDS: Final = ("spanId", "span_id")
_PARENTS: Final = ("parentSpanId", "parent_span_id", "parent_id")
_MESSAGES: Final = "gen_ai.input.messages"
_PROMPT: Final = "gen_ai.prompt"
_SAID: Final = "llm.input_messages."
_TOOLS: Final = "llm.tools."
_OURS: Final = ("gen_ai.", "llm.", "openinference.")

_MOST_DIGITS: Final = 10

_Span = tuple[Mapping[str, Any], dict[str, Any]]
"""A span, and its attributes by name."""


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    spans = [(span, attributes) for span, attributes in _spans(record) if _asks(attributes)]
    ours = {name for span, _ in spans if (name := _name(span, _IDS)) is not None}
    timed = [(number_or_date(span, _first(span, _STARTS) or _STARTS[0]), span, named) for span, named in spans]
    for time, span, named in sorted(timed, key=lambda one: one[0]):
        if _name(span, _PARENTS) in ours:
            continue
        text = _text(named)
        yield Record(
            time,
            0 if text is not None else whole(named, _first(named, _INPUTS) or _INPUTS[0]),
            whole(named, _first(named, _OUTPUTS) or _OUTPUTS[0], usual=0),
            None,
            session=_name(named, _SESSIONS),
            model=_name(named, _MODELS),
            text=text,
        )


def _spans(record: Mapping[str, Any]) -> Iterator[_Span]:
    if "resourceSpans" not in record:
        for span in _list(record, "spans") if "spans" in record else [record]:
            attributes = span.get("attributes")
            if isinstance(attributes, dict):
                yield span, attributes
        return
    for resource in _list(record, "resourceSpans"):
        for scope in _list(resource, "scopeSpans"):
            for span in _list(scope, "spans"):
                yield span, {str(one.get("key")): _value(one.get("value")) for one in _list(span, "attributes")}


def _list(within: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    value = within.get(field, [])
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise MalformedError(f"{field}: expected a list of objects, got {type(value).__name__}")
    return value


def _value(value: Any) -> Any:
    """What an attribute is: its only field says as what; lists and objects have such in them."""
    kind, found = next(iter(value.items()), ("", None)) if isinstance(value, dict) else ("", None)
    if kind not in ("arrayValue", "kvlistValue"):
        return found
    values = _list(found, "values") if isinstance(found, dict) else []
    if kind == "arrayValue":
        return [_value(one) for one in values]
    return {str(one.get("key")): _value(one.get("value")) for one in values}


def _asks(named: Mapping[str, Any]) -> bool:
    """Whether it is a span of a request to a model."""
    operation = named.get("gen_ai.operation.name")
    if operation is not None:
        return operation in _ASKS
    kind = named.get("openinference.span.kind")
    if kind is not None:
        return bool(kind == "LLM")
    return _first(named, (*_INPUTS, _MESSAGES, f"{_PROMPT}.0.content")) is not None


def _text(named: Mapping[str, Any]) -> list[str] | None:
    """What was asked, if that is there."""
    if _MESSAGES in named:
        messages = json_in(named[_MESSAGES])
    elif f"{_PROMPT}.0.content" in named:
        messages = [*_numbered(named)]
    elif not (messages := _of_openinference(named)):
        return None
    asked: dict[str, Any] = {"messages": messages}
    if tools := [value for name, value in named.items() if name.startswith(_TOOLS)]:
        asked["tools"] = tools
    if isinstance(messages, list):
        asked["messages"] = [*map(_plain, messages)]
    for field, name in (("tools", "gen_ai.tool.definitions"), ("system", "gen_ai.system_instructions")):
        if name in named:
            value = json_in(named[name])
            asked[field] = [*map(_part, value)] if isinstance(value, list) and field == "system" else value
    return chat(asked)


def _numbered(named: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Messages whose parts are attributes with numbers in their names."""
    index = 0
    while f"{_PROMPT}.{index}.role" in named or f"{_PROMPT}.{index}.content" in named:
        role = named.get(f"{_PROMPT}.{index}.role", "user")
        content = named.get(f"{_PROMPT}.{index}.content")
        parts = json_in(content)
        are_parts = isinstance(parts, list) and all(isinstance(inside(one, "type"), str) for one in parts)
        yield {"role": role, "content": parts if are_parts else content}
        index += 1


def _of_openinference(named: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The same where more than text may be said; what isn't text is its name and its value."""
    found: dict[int, dict[str, Any]] = {}
    for name, value in named.items():
        number, _, field = name.removeprefix(_SAID).partition(".message.")
        if name.startswith(_SAID) and number.isdecimal() and len(number) < _MOST_DIGITS and field:
            found.setdefault(int(number), {})[field] = value
    return [
        {
            "role": message.pop("role", "user"),
            "content": [
                value if field == "content" or field.endswith(".text") else as_json([field, value])
                for field, value in message.items()
                if value is not None
            ],
        }
        for _, message in sorted(found.items())
    ]


def _plain(message: Any) -> Any:
    """A message as an API is asked with it."""
    parts = inside(message, "parts")
    return {**message, "content": [*map(_part, parts)]} if isinstance(parts, list) else message


def _part(part: Any) -> Any:
    """Text that is said; any other part is what it is."""
    if isinstance(inside(part, "content"), str) and part.get("type") == "text":
        return part["content"]
    return part


def _is_traced(record: Mapping[str, Any]) -> bool:
    """Whether it has spans, of which one is about a model."""
    if "resourceSpans" in record:
        return True
    spans = record["spans"] if isinstance(record.get("spans"), list) else [record]
    named = [one for span in spans if isinstance(one := inside(span, "attributes"), dict)]
    return any(str(name).startswith(_OURS) for one in named for name in one)


def _first(named: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if named.get(name) is not None), None)


def _name(named: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    name = _first(named, names)
    return None if name is None else str(named[name])


OTEL = Format(
    "otel",
    "OpenTelemetry spans, JSON: resourceSpans, spans or attributes with gen_ai.input.messages (OpenInference: "
    f"llm.input_messages), or with gen_ai.usage.input_tokens and no ids; {ASSUMED}",
    Container.JSON,
    (),
    _parse,
    matches=_is_traced,
    looked_for="resourceSpans, spans or attributes with gen_ai, llm or openinference",
    unit_seconds=1e-9,
    is_text=True,
    assumes="spans that are no request to a model are left out",
)
