"""What servers and front ends write of their requests: Dynamo, SGLang's measures, Open WebUI."""

import gzip
import json

import pytest
from kv_sim_foreign_traces import SAID, lengths, shared
from kv_sim_records import lines
from kv_sim_served_traces import CASES, chat_of, dynamo, measured

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import OnError, TraceOptions
from kv_sim.replay.readers.requests.sharing import parse_sharing

# -- Dynamo --------------------------------------------------------------------------------------


def test_of_dynamo_s_events_those_that_end_a_request_count_as_they_arrived(read):
    huge = 2**64 - 1
    requests, notes = read(
        dynamo(5000, [huge, 7], 30, model="n"),
        dynamo(1000, [huge, 8], 20),
        {"schema": "dynamo.request.trace.v1", "event_type": "request_payload", "request": {"request_id": "r"}},
        {**dynamo(0, [huge, 8], 20, request_received_ms=None, total_time_ms=250), "event_time_unix_ms": 4250},
        {**dynamo(0, [1], 16, request_received_ms=None), "event_time_unix_ms": 4500},
    )
    assert lengths(requests) == [(0, 20, 7), (3, 20, 7), (3.5, 16, 7), (4, 30, 7)]
    assert shared(requests[0], requests[1]) == 2, "from 0 on an id is the same, whatever its size"
    assert shared(requests[0], requests[3]) == 0, "of another model"
    assert (notes[0], notes[2]) == (
        "format: dynamo",
        "requests of 2 models, none of which can use another's blocks: n, m",
    )
    assert notes[1].startswith("1 request has the request_id of one before it, and counts like any other")


def test_a_session_of_dynamo_s_goes_on_in_another_file(tmp_path):
    files = tmp_path / "traces"
    files.mkdir()
    for number in range(2):
        events = [
            {**dynamo(1000 * (2 * number + one), [1], 16), "agent_context": {"session_id": f"s{one}"}}
            for one in range(2)
        ]
        packed = gzip.compress(lines(*events, {**dynamo(9000, [1], 16), "agent_context": None}).encode())
        (files / f"dynamo-request-trace.00000{number}.jsonl.gz").write_bytes(packed)
    columns = open_trace(files, TraceOptions(sessions=True))
    assert [*columns.sessions] == [0, 1, 0, 1, -1, -1]


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"replay": None}, "request.replay: expected an object, got NoneType"),
        ({"replay": "no"}, "request.replay: expected an object, got str"),
        ({"output_tokens": -1}, "request.output_tokens: expected a whole number of at least 0, got -1"),
        ({"request_received_ms": "x"}, "request.request_received_ms: expected a number, got 'x'"),
        (
            {"replay": {"trace_block_size": 16, "input_length": 9}},
            "request.replay.input_sequence_hashes: expected a list of ids, got no such field",
        ),
        (
            {"replay": {"trace_block_size": 0, "input_length": 9, "input_sequence_hashes": []}},
            "request.replay.trace_block_size: expected at least 1, got 0",
        ),
    ],
)
def test_what_dynamo_doesn_t_say_is_malformed(read, request_, problem):
    with pytest.raises(ConfigError) as error:
        read(dynamo(0, [1], 16, **request_))
    assert f":1: {problem}" in str(error.value)
    with pytest.raises(ConfigError, match=":1: request: expected an object"):
        read({**dynamo(0, [1], 16), "request": None})


# -- SGLang's measures ---------------------------------------------------------------------------


def test_sglang_s_measures_have_what_was_asked_or_how_long_it_was(read):
    asked = {"text": SAID, "sampling_params": {"max_new_tokens": 9}, "session_id": "a"}
    requests, notes = read(measured(4, asked), measured(1, {**asked, "lora_path": "b"}, completion_tokens=None))
    assert lengths(requests) == [(0, 27, 0), (3, 27, 7)]
    assert notes[:2] == ("format: sglang-metrics", "four characters are taken for a token")
    assert any(note.startswith("usage says 80 prompt tokens where 54 are counted") for note in notes)
    requests, _ = read(measured(4, {}), measured(1, {}, prompt_tokens=30), sharing=parse_sharing("none"))
    assert lengths(requests) == [(0, 30, 7), (3, 40, 7)]
    requests, notes = read(*(measured(second, asked, request_received_ts=None) for second in (4, 1)))
    assert lengths(requests) == [(0, 27, 7), (1, 27, 7)]
    assert "the trace has no times: one request a second is assumed" in notes


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ("{", "request_parameters: expected the JSON of what was asked, got '{'"),
        ('{"text": 5}', "request_parameters.text: expected text, a list of token ids, or a list of such prompts"),
        ("{}", "prompt_tokens: expected a whole number of at least 0, got None"),
    ],
)
def test_what_sglang_s_measures_don_t_say_is_malformed(read, asked, problem):
    with pytest.raises(ConfigError) as error:
        read({**measured(1, {}, prompt_tokens=None), "request_parameters": asked})
    assert f":1: {problem}" in str(error.value)


# -- Open WebUI ----------------------------------------------------------------------------------

QUESTION = ("a", None, "user", SAID, 0)


def test_an_answer_that_was_made_anew_is_a_request_of_its_own(read):
    thought = '<details type="reasoning" done="true">\n<summary>Thought</summary>\n> x\n</details>\n'
    chat = chat_of(
        QUESTION,
        ("b", "a", "assistant", thought + "z" * 28, 1),
        ("c", "a", "assistant", "z" * 12, 9),
        ("d", "b", "user", "y" * 42, 20),
        ("e", "d", "assistant", "", 21),
        ("f", None, "assistant", "I was here first", 22),
    )
    messages = chat["chat"]["history"]["messages"]
    messages["c"] |= {"model": "other", "usage": {"prompt_eval_count": 50, "eval_count": 3}}
    messages["e"] |= {"error": {"content": "it broke"}, "usage": {"prompt_tokens": 51, "completion_tokens": 0}}
    requests, notes = read(chat)
    whole = -(-len(thought + "z" * 28) // 4)
    # What was thought isn't sent again: 128 characters, 28, and 8 + 42 + 13.
    assert lengths(requests) == [(0, 32, whole), (8, 32, 3), (20, 55, 0)]
    assert (shared(requests[0], requests[2]), shared(requests[0], requests[1])) == (2, 0)
    assert "1 request failed, according to a status or an error; each counts like any other request" in notes
    assert "requests of 2 models, none of which can use another's blocks: m, other" in notes


def test_a_chat_has_its_system_prompt_and_images(read):
    (plain,), _ = read(chat_of(QUESTION, ("b", "a", "assistant", "z", 1)))
    (told,), _ = read(chat_of(QUESTION, ("b", "a", "assistant", "z", 1), params={"system": "s" * 50}))
    assert (plain.input_tokens, told.input_tokens) == (32, 47), "<|system|> are 10 characters"
    shown = chat_of(QUESTION, ("b", "a", "assistant", "z", 1))
    files = [{"type": "image", "url": "data:image/png;base64," + "A" * 4000}, {"type": "file", "name": "n"}]
    shown["chat"]["history"]["messages"]["a"]["files"] = files
    (seen,), notes = read(shown)
    assert plain.input_tokens < seen.input_tokens < 50
    assert notes[2].startswith("1 request has images, sounds or files")


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ({"a": 5}, "chat.history.messages.a: expected an object, got int"),
        (
            {"a": {"role": "user", "content": "x"}, "b": {"role": "assistant", "parentId": "a", "content": "z"}},
            "chat.history.messages.b.timestamp: expected a number, got no such field",
        ),
    ],
)
def test_what_a_chat_doesn_t_say_is_malformed(read, messages, problem):
    with pytest.raises(ConfigError) as error:
        read({"chat": {"history": {"messages": messages}}})
    assert f":1: {problem}" in str(error.value)
    _, notes = read(json.loads(CASES["open-webui"][0])[0], {"chat": {"history": None}}, on_error=OnError.SKIP)
    assert "chat.history.messages: expected an object, got NoneType" in notes[-1]


def test_messages_that_stand_above_each_other_end(read):
    chat = chat_of(("a", "b", "user", SAID, 0), ("b", "a", "assistant", "z", 1))
    assert lengths(read(chat)[0]) == [(0, 36, 1)], "each once: 14 characters, 115 and 13"
