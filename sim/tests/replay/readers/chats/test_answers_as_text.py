"""How long an answer was that a log has as text, or as an API gave it, without usage; roles by other names."""

import json

import pytest
from kv_sim_foreign_traces import lengths

from kv_api import ConfigError

SAID = [{"role": "user", "content": "x" * 100}]
TEXT = "y" * 40
CALL = {"function": {"name": "look", "arguments": "{}"}}
CALLED = len(json.dumps([CALL]))
USE = {"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}}
USED = len(json.dumps({"name": "look", "input": {"a": 1}}))


def stream(*events):
    return "".join(f"data: {json.dumps(one)}\n\n" for one in events) + "data: [DONE]\n\n"


def chat(**message):
    return {"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}]}


@pytest.mark.parametrize("asked", [{"prompt": "x" * 120}, {"messages": SAID}])
@pytest.mark.parametrize(
    "field",
    [
        *("response", "response_body", "full_response", "completion", "output", "generated_text", "answer"),
        *("response_text", "output_text"),
    ],
)
def test_an_answer_is_a_text_beside_what_was_asked(read, asked, field):
    [(_, _, tokens)] = lengths(read({"timestamp": 0, **asked, field: TEXT})[0])
    assert tokens == 10


@pytest.mark.parametrize(
    ("answer", "characters"),
    [
        (chat(content=TEXT), 40),
        (chat(content=None, reasoning_content="r" * 20, tool_calls=[CALL]), 20 + CALLED),
        ({"choices": [{"text": TEXT}]}, 40),
        ({"status": 200, "body": chat(content=TEXT)}, 40),
        (
            {"content": [{"type": "thinking", "thinking": "r" * 20}, {"type": "text", "text": TEXT}, USE]},
            60 + USED,
        ),
        ({"candidates": [{"content": {"role": "model", "parts": [{"text": TEXT}]}}]}, 40),
        ({"output": [{"type": "message", "content": [{"type": "output_text", "text": TEXT}]}]}, 40),
        ({"message": {"role": "assistant", "content": TEXT}, "done": True}, 40),
        ([{"generated_text": TEXT}], 40),
        ({"error": "no"}, 0),
        (chat(content=""), 0),
    ],
)
@pytest.mark.parametrize("field", ["response", "response_body"])
def test_an_answer_is_what_an_api_gave(read, field, answer, characters):
    record = {"timestamp": 0, "request_body": {"model": "m", "messages": SAID}}
    for value in (answer, json.dumps(answer)):
        [(_, _, tokens)] = lengths(read({**record, field: value})[0])
        if field == "response" and not characters and isinstance(value, str):
            continue  # a text that nobody knows better
        assert tokens == -(-characters // 4)


def test_an_answer_may_lie_beside_the_messages_it_was_given_to(read):
    [(_, _, tokens)] = lengths(read({"timestamp": 0, "messages": SAID, **chat(content=TEXT)})[0])
    assert tokens == 10


def test_a_text_that_is_json_was_asked_for_so(read):
    text = json.dumps({"name": "n" * 20})
    [(_, _, tokens)] = lengths(read({"timestamp": 0, "messages": SAID, "response": text})[0])
    assert tokens == -(-len(text) // 4)


@pytest.mark.parametrize(
    "events",
    [
        [
            {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"delta": {"reasoning_content": "y" * 20}}]},
            {"choices": [{"delta": {"content": "y" * 20}}]},
        ],
        [
            {"type": "message_start", "message": {"id": "a", "content": []}},
            {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "y" * 20}},
            {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "y" * 20}},
        ],
        [
            {"type": "response.created", "response": {"output": []}},
            {"type": "response.output_text.delta", "delta": "y" * 40},
            {"type": "response.output_text.done", "text": "y" * 40},
            {"type": "response.completed", "response": {"output": [{"content": [{"text": "y" * 40}]}]}},
        ],
        [{"candidates": [{"content": {"parts": [{"text": "y" * 20}]}}]}] * 2,
    ],
)
def test_a_stream_says_an_answer_piece_by_piece(read, events):
    record = {"timestamp": 0, "request_body": {"model": "m", "messages": SAID}, "response_body": stream(*events)}
    [(_, _, tokens)] = lengths(read(record)[0])
    assert tokens == 10


def test_what_is_counted_goes_before_what_is_said(read):
    usage = {"usage": {"prompt_tokens": 30, "completion_tokens": 3}}
    for record in ({"prompt": "x" * 120, "output_tokens": 3}, {"messages": SAID, **usage}):
        [(_, _, tokens)] = lengths(read({"timestamp": 0, **record, "response": TEXT})[0])
        assert tokens == 3


def test_the_answer_of_several_prompts_is_of_none_of_them(read):
    requests, _ = read({"timestamp": 0, "prompt": ["x" * 120, "z" * 120], "response": TEXT})
    assert lengths(requests) == [(0, 30, 0), (0, 30, 0)]


@pytest.mark.parametrize(
    "messages",
    [
        [{"type": "system", "content": "s"}, {"type": "human", "content": "x" * 100}],
        [{"type": "system", "data": {"content": "s"}}, {"type": "human", "data": {"content": "x" * 100}}],
    ],
)
def test_langchain_has_types_in_place_of_roles(read, messages):
    usual = [{"role": "system", "content": "s"}, *SAID]
    [one], [other] = (read({"timestamp": 0, "messages": asked})[0] for asked in (messages, usual))
    assert one == other


def test_a_tool_of_langchain_s_called_by_a_model(read):
    messages = [
        {"type": "human", "content": "x" * 100},
        {"type": "ai", "content": "", "tool_calls": [{"name": "look", "args": {}}]},
        {"type": "tool", "content": "o" * 30},
        {"type": "ai", "content": TEXT},
    ]
    usual = [
        *SAID,
        {"role": "assistant", "content": "", "tool_calls": [{"name": "look", "args": {}}]},
        {"role": "tool", "content": "o" * 30},
        {"role": "assistant", "content": TEXT},
    ]
    assert read({"messages": messages})[0] == read({"messages": usual})[0]


def test_where_a_part_begins_is_no_part_of_what_is_said(read):
    parts = [{"type": "step-start"}, {"type": "text", "text": TEXT}]
    spoken = [{"role": "user", "content": "x" * 100}, {"role": "assistant", "parts": parts}]
    [(_, _, tokens)] = lengths(read({"messages": spoken})[0])
    assert tokens == 10


def test_spans_of_braintrust_that_ask_no_model_are_left_out(read):
    times = {"created": "2026-01-31T10:00:00Z"}
    outer = {**times, "span_attributes": {"type": "task", "name": "agent"}, "input": SAID}
    inner = {**times, "span_attributes": {"type": "llm"}, "input": SAID, "metrics": {"completion_tokens": 9}}
    requests, notes = read(inner, outer)
    assert [tokens for _, _, tokens in lengths(requests)] == [9]
    assert any("a span that is no request to a model" in note for note in notes)


def test_what_vllm_gives_back_offline_has_token_ids_and_times(read):
    outputs = [{"index": index, "text": "y" * 400, "token_ids": [*range(5)]} for index in range(2)]
    about = {"request_id": "r", "prompt": "x" * 400, "prompt_token_ids": [*range(40)], "outputs": outputs}
    requests, _ = read(*({**about, "metrics": {"arrival_time": 1.79e9 + second}} for second in (0, 2.5)))
    assert lengths(requests) == [(0, 40, 10), (2.5, 40, 10)]
    with pytest.raises(ConfigError, match="arrival_time: expected a time within"):
        read({**about, "metrics": {"arrival_time": float("inf")}})
    [request], _ = read({**about, "outputs": [{"text": TEXT}], "metrics": None})
    assert request.output_tokens == 10


@pytest.mark.parametrize("asked", [{"messages": [{"role": "user", "content": "a"}]}, {"prompt": "a"}])
def test_who_counts_no_token_of_an_answer_did_not_count(read, asked):
    counted = {"response": {"choices": [{"message": {"content": "x" * 40}}]}, "usage": {"completion_tokens": 0}}
    silent = {"response": {"choices": [{"message": {"content": None}}]}, "usage": {"completion_tokens": 0}}
    requests, _ = read(*({"timestamp": 5, **asked, **one} for one in (counted, silent)))
    assert [one.output_tokens for one in requests] == [10, 0]
