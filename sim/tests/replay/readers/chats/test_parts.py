"""Parts of messages: what a next turn shares, images within what tools answer, and what others count."""

import base64
import json
from random import Random

import pytest
from kv_sim_foreign_traces import otlp, span

from kv_sim.replay.readers.options import OnError

SAID = "so it is " * 300
IMAGE = base64.b64encode(Random(0).randbytes(30_000)).decode()
MARK = {"cache_control": {"type": "ephemeral"}}


def user(*parts):
    return {"role": "user", "content": [*parts]}


def answered(*content):
    return {"type": "tool_result", "tool_use_id": "a", "content": [*content]}


def shared(one, other):
    same = [a == b for a, b in zip(one.blocks, other.blocks, strict=False)]
    return same.index(False) if False in same else len(same)


def test_where_a_client_lets_a_cache_begin_is_no_part_of_a_prompt(read):
    """It moves on with each turn, and what stood there is the same text."""
    result, image = answered({"type": "text", "text": SAID}), {"type": "image", "source": {"data": IMAGE}}
    marked = [user({"type": "text", "text": "a"}), user({**image, **MARK}, {**result, **MARK})]
    plain = [user("a"), user(image, result)]
    tools = [{"name": "look"}]
    first = {"messages": marked, "tools": [{**tools[0], **MARK}], "system": [{"text": "b", **MARK}]}
    second = {"messages": [*plain, user("b")], "tools": tools, "system": "b"}
    (one, other, alone), _ = read(first, second, {**second, "messages": plain})
    assert one.blocks == alone.blocks and shared(one, other) == one.input_tokens // 16 > 30


@pytest.mark.parametrize("options", [{}, {"columns": {"prompt": "messages"}}], ids=["openai", "--columns"])
def test_text_is_text_as_opentelemetry_has_it(read, options):
    known, other = ({"messages": [user({"type": "text", name: SAID})]} for name in ("text", "content"))
    (one, same), _ = read(known, other, **options)
    assert one.blocks == same.blocks and one.input_tokens == same.input_tokens


def bedrock(**asked):
    log = {"schemaType": "ModelInvocationLog", "timestamp": "2026-01-31T10:00:02Z"}
    return {**log, "input": {"inputBodyJson": asked}}


def test_nor_is_it_where_it_is_a_part_of_its_own(read):
    point = {"cachePoint": {"type": "default"}}
    tool, result = {"toolSpec": {"name": "look"}}, {"toolResult": {"content": [{"text": SAID}]}}
    marked = {"toolConfig": {"tools": [tool, point]}, "system": [{"text": "b"}, point]}
    (one, other), _ = read(
        bedrock(**marked, messages=[user({"toolResult": {"content": [{"text": SAID}, point]}}, point)]),
        bedrock(toolConfig={"tools": [tool]}, system=[{"text": "b"}], messages=[user(result)]),
    )
    assert one.blocks == other.blocks


IN_PARTS = "contents.1.message_content"
SHOWN = {
    "Anthropic": lambda data: {
        "messages": [user(answered({"type": "image", "source": {"type": "base64", "data": data}}))]
    },
    "Bedrock": lambda data: bedrock(
        messages=[user({"toolResult": {"content": [{"image": {"format": "png", "source": {"bytes": data}}}]}})]
    ),
    "responses": lambda data: {
        "input": [
            {
                "type": "function_call_output",
                "output": [{"type": "input_image", "image_url": f"data:image/png;base64,{data}"}],
            }
        ]
    },
    "spans": lambda data: otlp(
        span(
            0,
            {
                "gen_ai.input.messages": json.dumps(
                    [{"role": "user", "parts": [{"type": "blob", "content": data}]}]
                )
            },
        )
    ),
    "numbered": lambda data: otlp(
        span(0, {"gen_ai.prompt.0.content": json.dumps([{"type": "image_url", "image_url": {"url": data}}])})
    ),
    "OpenInference": lambda data: otlp(
        span(
            0,
            {
                "openinference.span.kind": "LLM",
                f"llm.input_messages.0.message.{IN_PARTS}.image.image.url": f"data:image/png;base64,{data}",
            },
        )
    ),
}


@pytest.mark.parametrize("shown", SHOWN.values(), ids=SHOWN)
def test_an_image_is_some_characters_wherever_it_lies(read, shown):
    (first, again, other), _ = read(shown(IMAGE), shown(IMAGE), shown(IMAGE[4:]))
    assert 0 < first.input_tokens < 80
    assert first.blocks == again.blocks != other.blocks


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": SAID},
        {"type": "document", "source": {"type": "text", "data": f"{SAID} {SAID}"}},
        {"type": "search_result", "content": [{"type": "text", "text": SAID}]},
        {"type": "server_tool_use", "input": {"code": f"print({SAID!r})"}},
    ],
)
def test_parts_of_other_types_are_the_text_in_them(read, part):
    ((request,), _) = read({"messages": [user(part)]})
    assert request.input_tokens == -(-len(f"<|user|>{json.dumps(part, sort_keys=True)}<|assistant|>") // 4) > 500


def test_what_a_tool_answers_in_another_script_is_as_long_as_it_is(read):
    ((request,), _) = read({"messages": [user({"type": "tool_result", "content": "汉" * 400})]})
    assert request.input_tokens < 120


def test_bytes_as_text_go_on_to_the_end(read):
    """What goes on with a blank is text, however long it went on without one."""
    for data in ("A-_+/" * 200, "A" * 1000 + "=", "A" * 1000 + "=="):
        ((request, longer), _) = read(
            *({"messages": [user({"type": "x", "x": one})]} for one in (data, f"{data} a"))
        )
        assert request.input_tokens < 40 < 250 < longer.input_tokens


def test_a_part_that_has_more_than_a_cache_s_begin_is_one(read):
    part = {"cachePoint": {"type": "default"}, "x": SAID}
    ((request,), _) = read({"messages": [user(part)]})
    assert request.input_tokens > 500


@pytest.mark.parametrize("depth", [5, *range(100, 460, 20)])
def test_a_part_of_any_depth_is_read_or_malformed(read, depth):
    deep = {"type": "tool_result", "content": []}
    for _ in range(depth):
        deep = {"type": "tool_result", "content": [deep]}
    requests, notes = read({"messages": [user("a")]}, {"messages": [user(deep)]}, on_error=OnError.SKIP)
    assert len(requests) == 2 or (depth > 5 and notes[-1].endswith("nested too deeply"))


# -- what others count ---------------------------------------------------------------------------


def told(read, record):
    return [note for note in read(record)[1] if note.startswith("usage says")]


def test_what_a_cache_had_of_a_prompt_was_in_it(read):
    asked = {"messages": [user("x" * 400)]}
    ((request,), _) = read(asked)
    usage = {
        "input_tokens": 5,
        "cache_read_input_tokens": 80,
        "cache_creation_input_tokens": request.input_tokens - 85,
    }
    assert told(read, {**asked, "usage": usage}) == []
    assert told(read, {**asked, "response": {"usage": {**usage, "cache_read_input_tokens": 0}}})
    both = {**usage, "prompt_tokens": request.input_tokens}
    assert told(read, {**asked, "usage": both}) == [], "which has all of them already"
    asked = bedrock(messages=[user({"text": "x" * 400})])
    counts = {"inputTokenCount": 5, "cacheReadInputTokenCount": 50, "cacheWriteInputTokenCount": 51}
    assert told(read, {**asked, "input": {**asked["input"], **counts}}) == []
    assert told(read, {**asked, "input": {**asked["input"], "inputTokenCount": 500}})


def test_a_count_that_no_float_can_hold_is_one_that_differs(read):
    asked = {"messages": [user("x" * 400)]}
    (note,) = told(read, {**asked, "usage": {"prompt_tokens": 10**400}})
    assert note.startswith(f"usage says {10**400:,} prompt tokens where 106 are counted here")


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [user("a")], "response_body": {"usage": {"completion_tokens": 7}}},
        {"messages": [user("a")], "response_body": '{"usage": {"output_tokens": 7}}'},
        {"text": "a", "sampling_params": {}, "meta_info": {"completion_tokens": 7}},
        {"custom_id": "a", "params": {"messages": [user("a")]}, "usage": {"output_tokens": 7}},
    ],
)
def test_where_else_a_log_has_what_was_asked_and_answered(read, record):
    ((request,), _) = read(record)
    assert (request.input_tokens, request.output_tokens) in ((6, 7), (1, 7))


def any_value(value):
    """A value as OTLP has it."""
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [*map(any_value, value)]}}
    return {"kvlistValue": {"values": [{"key": name, "value": any_value(one)} for name, one in value.items()]}}


def test_attributes_of_spans_may_be_lists_and_objects(read):
    messages = [{"role": "user", "parts": [{"type": "text", "content": SAID}]}]
    listed = span(0, {})
    listed["attributes"] = [{"key": "gen_ai.input.messages", "value": any_value(messages)}]
    (first, second), _ = read(otlp(span(0, {"gen_ai.input.messages": json.dumps(messages)})), otlp(listed))
    assert first.blocks == second.blocks
    text = span(0, {"gen_ai.prompt.0.content": "a"})
    for odd in (
        {"arrayValue": {}},
        {"arrayValue": None},
        {"kvlistValue": {"values": []}},
        {"arrayValue": 5},
        {},
        None,
    ):
        listed["attributes"][0]["value"] = odd
        assert read(otlp(text), otlp(listed), on_error=OnError.SKIP)[0]
