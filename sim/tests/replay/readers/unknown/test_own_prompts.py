"""Traces of no known format whose prompts are text: somebody says where that is, and a refusal where it may be."""

import json
from pathlib import Path
from typing import Any

import pytest

from kv_api import ConfigError
from kv_sim.cli.main import main
from kv_sim.replay import TraceOptions, open_trace
from kv_sim.replay.columns import Columns
from kv_sim.replay.readers.unknown.own_columns import parse_columns

TEXT = "the quick brown fox jumps over the lazy dog, twice "
USER, MODEL = {"role": "user", "content": TEXT}, {"role": "assistant", "content": "It does."}


def read(folder: Path, columns: str, *records: Any) -> Columns:
    file = folder / "t.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return open_trace(file, TraceOptions(columns=parse_columns(columns), sessions=True))


def as_known(folder: Path, *records: Any) -> Columns:
    """What a format that is known makes of them."""
    file = folder / "known.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return open_trace(file)


def same(one: Columns, other: Columns) -> None:
    assert one.inputs.tolist() == other.inputs.tolist()
    assert one.offsets.tolist() == other.offsets.tolist()
    assert one.blocks.tolist() == other.blocks.tolist()


@pytest.mark.parametrize(
    ("value", "known"),
    [
        (TEXT, {"prompt": TEXT}),
        (list(range(40)), {"prompt": list(range(40))}),
        (json.dumps(list(range(40))), {"prompt": list(range(40))}),
        ([TEXT, "two"], {"prompt": [TEXT, "two"]}),
        ([USER], {"messages": [USER], "timestamp": 1}),
        ([json.dumps([USER])], {"messages": [USER], "timestamp": 1}),
        ([json.dumps([USER]), "two"], {"prompt": [json.dumps([USER]), "two"]}),
        (json.dumps([USER, MODEL]), {"messages": [USER, MODEL], "timestamp": 1}),
        (
            {"messages": [USER], "tools": [{"name": "t"}]},
            {"messages": [USER], "tools": [{"name": "t"}], "timestamp": 1},
        ),
        ({"body": {"prompt": TEXT}}, {"prompt": TEXT}),
        ({"body": "cut", "prompt": TEXT}, {"prompt": TEXT}),
        ({"body": {"x": 1}, "prompt": TEXT}, {"prompt": TEXT}),
        ({"contents": [{"role": "user", "parts": [{"text": TEXT}]}]}, {"messages": [USER], "timestamp": 1}),
        ("[not JSON", {"prompt": "[not JSON"}),
    ],
)
def test_a_prompt_is_text_tokens_messages_or_a_request(tmp_path: Path, value: Any, known: Any) -> None:
    same(read(tmp_path, "prompt=said", {"said": value}), as_known(tmp_path, known))


def test_what_else_is_said_of_a_prompt(tmp_path: Path) -> None:
    columns = "time=at,prompt=q,answer=a.text,session=who,model=m,input=told"
    records = [
        {
            "at": "Sat, 31 Jan 2026 10:00:02 GMT",
            "q": TEXT,
            "a": {"text": "12345"},
            "who": "x",
            "m": "one",
            "told": 13,
        },
        {"at": "2026-01-31T10:00:04Z", "q": TEXT, "a": {"text": ""}, "who": "x", "m": "two", "told": 90},
    ]
    trace = read(tmp_path, columns, *records)
    assert (trace.arrivals.tolist(), trace.inputs.tolist(), trace.outputs.tolist()) == ([0, 2], [13, 13], [2, 0])
    assert len({*trace.blocks.tolist()}) == 2, "models share nothing"
    assert trace.sessions is not None and trace.sessions.tolist() == [0, 0]
    assert trace.notes[0] == f"format: --columns {columns}"
    assert trace.notes[1] == "four characters are taken for a token"
    assert trace.notes[2].startswith("usage says 103 prompt tokens where 26 are counted here")


def test_the_length_of_an_answer_may_be_said_instead(tmp_path: Path) -> None:
    assert read(tmp_path, "prompt=q,output=n", {"q": TEXT, "n": 7}).outputs.tolist() == [7]


CHAT = [USER, MODEL, {"role": "user", "content": "And?"}, MODEL]


@pytest.mark.parametrize(
    "said",
    [
        CHAT,
        json.dumps(CHAT),
        [{"from": one["role"], "value": one["content"]} for one in CHAT],
        [one["content"] for one in CHAT],
    ],
)
def test_each_answer_of_a_conversation_is_a_request(tmp_path: Path, said: Any) -> None:
    trace = read(tmp_path, "conversation=log", {"log": said}, {"log": said})
    same(trace, as_known(tmp_path, {"conversation": CHAT}, {"conversation": CHAT}))
    assert trace.arrivals.tolist() == [0, 0, 60, 60]
    assert trace.notes[1].endswith("a minute for the time between two turns")


def test_a_conversation_that_says_when_it_began_begins_then(tmp_path: Path) -> None:
    began = 1_700_000_000_000
    records = [{"log": CHAT, "at": began + 30_000 * place, "m": place} for place in (0, 1)]
    trace = read(tmp_path, "time=at,conversation=log,model=m", *records)
    assert trace.arrivals.tolist() == [0, 30, 60, 90]
    assert trace.sessions is not None and trace.sessions.tolist() == [0, 1, 0, 1]
    first, other = ({*trace.blocks[trace.offsets[one] : trace.offsets[one + 1]].tolist()} for one in (0, 1))
    assert first.isdisjoint(other), "models share nothing"
    assert read(tmp_path, "time=at,conversation=log", *records).blocks.tolist() != trace.blocks.tolist()


WRONG = {
    ("prompt=a,ids=b", "{}"): (
        "--columns: prompt is what was asked, as text, token ids, messages, or the JSON of such or of a request, "
        "so ids can't be given, too"
    ),
    ("prompt=a,answer=b,output=c", "{}"): (
        "--columns: answer is what was answered, as text, so output can't be given, too"
    ),
    ("input=b,conversation=a", "{}"): (
        "--columns: conversation is a session, as messages, of which each answer is a request, so input can't "
        "be given, too"
    ),
    ("input=a,answer=b", "{}"): "--columns: answer is cut as prompts are: prompt=COLUMN is missing",
    ("prompt=a", '{"a": 5}'): (
        "{file}:1: a: expected text, a list of token ids, or a list of such prompts, got int {more}"
    ),
    ("prompt=a", '{"a": {"x": 1, "y": 2}}'): (
        "{file}:1: a: expected a request with messages, prompt, input, contents, inputs, got x, y {more}"
    ),
    ("prompt=a", '{"a": [{"content": "x"}]}'): (
        "{file}:1: a[0]: expected a role (or from) that is text, got none {more}"
    ),
    (
        "prompt=a,answer=b",
        '{"a": "x", "b": 5}',
    ): "{file}:1: b: expected text, got int; output=COLUMN is a length {more}",
    ("prompt=a,answer=b", '{"a": "x"}'): (
        "{file}:1: b: there is none, and --columns says that it is what was answered, as text; there is: a {more}"
    ),
    ("conversation=a", '{"a": "hello"}'): "{file}:1: a: expected a list of messages, got str {more}",
    ("conversation=a,time=b", '{"a": [5], "b": 1}'): "{file}:1: a[0]: expected an object, got int {more}",
    ("conversation=a,time=b", '{"a": [], "b": "x"}'): "{file}:1: b: expected a number or a date, got 'x' {more}",
}


@pytest.mark.parametrize(("columns", "record"), list(WRONG))
def test_what_is_wrong_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], columns: str, record: str
) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(record + "\n")
    assert main(["replay", str(file), "--columns", columns]) == 2
    told = WRONG[columns, record].format(file=file, more="(--on-error skip goes on)")
    assert capsys.readouterr() == ("", f"kv-sim replay: {told}\n")


LIKELY: list[tuple[Any, str]] = [
    ({"instruction": TEXT, "input": "", "output": "It does."}, "prompt=instruction+input,answer=output"),
    ({"instruction": TEXT, "input": 5, "output": "It does."}, "prompt=instruction,answer=output"),
    ({"question": TEXT, "answer": "42"}, "prompt=question"),
    ({"context": TEXT, "input": "Why?", "length": 9}, "prompt=context"),
    ({"inputText": TEXT, "textGenerationConfig": {}}, "prompt=inputText"),
    (
        {"prompt_text": TEXT, "prompt_tokens": 13, "completion_tokens": 3, "response": "It."},
        "prompt=prompt_text,input=prompt_tokens,output=completion_tokens",
    ),
    ({"message": TEXT, "prompt_tokens": 13}, "input=prompt_tokens"),
    ({"id": "x", "input": '[{"role":"user","content":"hi"}]'}, "prompt=input"),
    ({"tokens": [1, 2, 3], "timestamp": 4}, "time=timestamp,prompt=tokens"),
    ({"trajectory": CHAT, "model": "m", "message": TEXT}, "conversation=trajectory,model=model"),
    ({"data": [TEXT, "It does."], "id": "x"}, "conversation=data"),
    ({"conversation_a": CHAT, "conversation_b": CHAT, "tstamp": 5}, "time=tstamp,conversation=conversation_a"),
]


@pytest.mark.parametrize(("record", "columns"), LIKELY)
def test_where_text_may_be_is_a_line_to_paste(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record: Any, columns: str
) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps(record) + "\n")
    assert main(["replay", str(file)]) == 2
    _, _, told = capsys.readouterr().err.partition("of another format: --columns ")
    assert told.strip().partition("; ")[0] == columns
    assert main(["replay", str(file), "--columns", columns, "--assume-sharing", "none"]) == 0


@pytest.mark.parametrize(
    "record",
    [
        {"question": "q1", "history": [USER], "data": [], "x": [MODEL]},
        {"text": "two words", "turns": [1], "chat": [{"content": TEXT}]},
        {"message": None, "content": 5, "messages": "x"},
    ],
)
def test_what_says_nothing_is_no_such_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record: Any
) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps(record) + "\n")
    assert main(["replay", str(file)]) == 2
    assert "--columns names the fields of another format; " in capsys.readouterr().err


@pytest.mark.parametrize("columns", ["prompt=q", "conversation=log"])
def test_blocks_of_text_are_chained_without_a_word(tmp_path: Path, columns: str) -> None:
    texts = ["a" * 64 + "b" * 64, "c" * 64 + "b" * 64]
    trace = read(tmp_path, columns, *({"q": text, "log": [text, "x"]} for text in texts))
    assert len({*trace.blocks.tolist()}) == len(trace.blocks)
    assert "chained" not in " ".join(trace.notes)


def test_a_table_has_text_in_a_column(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(f'at,"asked, in words",n\n1,"{TEXT}",3\n')
    with pytest.raises(ConfigError, match="expected PART=COLUMN"):
        parse_columns("prompt=asked, in words")
    file.write_text(f"at,asked,n\n1,{TEXT.replace(',', '')},3\n")
    trace = open_trace(file, TraceOptions(columns=parse_columns("time=at,prompt=asked,output=n")))
    assert (trace.inputs.tolist(), trace.outputs.tolist()) == ([13], [3])


def test_texts_of_several_columns_are_one_behind_the_other(tmp_path: Path) -> None:
    records = [{"a": TEXT, "b": {"c": "and on"}, "d": "It does.", "e": None}, {"a": TEXT, "b": "", "d": "So"}]
    trace = read(tmp_path, "prompt=a+b.c+e,answer=d+e", *records)
    same(trace, as_known(tmp_path, {"prompt": f"{TEXT}and on"}, {"prompt": TEXT}))
    assert [one.output_tokens for one in trace] == [2, 1]
    with pytest.raises(ConfigError, match=r"a\+b: expected texts, got one of dict"):
        read(tmp_path, "prompt=a+b", *records)
    with pytest.raises(ConfigError, match=r"z\+a: there is none, and --columns says that it is what was asked"):
        read(tmp_path, "prompt=z+a", *records)
