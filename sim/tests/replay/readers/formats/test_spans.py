"""Spans of OpenTelemetry and of OpenInference: what is a request among them, and what it says."""

import csv
import io
import json

import pytest
from kv_sim_foreign_traces import ASKED, SAID, lengths, otlp, shared, span, user

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions, Unsorted
from kv_sim.replay.readers.requests.naming import IdScope
from kv_sim.replay.readers.requests.sharing import parse_sharing


def test_a_span_says_tools_instructions_and_numbered_messages(read):
    parts = [{"type": "text", "content": SAID}, {"type": "tool_call", "name": "look"}]
    new = {
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": parts}]),
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
        "gen_ai.tool.definitions": json.dumps([{"type": "function"}]),
        "gen_ai.request.model": "m",
    }
    old = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": SAID, "gen_ai.usage.completion_tokens": 3}
    (first, second), notes = read(otlp(span(0, new)), otlp(span(1, old)))
    text = '<|tools|>{"type": "function"}<|system|>Be brief.<|user|>' + SAID
    text += json.dumps(parts[1], sort_keys=True) + "<|assistant|>"
    assert (first.input_tokens, second.input_tokens, second.output_tokens) == (-(-len(text) // 4), 32, 3)
    assert "spans that are no request to a model are left out" in notes[1]


@pytest.mark.parametrize(
    "pack", [lambda *spans: [{"session_id": "a", "spans": [*spans]}], lambda *spans: [*spans]]
)
def test_spans_may_lie_in_a_record_or_be_one(read, pack):
    asked = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(ASKED["messages"])}
    spans = [
        {"span_id": "a", "start_time": "2026-01-31T10:00:01.5+00:00", "attributes": asked},
        {"span_id": "b", "start_time": "2026-01-31T10:00:02.5+00:00", "attributes": {"gen_ai.tool.name": "look"}},
        {"span_id": "d"},
        {"span_id": "c", "start_time": "2026-01-31T10:00:03.5+00:00", "attributes": asked, "parent_span_id": "b"},
    ]
    requests, notes = read(*pack(*spans))
    assert (notes[0], lengths(requests)) == ("format: otel", [(0, 32, 0), (2, 32, 0)])


def test_spans_name_their_session_and_their_model(read):
    """Two names for each of them; the first one counts, where both are there."""
    asked = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(ASKED["messages"])}
    names = [
        {"gen_ai.conversation.id": "a", "session.id": "b", "gen_ai.request.model": "m"},
        {"session.id": "b", "gen_ai.request.model": "m", "gen_ai.response.model": "m-2026"},
        {"session.id": "a", "gen_ai.response.model": "m-2026"},
    ]
    spans = [otlp(span(second, {**asked, **one})) for second, one in enumerate(names)]
    assert [shared(one, other) for one, other in zip(*[read(*spans)[0]] * 2, strict=True)] == [2, 2, 2]
    (first, second, third), notes = read(*spans)
    assert (shared(first, second), shared(second, third)) == (2, 0)
    assert notes[-1] == "requests of 2 models, none of which can use another's blocks: m, m-2026"
    (first, second, third), _ = read(*spans, scope=IdScope.SESSION)
    assert (shared(first, second), shared(second, third)) == (0, 0)


def test_an_attribute_without_a_value_is_none(read):
    named = {"gen_ai.request.model": None, "gen_ai.response.model": "m", "session.id": "a"}
    asked = {"gen_ai.input.messages": json.dumps(ASKED["messages"])}
    times = {"startTimeUnixNano": None, "start_time": "2026-01-31T10:00:01.5+00:00"}
    spans = [{**times, "attributes": {**asked, **one}} for one in (named, {"gen_ai.response.model": "m"})]
    (first, second), notes = read(*spans, sessions=True)
    assert shared(first, second) == 2 and not any("models" in note for note in notes)


def test_a_numbered_message_may_lack_its_role_or_what_it_says(read):
    numbered = {"0.content": SAID, "1.role": "assistant", "2.role": "user", "2.content": "y" * 43}
    requests, _ = read(otlp(span(0, {f"gen_ai.prompt.{name}": value for name, value in numbered.items()})))
    text = f"<|user|>{SAID}<|assistant|><|user|>{'y' * 43}<|assistant|>"
    assert lengths(requests) == [(0, -(-len(text) // 4), 0)]


OPEN = {"openinference.span.kind": "LLM", "llm.token_count.prompt": 130, "llm.token_count.completion": 3}


def test_spans_of_openinference_say_messages_in_numbered_attributes(read):
    said = [("user", SAID), ("assistant", "ja"), ("user", "y" * 43)]
    named = {
        f"llm.input_messages.{number}.message.{field}": value
        for number, (role, content) in reversed([*enumerate(said)])
        for field, value in (("role", role), ("content", content))
    }
    spans = [
        span(0, {**OPEN, **named, "llm.model_name": "m", "session.id": "a"}),
        span(1, {**OPEN, "openinference.span.kind": "CHAIN"}),
        span(2, {**OPEN, "llm.input_messages.0.message.content": SAID}),
    ]
    requests, notes = read(*map(otlp, spans), sessions=True)
    text = "".join(f"<|{role}|>{content}" for role, content in said) + "<|assistant|>"
    assert lengths(requests) == [(0, -(-len(text) // 4), 3), (2, 32, 3)]
    in_order = dict(reversed(named.items()))
    (one, other), _ = read(*(otlp(span(0, {**OPEN, **attributes})) for attributes in (named, in_order)))
    assert one.blocks == other.blocks
    assert notes[-1] == "requests of 2 models, none of which can use another's blocks: m, none"


def test_what_else_is_said_in_openinference_is_its_name_and_its_value(read):
    call = "tool_calls.0.tool_call.function.name"
    said = {"contents.0.message_content.text": SAID, call: "look", "content": None, "index": 0}
    other = ("x.message.role", "0.role", f"{'1' * 9999}.message.role", "message.content")
    named = {f"llm.input_messages.0.message.{name}": value for name, value in said.items()}
    named |= {f"llm.input_messages.{name}": "a" for name in other} | {"llm.tools.0.tool.json_schema": "{}"}
    named |= {"1.message.content": "a", "llm.output_messages.0.message.content": "a"}
    record = {"start_time": "2026-01-31T10:00:01.5+00:00", "attributes": {**OPEN, **named}}
    requests, notes = read(record)
    text = f'<|tools|>{{}}<|user|>["index", 0]{SAID}[{{"function.name": "look"}}]<|assistant|>'
    assert (notes[0], lengths(requests)) == ("format: otel", [(0, -(-len(text) // 4), 3)])


def test_parts_and_calls_of_openinference_are_as_long_as_what_was_asked(read):
    """What tells the type of a part, and who is answered, is no text of the prompt."""
    call = {"tool_call.id": "c", "tool_call.function.name": "look", "tool_call.function.arguments": "{}"}
    picture = {"message_content.type": "image", "message_content.image.image.url": "data:image/png;base64,AAAA"}
    named = {
        "0.message.role": "user",
        "0.message.contents.0.message_content.type": "text",
        "0.message.contents.0.message_content.text": SAID,
        **{f"0.message.contents.10.{name}": value for name, value in picture.items()},
        "0.message.contents.2.message_content.text": "last but one",
        "1.message.role": "assistant",
        **{f"1.message.tool_calls.0.{name}": value for name, value in call.items()},
        "2.message.role": "tool",
        "2.message.name": "look",
        "2.message.tool_call_id": "c",
        "2.message.content": "nothing",
    }
    requests, _ = read(
        otlp(span(0, {**OPEN, **{f"llm.input_messages.{name}": one for name, one in named.items()}}))
    )
    called = '[{"function.arguments": "{}", "function.name": "look", "id": "c"}]'
    text = f"<|user|>{SAID}last but one<image {16 * '0'}><|assistant|>{called}<|tool|>nothing<|assistant|>"
    assert lengths(requests) == [(0, -(-len(text) // 4), 3)]


def test_what_a_tool_gave_back_in_a_span_is_its_text(read):
    back = [{"type": "tool_call_response", "id": "c", "result": "x" * 50}, {"type": "tool_call_response", "id": 1}]
    messages = [{"role": "user", "content": SAID}, {"role": "tool", "parts": back}]
    requests, _ = read(otlp(span(0, {"gen_ai.input.messages": json.dumps(messages)})))
    text = f"<|user|>{SAID}<|tool|>{'x' * 50}{json.dumps(back[1])}<|assistant|>"
    assert lengths(requests) == [(0, -(-len(text) // 4), 0)]


def test_spans_of_openinference_that_only_count_are_lengths(read):
    requests, _ = read(otlp(span(0, OPEN)), sharing=parse_sharing("none"))
    assert lengths(requests) == [(0, 130, 3)]


def test_instructions_of_a_span_may_be_text_and_a_part_an_image(read):
    image = {"type": "image_url", "image_url": "A" * 1000}
    message = {"role": "user", "parts": [{"type": "text", "content": SAID}, image]}
    named = {
        "gen_ai.input.messages": json.dumps([message]),
        "gen_ai.system_instructions": "Be brief.",
    }
    requests, _ = read(otlp(span(0, named)))
    text = f"<|system|>Be brief.<|user|>{SAID}<image_url {16 * '0'}><|assistant|>"
    assert lengths(requests) == [(0, -(-len(text) // 4), 0)]


def test_spans_that_only_count_are_lengths(read):
    named = {"gen_ai.usage.prompt_tokens": 130, "gen_ai.usage.completion_tokens": 3}
    record = otlp(span(2, named, spanId="a"), span(0, named, spanId="b"), span(1, {"http.method": "POST"}))
    with pytest.raises(ConfigError, match="format otel has no block ids"):
        read(record)
    requests, _ = read(record, sharing=parse_sharing("none"))
    assert lengths(requests) == [(0, 130, 3), (2, 130, 3)]


def test_what_openllmetry_saw_of_tools_counts(read):
    """It has a message's calls in attributes of their own, and the tools that were offered."""
    asked = {
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": SAID,
        "gen_ai.prompt.1.role": "assistant",
        "gen_ai.prompt.1.tool_calls.0.name": "get_weather",
        "gen_ai.prompt.1.tool_calls.0.arguments": '{"city": "Paris"}',
        "gen_ai.prompt.2.role": "tool",
        "gen_ai.prompt.2.content": "rain",
    }
    turned = {name: asked[name] for name in reversed(asked)}
    other = {**asked, "gen_ai.prompt.1.tool_calls.0.arguments": '{"city": "Seoul"}'}
    tools = {"llm.request.functions.0.name": "get_weather", "llm.request.functions.0.description": "d" * 40}
    spans = (asked, turned, other, {**asked, **tools})
    requests, notes = read(otlp(*(span(second, named) for second, named in enumerate(spans))))
    called = '[["0.arguments", "{\\"city\\": \\"Paris\\"}"], ["0.name", "get_weather"]]'
    whole = 8 + 107 + 13 + len(called) + 8 + 4 + 13
    assert [one.input_tokens for one in requests[:3]] == [-(-whole // 4)] * 3
    assert requests[3].input_tokens >= requests[0].input_tokens + (9 + 11 + 40) // 4
    assert shared(requests[0], requests[1]) == len(requests[0].blocks), "in whatever order"
    assert shared(requests[0], requests[2]) == 2, "another call is another prompt"
    assert notes[0] == "format: otel"


def test_a_span_that_failed_is_said(read):
    named = {"gen_ai.operation.name": "chat", "gen_ai.prompt.0.content": SAID}
    states = ({"code": 2}, {"code": "STATUS_CODE_ERROR", "message": "m"})
    good = [
        span(0, named),
        span(1, named, status={}),
        span(2, named, status={"code": 1}),
        span(3, named, status=None),
    ]
    broken = [span(5, named, status=state) for state in states]
    _, notes = read(otlp(*good, *broken, span(6, {**named, "error.type": "timeout"})))
    assert any(note.startswith("3 requests failed") for note in notes)
    assert not any("failed" in note for note in read(otlp(*good))[1])


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("pack", ["one record", "several records", "several files"])
def test_a_server_s_span_within_a_client_s_is_the_same_request(tmp_path, order, pack):
    client = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(ASKED["messages"])}
    server = {"gen_ai.usage.prompt_tokens": 32, "gen_ai.usage.completion_tokens": 9}
    spans = [
        span(0, {**client, "gen_ai.usage.output_tokens": 7}, spanId="c"),
        span(0.1, {"http.method": "POST"}, spanId="d", parentSpanId="c"),
        span(0.2, server, spanId="e", parentSpanId="d"),
        span(3, server, spanId="e", parentSpanId="d", traceId="u"),
    ][::order]
    packed = [otlp(*spans)] if pack == "one record" else [*map(otlp, spans)]
    for number, record in enumerate(packed):
        with (tmp_path / f"{number if pack == 'several files' else 0}.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
    options = TraceOptions(unsorted=Unsorted.SORT, sharing=parse_sharing("none"))
    assert lengths(open_trace(tmp_path, options)) == [(0, 32, 7), (3, 32, 9)]


def test_a_span_that_says_nothing_leaves_it_to_those_within(read):
    client = span(0, {"gen_ai.operation.name": "chat"}, spanId="c")
    server = span(1, {"gen_ai.usage.prompt_tokens": 40}, spanId="d", parentSpanId="c")
    requests, _ = read(otlp(server), otlp(client), sharing=parse_sharing("none"))
    assert lengths(requests) == [(0, 40, 0)]
    with pytest.raises(ConfigError, match=r"gen_ai.usage.input_tokens: expected a whole number"):
        read(otlp(client), sharing=parse_sharing("none"))


def test_spans_may_have_their_names_in_a_context_and_be_around_each_other(read):
    asked = {"gen_ai.input.messages": json.dumps(ASKED["messages"])}
    spans = [
        {
            "context": {"trace_id": "0x1", "span_id": name},
            "parent_id": above,
            "start_time": f"2026-01-31T10:00:0{second}Z",
            "attributes": asked if second != 2 else {},
        }
        for second, name, above in ((1, "a", None), (2, "b", "a"), (3, "c", "b"), (5, "d", "e"), (6, "e", "d"))
    ]
    assert lengths(read(*spans)[0]) == [(0, 32, 0)], "two that are around each other are none"


NANOSECONDS = 1_790_000_000 * 10**9


def of_mlflow(second, kind, newest=True, **named):
    """A trace of MLflow's: its attributes are JSON."""
    attributes = {"mlflow.spanType": json.dumps(kind)}
    attributes |= {f"mlflow.{name}": json.dumps(value) for name, value in named.items()}
    times = {"start_time_unix_nano" if newest else "start_time": NANOSECONDS + second * 10**9}
    names = {"trace_id": "t", "span_id": f"s{second}"}
    span = {"name": "x", **times, **(names if newest else {"context": names}), "attributes": attributes}
    return {"info": {"request_time": "2026-01-31T10:00:00Z"}, "data": {"spans": [span]}}


@pytest.mark.parametrize("newest", [True, False])
def test_mlflow_s_traces_have_requests_in_their_data(read, newest):
    asked = {"model": "m", "messages": ASKED["messages"], "tools": [{"name": "look"}]}
    counts = {"input_tokens": 90, "output_tokens": 7}
    requests, notes = read(
        of_mlflow(1, "CHAT_MODEL", newest, spanInputs=asked, **{"chat.tokenUsage": counts}),
        of_mlflow(2, "CHAIN", newest, spanInputs=asked),
        of_mlflow(4, "LLM", newest, spanInputs={"prompt": SAID}),
    )
    tools = len('<|tools|>{"name": "look"}')
    assert lengths(requests) == [(0, 32 + -(-tools // 4), 7), (3, 32, 0)]
    assert notes[0] == "format: otel"
    assert any(note.startswith("usage says 90 prompt tokens where") for note in notes)
    assert "requests of 2 models, none of which can use another's blocks: m, none" in notes


@pytest.mark.parametrize(
    "asked",
    [{"input": SAID, "instructions": "z" * 80}, {"messages": ASKED["messages"], "system": "z" * 80}],
    ids=["responses", "messages"],
)
def test_mlflow_keeps_what_an_api_calls_a_system_s_prompt_and_any_answer_s_own_counts(read, asked):
    counts = {"prompt_tokens": 90, "completion_tokens": 7}
    requests, notes = read(
        of_mlflow(1, "CHAT_MODEL", spanInputs=asked),
        of_mlflow(2, "LLM", spanInputs={"prompt": SAID}, spanOutputs={"usage": counts}),
    )
    assert lengths(requests) == [(0, 32 + -(-len("<|system|>" + "z" * 80) // 4), 0), (1, 32, 7)]
    assert any(note.startswith("usage says 90 prompt tokens where 32 are counted here") for note in notes)


def test_what_is_asked_of_mlflow_as_one_text_a_user_says(read):
    (text, message), _ = read(
        of_mlflow(1, "LLM", spanInputs={"prompt": SAID}),
        of_mlflow(2, "LLM", spanInputs={"messages": ASKED["messages"]}),
    )
    assert shared(text, message) == len(text.blocks) == len(message.blocks)


def test_spans_as_langfuse_s_own_client_sends_them(read):
    def sent(second, kind, asked, counts):
        said = {"type": kind, "input": asked, "usage_details": json.dumps(counts), "model.name": "m"}
        return span(second, {f"langfuse.observation.{name}": value for name, value in said.items()})

    tools = [{"name": "look"}]
    with_tools = {"tools": tools, "messages": ASKED["messages"]}
    counts = {"prompt_tokens": 32, "completion_tokens": 7}
    spans = [
        sent(0, "generation", json.dumps(ASKED["messages"]), counts),
        sent(1, "agent", json.dumps(ASKED["messages"]), {}),
        sent(2, "generation", json.dumps(with_tools), {"input": 40, "output": 7}),
        sent(3, "generation", SAID, {"input_tokens": 32, "output_tokens": 5, "input_tokens_details": None}),
    ]
    requests, notes = read(otlp(*spans))
    more = -(-len('<|tools|>{"name": "look"}') // 4)
    assert lengths(requests) == [(0, 32, 7), (2, 32 + more, 7), (3, 32, 5)]
    assert notes[0] == "format: otel" and not any("2 models" in note for note in notes)


def of_logfire(kind, start, said, **more):
    """A record as a console exporter writes it, and Logfire names it; of no kind, it is of somebody else."""
    named = {"logfire.span_type": kind} if kind else {}
    named |= {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    named |= {"gen_ai.input.messages": json.dumps([user(said)]), **more}
    return {
        "name": "x",
        "context": {"trace_id": "t", "span_id": f"{kind} {start}"},
        "start_time": start,
        "attributes": named,
    }


@pytest.mark.parametrize("dated", [False, True])
def test_a_stream_of_which_logfire_tells_twice_is_one_request(read, dated):
    def at(seconds):
        return f"2026-01-31T10:00:{seconds:06.3f}Z" if dated else NANOSECONDS + round(seconds * 10**9)

    answered = {"gen_ai.usage.input_tokens": 32, "gen_ai.usage.output_tokens": 7}
    ended = {**answered, "duration": 1.5}
    records = [
        of_logfire(None, at(3.875), SAID),
        of_logfire("span", at(1), SAID),
        of_logfire("log", at(2.75), SAID, **ended),
        of_logfire("span", at(3), SAID, **answered),
        of_logfire("log", at(5), SAID, **ended),
        of_logfire("span", at(3.25), SAID),
        of_logfire("span", at(3.5), SAID + "no log"),
        of_logfire("span", at(3.75), SAID),
        of_logfire("log", at(6), "no log of a stream", **answered),
    ]
    requests, _ = read(*records, unsorted=Unsorted.SORT)
    expected = [(0, 32, 7), (1.75, 32, 7), (2.25, 34, 0), (2.25, 32, 7), (2.5, 32, 0), (2.625, 32, 0)]
    expected.append((4.75, 10, 7))
    assert sorted(lengths(requests)) == sorted(expected)


def table(rows):
    """These rows as a table, in which objects and lists are JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    cells = (
        {name: json.dumps(one) if isinstance(one, (dict, list)) else one for name, one in row.items()}
        for row in rows
    )
    writer.writerows(cells)
    return text.getvalue()


def of_the_table(kind, second, **more):
    """A row of Logfire's table of records, as its API gives it out."""
    named = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.input.messages": [user(SAID)]}
    return {
        "start_timestamp": f"2026-01-31T10:00:{second:06.3f}000Z",
        "span_name": "chat m",
        "trace_id": "t",
        "span_id": f"{kind}{second}",
        "parent_span_id": None,
        "kind": kind,
        "otel_status_code": more.pop("status", None),
        "attributes": {**named, **more},
    }


@pytest.mark.parametrize("written", [lambda named: named, json.dumps])
def test_rows_of_logfire_are_spans(read, written):
    ended = {"gen_ai.usage.input_tokens": 32, "gen_ai.usage.output_tokens": 7, "duration": 1.5}
    rows = [
        of_the_table("span", 1, status="ERROR"),
        of_the_table("log", 2.5, **ended),
        of_the_table("span", 3, **{"gen_ai.usage.output_tokens": 4}),
    ]
    rows = [{**row, "attributes": written(row["attributes"])} for row in rows]
    requests, notes = read(*rows, unsorted=Unsorted.SORT)
    assert lengths(requests) == [(0, 32, 7), (2, 32, 4)], "a stream's span is told again by its log"
    assert not any("failed" in note for note in notes), "which ended"
    _, notes = read({**rows[2], "otel_status_code": "ERROR"})
    assert notes[-1].startswith("1 request failed")


def test_rows_of_logfire_may_be_a_table(tmp_path):
    file = tmp_path / "records.csv"
    file.write_text(
        table([of_the_table("span", second, **{"gen_ai.usage.output_tokens": 4}) for second in (1, 3)])
    )
    assert lengths(open_trace(file)) == [(0, 32, 4), (2, 32, 4)]


@pytest.mark.parametrize("said", [{}, {"all_messages_events": json.dumps([user(SAID)])}])
@pytest.mark.parametrize("has_text", [False, True])
def test_a_run_of_an_agent_is_none_of_its_requests(read, said, has_text):
    """As of Pydantic AI, whose span counts what all requests within it had, and names no operation."""
    run = of_the_table("span", 1)
    run["attributes"] = {"model_name": "m", "agent_name": "a", "gen_ai.usage.input_tokens": 64, **said}
    within = [of_the_table("span", second, **{"gen_ai.usage.input_tokens": 32}) for second in (1.25, 2.25)]
    for row in within:
        row["parent_span_id"] = run["span_id"]
        if not has_text:
            del row["attributes"]["gen_ai.input.messages"]
    requests, _ = read(run, *within, sharing=None if has_text else parse_sharing("none"))
    assert lengths(requests) == [(0, 32, 0), (1, 32, 0)]


# -- Phoenix's -----------------------------------------------------------------------------------


def _of_phoenix(second, kind="LLM", **more):
    """A span as Phoenix's data frame has it, of which parquet and JSON lines are written."""
    messages = [{"message.role": "user", "message.content": SAID}]
    counts = {"prompt": 130.0, "completion": 3.0, "prompt_details.cache_read": 16.0}
    return {
        "span_kind": kind,
        "parent_id": None,
        "start_time": f"2026-01-31T10:00:0{second}+00:00",
        "status_code": "OK",
        "context.span_id": f"{second}a",
        "context.trace_id": "b",
        "attributes.openinference.span.kind": kind,
        "attributes.llm.input_messages": messages if kind == "LLM" else None,
        **{f"attributes.llm.token_count.{name}": count for name, count in counts.items() if kind == "LLM"},
        "attributes.llm.tools": [{"tool.json_schema": "{}"}] if kind == "LLM" else None,
        **more,
    }


def test_attributes_may_be_columns(read):
    spans = [_of_phoenix(0, "CHAIN"), _of_phoenix(1), _of_phoenix(2, status_code="ERROR"), _of_phoenix(3, "TOOL")]
    spans.append({**_of_phoenix(4), "parent_id": "1a"})
    requests, notes = read(*spans)
    asked = span(1, {"openinference.span.kind": "LLM", "llm.tools.0.tool.json_schema": "{}"})
    for name, value in {"role": "user", "content": SAID}.items():
        asked["attributes"] += span(0, {f"llm.input_messages.0.message.{name}": value})["attributes"]
    (usual,), _ = read(otlp(asked))
    assert lengths(requests) == [(0, usual.input_tokens, 3), (1, usual.input_tokens, 3)], "one lies in another"
    assert requests[0].blocks == requests[1].blocks == usual.blocks
    assert any(note.startswith("1 request failed") for note in notes)


@pytest.mark.parametrize("written", [str, json.dumps])
def test_a_data_frame_may_be_a_table(tmp_path, written):
    counts = ("prompt", "completion", "prompt_details.cache_read")
    uncounted = {f"attributes.llm.token_count.{name}": None for name in counts}
    spans = [_of_phoenix(0, "CHAIN"), _of_phoenix(1), _of_phoenix(2, **uncounted)]
    lists = ("attributes.llm.input_messages", "attributes.llm.tools")
    rows = [
        {name: written(one) if one and name in lists else one for name, one in found.items()} for found in spans
    ]
    file = tmp_path / "spans.csv"
    names = [*rows[1]]
    file.write_text(table([{name: row.get(name) for name in names} for row in rows]))
    as_lines = tmp_path / "spans.jsonl"
    as_lines.write_text("".join(json.dumps(found) + "\n" for found in spans))
    trace, usual = open_trace(file), open_trace(as_lines)
    assert lengths(trace) == lengths(usual) and [one.blocks for one in trace] == [one.blocks for one in usual]
    rows[1][lists[0]] = "[{'message.role': 'user'}\n {'message.role': 'user'}]"
    file.write_text(table(rows[1:]))
    with pytest.raises(
        ConfigError, match=r":2: attributes\.llm\.input_messages: expected a list, got \"\[{'message"
    ):
        open_trace(file)


def test_a_span_may_say_its_kind_beside_its_attributes(read):
    """As those that Phoenix's API gives out; the first of them may tell of no model."""
    said = {"llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": SAID}
    spans = [
        {
            "context": {"trace_id": "b", "span_id": f"{second}a"},
            "span_kind": kind,
            "start_time": f"2026-01-31T10:00:0{second}+00:00",
            "attributes": named,
        }
        for second, kind, named in ((0, "CHAIN", {"session.id": "s"}), (1, "LLM", said), (2, "TOOL", said))
    ]
    requests, notes = read(*spans)
    assert (notes[0], lengths(requests)) == ("format: otel", [(0, 32, 0)])


def test_attributes_may_lie_within_each_other(read):
    """As Phoenix keeps OpenInference's, and Elasticsearch anyone's."""
    tools = [{"tool": {"json_schema": "{}"}}]
    asked = {"input_messages": [{"message": user(SAID)}], "tools": tools, "token_count": {"prompt": 32}}
    kept = {"llm": asked, "openinference": {"span": {"kind": "LLM"}}, "session": {"id": "s"}}
    named = {"openinference.span.kind": "LLM", "llm.tools.0.tool.json_schema": "{}", "session.id": "s"}
    named |= {f"llm.input_messages.0.message.{name}": value for name, value in user(SAID).items()}
    other = {"operation": {"name": "chat"}, "input": {"messages": [user(SAID)]}, "usage": {"output_tokens": 3}}
    start = "2026-01-31T10:00:00Z"
    (usual,), _ = read({"start_time": start, "attributes": named})
    (within, last), notes = read(*({"start_time": start, "attributes": one} for one in (kept, {"gen_ai": other})))
    assert notes[0] == "format: otel" and within.blocks == usual.blocks
    assert (within.input_tokens, last.input_tokens, last.output_tokens) == (usual.input_tokens, 32, 3)


# -- others' -------------------------------------------------------------------------------------


def test_rows_of_application_insights_are_spans(read, tmp_path):
    named = {"gen_ai.operation.name": "chat", "gen_ai.usage.output_tokens": "3"}
    named["gen_ai.input.messages"] = json.dumps([user(SAID)])
    own = [
        {
            "timestamp": f"2026-01-31T10:00:0{second}.5000000Z",
            "id": f"{second}a",
            "operation_Id": "t",
            "operation_ParentId": "1a" if second == 3 else "",
            "customDimensions": json.dumps(one),
        }
        for second, one in ((0, {"key": "x"}), (1, named), (2, named), (3, named))
    ]
    assert lengths(read(*own[1:])[0]) == [(0, 32, 3), (1, 32, 3)], "one lies in another"
    columns = ("TimeGenerated", "Id", "OperationId", "ParentId", "Properties")
    rows = [dict(zip(columns, row.values(), strict=True)) for row in own]
    file = tmp_path / "query.csv"
    file.write_text(table(rows))
    assert lengths(open_trace(file)) == [(0, 32, 3), (1, 32, 3)]
    rows = [{**row, "Properties": json.loads(row["Properties"])} for row in rows]
    assert lengths(read(*rows)[0]) == [(0, 32, 3), (1, 32, 3)]


def test_adk_keeps_what_it_asks_as_gemini_is_asked(read):
    asked = {
        "model": "g",
        "config": {"system_instruction": "Be brief.", "tools": [{"function_declarations": []}]},
        "contents": [{"role": "user", "parts": [{"text": SAID}]}],
    }
    counts = {"gen_ai.usage.input_tokens": 50, "gen_ai.usage.output_tokens": 3, "gen_ai.request.model": "g"}
    kept, bare = ({**counts, "gcp.vertex.agent.llm_request": json.dumps(one)} for one in (asked, {}))
    (found,), _ = read(otlp(span(0, kept)))
    text = '<|tools|>{"function_declarations": []}<|system|>Be brief.<|user|>' + SAID + "<|assistant|>"
    assert lengths([found]) == [(0, -(-len(text) // 4), 3)]
    assert lengths(read(otlp(span(0, bare)), sharing=parse_sharing("none"))[0]) == [(0, 50, 3)]


def test_langsmith_calls_more_a_chat_than_what_asks_a_model(read):
    message = {"lc": 1, "type": "constructor", "id": ["langchain", "HumanMessage"], "kwargs": {"content": SAID}}
    spans = [
        span(
            second,
            {
                "langsmith.span.kind": kind,
                "gen_ai.operation.name": "chat",
                "gen_ai.prompt": json.dumps({"messages": [[message]]} if kind == "llm" else {"question": SAID}),
            },
        )
        for second, kind in enumerate(("prompt", "llm", "chain", "llm"))
    ]
    assert lengths(read(otlp(*spans))[0]) == [(0, 32, 0), (2, 32, 0)]


def test_a_span_that_only_counts_leaves_it_to_those_within_that_say_what_was_asked(read):
    counts = {"gen_ai.usage.input_tokens": 64}
    asked = {"gen_ai.input.messages": json.dumps([user(SAID)]), "gen_ai.usage.input_tokens": 32}
    outer = span(0, counts, spanId="a")
    within = [span(second, asked, spanId=f"b{second}", parentSpanId="a") for second in (1, 2)]
    within.append(span(3, counts, spanId="c", parentSpanId="b2"))
    assert lengths(read(otlp(outer, *within))[0]) == [(0, 32, 0), (1, 32, 0)]
