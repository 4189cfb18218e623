"""What in logs and reports is no request, or none that can be read, is refused by its name and its line."""

import json

import pytest
from kv_sim_foreign_traces import ASKED, CASES, lengths, otlp, span, user

from kv_api import ConfigError
from kv_sim.replay.readers.catalogue import FORMATS
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import OnError, TraceOptions
from kv_sim.replay.readers.requests.sharing import parse_sharing
from kv_sim.replay.readers.unknown.own_columns import parse_columns

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
        {"metadata": {"request_start_ns": 5}, "metrics": {}},
        "aiperf's measurements of a request; the requests are in its inputs.json, or read lengths with "
        "--columns time=metadata.request_start_ns,input=metrics.input_sequence_length.value,"
        "output=metrics.output_sequence_length.value",
    ),
    (
        {"aiperf_version": "0.13.0", "request_throughput": {}, "request_count": {}},
        "the summary of a benchmark; what aiperf sent is in its inputs.json, and each request in its "
        "profile_export.jsonl",
    ),
    (
        {"data": [], "has_more": False, "next_page": None},
        "the sums of several requests; a log with a record for each request can be read",
    ),
    *(
        (
            record,
            "the events of a KV cache, without the requests; TraceConnector records these",
        )
        for record in (
            {"ts": 1.0, "events": []},
            {"type": "BlockStored", "parent_block_hash": 1, "block_hashes": [2]},
            {"event": {"event_id": 1, "data": {"stored": {"blocks": []}}}, "worker_id": 5},
            {"event": {"worker_id": 5, "event": {"event_id": 1}}, "timestamp": 1769853600000},
        )
    ),
    (
        {"source": "agent", "action": "run", "args": {}},
        "an event of OpenHands, without the requests to its models; with log_completions it saves these",
    ),
    (
        {"session_id": "a", "prefix_tokens": 1, "newly_append_tokens": 2, "timing_events": []},
        "a trace of TraceLab, without block ids; kv-cache-tester's format (weka) has them",
    ),
    *(
        (
            message,
            "a single message; a record must be a whole conversation: jq -c '{messages: .}' makes one from a list "
            "of messages, jq -sc '{messages: .}' from lines",
        )
        for message in (
            {"role": "user", "content": "Hello!"},
            {"type": "human", "data": {"content": "Hello!", "type": "human"}},
        )
    ),
    (
        {"version": 2, "eval": {"created": "2026-01-31"}, "samples": [], "stats": {"model_usage": {}}},
        "Inspect's log of an evaluation; its samples are conversations: jq -c '.samples[] | {messages}' takes "
        "them out",
    ),
    ({"evalId": "a", "results": {}}, "a report of promptfoo's; jq -c '.results.results[]' takes out its requests"),
    (
        {"promptIdx": 0, "prompt": {"raw": "Hello!"}, "tokenUsage": {"prompt": 5, "completion": 2}},
        "a request of promptfoo's; --columns "
        "prompt=prompt.raw,input=tokenUsage.prompt,output=tokenUsage.completion reads it",
    ),
    (
        {"promptIdx": 0, "response": {"output": "Hello!", "tokenUsage": {"prompt": 5, "completion": 2}}},
        "a request of promptfoo's; --columns "
        "prompt=prompt.raw,input=response.tokenUsage.prompt,output=response.tokenUsage.completion reads it",
    ),
    (
        {"role": "user", "content": "Hello!", "completion_id": "a", "sequence": 0},
        "a message of New Relic's, of which a request has several; jq -sc 'group_by(.completion_id)[] | "
        "sort_by(.sequence) | {timestamp: .[0].timestamp, messages: map(select(.is_response | not))}' gathers "
        "those of lines",
    ),
    (
        {"CorrelationId": "a", "PromptTokens": 5, "SequenceNumber": 1, "RequestMessages": "lo!"},
        "API Management's log of language models, in which a long request is several rows: join RequestMessages "
        "of a CorrelationId by SequenceNumber; rows that are whole are read with --columns time=TimeGenerated,"
        "prompt=RequestMessages,input=PromptTokens,output=CompletionTokens,model=ModelName",
    ),
    (
        {"conversations": [{"conversation": {}, "responses": [{"response": {"message": "Hello!"}}]}], "tasks": []},
        "an export of Grok; jq -c '.conversations[] | {messages: [.responses[].response | {role: .sender, "
        "content: .message, timestamp: .create_time}]}' takes out its chats",
    ),
    (
        {"doc_id": 0, "arguments": {"gen_args_0": {"arg_0": ["Hello!"]}}},
        "a sample of lm-eval's; --columns prompt=arguments.gen_args_0.arg_0 reads what was asked first",
    ),
    (
        {"parts": [], "kind": "request", "run_id": "a"},
        "a message of Pydantic AI; its spans have whole requests, and can be read",
    ),
    (
        {"task": "Hello!", "task_images": None},
        "the memory of a smolagents agent; its spans have the requests, and can be read",
    ),
    (
        {"run_id": "a", "run_data": {"metrics": {"input_tokens": 5}}},
        "a run of an Agno agent: the sums of several requests; a log with a record for each request can be read",
    ),
    (
        {"id": "a", "custom_id": "r1", "response": {"status_code": 200}},
        "the answers of a batch; the requests are in the file from which the batch was made",
    ),
    (
        {"id": "a", "object": "chat.completion", "model": "m", "choices": []},
        "the answers of an API; the requests are needed, in the same file or instead of it",
    ),
]


@pytest.mark.parametrize(("record", "what"), REPORTS)
def test_a_report_without_its_requests_is_refused_as_what_it_is(read, tmp_path, record, what):
    with pytest.raises(ConfigError) as refused:
        read(record)
    assert str(refused.value) == f"{tmp_path / 'trace.jsonl'}:1: this is {what}"


def test_what_has_some_fields_of_a_report_is_none(read):
    for record, _ in REPORTS:
        name, value = [*record.items()][-1]
        with pytest.raises(ConfigError, match=f":1: no known format has the fields {name}; expected"):
            read({name: value})


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
        ({"text_input": "a", "session_id": "a", "delay": -1}, "delay: expected at least 0, got -1"),
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
        (
            {"turns": [{"text": "a", "delay": 0}, {"text": "a", "delay": -0.5}]},
            "turns[1].delay: expected at least 0, got -0.5",
        ),
        ({"turns": [{"text": "a", "delay": -1}]}, "turns[0].delay: expected at least 0, got -1"),
    ],
    "aiperf-inputs": [
        ({"data": 5}, "data: expected a list, got int"),
        ({"data": [{}]}, "data[0].payloads: expected a list, got NoneType"),
        ({"data": [{"payloads": [5]}]}, "data[0].payloads[0]: expected an object, got int"),
    ],
    "otel": [
        ({"resourceSpans": 5}, "resourceSpans: expected a list of objects, got int"),
        ({"resourceSpans": [{}, 5]}, "resourceSpans: expected a list of objects, got list"),
        (
            otlp({"attributes": [{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "5"}}]}),
            "startTimeUnixNano: expected a number, got no such field",
        ),
        (
            otlp(span(0, {"gen_ai.input.messages": "what?"})),
            "messages: expected a list of messages, got str",
        ),
        (
            otlp(span(0, {"gen_ai.input.messages": "[]", "gen_ai.system_instructions": '{"type": "text"}'})),
            "system: expected text or a list of parts, got dict",
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
        ({"run_type": "llm", "start_time": None, "inputs": "a"}, "start_time: expected a number, got None"),
        (
            {"run_type": "llm", "start_time": 1, "inputs": {"messages": [[user("a")], [user("b")]]}},
            "messages[0]: expected an object, got list",
        ),
    ],
    "sglang": [
        (
            {"sampling_params": {}, "text": 5},
            "text: expected text, a list of token ids, or a list of such prompts, got int",
        ),
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


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("aiperf-turns", {"turns": [{"role": "user"}, "text"]}),
        ("aiperf-turns", {"turns": 5}),
        ("aiperf-inputs", {"data": [{"session_id": "a"}, "payloads"]}),
        ("aiperf-inputs", {"data": 5}),
        ("guidellm", {"benchmarks": [{"successful": []}, 5]}),
        ("guidellm", {"benchmarks": 5}),
        ("langfuse", {"type": "GENERATION", "input": "a", "traceId": "t"}),
        ("langfuse", {"type": "GENERATION", "input": "a", "usageDetails": {}}),
        ("sglang", {"sampling_params": {}, "text": 5}),
        ("openai", {"url": "/v1/responses", "body": {"model": "m"}}),
        ("openai", {"url": 5, "input": "a"}),
    ],
)
def test_a_field_of_that_name_alone_tells_no_format(name, record):
    assert not FORMATS[name].is_of(record)


@pytest.mark.parametrize("body", ["", "{}", "{oops", "[1]", "[" + 50 * "1" + "]"])
def test_a_row_without_what_was_asked_is_refused(tmp_path, body):
    file = tmp_path / "trace.csv"
    file.write_text(f"request_created_at,request_body\n2026-01-31,{body}\n")
    with pytest.raises(ConfigError) as refused:
        open_trace(file)
    reason = (
        f"request_body: expected the JSON of what an API was asked, got {body!r:.40}; without it --columns says "
        "which are lengths and times"
    )
    assert str(refused.value) == f"{file}:2: {reason} (--on-error skip goes on)"
    file.write_text("time\n1\n")
    with pytest.raises(ConfigError, match=r"request_body: expected the JSON .*, got 'no such column'; "):
        open_trace(file, TraceOptions(format="openai-table"))


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


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (
            "Metric,avg,min,max,p99",
            "this is the summary of a benchmark; what aiperf sent is in its inputs.json, and each request in its "
            "profile_export.jsonl",
        ),
        (
            "usage_date_utc,model_version,usage_input_tokens_no_cache,usage_output_tokens",
            "this is the sums of several requests; a log with a record for each request can be read",
        ),
        (
            "Run Info,Run Info,Benchmark,Requests",
            "two columns are called 'Run Info' "
            "(is it the summary that GuideLLM writes? each request is in its JSON)",
        ),
    ],
)
def test_a_table_of_sums_is_refused_as_what_it_is(tmp_path, header, problem):
    file = tmp_path / "sums.csv"
    file.write_text(f"{header}\n{','.join('1' for _ in header.split(','))}\n")
    with pytest.raises(ConfigError) as refused:
        open_trace(file)
    assert str(refused.value) == f"{file}:1: {problem}"


def test_a_log_that_begins_with_an_embedding_says_how_such_are_left_out(read):
    embedded = {"url": "/v1/embeddings", "body": {"model": "e", "input": ["a", "b"]}}
    with pytest.raises(ConfigError, match="; --format openai --on-error skip leaves out requests for embeddings"):
        read(embedded, ASKED)
    requests, _ = read(embedded, ASKED, format="openai", on_error=OnError.SKIP)
    assert lengths(requests) == [(0, 32, 0)]


def test_a_report_in_yaml_is_refused_as_what_it_is(tmp_path):
    file = tmp_path / "benchmarks.yaml"
    file.write_text("benchmarks:\n- args: {}\n")
    with pytest.raises(ConfigError) as refused:
        open_trace(file)
    assert (
        str(refused.value)
        == f"{file}:1: this is GuideLLM's report in YAML; its report in JSON, benchmarks.json, can be read"
    )


def test_a_span_without_its_prompt_among_others_is_one_that_is_malformed(tmp_path):
    """It says nothing of what is shared, which the others do."""
    asked = {"gen_ai.input.messages": json.dumps(ASKED["messages"])}
    file = tmp_path / "trace.jsonl"
    spans = [span(0, {"gen_ai.usage.input_tokens": 9}), span(1, asked), span(2, asked)]
    file.write_text("".join(json.dumps(otlp(one)) + "\n" for one in spans))
    reason = "expected a prompt, as other requests of the trace have, got only how long it was"
    with pytest.raises(ConfigError) as refused:
        open_trace(file)
    assert str(refused.value) == f"{file}:1: {reason} (--on-error skip goes on)"
    trace = open_trace(file, TraceOptions(on_error=OnError.SKIP))
    assert lengths(trace) == [(0, 32, 0), (1, 32, 0)]
    assert trace.notes[-1] == f"1 malformed record was skipped, first: {file}:1: {reason}"
    assert len(open_trace(file, TraceOptions(sharing=parse_sharing("none")))) == 3
