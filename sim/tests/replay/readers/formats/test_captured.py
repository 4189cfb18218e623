"""What services keep of requests: SageMaker's data capture, Bedrock's log of invocations, Baseten's traces."""

import base64
import gzip
import json

import pytest
from kv_sim_foreign_traces import ASKED, CASES, MORE, SAID, captured, lengths, shared

from kv_api import ConfigError
from kv_sim.replay.readers.catalogue import FORMATS
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions, Unsorted
from kv_sim.replay.readers.requests.naming import IdScope

NOW = {"inferenceTime": "2026-01-31T10:00:02Z"}
BEDROCK = {"schemaType": "ModelInvocationLog", "timestamp": NOW["inferenceTime"]}
HASHED = {"timestamp_start_unix_ms": 5, "input_tokens": 9, "output_tokens": 1, "total_hashes": []}


# -- SageMaker -----------------------------------------------------------------------------------


def events(*sent):
    """A stream, as it went over the wire."""
    return "".join(f"data: {one if isinstance(one, str) else json.dumps(one)}\n\n" for one in sent)


@pytest.mark.parametrize(
    ("came", "tokens"),
    [
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 5}}, 5),
        ({"usage": None}, 0),
        (events({"usage": None}, {"usage": {"completion_tokens": 5}}, "[DONE]"), 5),
        (events({"usage": {"completion_tokens": 1}}, {"usage": {"completion_tokens": 5}}, {"choices": []}), 5),
        (events({"usage": {"completion_tokens": 5}}, {"usage": None}, "[DONE]"), 5),
        (events("[DONE]"), 0),
        ({"generated_text": "z" * 20}, 5),
        ([{"generated_text": "z" * 20}], 5),
        ([{"generated_text": 5}], 0),
        ([{"generated_text": "z"}, {"generated_text": "z"}], 0),
        ({"usage": {"completion_tokens": 5}, "generated_text": "z" * 40}, 5),
        ([], 0),
        ("", 0),
        ("5", 0),
    ],
)
@pytest.mark.parametrize("encoding", ["JSON", "BASE64"])
def test_how_long_an_answer_of_an_endpoint_was(read, came, tokens, encoding):
    requests, notes = read(captured(1, ASKED, came, encoding))
    assert (notes[0], lengths(requests)) == ("format: sagemaker", [(0, 32, tokens)])


def test_only_what_an_endpoint_was_asked_may_be_kept(read):
    """Base64 is what is kept of a type of content that nobody told it of."""
    asked = {"data": base64.b64encode(json.dumps(ASKED).encode()).decode()}
    requests, _ = read({"captureData": {"endpointInput": asked}, "eventMetadata": NOW})
    assert lengths(requests) == [(0, 32, 0)]


@pytest.mark.parametrize(
    "answer", [None, 5, {}, {"data": None}, {"data": "1,2", "encoding": "CSV"}, {"data": "/////w=="}]
)
def test_an_answer_that_is_no_text_has_no_length(read, answer):
    record = captured(1, ASKED, {})
    record["captureData"]["endpointOutput"] = answer
    requests, _ = read(record)
    assert lengths(requests) == [(0, 32, 0)]


def test_an_endpoint_may_be_asked_to_go_on_with_a_text(read):
    requests, notes = read(
        captured(1, {"inputs": SAID[:64], "parameters": {"max_new_tokens": 5}}, {}),
        captured(2, {"prompt": [*range(40)], "model": "m"}, {}),
        captured(3, {"inputs": ["a" * 8, "b" * 4]}, {"usage": {"completion_tokens": 3}}),
        captured(4, {"inputs": 5, "prompt": "a" * 8}, {}),
    )
    assert lengths(requests) == [(0, 16, 0), (1, 40, 0), (2, 2, 2), (2, 1, 1), (3, 2, 0)]
    assert notes[-1] == "requests of 2 models, none of which can use another's blocks: none, m"


def test_captures_lie_in_folders_by_the_hour(tmp_path):
    """Within an hour files have names that don't say which of them is first."""
    for place, second, asked in (("09/b", 1, ASKED), ("10/d", 4, MORE), ("10/c", 7, ASKED)):
        file = tmp_path / "variant" / "2026" / "01" / "31" / f"{place}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(captured(second, asked, {})) + "\n")
    with pytest.raises(ConfigError) as refused:
        open_trace(tmp_path)
    late = "it arrives 3 s before the request above it; --unsorted sort sorts them"
    assert str(refused.value) == f"{file.with_name('d.jsonl')}:1: {late}"
    assert lengths(open_trace(tmp_path, TraceOptions(unsorted=Unsorted.SORT))) == [
        (0, 32, 0),
        (3, 45, 0),
        (6, 32, 0),
    ]


# -- Bedrock -------------------------------------------------------------------------------------


def test_a_model_of_bedrock_may_be_asked_in_several_ways(tmp_path):
    tools = [{"toolSpec": {"name": "look"}}]
    said = [{"role": "user", "content": [{"text": SAID}]}]
    bodies = [
        {"system": [{"text": "z" * 54}], "messages": said, "toolConfig": {"tools": tools}},
        {"system": "z" * 54, "messages": said, "tools": tools},
        {"prompt": SAID, "max_gen_len": 512},
        json.dumps(ASKED),
    ]
    names = ("m", "m", None, "m")
    records = [
        {**BEDROCK, "modelId": name, "input": {"inputBodyJson": one}}
        for name, one in zip(names, bodies, strict=True)
    ]
    with gzip.open(tmp_path / "20260131T100002Z_0.json.gz", "wt") as file:
        file.write("".join(json.dumps(one) + "\n" for one in records))
    trace = open_trace(tmp_path)
    first, second, *_ = trace
    before = len("<|tools|>" + json.dumps(tools[0], sort_keys=True) + "<|system|>") + 54
    both = -(-(before + 128) // 4)
    assert lengths(trace) == [(0, both, 0), (0, both, 0), (0, 27, 0), (0, 32, 0)]
    assert shared(first, second) == -(-both // 16)
    assert trace.notes[-1] == "requests of 2 models, none of which can use another's blocks: m, none"


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
def test_what_bedrock_was_shown_is_a_few_characters(read, kind):
    def shown(content):
        return {**BEDROCK, "input": {"inputBodyJson": {"messages": [{"role": "user", "content": content}]}}}

    image = {kind: {"format": "a", "source": {"bytes": "A" * 10_000}}}
    requests, _ = read(shown([{"text": SAID}, image]), shown(SAID), shown(["a", {"image": "b"}]))
    assert lengths(requests)[:2] == [(0, -(-(128 + len(f"<{kind} >") + 16) // 4), 0), (0, 32, 0)]
    assert requests[2].input_tokens == -(-len('<|user|>a{"image": "b"}<|assistant|>') // 4)


def test_a_document_of_bedrock_is_what_it_says(read):
    part = {"document": {"format": "txt", "source": {"text": SAID}}}
    asked = {"messages": [{"role": "user", "content": [part]}]}
    ((request,), _) = read({**BEDROCK, "input": {"inputBodyJson": asked}})
    text = f"<|user|>{json.dumps({**part, 'type': 'document'}, sort_keys=True)}<|assistant|>"
    assert request.input_tokens == -(-len(text) // 4)


def test_bedrock_may_say_nothing_of_an_answer_or_of_lengths(read):
    """Of prompts only those are compared of which it says how long they were."""
    record = {**BEDROCK, "input": {"inputBodyJson": ASKED}}
    told = {**BEDROCK, "input": {"inputBodyJson": ASKED, "inputTokenCount": 32}, "output": "s3://a/b"}
    requests, notes = read(record, told, record)
    assert lengths(requests) == 3 * [(0, 32, 0)]
    assert not any(note.startswith("usage says") for note in notes)


# -- Baseten -------------------------------------------------------------------------------------

ROWS = {
    **{"timestamp_start_unix_ms": 1_790_000_000_500, "prompt": SAID, "input_tokens": 40, "output_tokens": 7},
    **{"provided_session_id": 5, "poor_man_session_id": 6, "block_size": 16, "total_hashes": [5, 6, 7]},
}


def test_hashes_of_baseten_are_the_same_in_a_table(read, tmp_path):
    """An empty cell says nothing, nor does null."""
    later = {**ROWS, "timestamp_start_unix_ms": 1_790_000_002_500, "input_tokens": 9, "total_hashes": []}
    rows = [ROWS, {**later, "block_size": None, "provided_session_id": None}]
    requests, notes = read(*rows, sessions=True)
    assert lengths(requests) == [(0, 40, 7), (2, 9, 7)]
    assert [len(one.blocks) for one in requests] == [3, 0]
    file = tmp_path / "trace.csv"
    cells = [["" if cell is None else str(cell) for cell in row.values()] for row in rows]
    file.write_text("\n".join(";".join(row) for row in ([*ROWS], *cells)))
    trace = open_trace(file, TraceOptions(sessions=True))
    assert ([*trace], trace.notes) == (requests, notes)
    assert trace.sessions is not None and trace.sessions.tolist() == [0, 1]


@pytest.mark.parametrize("name", ["baseten", "baseten-text"])
def test_sessions_of_baseten_are_those_that_were_given_or_were_guessed(read, name):
    own = [{}, {"provided_session_id": ""}, {"provided_session_id": None, "poor_man_session_id": 5}]
    requests, notes = read(*({**ROWS, **one} for one in own), format=name, scope=IdScope.SESSION)
    assert notes[0] == f"format: {name}"
    assert [shared(requests[0], one) > 0 for one in requests] == [True, False, True]


def test_models_of_baseten_share_nothing(read):
    for name in ("baseten", "baseten-text"):
        requests, _ = read(ROWS, {**ROWS, "model_name": "m"}, {**ROWS, "model_name": ""}, format=name)
        assert [shared(requests[0], one) > 0 for one in requests] == [True, False, True]


def test_the_block_size_of_baseten_s_hashes_may_be_told_from_them(read):
    requests, notes = read(*({**ROWS, "block_size": one} for one in (None, "")))
    assert lengths(requests) == [(0, 40, 7), (0, 40, 7)]
    assert "blocks look like 16 tokens: lengths and ids of 100% of requests agree (--block-size)" in notes


# -- what is none of them ------------------------------------------------------------------------

WRONG = {
    "sagemaker": [
        ({"captureData": 5, "eventMetadata": 5}, "eventMetadata: expected an object, got int"),
        (
            {"captureData": 5, "eventMetadata": {"inferenceTime": "today"}},
            "eventMetadata.inferenceTime: expected a number or a date, got 'today'",
        ),
        (
            {"captureData": 5, "eventMetadata": NOW},
            "captureData.endpointInput.data: expected text, got NoneType",
        ),
        (
            {"captureData": {"endpointInput": {"data": "1,2", "encoding": "CSV"}}, "eventMetadata": NOW},
            "captureData.endpointInput.encoding: expected 'JSON' or 'BASE64', got 'CSV'",
        ),
        (
            {"captureData": {"endpointInput": {"data": "{}"}}, "eventMetadata": NOW},
            "captureData.endpointInput.data: expected base64 of text in UTF-8, got '{}'",
        ),
        (
            {"captureData": {"endpointInput": {"data": "/////w=="}}, "eventMetadata": NOW},
            "captureData.endpointInput.data: expected base64 of text in UTF-8, got '/////w=='",
        ),
        (
            captured(5, "1,2", {}),
            "captureData.endpointInput.data: expected the JSON of what an API was asked, got '1,2'",
        ),
        (
            captured(5, {"messages": 5}, {}),
            "captureData.endpointInput.data.messages: expected a list of messages, got int",
        ),
        (
            captured(5, ASKED, {"usage": {"completion_tokens": -1}}),
            "captureData.endpointOutput.data.usage.completion_tokens: expected a whole number of at least 0, "
            "got -1",
        ),
        (
            captured(5, {"inputs": 5}, {}),
            "captureData.endpointInput.data.inputs: expected text, a list of token ids, or a list of such "
            "prompts, got int",
        ),
    ],
    "bedrock": [
        (
            {**BEDROCK, "input": {"inputBodyS3Path": "s3://a/b"}},
            "input.inputBodyJson: expected what a model was asked, as an object, got what lies elsewhere",
        ),
        (
            {**BEDROCK, "input": 5},
            "input.inputBodyJson: expected what a model was asked, as an object, got none",
        ),
        (
            {**BEDROCK, "input": {"inputBodyJson": {"inputText": "a"}}},
            "input.inputBodyJson.messages: expected a list of messages, got no such field",
        ),
        (
            {**BEDROCK, "input": {"inputBodyJson": {"prompt": "a"}}, "output": {"outputTokenCount": -1}},
            "output.outputTokenCount: expected a whole number of at least 0, got -1",
        ),
    ],
    "baseten": [
        ({**HASHED, "block_size": 0}, "block_size: expected at least 1, got 0"),
        ({**HASHED, "total_hashes": 5}, "total_hashes: expected a list of ids, got 5"),
        (
            {**HASHED, "total_hashes": "[1 2 ... 5]"},
            "total_hashes: expected all ids, got some with '...' in place of others",
        ),
        ({**HASHED, "timestamp_start_unix_ms": ""}, "timestamp_start_unix_ms: expected a number, got ''"),
    ],
    "baseten-text": [
        ({**HASHED, "prompt": None}, "prompt: expected text, got NoneType"),
        (
            {**HASHED, "prompt": "", "output_tokens": None},
            "output_tokens: expected a whole number of at least 0, got None",
        ),
    ],
}


@pytest.mark.parametrize(
    ("name", "record", "reason"), [(name, *one) for name, several in WRONG.items() for one in several]
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, name, record, reason):
    file = tmp_path / "trace.jsonl"
    good = json.dumps(ROWS) if name == "baseten-text" else CASES[name][0].splitlines()[0]
    file.write_text(f"{good}\n{json.dumps(record)}\n")
    with pytest.raises(ConfigError) as refused:
        open_trace(file, TraceOptions(format=name))
    assert str(refused.value) == f"{file}:2: {reason} (--on-error skip goes on)"


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("bedrock", {"schemaType": "other", "timestamp": 1, "input": {}}),
        ("baseten", HASHED),
        ("baseten", {**HASHED, "total_hashes": "[]"}),
    ],
)
def test_fields_of_that_name_alone_tell_no_format(name, record):
    assert not FORMATS[name].is_of(record)
