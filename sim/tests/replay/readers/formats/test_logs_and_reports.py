"""What logs, load generators and their reports say of requests: what of it counts."""

import json
import re
from pathlib import Path

import pytest
from kv_sim_foreign_traces import ASKED, MORE, SAID, lengths, shared, user

from kv_api import ConfigError
from kv_sim.replay.readers.catalogue import FORMATS
from kv_sim.replay.readers.requests.naming import IdScope
from kv_sim.replay.readers.requests.sharing import parse_sharing

# -- aiperf's requests ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "tokens"),
    [
        ({"text_input": SAID}, 32),
        ({"payload": {"messages": [user(SAID)]}}, 32),
        ({"payload": {"prompt": [*range(40)]}}, 40),
        ({"messages": [user(SAID)], "output_length": 3}, 32),
        ({"messages": [user(SAID)], "message_mode": "full"}, 32),
        ({"messages": [user(SAID)], "delay": 70}, 32),
        ({"text_input": SAID, "texts": [SAID, SAID], "session_id": "a", "delay": 70}, 32),
    ],
)
def test_requests_of_aiperf_count_milliseconds(read, record, tokens):
    requests, notes = read({**record, "timestamp": 500}, {**record, "timestamp": 2500.5})
    assert [one[:2] for one in lengths(requests)] == [(0, tokens), (2.0005, tokens)]
    assert notes[0] == "format: aiperf"


def test_requests_of_aiperf_have_models(read):
    requests, notes = read(*({"payload": {**ASKED, "model": name}} for name in "ab"))
    assert shared(*requests) == 0
    assert notes[-1] == "requests of 2 models, none of which can use another's blocks: a, b"


def test_a_delay_counts_from_the_turn_before(read):
    turns = [{"timestamp": 500}, {"delay": 1500}, {"timestamp": None, "delay": 250.0}]
    requests, notes = read(*({"text_input": SAID, "session_id": "a", **one} for one in turns))
    assert [one.arrival_seconds for one in requests] == [0, 1.5, 1.75]
    assert "2 later turns have a delay: taken from the arrival of the turn before" in notes


def test_a_delay_of_nobody_is_no_time(read):
    requests, notes = read(*({"text_input": SAID, "delay": 70} for _ in range(2)))
    assert [one.arrival_seconds for one in requests] == [0, 1]
    assert "the trace has no times: one request a second is assumed" in notes


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


def test_what_is_counted_may_be_written_as_json(read):
    usage = {"completion_tokens": 7}
    for more in ({"usage": usage}, {"response": {"usage": usage}}, {"response": {"body": {"usage": usage}}}):
        [field] = more
        requests, _ = read({**ASKED, **more}, {**ASKED, field: json.dumps(more[field])})
        assert [one.output_tokens for one in requests] == [7, 7]
    requests, _ = read(
        {**ASKED, "response": {"body": json.dumps({"usage": usage})}}, {**ASKED, "response": "{zzz"}
    )
    assert [one.output_tokens for one in requests] == [7, 1]


def test_what_a_log_counted_is_not_estimated(read):
    requests, _ = read({**ASKED, "response": "z" * 400, "usage": {"completion_tokens": 7}})
    assert [one.output_tokens for one in requests] == [7]


# -- reports and exports -------------------------------------------------------------------------


def test_a_report_of_guidellm_without_what_was_sent_has_lengths(read):
    sent = {"request_start_time": 5.5, "prompt_tokens": 130, "output_tokens": 3, "request_args": None}
    report = {
        "benchmarks": [
            {"requests": {"successful": [sent]}},
            {"requests": {"errored": [{**sent, "start_time": 1}], "incomplete": None}},
        ]
    }
    requests, _ = read(report, sharing=parse_sharing("none"))
    assert lengths(requests) == [(0, 130, 3), (0, 130, 3)]


def test_what_guidellm_sent_together_stays_in_its_order(read):
    sent = [{"request_start_time": 5.5, "prompt_tokens": tokens} for tokens in range(12)]
    report = {"benchmarks": [{"requests": {"errored": sent[11:], "successful": sent[:11]}}]}
    requests, _ = read(report, sharing=parse_sharing("none"))
    assert [one.input_tokens for one in requests] == [*range(12)]


def test_guidellm_may_send_token_ids(read):
    sent = {"request_start_time": 5.5, "request_args": json.dumps({"body": {"prompt": [*range(40)]}})}
    requests, _ = read({"benchmarks": [{"requests": {"successful": [sent]}}]})
    assert lengths(requests) == [(0, 40, 0)]


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        ({"usageDetails": None}, 0),
        ({"usageDetails": None, "completion_tokens": 5}, 5),
        ({"usageDetails": {}, "usage": {"output": 5}}, 5),
    ],
)
def test_an_observation_of_langfuse_may_count_elsewhere_or_not_at_all(read, said, tokens):
    asked = {"type": "GENERATION", "traceId": "t", "startTime": 1, "input": {"prompt": [*range(40)]}}
    requests, notes = read({**asked, **said})
    assert (notes[0], lengths(requests)) == ("format: langfuse", [(0, 40, tokens)])


def test_when_an_observation_of_langfuse_began_stands_under_the_name_that_is_not_empty(read):
    asked = {"type": "GENERATION", "traceId": "t", "usageDetails": None, "input": {"prompt": [*range(40)]}}
    requests, _ = read({**asked, "startTime": 1}, {**asked, "startTime": None, "start_time": 3})
    assert lengths(requests) == [(0, 40, 0), (2, 40, 0)]


@pytest.mark.parametrize("name", ["sessionId", "session_id"])
def test_observations_of_langfuse_name_their_session(read, name):
    asked = {"type": "GENERATION", "traceId": "t", "startTime": 1, "input": ASKED, "usageDetails": {}}
    (first, second, third), _ = read(*({**asked, name: one} for one in "xyx"), scope=IdScope.SESSION)
    assert (shared(first, second), shared(first, third)) == (0, 2)


@pytest.mark.parametrize("name", ["session_id", "thread_id", "conversation_id"])
def test_runs_of_langsmith_name_their_session_in_their_metadata(read, name):
    run = {"run_type": "llm", "start_time": "2026-01-31T10:00:00", "inputs": ASKED}
    records = [{**run, "extra": {"metadata": {name: session}}} for session in (7, 8, 7)]
    (first, second, third), _ = read(*records, scope=IdScope.SESSION)
    assert (shared(first, second), shared(first, third)) == (0, 2)
    assert first.output_tokens == 0


def test_messages_of_langchain_lie_in_a_list_or_in_a_batch_of_one(read):
    ids = [["langchain", "HumanMessage"], ["langchain", "FunctionMessage"]]
    messages = [{"id": one, "kwargs": {"content": SAID}} for one in ids]
    messages.append({"id": "no list", "kwargs": {}, **user(SAID)})
    run = {"run_type": "llm", "start_time": "2026-01-31T10:00:00"}
    text = f"<|user|>{SAID}<|FunctionMessage|>{SAID}<|user|>{SAID}<|assistant|>"
    for found in (messages, [messages]):
        requests, _ = read({**run, "inputs": {"messages": found}})
        assert lengths(requests) == [(0, -(-len(text) // 4), 0)]
    requests, _ = read({**run, "inputs": {"messages": messages[:1]}})
    assert lengths(requests) == [(0, 32, 0)]


def test_a_run_of_langsmith_has_tools_among_what_its_model_was_called_with(read):
    tools = [{"type": "function", "function": {"name": "look", "description": "z" * 80}}]
    run = {"run_type": "llm", "start_time": "2026-01-31T10:00:02", "inputs": {**ASKED, "tools": tools}}
    (whole,), _ = read(run)
    (found,), _ = read({**run, "inputs": ASKED, "extra": {"invocation_params": {"tools": tools}}})
    assert found.blocks == whole.blocks and found.input_tokens > 32


def test_a_run_of_langsmith_may_be_completions_or_as_an_api_is_asked(read):
    run = {"run_type": "llm", "start_time": "2026-01-31T10:00:00", "completion_tokens": 5}
    texts = {**run, "inputs": {"prompts": ["x" * 64, "y" * 8]}}
    extra = {"metadata": {"thread_id": 7, "ls_model_name": 7}, "invocation_params": {"model": "an alias of it"}}
    asked = {**run, "inputs": {"input": SAID}, "extra": extra}
    requests, notes = read(texts, asked)
    assert lengths(requests) == [(0, 16, 3), (0, 2, 2), (0, 32, 5)]
    assert notes[-1] == "requests of 2 models, none of which can use another's blocks: none, 7"


USAGE = {"input_tokens": 40, "output_tokens": 9, "total_tokens": 49, "input_token_details": {"cache_read": 16}}


@pytest.mark.parametrize(
    "outputs",
    [
        {"role": "assistant", "content": "ok", "usage_metadata": USAGE},
        {"messages": [{"content": "ok"}, {"kwargs": {"content": "ok", "usage_metadata": USAGE}}]},
        {"generations": [[{"text": "ok", "message": {"kwargs": {"content": "ok", "usage_metadata": USAGE}}}]]},
        json.dumps({"output": {"content": "ok", "usage_metadata": USAGE}}),
    ],
)
def test_a_run_of_langsmith_may_have_its_counts_with_the_answer(read, outputs):
    run = {"run_type": "llm", "start_time": "2026-01-31T10:00:00", "inputs": ASKED, "outputs": outputs}
    requests, _ = read(run)
    assert lengths(requests) == [(0, 32, 9)]
    requests, _ = read({**run, "completion_tokens": 5, "usage": None})
    assert lengths(requests) == [(0, 32, 5)], "what the run itself says is nearer"


# -- lengths -------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"start_times": [7, 5.5]}])
def test_a_saved_benchmark_has_times_or_none(read, more):
    run = {"input_lens": [64, 100], "output_lens": [1, 2.0], "ttfts": [], **more}
    requests, _ = read(run, sharing=parse_sharing("none"))
    assert lengths(requests) == ([(0, 100, 2), (1.5, 64, 1)] if more else [(0, 64, 1), (1, 100, 2)])


def test_runs_of_benchmarks_have_models(read):
    runs = ({"input_lens": [64], "output_lens": [1], "model_id": name} for name in "ab")
    _, notes = read(*runs, sharing=parse_sharing("none"))
    assert notes[-1] == "requests of 2 models, none of which can use another's blocks: a, b"


def test_what_sglang_is_asked_may_be_text(read):
    asked = {"text": "x" * 128, "sampling_params": {}, "model": "m"}
    requests, notes = read(asked, {**asked, "model": "n"})
    assert (notes[0], lengths(requests)) == ("format: sglang", [(0, 32, 0), (1, 32, 0)])
    assert shared(*requests) == 0


def test_what_genai_perf_sends_is_read_as_what_aiperf_sends(read):
    requests, notes = read({"data": [{"payload": [ASKED]}, {"payload": [MORE]}]})
    assert (notes[0], lengths(requests)) == ("format: aiperf-inputs", [(0, 32, 0), (0, 45, 0)])


@pytest.mark.parametrize("field", ["messages", "input"])
@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "s" * 100}]])
def test_turns_in_aiperf_s_inputs_may_be_what_they_add(read, field, system):
    """So aiperf writes those that it makes itself, each behind the system prompt of all."""
    turns = [user(letter * 43) for letter in "abc"]
    answer = {"role": "assistant", "content": ""}
    added = [{field: [*system, turn]} for turn in turns]
    whole = [{field: [*system, *said]} for said in ([turns[0]], [turns[0], answer, turns[1]])]
    whole.append({field: [*whole[1][field], answer, turns[2]]})
    requests, notes = read({"data": [{"payloads": payloads} for payloads in (added, added[:1])]})
    assert requests == read({"data": [{"payloads": payloads} for payloads in (whole, whole[:1])]})[0]
    assert shared(requests[-2], requests[-1]) > shared(requests[0], requests[-2])
    assert not any("don't begin with the prompt before" in note for note in notes)

    requests, _ = read({"data": [{"payloads": payloads} for payloads in (added, whole)]})
    alone, _ = read({"data": [{"payloads": added}]})
    assert sum(one.input_tokens for one in requests) < 2 * sum(one.input_tokens for one in alone), "some are whole"


def test_what_tensorrt_llm_is_benchmarked_with_is_text_or_tokens(read):
    """Whichever comes first."""
    as_tokens = {"task_id": 0, "input_ids": [*range(40)], "output_tokens": 9}
    as_text = {"task_id": 1, "prompt": "x" * 128, "output_tokens": 7}
    for records in ((as_tokens, as_text), (as_text, as_tokens)):
        requests, notes = read(*records)
        assert sorted(one[1:] for one in lengths(requests)) == [(32, 7), (40, 9)]
        assert notes[0] == "format: vllm"


def test_lengths_of_servegen_are_lengths(read):
    record = {"request_id": 0, "type": "text", "input_length": 61, "output_length": 9, "duration": 14000}
    requests, notes = read(record, {**record, "request_id": 1}, sharing=parse_sharing("none"))
    assert lengths(requests) == [(0, 61, 9), (1, 61, 9)]
    assert "the trace has no times: one request a second is assumed" in notes


def test_the_guide_has_each_format():
    text = (Path(__file__).parents[5] / "docs" / "traces.md").read_text(encoding="utf-8")
    table = text.partition("| `--format` | record |")[2].partition("\n\n")[0]
    names = [name for row in table.splitlines() for name in re.findall(r"`([^`]*)`", row.partition(" | ")[0])]
    assert sorted(names) == sorted(FORMATS)
