"""Finds OpenTelemetry's spans and events in a record, and gives each one's attributes by name.

A record may be:

* OTLP's JSON, of spans (Tempo calls them batches) or of logs;
* traces as Jaeger shows them, where attributes are called tags;
* an object with ``spans``, or with ``data`` that has them, as MLflow's;
* one span, as a console or a table has it, whose attributes are an object, or columns, as in Phoenix's.

A prompt may be in the events of a span, or in those of a log. In a log each message is an event, and the events of
one span are one request.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from kv_sim.replay.readers.fields import number_or_date
from kv_sim.replay.readers.formats.spans.services import as_usual
from kv_sim.replay.readers.json_values import inside, json_in, listed, object_in, objects_in
from kv_sim.replay.readers.record import MalformedError

STARTS: Final = (
    *("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime"),
    *("timeUnixNano", "observedTimeUnixNano"),
    *("Timestamp", "timestamp", "observed_timestamp", "start_timestamp"),
)
KIND: Final = "openinference.span.kind"
SPAN_TYPE: Final = "logfire.span_type"
_OF_LOGFIRE: Final = "start_timestamp"
"""A column of Logfire's table of records."""
ATTRIBUTES: Final = ("attributes", "SpanAttributes", "LogAttributes")
_COLUMNS: Final = ("attributes.", "context.")
_AZURE: Final = (
    ("customDimensions", "operation_Id", "id", "operation_ParentId", "timestamp"),
    ("Properties", "OperationId", "Id", "ParentId", "TimeGenerated"),
)
"""Columns of Application Insights: those of attributes, a trace, a span, the span around it, and its begin."""
_LISTS: Final = (".llm.input_messages", ".llm.tools")
"""Columns with a list."""
_NESTED: Final = ("gen_ai", "llm", "openinference")
"""Where attributes are objects within each other, as Phoenix and Elasticsearch keep them, the outermost ones."""
_LISTED: Final = "gen_ai."
"""The beginning of names whose value may be a list; other lists are attributes with numbers in their names."""
_TRACES: Final = ("traceId", "trace_id", "TraceId", "traceID")
_IDS: Final = ("spanId", "span_id", "SpanId")
_PARENTS: Final = ("parentSpanId", "parent_span_id", "parent_id", "ParentSpanId")
_SPANS: Final = ("resourceSpans", "batches")
_LOGS: Final = "resourceLogs"
PACKETS: Final = (*_SPANS, _LOGS, "resourceMetrics")
"""The top-level fields of OTLP's messages. Metrics are ignored."""

_MESSAGES: Final = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
_CALLED: Final = ("eventName", "event_name", "EventName")
_CALLED_BY_NAME: Final = ("event.name", "name")
"""Fields or attributes with an event's name."""
_BODIES: Final = ("body", "Body")
_CONTENT: Final = ("gen_ai.event.content", "content")

_OF_EVENTS: Final = (
    *("timeUnixNano", "observedTimeUnixNano", "LogAttributes", "Body", "body"),
    *("severityNumber", "severity_number", "SeverityNumber"),
)
"""Fields that only events of a log have."""

Named = dict[str, Any]
"""Attributes by name."""


class SpanOrEvent(NamedTuple):
    """A span, or an event of a log, with its attributes by name."""

    span: Mapping[str, Any]
    named: Named
    messages: list[Mapping[str, Any]]
    """The messages in its events, if each event is a message."""

    @property
    def time(self) -> int | float:
        """When it began, in nanoseconds, or as a date."""
        return number_or_date(self.span, first(self.span, STARTS) or STARTS[0])

    @property
    def is_event(self) -> bool:
        """Whether it is an event of a log, not a span."""
        return not self.span.keys().isdisjoint(_OF_EVENTS)

    @property
    def own(self) -> int | None:
        """A number for its id and its trace's, or None: it has no id."""
        return self._number(text_in(self._context, _IDS))

    @property
    def parent(self) -> int | None:
        """The same number of the span around it, or None: it is the outermost."""
        return self._number(text_in(self.span, _PARENTS))

    @property
    def _context(self) -> Mapping[str, Any]:
        """The object with its ids: the field ``context``, or the span itself."""
        found = self.span.get("context")
        return found if isinstance(found, dict) and first(self.span, _IDS) is None else self.span

    def _number(self, name: str | None) -> int | None:
        is_told = name is not None and name.strip("0x")  # without a parent it is zeros
        return hash((text_in(self._context, _TRACES), name)) if is_told else None


def spans_and_events_in(record: Mapping[str, Any]) -> Iterator[SpanOrEvent]:
    """Every span and every event of a log in a record."""
    if _LOGS in record:
        yield from _of_logs(record)
    elif is_jaeger(record):
        for trace in objects_in(record, "data"):
            yield from map(_of_jaeger, objects_in(trace, "spans"))
    elif field := next((field for field in _SPANS if field in record), None):
        for resource in objects_in(record, field):
            for scope in objects_in(resource, "scopeSpans"):
                for span in objects_in(scope, "spans"):
                    yield _span(span, _by_name(objects_in(span, "attributes")))
    else:
        for span in spans_of(record):
            if (named := attributes_of(span)) is not None:
                yield _span_or_message(span, {str(name): value for name, value in named.items()})


def spans_of(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The spans of a record, or of its data, as MLflow's; or the record itself if it is a span."""
    data = record.get("data")
    outer = data if isinstance(data, dict) and "spans" in data else record
    return objects_in(outer, "spans") if "spans" in outer else [_of_columns(_of_azure(record))]


def _of_azure(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of Application Insights as a span, by the names of its own or of a workspace's tables."""
    for custom, trace, own, parent, began in _AZURE:
        if trace in record and (named := object_in(record.get(custom))) is not None:
            names = {"trace_id": trace, "span_id": own, "parent_id": parent, "start_time": began}
            return {"attributes": named, **{name: record.get(column) for name, column in names.items()}}
    return record


def _of_columns(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A span whose attributes, and ids, are columns that are named after them; others are returned unchanged."""
    if not any(name.startswith(_COLUMNS[0]) for name in record):
        return record
    inner, about = ({name: record[name] for name in record if name.startswith(begin)} for begin in _COLUMNS)
    own = {name.removeprefix(_COLUMNS[1]): value for name, value in about.items()}
    named = {
        name.removeprefix(_COLUMNS[0]): value
        for column, one in inner.items()
        for name, value in _flat(column, _unprinted(column, one))
    }
    return {**record, "context": own, "attributes": named}


def _unprinted(column: str, value: Any) -> Any:
    """The list in a column, of which a table has the text; other values as they are."""
    if not column.endswith(_LISTS):
        return value
    found = json_in(value)
    if isinstance(found, str) and found:
        raise MalformedError(f"{column}: expected a list, got {found!r:.40}; json.dumps writes JSON")
    return found


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What lies in a value by names, as OpenInference's attributes are; null, or an empty cell, is nothing."""
    if isinstance(value, list) and not name.startswith(_LISTED):
        value = {str(place): one for place, one in enumerate(value)}
    if isinstance(value, dict):
        for inner, one in value.items():
            yield from _flat(f"{name}.{inner}", one)
    elif value not in (None, ""):
        yield name, value


def attributes_of(span: Any) -> Mapping[str, Any] | None:
    """The attributes of a span, if they are an object, or its JSON; None: there are none, or they are a list."""
    found = next((one for field in ATTRIBUTES if (one := object_in(inside(span, field))) is not None), None)
    if found is None or not any(isinstance(found.get(name), dict) for name in _NESTED):
        return found
    return {name: value for outer, one in found.items() for name, value in _flat(outer, one)}


def is_span(record: Mapping[str, Any]) -> bool:
    """Whether a record with attributes is a span of a trace, whatever it tells of."""
    seen = SpanOrEvent(record, {}, [])
    return seen.own is not None and not seen.is_event and first(record, STARTS) is not None


def is_jaeger(record: Mapping[str, Any]) -> bool:
    """Whether these are traces as Jaeger shows them."""
    data = record.get("data")
    return isinstance(data, list) and bool(data) and all(isinstance(inside(one, "spans"), list) for one in data)


def first(named: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of these names that has a value; None: none has."""
    return next((name for name in names if named.get(name) is not None), None)


def text_in(named: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The value of the first of these names that has one, as text; None: none has."""
    name = first(named, names)
    return None if name is None else str(named[name])


# -- spans ---------------------------------------------------------------------------------------


def _span(span: Mapping[str, Any], named: Named) -> SpanOrEvent:
    messages = []
    for event in listed(span.get("events")):
        lies_in = inside(event, "attributes")
        about = _by_name(lies_in) if isinstance(lies_in, list) else lies_in
        if isinstance(about, dict):
            role = _MESSAGES.get(str(event.get("name")))
            messages += [] if role is None else [_message(role, about)]
            named = {**about, **named}
    return SpanOrEvent(span, as_usual(named), messages)


def _of_jaeger(span: Mapping[str, Any]) -> SpanOrEvent:
    above = [inside(one, "spanID") for one in objects_in(span, "references")]
    named = {str(tag.get("key")): tag.get("value") for tag in objects_in(span, "tags")}
    events = [
        {
            "name": next((one.get("value") for one in fields if one.get("key") == "event"), None),
            "attributes": {str(one.get("key")): one.get("value") for one in fields},
        }
        for log in objects_in(span, "logs")
        for fields in [objects_in(log, "fields")]
    ]
    own = {"traceId": span.get("traceID"), "spanId": span.get("spanID"), "parent_id": next(iter(above), None)}
    return _span({"startTime": span.get("startTime"), **own, "events": events}, named)


def _span_or_message(span: Mapping[str, Any], named: Named) -> SpanOrEvent:
    """A record that is a span, or an event of a log, which may be a message."""
    if isinstance(kind := span.get("span_kind"), str):  # Phoenix takes it out of the attributes
        named = {KIND: kind, **named}
    if _OF_LOGFIRE in span:  # whose table has it apart
        named = {SPAN_TYPE: span.get("kind"), **named}
    role = _role_of(span, named)
    if role is None or first(span, _BODIES) is None:
        return _span(span, named)
    return SpanOrEvent(span, named, [_message(role, {**named, "content": span[first(span, _BODIES) or ""]})])


# -- events of a log -----------------------------------------------------------------------------


def _of_logs(record: Mapping[str, Any]) -> Iterator[SpanOrEvent]:
    asked: dict[tuple[str, str], tuple[Mapping[str, Any], Named, list[Mapping[str, Any]]]] = {}
    for resource in objects_in(record, _LOGS):
        for scope in objects_in(resource, "scopeLogs"):
            for event in objects_in(scope, "logRecords"):
                named, body = _by_name(objects_in(event, "attributes")), _value(event.get("body"))
                if event.get("timeUnixNano") in (0, "0"):  # its time is unknown
                    event = {**event, "timeUnixNano": None}
                role = _role_of(event, named)
                if role is None:
                    yield SpanOrEvent(event, {**(body if isinstance(body, dict) else {}), **named}, [])
                    continue
                whose = (str(event.get("traceId")), str(event.get("spanId")))
                _, _, messages = asked.setdefault(whose, (event, named, []))
                messages.append(_message(role, {**named, "content": body}))
    for event, named, messages in asked.values():
        yield SpanOrEvent(event, named, messages)


def _role_of(event: Mapping[str, Any], named: Named) -> str | None:
    """The role of the message in an event; None: it has no message."""
    return _MESSAGES.get(str(text_in(event, _CALLED) or text_in(named, _CALLED_BY_NAME)))


def _message(role: str, about: Named) -> Mapping[str, Any]:
    """The message in an event: its body is the message or the message's content, either maybe as JSON."""
    said = json_in(about.get(first(about, _CONTENT) or _CONTENT[0]))
    if not isinstance(said, dict):
        return {"role": role, "content": said}
    return {"role": role, **said}


# -- attributes ----------------------------------------------------------------------------------


def _by_name(attributes: list[Any]) -> Named:
    return {str(inside(one, "key")): _value(inside(one, "value")) for one in attributes}


def _value(value: Any) -> Any:
    """The value of an attribute, as OTLP has it: in an object's only field, whose name is its type."""
    kind, found = next(iter(value.items()), ("", None)) if isinstance(value, dict) else ("", None)
    if kind == "intValue" and isinstance(found, str) and found.isdecimal():
        return int(found)
    if kind not in ("arrayValue", "kvlistValue"):
        return found
    values = objects_in(found, "values") if isinstance(found, dict) else []
    if kind == "arrayValue":
        return [_value(one) for one in values]
    return _by_name(values)
