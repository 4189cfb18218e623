"""Events of OpenTelemetry, of logs and of spans; spans as Jaeger, Tempo, ClickHouse and a console have them."""

import json

import pytest
from kv_sim_foreign_traces import ASKED, MORE, SAID, lengths, otlp, shared, span, user

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import Unsorted
from kv_sim.replay.readers.requests.sharing import parse_sharing

BEGIN = 1_790_000_000_000_000_000


def said(value):
    """As OTLP writes a value."""
    if isinstance(value, dict):
        return {"kvlistValue": {"values": named(value)}}
    if isinstance(value, list):
        return {"arrayValue": {"values": [*map(said, value)]}}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def named(values):
    return [{"key": name, "value": said(value)} for name, value in values.items()]


def logged(*events):
    """Each with a second, a name, attributes, a body, and the span that it is of."""
    records = [
        {
            "timeUnixNano": str(BEGIN + second * 10**9),
            "eventName": name,
            "attributes": named(attributes),
            "body": said(body),
            "traceId": "t",
            "spanId": whose,
        }
        for second, name, attributes, body, whose in events
    ]
    return {"resourceLogs": [{"resource": {}, "scopeLogs": [{"scope": {}, "logRecords": records}]}]}


DETAILS = "gen_ai.client.inference.operation.details"
COUNTED = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 33, "gen_ai.usage.output_tokens": 7}


@pytest.mark.parametrize("write", [json.dumps, lambda messages: messages])
def test_an_event_tells_of_a_whole_request(read, write):
    asked = [{**COUNTED, "gen_ai.input.messages": write(one["messages"])} for one in (ASKED, MORE)]
    events = [(second, DETAILS, one, "", "s") for second, one in zip((0, 3), asked, strict=True)]
    other = (1, "app.started", {"a": 1}, "so it is", "")
    (first, second), notes = read(logged(events[0], other), logged(events[1]), {"resourceMetrics": []})
    assert lengths([first, second]) == [(0, 32, 7), (3, 45, 7)]
    assert (shared(first, second), notes[0]) == (1, "format: otel")


def test_what_was_asked_may_lie_in_the_body_of_an_event(read):
    body = {"gen_ai.input.messages": ASKED["messages"]}
    requests, _ = read(logged((0, DETAILS, COUNTED, body, "s")))
    assert lengths(requests) == [(0, 32, 7)]


def test_an_event_that_happened_nobody_knows_when_was_observed(read):
    record = logged((0, DETAILS, {**COUNTED, "gen_ai.input.messages": "[]"}, "", "s"))
    for second in (5, 7):
        event = json.loads(json.dumps(record))
        lies_in = event["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
        lies_in |= {"timeUnixNano": "0", "observedTimeUnixNano": str(BEGIN + second * 10**9)}
        record = event if second == 5 else [record, event]
    requests, _ = read(*record)
    assert [one.arrival_seconds for one in requests] == [0, 2]


def test_events_that_are_messages_are_one_request_a_span(read):
    kind = {"gen_ai.system": "openai"}
    events = [
        (0, "gen_ai.system.message", kind, {"content": "Be brief."}, "a"),
        (1, "gen_ai.user.message", kind, {"content": SAID}, "a"),
        (1, "gen_ai.user.message", kind, {"content": SAID}, "b"),
        (2, "gen_ai.choice", kind, {"index": 0, "message": {"content": "no"}}, "a"),
    ]
    (first, second), _ = read(logged(*events))
    text = f"<|system|>Be brief.<|user|>{SAID}<|assistant|>"
    assert lengths([first, second]) == [(0, -(-len(text) // 4), 0), (1, 32, 0)]


def printed(second, name, attributes, body, whose):
    """An event as a console shows it, which has its name beside its attributes, or among them."""
    is_apart = not second
    return {
        "body": body if is_apart else json.dumps(body),
        "severity_number": None,
        "attributes": {**attributes, **({} if is_apart else {"event.name": name})},
        "timestamp": None,
        "observed_timestamp": f"2026-09-21T14:13:2{second}.000000Z",
        "trace_id": "t",
        "span_id": whose,
        "event_name": name if is_apart else "",
    }


@pytest.mark.parametrize("write", [logged, None], ids=["cut", "printed"])
def test_messages_of_one_span_are_one_request_wherever_they_lie(read, write):
    kind = {"gen_ai.system": "openai"}
    events = [
        (0, "gen_ai.system.message", kind, {"content": "Be brief."}, "a"),
        (1, "gen_ai.user.message", kind, {"content": SAID}, "b"),
        (2, "gen_ai.user.message", kind, {"content": SAID}, "a"),
        (3, "gen_ai.choice", kind, {"message": {"content": "no"}}, "a"),
    ]
    records = [printed(*one) if write is None else write(one) for one in events]
    around = {
        **{"trace_id": "t", "span_id": "b", "start_time": "2026-09-21T14:13:20.5Z", "attributes": COUNTED},
        "name": "chat m",
    }
    text = f"<|system|>Be brief.<|user|>{SAID}<|assistant|>"
    first = (0, -(-len(text) // 4), 0)
    assert lengths(read(*records)[0]) == [first, (1, 32, 0)]
    beside = around if write is None else otlp(span(0.5, COUNTED, traceId="t", spanId="b"))
    assert lengths(read(*records, beside)[0]) == [first, (0.5, 32, 7)]


def test_events_that_kept_nothing_but_roles_are_no_prompt(read):
    with pytest.raises(ConfigError, match=r":1: gen_ai.usage.input_tokens: expected a whole number"):
        read(logged((1, "gen_ai.user.message", {}, {"role": "user"}, "a")))


@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("gen_ai.content.prompt", {"gen_ai.prompt": json.dumps(ASKED["messages"])}),
        ("gen_ai.content.prompt", {"gen_ai.prompt": json.dumps(ASKED)}),
        ("gen_ai.content.prompt", {"gen_ai.prompt": SAID}),
        (DETAILS, {"gen_ai.input.messages": json.dumps(ASKED["messages"])}),
        ("gen_ai.user.message", {"content": SAID}),
        ("gen_ai.user.message", {"content": json.dumps([{"text": SAID}])}),
        ("gen_ai.user.message", {"gen_ai.event.content": json.dumps(user(SAID))}),
    ],
)
def test_a_span_has_events_that_say_what_was_asked(read, name, about):
    event = {"name": name, "attributes": named(about)}
    answer = {"name": "gen_ai.choice", "attributes": named({"message": "no"})}
    requests, _ = read(otlp(span(0, COUNTED, events=[event, answer])))
    assert lengths(requests) == [(0, 32, 7)]


@pytest.mark.parametrize(
    "attributes",
    [
        {"ai.prompt.messages": json.dumps([user(SAID)])},
        {
            "events": json.dumps(
                [{"event.name": "gen_ai.user.message", "content": SAID}, {"event.name": "gen_ai.choice"}]
            )
        },
        {"openinference.span.kind": "LLM", "input.value": json.dumps(ASKED)},
        {"openinference.span.kind": "LLM", "input.value": SAID},
        {"openinference.span.kind": "LLM", "input.value": json.dumps({"model": "m", "prompt": SAID})},
    ],
)
def test_other_conventions_have_it_elsewhere(read, attributes):
    requests, _ = read(otlp(span(0, {**attributes, "gen_ai.usage.input_tokens": 33})))
    assert lengths(requests) == [(0, 32, 0)]


def test_what_a_span_counted_is_compared(read):
    asked = {"gen_ai.input.messages": json.dumps(ASKED["messages"]), "gen_ai.usage.input_tokens": 900}
    _, notes = read(otlp(span(0, asked)))
    assert any(note.startswith("usage says 900 prompt tokens where 32 are counted here") for note in notes)


def test_spans_as_jaeger_shows_them(read):
    def shown(micros, name, above=()):
        tags = [
            {"key": f"gen_ai.usage.{one}_tokens", "type": "int64", "value": 64} for one in ("prompt", "completion")
        ]
        references = [{"refType": "CHILD_OF", "traceID": "t", "spanID": one} for one in above]
        start = BEGIN // 1000 + micros
        return {
            "spanID": name,
            "operationName": "llm_request",
            "startTime": start,
            "tags": tags,
            "references": references,
        }

    traces = [
        {"traceID": "t", "spans": [shown(0, "a"), shown(1, "b", "a")]},
        {"traceID": "u", "spans": [shown(3e6, "c")]},
    ]
    requests, notes = read({"data": traces}, sharing=parse_sharing("none"))
    assert (notes[0], lengths(requests)) == ("format: otel", [(0, 64, 64), (3, 64, 64)])


def test_data_that_is_no_list_of_traces_is_no_jaeger_s(read):
    with pytest.raises(ConfigError, match="no known format has the fields data"):
        read({"data": [5]})


def test_spans_of_tempo_and_rows_of_clickhouse(read):
    asked = {**COUNTED, "gen_ai.input.messages": json.dumps(ASKED["messages"])}
    tempo = {"batches": otlp(span(0, asked), span(3, asked))["resourceSpans"]}
    requests, _ = read(tempo)
    assert lengths(requests) == [(0, 32, 7), (3, 32, 7)]
    rows = [
        {"Timestamp": f"2026-01-31 10:00:0{second}.123456789", "SpanId": "a", "SpanAttributes": asked}
        for second in (0, 3)
    ]
    requests, _ = read(*rows)
    assert [one[1:] for one in lengths(requests)] == [(32, 7), (32, 7)]
    assert requests[1].arrival_seconds == 3


def test_documents_may_follow_one_another_each_over_many_lines(tmp_path):
    file = tmp_path / "trace"
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(ASKED["messages"])}
    spans = [{"name": "chat", "start_time": f"2026-01-31T10:00:0{n}Z", "attributes": attributes} for n in range(3)]
    file.write_text("\n".join(json.dumps(one, indent=4) for one in [spans[0], spans[1:]]) + "\n\n")
    assert [one.arrival_seconds for one in open_trace(file)] == [0, 1, 2]
    file.write_text(file.read_text() + '{\n"name":')
    with pytest.raises(ConfigError, match=r"trace:28: not JSON, and what follows isn't read"):
        open_trace(file)


LENGTHS = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 33}
SPAN = span(0, {**LENGTHS, "gen_ai.request.model": "m"}, spanId="s")
MESSAGES = {"gen_ai.input.messages": json.dumps(ASKED["messages"]), "gen_ai.conversation.id": "c"}
WHOLE = logged((5, DETAILS, {**COUNTED, **MESSAGES}, "", "s"))
EACH = logged((4, "gen_ai.user.message", {"gen_ai.system": "openai"}, {"content": SAID}, "s"))


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("events", "answered"), [(WHOLE, 7), (EACH, 0)])
def test_a_span_and_an_event_of_it_are_one_request(read, order, events, answered):
    records = [otlp(SPAN, span(9, {**LENGTHS, **MESSAGES}, spanId="u")), events][::order]
    requests, notes = read(*records, unsorted=Unsorted.SORT)
    assert lengths(requests) == [(0, 32, answered), (9, 32, 0)]
    assert not any("tokens where" in note for note in notes), "both are compared with what is counted"


def test_of_a_span_and_an_event_that_both_say_the_prompt_the_span_counts(read):
    told = span(0, {**LENGTHS, **MESSAGES}, spanId="s")
    for records in ((otlp(told), WHOLE), (WHOLE, otlp(told))):
        requests, _ = read(*records)
        assert lengths(requests) == [(0, 32, 7)]


def test_of_a_span_and_an_event_that_both_count_one_counts(read):
    event = logged((5, DETAILS, COUNTED, "", "s"))
    requests, _ = read(otlp(SPAN), event, sharing=parse_sharing("none"))
    assert lengths(requests) == [(0, 33, 7)]


def test_several_events_of_a_span_are_requests_of_their_own(read):
    again = logged((6, DETAILS, {**COUNTED, **MESSAGES}, "", "s"))
    requests, _ = read(otlp(span(0, {**LENGTHS, **MESSAGES}, spanId="s")), WHOLE, again)
    assert lengths(requests) == [(0, 32, 0), (5, 32, 7), (6, 32, 7)]


@pytest.mark.parametrize("nobody", ["", "0000000000000000"])
def test_what_is_of_no_span_is_no_pair(read, nobody):
    told = span(0, {**LENGTHS, **MESSAGES}, spanId=nobody)
    requests, _ = read(otlp(told), logged((5, DETAILS, {**COUNTED, **MESSAGES}, "", nobody)))
    assert lengths(requests) == [(0, 32, 0), (5, 32, 7)]


def test_requests_of_a_record_are_in_the_order_in_which_spans_begin(read):
    spans = [span(second, LENGTHS, spanId=name) for second, name in ((0, "a"), (1, "b"))]
    events = [(second, DETAILS, {**COUNTED, **MESSAGES}, "", name) for second, name in ((5, "b"), (6, "a"))]
    requests, _ = read(logged(*events), otlp(*spans))
    assert lengths(requests) == [(0, 32, 7), (1, 32, 7)]
