"""What logs say that a server had of a prompt: under whatever name, of the same share of what is read."""

import json

import pytest

from kv_api import ConfigError
from kv_sim.replay.observed import NOTHING_SAID, Observation
from kv_sim.replay.readers.cached import cached_among, cached_of
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions
from kv_sim.replay.readers.own_columns import parse_columns
from kv_sim.replay.readers.sharing import parse_sharing

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
    langsmith = {"run_type": "llm", "start_time": "2026-01-31T10:00:02", "inputs": {"messages": ASKED["messages"]}}
    langsmith |= {"prompt_tokens": PROMPT, "completion_tokens": 3, "prompt_token_details": {"cache_read": HAD}}
    check_half(observed(langsmith), "langsmith")


@pytest.mark.parametrize(
    "name",
    [
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.details.cache_read_tokens",
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
    counts = {"tokens": {"prompt": PROMPT, "completion": 3, "cached": HAD}}
    cline = [
        {"role": "user", "content": [{"type": "text", "text": "abcd" * 100}], "ts": 1_790_000_000_000},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "yes"}],
            "ts": 1_790_000_001_000,
            "metrics": counts,
        },
    ]
    check_half(observed(cline, name="api_conversation_history.json", format="cline"), "cline")
    messages = {
        "1": {"id": "1", "parentId": None, "role": "user", "content": "abcd" * 100, "timestamp": 1_790_000_000},
        "2": {"id": "2", "parentId": "1", "role": "assistant", "content": "yes", "timestamp": 1_790_000_001},
    }
    messages["2"]["usage"] = USAGES["OpenAI"] | {"completion_tokens": 3}
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
        ({"cached_tokens": -1}, None),
        ([1], None),
    ],
)
def test_a_count_that_is_not_there_is_not_0(counts, found):
    assert cached_of(counts) == found


def test_the_first_place_that_says_it_counts():
    assert cached_among([{}, None, {"cached_tokens": 0}, {"cached_tokens": 7}]) == 0


def test_of_text_without_the_servers_length_no_share_is_known(observed):
    assert observed({**ASKED, "cached_tokens": 3})[2] == []


def test_several_prompts_of_one_record_have_no_count_of_their_own(observed):
    record = {"prompt": [[*range(20)], [*range(20)]], "usage": USAGES["OpenAI"], "timestamp": 5}
    assert observed(record)[2] == []


def test_a_column_beside_text_needs_the_servers_length(tmp_path):
    with pytest.raises(ConfigError, match="input=COLUMN is missing, all of it"):
        parse_columns("prompt=p,cached=had")
    assert parse_columns("prompt=p,input=n,cached=had")["cached"] == "had"
