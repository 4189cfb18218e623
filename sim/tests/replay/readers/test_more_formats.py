"""What logs, load generators and their reports say of requests: what counts, what turns add, what is refused."""

import json

import pytest
from kv_sim_more_traces import ASKED, CASES, MORE, SAID, otlp, span, user

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions
from kv_sim.replay.readers.own_columns import parse_columns
from kv_sim.replay.readers.sharing import parse_sharing

ADDS = "a later turn of a session is what it adds to the one before and its answer (--turns)"


def lengths(requests):
    return [(one.arrival_seconds, one.input_tokens, one.output_tokens) for one in requests]


def shared(one, other):
    same = [a == b for a, b in zip(one.blocks, other.blocks, strict=False)]
    return same.index(False) if False in same else len(same)


# -- turns ---------------------------------------------------------------------------------------

TURNS = [(0, "a", SAID, 16), (1000, "b", SAID, 16), (2000, "a", "y" * 43, 5), (3000, "b", "y" * 43, None)]
GROWN = [(0, 32, 16), (1, 32, 16), (2, 64, 5), (3, 64, 0)]
"""The second turns: 32 tokens, 16 of the answer, 64 characters."""


def test_turns_of_aibrix_add_to_the_turn_before(read):
    records = [
        {"timestamp": time, "requests": [{"prompt": said, "output_length": answer, "session_id": session}]}
        for time, session, said, answer in TURNS
    ]
    requests, notes = read(*records)
    assert lengths(requests) == GROWN
    first, other, second, another = requests
    assert first.blocks == other.blocks == second.blocks[:2] == another.blocks[:2]
    assert shared(second, another) == 2, "an answer is its session's own"
    assert ADDS in notes
    apart, notes = read(*({**one, "requests": [{**one["requests"][0], "session_id": None}]} for one in records))
    assert [one.input_tokens for one in apart] == [32, 32, 16, 16]
    assert ADDS not in notes


@pytest.mark.parametrize("times", [("timestamp", 2000), ("delay", 2000)])
def test_turns_of_aiperf_do_too(read, times):
    session = {"turns": [{"text": SAID, "output_length": 16}, {"text": "y" * 43, "output_length": 5}]}
    session["turns"][1][times[0]] = times[1]
    requests, notes = read(session, session, stagger_seconds=1)
    assert lengths(requests) == [(0, 32, 16), (1, 32, 16), (2, 64, 5), (3, 64, 5)]
    assert (shared(requests[0], requests[1]), shared(requests[2], requests[3])) == (2, 2)
    assert ADDS in notes


def test_what_the_system_says_is_no_turn_of_aiperf(read):
    requests, _ = read({"turns": [{"role": "system", "text": "z" * 54}, {"text": SAID}, {"text": "y" * 43}]})
    assert lengths(requests) == [(0, 48, 0), (60, 64, 0)]


def test_sessions_of_payloads_have_whole_prompts(read):
    sessions = [{"session_id": "a", "payloads": [ASKED, MORE]}, {"session_id": "b", "payloads": [ASKED]}]
    requests, notes = read({"data": sessions})
    assert lengths(requests) == [(0, 32, 0), (0, 32, 0), (60, 45, 0)]
    assert [shared(requests[0], one) for one in requests] == [2, 2, 1]
    assert "2 sessions count their own time, so all begin at once (--stagger)" in notes


# -- aiperf's requests ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "tokens"),
    [
        ({"text_input": SAID}, 32),
        ({"payload": {"messages": [user(SAID)]}}, 32),
        ({"payload": {"prompt": [*range(40)]}}, 40),
        ({"messages": [user(SAID)], "output_length": 3}, 32),
    ],
)
def test_requests_of_aiperf_count_milliseconds(read, record, tokens):
    requests, notes = read({**record, "timestamp": 500}, {**record, "timestamp": 2500.5})
    assert [one[:2] for one in lengths(requests)] == [(0, tokens), (2.0005, tokens)]
    assert notes[0] == "format: aiperf"


def test_a_delay_counts_from_the_turn_before(read):
    turns = [{"timestamp": 500}, {"delay": 1500}, {"timestamp": None, "delay": 250.0}]
    requests, notes = read(*({"text_input": SAID, "session_id": "a", **one} for one in turns))
    assert [one.arrival_seconds for one in requests] == [0, 1.5, 1.75]
    assert "2 later turns have a delay: taken from the arrival of the turn before" in notes


def test_text_alone_is_aiperf_s_only_where_that_is_said(read):
    with pytest.raises(ConfigError, match="no known format has the fields text; "):
        read({"text": SAID})
    requests, _ = read({"text": SAID, "timestamp": 1}, {"text": SAID, "timestamp": 1001}, format="aiperf")
    assert lengths(requests) == [(0, 32, 0), (1, 32, 0)]


# -- where a log keeps what was asked ------------------------------------------------------------


@pytest.mark.parametrize("write", [lambda value: value, json.dumps])
@pytest.mark.parametrize("field", ["request", "body", "request_body", "proxy_server_request", "request_args"])
@pytest.mark.parametrize("around", [lambda body: body, lambda body: {"method": "POST", "body": body}])
def test_a_request_lies_in_a_log_as_an_object_or_as_json(read, write, field, around):
    records = [{field: write(around(asked)), "completion_tokens": 4} for asked in (ASKED, MORE)]
    requests, _ = read(*records)
    assert lengths(requests) == [(0, 32, 4), (1, 45, 4)]
    assert shared(*requests) == 1


def test_messages_may_be_json_too(read):
    as_list, _ = read(ASKED, MORE)
    as_json, _ = read(ASKED, {**MORE, "messages": json.dumps(MORE["messages"])})
    assert as_list == as_json
    with pytest.raises(ConfigError, match=r":2: messages: expected a list of messages, got str"):
        read(ASKED, {**MORE, "messages": "what a user says"})


def test_a_field_that_holds_no_request_is_not_looked_at(read):
    requests, _ = read({**ASKED, "request": {"ip": "::1"}, "body": "{oops", "timestamp": 1})
    assert lengths(requests) == [(0, 32, 0)]


def test_a_report_of_inference_perf_is_a_log(read):
    sent = {"request": json.dumps(MORE), "response": "data: {}\n\n" * 9, "error": None}
    requests, _ = read(
        {**sent, "start_time": 100.5, "info": {"input_tokens": 9, "output_tokens": 6}},
        {**sent, "start_time": 103.5, "info": None},
    )
    assert lengths(requests) == [(0, 45, 6), (3, 45, 0)]


def test_what_a_log_counted_is_not_estimated(read):
    requests, _ = read({**ASKED, "response": "z" * 400, "usage": {"completion_tokens": 7}})
    assert [one.output_tokens for one in requests] == [7]


# -- spans ---------------------------------------------------------------------------------------


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


def test_spans_that_only_count_are_lengths(read):
    named = {"gen_ai.usage.prompt_tokens": 130, "gen_ai.usage.completion_tokens": 3}
    record = otlp(span(2, named, spanId="a"), span(0, named, spanId="b"), span(1, {"http.method": "POST"}))
    with pytest.raises(ConfigError, match="format otel has no block ids"):
        read(record)
    requests, _ = read(record, sharing=parse_sharing("none"))
    assert lengths(requests) == [(0, 130, 3), (2, 130, 3)]


def test_a_report_of_guidellm_without_what_was_sent_has_lengths(read):
    sent = {"request_start_time": 5.5, "prompt_tokens": 130, "output_tokens": 3, "request_args": None}
    report = {
        "benchmarks": [
            {"requests": {"successful": [sent]}},
            {"requests": {"errored": [{**sent, "start_time": 1}]}},
        ]
    }
    requests, _ = read(report, sharing=parse_sharing("none"))
    assert lengths(requests) == [(0, 130, 3), (0, 130, 3)]


def test_a_run_of_langsmith_may_be_completions_or_as_an_api_is_asked(read):
    run = {"run_type": "llm", "start_time": "2026-01-31T10:00:00", "completion_tokens": 5}
    texts = {**run, "inputs": {"prompts": ["x" * 64, "y" * 8]}}
    asked = {**run, "inputs": {"input": SAID}, "extra": {"metadata": {"thread_id": 7, "ls_model_name": "m"}}}
    requests, notes = read(texts, asked)
    assert lengths(requests) == [(0, 16, 3), (0, 2, 2), (0, 32, 5)]
    assert notes[-1] == "requests of 2 models, none of which can use another's blocks: none, m"


# -- lengths, and what isn't even that -----------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"start_times": [7, 5.5]}])
def test_a_saved_benchmark_has_times_or_none(read, more):
    run = {"input_lens": [64, 100], "output_lens": [1, 2.0], "ttfts": [], **more}
    requests, _ = read(run, sharing=parse_sharing("none"))
    assert lengths(requests) == ([(0, 100, 2), (1.5, 64, 1)] if more else [(0, 64, 1), (1, 100, 2)])


def test_lengths_of_servegen_are_lengths(read):
    record = {"request_id": 0, "type": "text", "input_length": 61, "output_length": 9, "duration": 14000}
    requests, notes = read(record, {**record, "request_id": 1}, sharing=parse_sharing("none"))
    assert lengths(requests) == [(0, 61, 9), (1, 61, 9)]
    assert "the trace has no times: one request a second is assumed" in notes


REPORTS = [
    (
        {"date": "d", "total_input_tokens": 5, "request_throughput": 1.0},
        "the summary of a benchmark; each request is in what vllm bench serve saves with --save-detailed, "
        "SGLang's bench_serving with --output-details",
    ),
    (
        {"load_summary": {}, "successes": {}},
        "the summary of a benchmark; each request is in inference-perf's per_request_lifecycle_metrics.json",
    ),
    (
        {"metadata": {}, "metrics": {}},
        "what aiperf measured of a request; what was sent is in its inputs.json, or lengths are read with "
        "--columns time=metadata.request_start_ns,input=metrics.input_sequence_length.value,"
        "output=metrics.output_sequence_length.value",
    ),
    (
        {"session_id": "a", "prefix_tokens": 1, "newly_append_tokens": 2, "timing_events": []},
        "TraceLab's, whose rounds have no ids of blocks; kv-cache-tester's format has them (weka)",
    ),
    (
        {"id": "a", "object": "chat.completion", "model": "m", "choices": []},
        "the answers of an API; what it was asked is what counts here, in the same file or instead of it",
    ),
]


@pytest.mark.parametrize(("record", "what"), REPORTS)
def test_a_report_without_its_requests_is_refused_as_what_it_is(read, tmp_path, record, what):
    with pytest.raises(ConfigError) as refused:
        read(record)
    assert str(refused.value) == f"{tmp_path / 'trace.jsonl'}:1: this is {what}"


def test_aiperf_s_measurements_are_read_as_its_refusal_says(read):
    [columns] = [word for word in REPORTS[2][1].split() if word.startswith("time=")]
    counts = {"input_sequence_length": {"value": 70, "unit": "tokens"}, "output_sequence_length": {"value": 3}}
    records = [{"metadata": {"request_start_ns": 179 * 10**16 + ns}, "metrics": counts} for ns in (0, 2 * 10**9)]
    requests, _ = read(*records, columns=parse_columns(columns), sharing=parse_sharing("none"))
    assert lengths(requests) == [(0, 70, 3), (2, 70, 3)]


WRONG = {
    "aibrix": [
        ({"timestamp": 1, "requests": {}}, "requests: expected a list, got dict"),
        ({"timestamp": 1, "requests": [5]}, "requests[0]: expected an object, got int"),
        ({"timestamp": 1, "requests": [{}]}, "requests[0].prompt: expected text, got NoneType"),
        (
            {"timestamp": 1, "requests": [{"prompt": "a", "output_length": -1}]},
            "requests[0].output_length: expected a whole number of at least 0, got -1",
        ),
    ],
    "aiperf": [
        ({"payload": 5}, "payload: expected an object, got int"),
        ({"texts": ["a", "b"]}, "texts: expected one text, as text or text_input, got several"),
        ({}, "text: expected text, got no such field"),
        (
            {"messages": [user("a")], "message_mode": "delta"},
            "message_mode: expected messages that are a whole prompt, got 'delta': what a turn adds",
        ),
    ],
    "aiperf-turns": [
        ({"turns": 5}, "turns: expected a list, got int"),
        ({"turns": [5]}, "turns[0]: expected an object, got int"),
        ({"turns": [{"text": 5}]}, "turns[0].text: expected text, got int"),
        ({"turns": [{"text": "a", "delay": "x"}]}, "turns[0].delay: expected a number, got 'x'"),
        ({"turns": [{"text": "a", "delay": -1}]}, "turns[0].delay: expected at least 0, got -1"),
    ],
    "aiperf-inputs": [
        ({"data": 5}, "data: expected a list, got int"),
        ({"data": [{}]}, "data[0].payloads: expected a list, got NoneType"),
        ({"data": [{"payloads": [5]}]}, "data[0].payloads[0]: expected an object, got int"),
    ],
    "otel": [
        ({"resourceSpans": 5}, "resourceSpans: expected a list of objects, got int"),
        (
            otlp({"attributes": [{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "5"}}]}),
            "startTimeUnixNano: expected a number, got no such field",
        ),
        (
            otlp(span(0, {"gen_ai.input.messages": "what?"})),
            "messages: expected a list of messages, got str",
        ),
        (
            otlp(span(0, {"gen_ai.operation.name": "chat"})),
            "gen_ai.usage.input_tokens: expected a whole number of at least 0, got no such field",
        ),
    ],
    "guidellm": [
        ({"benchmarks": 5}, "benchmarks: expected a list, got int"),
        ({"benchmarks": [5]}, "benchmarks[0].requests: expected an object, got NoneType"),
        (
            {"benchmarks": [{"requests": {"errored": [5]}}]},
            "benchmarks[0].requests.errored[0]: expected an object, got int",
        ),
        (
            {"benchmarks": [{"requests": {"errored": 5}}]},
            "benchmarks[0].requests.errored: expected a list, got int",
        ),
        (
            {"benchmarks": [{"requests": {"successful": [5]}}]},
            "benchmarks[0].requests.successful[0]: expected an object, got int",
        ),
        (
            {"benchmarks": [{"requests": {"errored": [{"start_time": 1}]}}]},
            "benchmarks[0].requests.errored[0].prompt_tokens: expected a whole number of at least 0, "
            "got no such field",
        ),
    ],
    "langfuse": [
        (
            {"type": "GENERATION", "input": None, "startTime": 1},
            "input: expected what a model was asked, as text, messages or an object, got none",
        ),
        ({"type": "GENERATION", "input": "a"}, "startTime: expected a number, got no such field"),
        ({"type": "", "input": "a"}, "type: expected what was observed, as text, got ''"),
    ],
    "langsmith": [
        (
            {"run_type": "llm", "start_time": 1, "inputs": 5},
            "inputs: expected what a model was asked, as text, messages or an object, got int",
        ),
    ],
    "sglang": [
        (
            {"sampling_params": {}, "input_ids": 5},
            "input_ids: expected text, a list of token ids, or a list of such prompts, got int",
        ),
    ],
    "bench": [
        ({"input_lens": 5, "output_lens": []}, "input_lens: expected a list, got int"),
        ({"input_lens": [1], "output_lens": []}, "output_lens: expected 1, as many as input_lens, got 0"),
        (
            {"input_lens": [1], "output_lens": [1], "start_times": [1, 2]},
            "start_times: expected 1, as many as input_lens, got 2",
        ),
        (
            {"input_lens": [1.5], "output_lens": [1]},
            "input_lens: expected a whole number of at least 0, got 1.5",
        ),
    ],
    "mooncake-lengths": [
        (
            {"timestamp": 1, "input_length": 3, "output_length": 3, "hash_ids": [1]},
            "hash_ids: expected none, since the first record has none",
        ),
    ],
}


@pytest.mark.parametrize(
    ("name", "record", "reason"), [(name, *one) for name, several in WRONG.items() for one in several]
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, name, record, reason):
    file = tmp_path / "trace.jsonl"
    good = json.dumps(
        json.loads(CASES[name][0].splitlines()[0] if name not in ("aiperf-inputs", "guidellm") else CASES[name][0])
    )
    file.write_text(f"{good}\n{json.dumps(record)}\n")
    with pytest.raises(ConfigError) as refused:
        open_trace(file, TraceOptions(format=name, sharing=parse_sharing("none")))
    assert str(refused.value) == f"{file}:2: {reason} (--on-error skip goes on)"


@pytest.mark.parametrize("body", ["", "{}", "{oops", "[1]"])
def test_a_row_without_what_was_asked_is_refused(tmp_path, body):
    file = tmp_path / "trace.csv"
    file.write_text(f"request_created_at,request_body\n2026-01-31,{body}\n")
    with pytest.raises(ConfigError) as refused:
        open_trace(file)
    reason = (
        f"request_body: expected the JSON of what an API was asked, got {body!r}; without it --columns says which "
        "are lengths and times"
    )
    assert str(refused.value) == f"{file}:2: {reason} (--on-error skip goes on)"


def test_what_is_asked_in_a_row_of_litellm_s_is_read_where_it_is_kept(tmp_path):
    file = tmp_path / "trace.csv"
    cell = json.dumps(ASKED).replace('"', '""')
    head = "call_type,startTime,prompt_tokens,completion_tokens,proxy_server_request\n"
    file.write_text(f'{head}acompletion,2026-01-31 10:00:00,9,7,"{cell}"\n')
    trace = open_trace(file)
    assert (trace.notes[0], lengths(trace)) == ("format: openai-table", [(0, 32, 7)])
    file.write_text(f"{head}acompletion,2026-01-31 10:00:00,9,7,{{}}\n")
    trace = open_trace(file, TraceOptions(sharing=parse_sharing("none")))
    assert (trace.notes[0], lengths(trace)) == ("format: litellm", [(0, 9, 7)])
