"""Answers that a log has as streams, and calls of an API that no model has to go on with, or that aren't whole."""

import json

import pytest

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions
from kv_sim.replay.readers.requests.sharing import Sharing

SAID = [{"role": "user", "content": "x" * 100}]
REQUEST = {"timestamp": 0, "request_body": {"model": "m", "messages": SAID}}


def written(tmp_path, *records):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def stream(*events):
    return "".join(f"event: {one.get('type', 'x')}\ndata: {json.dumps(one)}\n\n" for one in events)


OF_RESPONSES = stream(
    {"type": "response.created", "response": {"id": "r", "usage": None}},
    {"type": "response.output_text.delta", "delta": "hello"},
    {"type": "response.completed", "response": {"id": "r", "usage": {"input_tokens": 25, "output_tokens": 50}}},
)
OF_MESSAGES = stream(
    {"type": "message_start", "message": {"id": "a", "usage": {"input_tokens": 25, "output_tokens": 1}}},
    {"type": "content_block_delta", "delta": {"text": "hello"}},
    {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 50}},
)
CUT_OFF = stream(
    {"type": "message_start", "message": {"id": "a", "usage": {"input_tokens": 25, "output_tokens": 1}}}
)


@pytest.mark.parametrize("field", ["response", "response_body"])
@pytest.mark.parametrize(("text", "tokens"), [(OF_RESPONSES, 50), (OF_MESSAGES, 50), (CUT_OFF, 1)])
def test_the_usage_of_a_stream_lies_in_its_last_event_that_has_one(tmp_path, field, text, tokens):
    [request] = open_trace(written(tmp_path, {**REQUEST, field: text}))
    assert request.output_tokens == tokens


def test_a_stream_without_usage_is_no_text_that_was_answered(tmp_path):
    [request] = open_trace(written(tmp_path, {**REQUEST, "response": 'data: {"choices": [{"delta": {}}]}\n\n'}))
    assert request.output_tokens == 0


@pytest.mark.parametrize(
    "field",
    ["instructions", "tools", "previous_response_id", "conversation", "store", "stream", "prompt_cache_key"],
)
def test_what_else_only_a_response_is_asked_with_says_that_it_is_one(tmp_path, field):
    asked = {"model": "m", "input": "x" * 100, field: None}
    said = {"model": "m", "messages": SAID}
    first, second = (open_trace(written(tmp_path, {"timestamp": 0, "request": one})) for one in (asked, said))
    assert [*first] == [*second]


def test_who_asks_for_speech_gives_instructions_too(tmp_path):
    asked = {"model": "tts", "voice": "alloy", "input": "x" * 100, "instructions": "Whisper."}
    with pytest.raises(ConfigError, match="no known format"):
        open_trace(written(tmp_path, {"timestamp": 0, "request": asked}))


def test_what_goes_on_with_a_prompt_that_is_kept_is_refused(tmp_path):
    asked = {"model": "m", "prompt": {"id": "pmpt_1", "version": "2"}, "input": "x", "max_output_tokens": 5}
    path = written(tmp_path, {"timestamp": 0, "request": asked})
    with pytest.raises(ConfigError) as refused:
        open_trace(path)
    problem = "prompt: expected a whole prompt, got what is kept elsewhere, 'pmpt_1'"
    assert str(refused.value) == f"{path}:1: {problem} (--on-error skip goes on)"


@pytest.mark.parametrize("field", ["url", "uri", "path", "endpoint", "request_uri", "request"])
@pytest.mark.parametrize(
    "path",
    [
        *("/v1/messages/count_tokens?beta=true", "/v1beta/models/gemini-2.5-pro:countTokens"),
        *("POST /tokenize HTTP/1.1", "http://server/detokenize"),
    ],
)
def test_who_asks_for_a_count_of_tokens_is_left_out(tmp_path, field, path):
    counts = {"timestamp": 1, field: path, "request_body": {"model": "m", "messages": SAID}}
    columns = open_trace(written(tmp_path, {**REQUEST, field: "/v1/messages"}, counts))
    assert len(columns) == 1
    assert any("asked only how many tokens a prompt has" in note for note in columns.notes)


@pytest.mark.parametrize("path", ["/v1/tokenizers", "/v1/messages", "/count_tokens_of/chat"])
def test_other_paths_are_other_calls(tmp_path, path):
    columns = open_trace(written(tmp_path, {**REQUEST, "url": path}))
    assert len(columns) == 1


def test_a_chat_that_is_embedded_is_no_prompt(tmp_path):
    path = written(tmp_path, {**REQUEST, "url": "/v1/embeddings"})
    with pytest.raises(ConfigError, match="messages: expected what a model goes on with, got what is embedded"):
        open_trace(path)


def test_a_log_of_bedrock_s_without_bodies_has_lengths(tmp_path):
    about = {"schemaType": "ModelInvocationLog", "timestamp": "2026-01-31T10:00:00Z", "modelId": "m"}
    path = written(tmp_path, {**about, "input": {"inputTokenCount": 9}, "output": {"outputTokenCount": 2}})
    line = "--columns time=timestamp,input=input.inputTokenCount,output=output.outputTokenCount"
    with pytest.raises(ConfigError, match=f"got none; {line} has lengths"):
        open_trace(path)
    columns = dict(one.split("=") for one in line.removeprefix("--columns ").split(","))
    [request] = open_trace(path, TraceOptions(columns=columns, sharing=Sharing()))
    assert (request.input_tokens, request.output_tokens) == (9, 2)


def test_what_a_stream_says_first_of_what_was_read_counts_with_what_it_says_last(tmp_path):
    first = {"input_tokens": 5, "cache_read_input_tokens": 90, "output_tokens": 1}
    text = stream(
        {"type": "message_start", "message": {"usage": first}},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 50}},
    )
    columns = open_trace(written(tmp_path, {**REQUEST, "response_body": text}))
    assert [one.output_tokens for one in columns] == [50]
    assert any(note.startswith("usage says 95 prompt tokens") for note in columns.notes)


def test_a_stream_that_a_browser_saved_without_usage_is_counted(tmp_path):
    text = 'data: {"choices": [{"delta": {"content": "' + "y" * 40 + '"}}]}\n\ndata: [DONE]\n\n'
    entry = {
        "startedDateTime": "2026-01-31T10:00:00Z",
        "request": {"url": "/v1/chat/completions", "postData": {"text": json.dumps(REQUEST["request_body"])}},
        "response": {"status": 200, "content": {"text": text}},
    }
    [request] = open_trace(written(tmp_path, {"log": {"entries": [entry]}}))
    assert request.output_tokens == 10
