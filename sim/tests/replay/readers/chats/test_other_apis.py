"""What Gemini, Text Generation Inference and SGLang are asked, as logs of them have it; and HAR."""

import base64
import json

import pytest
from kv_sim_foreign_traces import ASKED, MORE, SAID, event, lengths, shared

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.requests.sharing import parse_sharing


def gemini(*said, **more):
    """A turn each, of which every second one is the model's."""
    contents = [{"role": ("user", "model")[n % 2], "parts": [{"text": text}]} for n, text in enumerate(said)]
    return {"contents": contents, **more}


TOLD = {"promptTokenCount": 900, "candidatesTokenCount": 7, "cachedContentTokenCount": 800}


def test_gemini_is_asked_what_others_are(read):
    (first, second), notes = read(gemini(SAID), gemini(SAID, "ja", "y" * 43))
    text = f"<|user|>{SAID}<|assistant|>ja<|user|>{'y' * 43}<|assistant|>"
    assert lengths([first, second]) == [(0, 32, 0), (1, -(-len(text) // 4), 0)]
    assert (shared(first, second), notes[0]) == (2, "format: openai")


@pytest.mark.parametrize("write", [lambda value: value, json.dumps])
@pytest.mark.parametrize("pack", [lambda answer: answer, lambda answer: [{"candidates": []}, answer, {}]])
def test_vertex_logs_requests_and_answers(read, write, pack):
    rows = [
        {
            "logging_time": f"2026-01-31 10:00:0{second}.500 UTC",
            "model": "publishers/google/models/gemini-2.5-flash",
            "api_method": "streamGenerateContent",
            "full_request": write(gemini(SAID)),
            "full_response": write(pack({"usageMetadata": {**TOLD, "thoughtsTokenCount": 5}})),
        }
        for second in (1, 4)
    ]
    requests, notes = read(*rows)
    assert lengths(requests) == [(0, 32, 12), (3, 32, 12)]
    assert any(note.startswith("usage says 1,800 prompt tokens where 64 are counted here") for note in notes)


def test_vertex_logs_other_models_too(read):
    asked, told = {**ASKED, "anthropic_version": "v"}, {"usage": {"input_tokens": 30, "output_tokens": 7}}
    requests, _ = read({"logging_time": "2026-01-31T10:00:00Z", "full_request": asked, "full_response": told})
    assert lengths(requests) == [(0, 32, 7)]


@pytest.mark.parametrize(
    "names", [("systemInstruction", "usageMetadata"), ("system_instruction", "usage_metadata")]
)
def test_instructions_and_tools_of_gemini_come_first(read, names):
    call = {"functionCall": {"name": "look", "args": {"at": 1}}}
    asked = gemini(SAID, tools=[{"functionDeclarations": [{"name": "look"}]}])
    asked["contents"].append({"parts": [call]})
    records = [
        {"key": "a", "request": {**asked, names[0]: how}, "response": {names[1]: TOLD}}
        for how in ({"parts": [{"text": "Be brief."}]}, "Be brief.")
    ]
    requests, _ = read(*records)
    text = f'<|tools|>{{"functionDeclarations": [{{"name": "look"}}]}}<|system|>Be brief.<|user|>{SAID}<|user|>'
    text += json.dumps(call, sort_keys=True) + "<|assistant|>"
    assert lengths(requests) == [(second, -(-len(text) // 4), 7) for second in (0, 1)]


def test_what_gemini_keeps_elsewhere_is_no_whole_prompt(read):
    with pytest.raises(ConfigError, match=r":1: cachedContent: expected a whole prompt, got what is added to 'c'"):
        read(gemini(SAID, cachedContent="c"))


@pytest.mark.parametrize("contents", [["a"], [{"a": 1}], [], "a"])
def test_other_contents_are_not_gemini_s(read, contents):
    with pytest.raises(ConfigError, match="no known format has the fields contents"):
        read({"contents": contents})


def test_text_generation_inference(read):
    asked = {"inputs": SAID + "z" * 21, "parameters": {"max_new_tokens": 9}}
    answered = {"generated_text": "so", "details": {"generated_tokens": 7, "finish_reason": "length"}}
    requests, notes = read({**asked, **answered, "timestamp": 5}, {"request": asked, "timestamp": 8})
    assert (notes[0], lengths(requests)) == ("format: openai", [(0, 32, 7), (3, 32, 0)])
    with pytest.raises(ConfigError, match="no known format has the fields inputs"):
        read({"inputs": SAID})


# -- SGLang's log --------------------------------------------------------------------------------


def test_requests_of_sglang_arrive_before_they_finish(read):
    first = event("finished", 9, {"text": SAID + "z" * 21}, e2e_latency=7.5, completion_tokens=7)
    second = event("finished", 8, {"text": SAID + "z" * 21, "lora_path": "a"}, e2e_latency=2.0)
    requests, notes = read(event("received", 1, {"text": SAID}), first, second)
    assert lengths(requests) == [(0, 32, 7), (4.5, 32, 0)]
    assert shared(*requests) == 0
    assert "a request that hasn't finished in the log is left out" in notes[1]


def test_sglang_s_log_is_read_as_its_logger_writes_it(tmp_path):
    """Behind a date; and with what a chat was, which from level 2 on stands before its tokens."""
    told = event("finished", 9, {"input_ids": [*range(40)]}, e2e_latency=1, completion_tokens=7)
    chat = {"timestamp": told["timestamp"], "event": "request.received.openai", "obj": ASKED}
    file = tmp_path / "host_0.log"
    for before in ("", "[2026-01-31 10:00:09] "):
        file.write_text("".join(f"{before}{json.dumps(one)}\n" for one in (chat, told, told)))
        trace = open_trace(file)
        assert (trace.notes[0], lengths(trace)) == ("format: sglang-log", [(0, 40, 7), (0, 40, 7)])


@pytest.mark.parametrize(
    "asked", [{"text": "a" * 1024 + "..." + "b" * 1024}, {"input_ids": [*range(9), "...", *range(9)]}]
)
def test_what_sglang_cuts_is_no_whole_prompt(read, asked):
    record = event("finished", 9, asked, e2e_latency=1)
    with pytest.raises(
        ConfigError, match=r"one without its middle \(SGLang logs all of it with --log-requests-level 3"
    ):
        read(record)
    requests, _ = read(event("finished", 9, {"text": "a" * 2051}, e2e_latency=1))
    assert lengths(requests) == [(0, 513, 0)]


def test_of_a_lower_level_there_are_lengths(read):
    requests, _ = read(event("finished", 9, {"stream": True}, e2e_latency=1), sharing=parse_sharing("none"))
    assert lengths(requests) == [(0, 99, 0)]


@pytest.mark.parametrize(
    ("change", "said"),
    [({"obj": None}, "obj: expected an object"), ({"out": None}, "out.meta_info: expected an object")],
)
def test_what_an_event_of_sglang_lacks(read, change, said):
    with pytest.raises(ConfigError, match=f":1: {said}"):
        read({**event("finished", 9, {"text": SAID}, e2e_latency=1), **change})


# -- HAR -----------------------------------------------------------------------------------------


def test_answers_in_har_may_be_streams_or_base64(read):
    stream = 'data: {"choices": []}\n\ndata: {"usage": {"completion_tokens": 7}}\n\ndata: [DONE]\n'
    packed = base64.b64encode(b'{"usage": {"completion_tokens": 9}}').decode()
    contents = [{"text": stream}, {"text": packed, "encoding": "base64"}, {"text": "!", "encoding": "base64"}, {}]
    entries = [
        {
            "startedDateTime": f"2026-01-31T10:00:0{second}Z",
            "request": {"url": "u", "postData": {"text": json.dumps(ASKED if second else MORE)}},
            "response": {"status": 500 if second else 200, "content": content},
        }
        for second, content in enumerate(contents)
    ]
    requests, notes = read({"log": {"entries": entries}})
    assert lengths(requests) == [(0, 45, 7), (1, 32, 9), (2, 32, 0), (3, 32, 0)]
    assert any(note.startswith("3 requests failed, according to a status or an error;") for note in notes)


def test_a_mistake_in_har_says_which_entry_it_is(read):
    entry = {"request": {"postData": {"text": json.dumps({"messages": [5]})}}}
    with pytest.raises(ConfigError, match=r":1: log.entries\[1\]: messages\[0\]: expected an object, got int"):
        read({"log": {"entries": [{}, entry]}})


def test_a_log_that_is_none_is_no_har(read):
    with pytest.raises(ConfigError, match=r":1: log: expected an object with entries, got str"):
        read({"log": "so"}, format="har")
