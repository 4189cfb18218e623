"""What logs say that a server had of a prompt: under whatever name, of the same share of what is read."""

import base64
import json
from dataclasses import replace

import pytest

from kv_api import ConfigError
from kv_sim.replay.observed import NOTHING_SAID, Observation
from kv_sim.replay.readers.account import Account
from kv_sim.replay.readers.chats.cached import cached_among, cached_of
from kv_sim.replay.readers.format import Turns
from kv_sim.replay.readers.formats.cline import CLINE
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions
from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.requests.observing import observation_of
from kv_sim.replay.readers.requests.sharing import parse_sharing
from kv_sim.replay.readers.unknown.own_columns import parse_columns

ASKED = {"model": "m", "messages": [{"role": "user", "content": "abcd" * 100}], "timestamp": 5}
PROMPT = 40
"""What the servers below count of it, of which each had half."""
HAD = 20
USAGES = {
    "OpenAI": {"prompt_tokens": PROMPT, "prompt_tokens_details": {"cached_tokens": HAD}},
    "Responses": {"input_tokens": PROMPT, "input_tokens_details": {"cached_tokens": HAD}},
    "Anthropic": {"input_tokens": 15, "cache_read_input_tokens": HAD, "cache_creation_input_tokens": 5},
    "DeepSeek": {"prompt_tokens": PROMPT, "prompt_cache_hit_tokens": HAD, "prompt_cache_miss_tokens": 20},
    "Moonshot": {"prompt_tokens": PROMPT, "cached_tokens": HAD},
    "LangChain": {"input_tokens": PROMPT, "input_token_details": {"cache_read": HAD}},
    "Bedrock": {"inputTokens": 15, "cacheReadInputTokens": HAD, "cacheWriteInputTokens": 5, "outputTokens": 3},
    "of two names": {"prompt_tokens": 0, "input_tokens": PROMPT, "input_tokens_details": {"cached_tokens": HAD}},
    "MongoDB": {
        "prompt_tokens": {"$numberInt": "40"},
        "prompt_tokens_details": {"cached_tokens": {"$numberLong": "20"}},
    },
    "Vercel": {"inputTokens": PROMPT, "cachedInputTokens": HAD, "outputTokens": 3},
    "Vercel, newer": {"inputTokens": PROMPT, "inputTokenDetails": {"cacheReadTokens": HAD}},
}


@pytest.fixture
def observed(tmp_path):
    """What is observed of each request of some records, and how long it is."""

    def read(*records, name="log.jsonl", **options):
        file = tmp_path / name
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        columns = open_trace(file, TraceOptions(**options))
        columns.check()
        return columns.notes[0], [*columns.inputs.tolist()], [*(columns.observed or ())]

    return read


def check_half(found, form):
    """Half of each prompt was there."""
    note, inputs, seen = found
    assert note == f"format: {form}"
    assert seen == [Observation(tokens // 2) for tokens in inputs] and inputs


@pytest.mark.parametrize("usage", USAGES.values(), ids=USAGES)
@pytest.mark.parametrize("place", ["", "response", "body", "stream"])
def test_an_api_says_it_in_its_usage(observed, usage, place):
    answered = {
        "": {"usage": usage},
        "response": {"response": {"usage": usage}},
        "body": {"response": {"status_code": 200, "body": {"usage": usage}}},
        "stream": {"response_body": f'data: {{"x": 1}}\n\ndata: {json.dumps({"usage": usage})}\n\ndata: [DONE]\n'},
    }[place]
    check_half(observed({**ASKED, **answered}), "openai")


def test_of_a_stream_what_is_known_stays_known(observed):
    """Anthropic's first event says what was read, and later ones need not say it again."""
    begin = {"type": "message_start", "message": {"usage": {**USAGES["Anthropic"], "output_tokens": 1}}}
    end = {"type": "message_delta", "usage": {"output_tokens": 3, "cache_read_input_tokens": None}}
    stream = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in (begin, end))
    check_half(observed({**ASKED, "response_body": stream}), "openai")
    check_half(observed({**ASKED, "response": stream}), "openai")
    end["usage"]["cache_read_input_tokens"] = 0
    stream += f"data: {json.dumps(end)}\n\n"
    assert observed({**ASKED, "response": stream})[2] == [Observation(0)], "what is said last counts"


def test_a_prompt_that_a_cache_had_whole_is_as_long_as_that(observed):
    usage = {"input_tokens": 0, "cache_read_input_tokens": PROMPT}
    _, inputs, seen = observed({**ASKED, "usage": usage})
    assert seen == [Observation(*inputs)]


def test_a_count_is_a_part_of_the_length_that_is_said_beside_it(observed):
    """Helicone's own columns leave out what Anthropic's cache had; what was answered is there, too."""
    answered = {"response_body": json.dumps({"usage": USAGES["Anthropic"]}), "prompt_tokens": 15}
    found = observed({**ASKED, **answered})
    check_half(found, "openai")
    early = {"info": {"cached_tokens": 1}, "usage": USAGES["OpenAI"]}
    check_half(observed({**ASKED, **early}), "openai")
    apart = {"info": {"cached_tokens": HAD}, "usage": {"prompt_tokens": PROMPT}}
    check_half(observed({**ASKED, **apart}), "openai")


def test_braintrust_counts_it_among_its_metrics(observed):
    metrics = {"prompt_tokens": PROMPT, "prompt_cached_tokens": HAD, "completion_tokens": 3}
    span = {"span_attributes": {"type": "llm"}, "input": ASKED["messages"], "metrics": metrics, "created": 5}
    check_half(observed(span), "openai")


def test_guidellm_counts_it_beside_each_request(observed):
    sent = {"request_start_time": 5.5, "prompt_tokens": PROMPT, "output_tokens": 3, "cached_tokens": HAD}
    said = {**sent, "request_args": json.dumps({"body": {key: ASKED[key] for key in ("model", "messages")}})}
    check_half(observed({"benchmarks": [{"requests": {"successful": [said]}}]}), "guidellm")
    lengths = {
        "benchmarks": [{"requests": {"successful": [sent], "incomplete": [{**sent, "cached_tokens": None}]}}]
    }
    _, inputs, seen = observed(lengths, sharing=parse_sharing("none"))
    assert (inputs, seen) == ([PROMPT, PROMPT], [Observation(HAD), NOTHING_SAID])


def test_a_proxy_keeps_what_went_over_it(observed):
    body = {"text": json.dumps({"usage": USAGES["OpenAI"]})}
    sent = {"url": "https://one/v1/chat/completions", "postData": {"text": json.dumps(ASKED)}}
    entry = {"startedDateTime": "2026-01-31T10:00:02Z", "request": sent, "response": {"content": body}}
    check_half(observed({"log": {"entries": [entry]}}, name="log.har"), "har")


@pytest.mark.parametrize("usage", USAGES.values(), ids=USAGES)
def test_sagemaker_captures_what_was_answered(observed, usage):
    asked = {"data": json.dumps(ASKED), "encoding": "JSON"}
    answer = base64.b64encode(json.dumps({"usage": usage}).encode()).decode()
    captured = {"endpointInput": asked, "endpointOutput": {"data": answer, "encoding": "BASE64"}}
    line = {"captureData": captured, "eventMetadata": {"inferenceTime": "2026-01-31T10:00:02Z"}}
    check_half(observed(line), "sagemaker")


def test_gemini_and_llama_cpp_have_names_of_their_own(observed):
    gemini = {"contents": [{"role": "user", "parts": [{"text": "abcd" * 100}]}], "timestamp": 5}
    gemini |= {"usageMetadata": {"promptTokenCount": PROMPT, "cachedContentTokenCount": HAD}}
    check_half(observed(gemini), "openai")
    llama = {"prompt": "abcd" * 100, "timestamp": 5, "tokens_evaluated": PROMPT}
    llama |= {"timings": {"cache_n": HAD, "prompt_n": HAD}, "tokens_cached": 45}
    check_half(observed(llama), "vllm")


def test_vllms_own_count_of_token_ids_is_exact(observed):
    records = [{"prompt_token_ids": [*range(32)], "num_cached_tokens": count} for count in (16, 0, -1, None)]
    _, _, seen = observed(*records)
    assert seen == [Observation(16), Observation(0), NOTHING_SAID, NOTHING_SAID]


def test_what_sglang_logs_and_measures(observed):
    meta = {"prompt_tokens": PROMPT, "completion_tokens": 3, "cached_tokens": HAD, "e2e_latency": 1.0}
    line = {
        "timestamp": "2026-01-31T10:00:02",
        "event": "request.finished",
        "rid": "r",
        "out": {"meta_info": meta},
    }
    check_half(observed({**line, "obj": {"text": "abcd" * 100}}), "sglang-log")
    check_half(observed({**line, "obj": {}}, sharing=parse_sharing("none")), "sglang-log")
    measured = {"request_parameters": json.dumps({"text": "abcd" * 100}), "prompt_tokens": PROMPT}
    check_half(observed({**measured, "completion_tokens": 3, "cached_tokens": HAD}), "sglang-metrics")


def test_what_observers_of_requests_keep(observed):
    langfuse = {
        "traceId": "t",
        "type": "GENERATION",
        "startTime": "2026-01-31T10:00:02Z",
        "input": ASKED["messages"],
    }
    langfuse |= {"usageDetails": {"input": HAD, "input_cached_tokens": HAD, "output": 3, "total": 43}}
    check_half(observed(langfuse), "langfuse")
    within = {"input": PROMPT, "cache_read_input_tokens": HAD, "cache_creation_input_tokens": 0, "output": 3}
    check_half(observed({**langfuse, "usageDetails": {**within, "total": PROMPT + 3}}), "langfuse")
    langsmith = {"run_type": "llm", "start_time": "2026-01-31T10:00:02", "inputs": {"messages": ASKED["messages"]}}
    langsmith |= {"prompt_tokens": PROMPT, "completion_tokens": 3, "prompt_token_details": {"cache_read": HAD}}
    check_half(observed(langsmith), "langsmith")


@pytest.mark.parametrize(
    "name",
    [
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.details.cache_read_tokens",
        "gen_ai.usage.details.cache_read_input_tokens",
        "gen_ai.usage.details.cached_tokens",
        "llm.usage.cache_read_input_tokens",
        "llm.token_count.prompt_details.cache_read",
        "ai.usage.cachedInputTokens",
        "ai.usage.inputTokenDetails.cacheReadTokens",
    ],
)
def test_what_spans_say(observed, name):
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(ASKED["messages"])}
    attributes |= {"gen_ai.usage.input_tokens": PROMPT, name: HAD}
    span = {"startTimeUnixNano": "1790000000000000000", "spanId": "0000000000000001", "attributes": attributes}
    check_half(observed({"spans": [span]}), "otel")


def test_a_span_says_it_of_an_event_that_says_what_was_asked(observed):
    when, ids = {"startTimeUnixNano": "1790000000000000000"}, {"spanId": "0000000000000001", "traceId": "01"}
    counts = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": PROMPT}
    span = {**when, **ids, "attributes": {**counts, "gen_ai.usage.cache_read.input_tokens": HAD}}
    asked = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(ASKED["messages"])}
    event = {"timeUnixNano": "1790000000000000001", **ids, "attributes": asked}
    check_half(observed(span, event), "otel")


def test_langfuse_s_own_client_sends_what_an_api_counted(observed):
    said = {
        "type": "generation",
        "input": json.dumps(ASKED["messages"]),
        "usage_details": json.dumps(USAGES["OpenAI"]),
    }
    attributes = {f"langfuse.observation.{name}": value for name, value in said.items()}
    check_half(observed({"start_time_unix_nano": 1, "span_id": "1", "attributes": attributes}), "otel")


@pytest.mark.parametrize(("whose", "length"), [("anthropic", 15), ("openai", PROMPT)])
def test_mlflow_keeps_anthropics_counts_as_they_came(observed, whose, length):
    counts = {"input_tokens": length, "cache_read_input_tokens": HAD, "cache_creation_input_tokens": 5}
    attributes = {
        "mlflow.spanType": '"CHAT_MODEL"',
        "mlflow.message.format": json.dumps(whose),
        "mlflow.spanInputs": json.dumps({"messages": ASKED["messages"]}),
        "mlflow.chat.tokenUsage": json.dumps({**counts, "output_tokens": 3}),
    }
    span = {"start_time_unix_nano": 1_790_000_000_000_000_000, "span_id": "1", "attributes": attributes}
    check_half(observed(span), "otel")
    del attributes["mlflow.chat.tokenUsage"]
    assert observed(span)[2] == []


def test_a_gateway_keeps_what_a_provider_says(observed):
    line = {"call_type": "acompletion", "startTime": "2026-01-31T10:00:02Z", "prompt_tokens": PROMPT}
    usage = {"usage_object": USAGES["OpenAI"]}
    line |= {"completion_tokens": 3, "metadata": json.dumps(usage)}
    check_half(observed(line, sharing=parse_sharing("none")), "litellm")


def test_bedrock_counts_it_beside_the_prompt(observed):
    line = {"schemaType": "ModelInvocationLog", "timestamp": "2026-01-31T10:00:02Z", "modelId": "m"}
    line |= {"input": {"inputBodyJson": {"messages": ASKED["messages"]}, "inputTokenCount": 15}}
    line["input"] |= {"cacheReadInputTokenCount": HAD, "cacheWriteInputTokenCount": 5}
    check_half(observed(line), "bedrock")


def test_of_a_turn_that_adds_a_cache_had_a_part_of_the_whole_prompt(observed):
    turn = {"session_id": "s", "input_length": 8, "output_length": 4}
    records = [
        {**turn, "timestamp": 0, "hash_ids": [1, 2], "cached_tokens": 0},
        {**turn, "timestamp": 1000, "hash_ids": [3, 4], "cached_tokens": 12},
    ]
    _, inputs, seen = observed(*records, block_tokens=4, turns=Turns.ADDED)
    assert (inputs, seen) == ([8, 20], [Observation(0), Observation(12)])
    alone = observed(*records, block_tokens=4, turns=Turns.WHOLE)
    assert alone[2] == [Observation(0), NOTHING_SAID], "more than 8 can't be"


def test_dynamo_says_it_beside_its_ids(observed):
    replay = {"trace_block_size": 16, "input_length": PROMPT, "input_sequence_hashes": [1, 2]}
    request = {"request_received_ms": 5, "output_tokens": 3, "replay": replay, "cached_tokens": HAD}
    check_half(
        observed({"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request}), "dynamo"
    )


# -- what programs keep ----------------------------------------------------------------------------


def test_coding_agents_keep_it(observed):
    said = {"role": "user", "content": "abcd" * 100}
    above = {
        "type": "user",
        "sessionId": "s",
        "uuid": "1",
        "parentUuid": None,
        "timestamp": "2026-01-31T10:00:02Z",
    }
    answer = {**above, "type": "assistant", "uuid": "2", "parentUuid": "1"}
    reply = {"role": "assistant", "id": "m", "content": [{"type": "text", "text": "yes"}]}
    claude = {**answer, "message": {**reply, "usage": {**USAGES["Anthropic"], "output_tokens": 3}}}
    check_half(observed({**above, "message": said}, claude), "claude-code")
    usage = {"promptTokenCount": PROMPT, "candidatesTokenCount": 3, "cachedContentTokenCount": HAD}
    qwen = {**answer, "message": {"role": "model", "parts": [{"text": "yes"}]}, "usageMetadata": usage}
    asked = {**above, "message": {"role": "user", "parts": [{"text": "abcd" * 100}]}}
    check_half(observed(asked, qwen), "claude-code")


def test_codex_keeps_it_of_the_last_request(observed):
    def line(kind, **payload):
        return {"timestamp": "2026-01-31T10:00:02Z", "type": kind, "payload": payload}

    def message(role, text):
        return line("response_item", type="message", role=role, content=[{"type": "input_text", "text": text}])

    usage = {"input_tokens": PROMPT, "cached_input_tokens": HAD, "output_tokens": 3}
    told = line("event_msg", type="token_count", info={"last_token_usage": usage, "total_token_usage": usage})
    meta = line("session_meta", id="s", timestamp="2026-01-31T10:00:02Z")
    check_half(observed(meta, message("user", "abcd" * 100), message("assistant", "yes"), told), "codex")


def test_chats_that_programs_keep_say_it(observed):
    gemini = {
        "sessionId": "s",
        "projectHash": "p",
        "messages": [
            {"id": "1", "timestamp": "2026-01-31T10:00:02Z", "type": "user", "content": "abcd" * 100},
            {
                **{"id": "2", "timestamp": "2026-01-31T10:00:03Z", "type": "gemini", "content": "yes"},
                "tokens": {"input": PROMPT, "output": 3, "cached": HAD, "thoughts": 0, "tool": 0},
            },
        ],
    }
    check_half(observed(gemini, name="session.json"), "gemini-cli")
    info = {"id": "2", "role": "assistant", "time": {"created": 1_790_000_001_000}}
    tokens = {"input": 15, "output": 3, "reasoning": 0, "cache": {"read": HAD, "write": 5}}
    opencode = {
        "info": {"id": "s"},
        "messages": [
            {
                "info": {"id": "1", "role": "user", "time": {"created": 1_790_000_000_000}},
                "parts": [{"type": "text", "text": "abcd" * 100}],
            },
            {"info": {**info, "tokens": tokens}, "parts": [{"type": "text", "text": "yes"}]},
        ],
    }
    check_half(observed(opencode, name="session.json"), "opencode")
    when = {"timestamp": "2026-01-31T10:00:02Z", "type": "message"}
    usage = {"input": 15, "output": 3, "cacheRead": HAD, "cacheWrite": 5}
    pi = (
        {"type": "session", "id": "s", "timestamp": "2026-01-31T10:00:01Z", "cwd": "/"},
        {**when, "id": "1", "parentId": None, "message": {"role": "user", "content": "abcd" * 100}},
        {**when, "id": "2", "parentId": "1", "message": {"role": "assistant", "content": "yes", "usage": usage}},
    )
    check_half(observed(*pi), "pi")


def test_what_cline_calls_cached_is_no_hit(observed):
    """It is what a cache had and what it took, together; a prompt's length is without both."""
    counts = {"tokens": {"prompt": 15, "completion": 3, "cached": HAD + 5}}
    cline = [
        {"role": "user", "content": [{"type": "text", "text": "abcd" * 100}], "ts": 1_790_000_000_000},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "yes"}],
            "ts": 1_790_000_001_000,
            "metrics": counts,
        },
    ]
    assert observed(cline, name="api_conversation_history.json", format="cline")[2] == []
    [(_, found)] = CLINE.gather(cline)
    [request] = CLINE.parse(found)
    assert (request.told_tokens, request.cached_tokens) == (PROMPT, None)


OPEN_WEBUI = {
    "OpenAI": USAGES["OpenAI"],
    "Anthropic": USAGES["Anthropic"],
    "llama.cpp": {"prompt_n": HAD, "cache_n": HAD, "predicted_n": 3},
    "llama.cpp, made usual": {"prompt_n": HAD, "cache_n": HAD, "input_tokens": HAD, "output_tokens": 3},
    "llama.cpp, with usage": {"prompt_tokens": PROMPT, "prompt_n": 10, "cache_n": HAD},
}


@pytest.mark.parametrize("usage", OPEN_WEBUI.values(), ids=OPEN_WEBUI)
def test_open_webui_keeps_what_a_server_says(observed, usage):
    messages = {
        "1": {"id": "1", "parentId": None, "role": "user", "content": "abcd" * 100, "timestamp": 1_790_000_000},
        "2": {"id": "2", "parentId": "1", "role": "assistant", "content": "yes", "timestamp": 1_790_000_001},
    }
    messages["2"]["usage"] = usage
    check_half(observed({"id": "c", "chat": {"history": {"messages": messages}}}), "open-webui")


# -- the count itself ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ({}, None),
        ({"cached_tokens": 0}, 0),
        ({"cached_tokens": None, "cache_read_input_tokens": 3}, 3),
        ({"prompt_tokens_details": None}, None),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"cached_tokens": "12"}, 12),
        ({"cached_tokens": 12.0}, 12),
        ({"cached_tokens": True}, None),
        ({"cached_tokens": "many"}, None),
        ({"cached_tokens": "9" * 5000}, None),
        ({"cached_tokens": -1}, None),
        ([1], None),
    ],
)
def test_a_count_that_is_not_there_is_not_0(counts, found):
    assert cached_of(counts) == found


def test_who_has_a_name_of_its_own_is_read_by_that():
    counts = {"cached_tokens": 9, "read": None, "prompt_tokens_details": {"read": 8, "cached_tokens": 3}}
    assert cached_of(counts, "read") == 3
    assert cached_of({**counts, "read": 0}, "read") == 0
    assert cached_of(counts) == 9


def test_of_llama_cpps_timings_one_is_of_hits():
    assert cached_of({"timings": {"prompt_n": 9, "cache_n": 4}, "tokens_cached": 13}) == 4


def test_of_a_share_it_is_not_said_what_was_loaded():
    record = Record(0, 30, 1, [1, 2], told_tokens=20, cached_tokens=10, loaded_tokens=5)
    assert observation_of(record, Account()) == Observation(15)
    assert observation_of(replace(record, told_tokens=30), Account()) == Observation(10, 5)


def test_the_first_place_that_says_it_counts():
    assert cached_among([{}, None, {"cached_tokens": 0}, {"cached_tokens": 7}]) == 0


def test_of_text_without_the_servers_length_no_share_is_known(observed):
    assert observed({**ASKED, "cached_tokens": 3})[2] == []


def test_several_prompts_of_one_record_have_no_count_of_their_own(observed):
    record = {"prompt": [[*range(20)], [*range(20)]], "usage": USAGES["OpenAI"], "timestamp": 5}
    assert observed(record)[2] == []


def test_a_column_need_not_say_it_of_every_request(observed):
    """A server says it where it is told to; 0 is said, and nothing isn't."""
    columns = {"input": "n", "ids": "b", "cached": "usage.details.had"}
    counts = [{"details": {"had": 8}}, {"details": {"had": 0}}, {"details": {"had": -1}}, {"details": None}, {}]
    records = [{"n": 9, "b": [1, 2], "usage": usage} for usage in counts]
    assert observed(*records, columns=columns, block_tokens=4)[2] == [
        *(Observation(8), Observation(0)),
        *[NOTHING_SAID] * 3,
    ]


def test_a_column_of_a_table_may_be_empty(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text("n,b,had\n9,1 2,8\n9,1 2,\n9,1 2,-1.0\n")
    options = TraceOptions(columns={"input": "n", "ids": "b", "cached": "had"}, block_tokens=4)
    assert [*open_trace(file, options).observed] == [Observation(8), NOTHING_SAID, NOTHING_SAID]


def test_a_column_that_no_request_has_is_named(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps({"n": 9, "b": [1, 2], "hda": 8}))
    options = TraceOptions(columns={"input": "n", "ids": "b", "cached": "had"}, block_tokens=4)
    assert "no request says in had what its server had (--columns cached)" in open_trace(file, options).notes
    file.write_text("".join(json.dumps({"n": 9, "b": [1, 2], **more}) + "\n" for more in ({"had": 0}, {})))
    assert not any("no request says" in note for note in open_trace(file, options).notes)


def test_a_column_that_is_no_count_is_malformed(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps({"n": 9, "b": [1, 2], "had": "many"}))
    with pytest.raises(ConfigError, match="had: expected a whole number"):
        open_trace(file, TraceOptions(columns={"input": "n", "ids": "b", "cached": "had"}, block_tokens=4))


def test_a_column_beside_text_needs_the_servers_length(tmp_path):
    with pytest.raises(ConfigError, match="input=COLUMN is missing, all of it"):
        parse_columns("prompt=p,cached=had")
    assert parse_columns("prompt=p,input=n,cached=had")["cached"] == "had"
    with pytest.raises(ConfigError, match="so cached can't be given, too"):
        parse_columns("conversation=c,cached=had")
