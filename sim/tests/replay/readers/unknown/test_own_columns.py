"""Traces of no known format, of which somebody says what is what."""

import json
from pathlib import Path

import pytest

from kv_api import ConfigError
from kv_sim.cli.main import main
from kv_sim.replay import TraceOptions, open_trace
from kv_sim.replay.readers.requests.sharing import parse_sharing
from kv_sim.replay.readers.unknown.own_columns import PARTS, parse_columns

TABLE = "arrival,prompt,answer,user,blocks\n0.5,40,3,ann,1 2 3\n2,16,4,bob,9\n2.5,48,,ann,\n"


def read(file: Path, text: str, columns: str, **more: object) -> list[tuple[object, ...]]:
    file.write_text(text)
    trace = open_trace(file, TraceOptions(columns=parse_columns(columns), **more))  # type: ignore[arg-type]
    return [(one.arrival_seconds, one.input_tokens, one.output_tokens, len(one.blocks)) for one in trace]


def test_a_table_is_read_by_its_columns(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    text = TABLE.replace("48,,ann,", "48,0,ann,4;5 6")
    columns = "time=arrival,input=prompt,output=answer,ids=blocks,session=user"
    assert read(file, text, columns, block_tokens=16, sessions=True) == [
        (0, 40, 3, 3),
        (1.5, 16, 4, 1),
        (2, 48, 0, 3),
    ]
    trace = open_trace(file, TraceOptions(columns=parse_columns(columns), sessions=True))
    assert trace.sessions is not None and trace.sessions.tolist() == [0, 1, 0]
    assert trace.block_tokens == 16, "lengths and ids say so"
    assert trace.notes[:2] == (
        f"format: --columns {columns}",
        "blocks look like 16 tokens: lengths and ids of 100% of requests agree (--block-size)",
    )


@pytest.mark.parametrize("between", ["\t", ";"])
def test_columns_may_have_tabs_or_semicolons_between_them(tmp_path: Path, between: str) -> None:
    columns = " time = arrival, input = prompt , ids=blocks"
    text = TABLE.replace(",", between)
    as_usual = read(tmp_path / "t.csv", TABLE, columns)
    assert read(tmp_path / "t.tsv", text, columns) == as_usual
    quoted = text.replace("1 2 3", '"1,2,3"')
    assert read(tmp_path / "t.tsv", quoted, columns) == as_usual, "the header decides, a row may have more commas"


def test_what_is_not_said_is_as_in_any_trace_without_it(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    with pytest.raises(ConfigError, match=r"format --columns input=prompt has no block ids, so nothing says"):
        read(file, TABLE, "input=prompt")
    rows = read(file, TABLE, "input=prompt", sharing=parse_sharing("none"))
    assert rows == [(0, 40, 0, 1), (1, 16, 0, 1), (2, 48, 0, 1)], "one a second, of blocks of 64 tokens"


@pytest.mark.parametrize(
    ("ids", "found"),
    [([1, 2], 2), (["a", "b", "c"], 3), ("1,2", 2), ("[1, 2]", 2), ("['a' \"b\"]", 2), ("", 0), ("² ٣ 1_0", 3)],
)
def test_ids_are_a_list_or_text(tmp_path: Path, ids: object, found: int) -> None:
    record = {"at": "2026-01-02T03:04:05Z", "u": {"n": {"p": 48}, "a": 1}, "ids": ids, "u.a": 7}
    later = {**record, "at": "2026-01-02 03:04:06.5", "ids": ids}
    text = "".join(json.dumps(one) + "\n" for one in (record, later))
    rows = read(tmp_path / "t.jsonl", text, "time=at,input=u.n.p,output=u.a,ids=ids", block_tokens=16)
    assert rows == [(0, 48, 7, found), (1.5, 48, 7, found)]


def test_ids_of_a_table_and_of_objects_are_the_same(tmp_path: Path) -> None:
    table, objects = tmp_path / "t.csv", tmp_path / "t.jsonl"
    columns, found = "input=n,ids=ids,model=m", []
    for file, text in (
        (table, "n,ids,m\n32,1 x,a\n32,1 x,b\n"),
        (objects, '{"n":32,"ids":[1,"x"],"m":"a"}\n{"n":32,"ids":[1,"x"],"m":"b"}\n'),
    ):
        assert read(file, text, columns, block_tokens=16) == [(0, 32, 0, 2), (1, 32, 0, 2)]
        trace = open_trace(file, TraceOptions(columns=parse_columns(columns), block_tokens=16))
        found.append(trace.blocks.tolist())
    assert found[0] == found[1] and len({*found[0]}) == 4, "two models share nothing"


WRONG = {
    "prompt": "--columns: expected PART=COLUMN with commas between them, got 'prompt'",
    "input=": "--columns: expected PART=COLUMN with commas between them, got 'input='",
    "": "--columns: expected PART=COLUMN with commas between them, got ''",
    "inputs=prompt": (
        f"--columns: unknown part 'inputs'; known: {', '.join(sorted(PARTS))}; did you mean 'input'?"
    ),
    "time=arrival": (
        "--columns: input=COLUMN is missing, the tokens of a prompt; or prompt=COLUMN, what it says, or "
        "conversation=COLUMN"
    ),
    "input=prompt,input=answer": "--columns: input is 'prompt' and 'answer': give one of them",
    "input=tokens": (
        "{file}:2: tokens: there is none, and --columns says that it is the tokens of its prompt; there is: "
        "arrival, prompt, answer, user, blocks (--on-error skip goes on)"
    ),
    "input=user": "{file}:2: user: expected a whole number of at least 0, got 'ann' (--on-error skip goes on)",
    "input=prompt,time=user": "{file}:2: user: expected a number or a date, got 'ann' (--on-error skip goes on)",
    "input=prompt,output=answer": (
        "{file}:4: answer: expected a whole number of at least 0, got '' (--on-error skip goes on)"
    ),
}


@pytest.mark.parametrize("columns", list(WRONG))
def test_what_is_wrong_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], columns: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(TABLE)
    assert main(["replay", str(file), "--columns", columns, "--assume-sharing", "none"]) == 2
    assert capsys.readouterr() == ("", f"kv-sim replay: {WRONG[columns].format(file=file)}\n")


@pytest.mark.parametrize(
    ("record", "there"), [({}, "nothing"), ({"usage": 5}, "usage"), ({"usage": None}, "usage")]
)
def test_what_an_object_lacks_is_named(tmp_path: Path, record: object, there: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path / "t.jsonl", json.dumps(record) + "\n", "input=usage.prompt_tokens")
    problem = "usage.prompt_tokens: there is none, and --columns says that it is the tokens of its prompt"
    told = f"{tmp_path / 't.jsonl'}:1: {problem}; there is: {there} (--on-error skip goes on)"
    assert str(refused.value) == told


SUMS = ["told.a+told.b+c", "told.a + told.b + c", " c +told.b+ told.a "]


def test_a_sum_may_have_blanks_in_it(tmp_path: Path) -> None:
    record = {"told": {"a": 3, "b": 4}, "c": 5, "ids": [1]}
    read_so = [read(tmp_path / "t.jsonl", json.dumps(record) + "\n", f"input={one},ids=ids") for one in SUMS]
    assert read_so == [[(0, 12, 0, 1)]] * len(SUMS)


def test_a_format_and_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "mooncake-synthetic", "--columns", "input=a", "--format", "mooncake"]) == 2
    assert capsys.readouterr().err == "kv-sim size: --columns and --format: give one of them\n"


def test_an_unknown_table_is_sent_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    assert main(["replay", str(tmp_path / "t.csv")]) == 2
    assert capsys.readouterr().err.endswith("; --columns names the fields of another format\n")


LIKELY = {
    'timestamp,input_length,output_length,hash_ids\n0,40,3,"[1, 2, 3]"\n': (
        "time=timestamp,input=input_length,output=output_length,ids=hash_ids --time-unit ms"
    ),
    "Arrival Time,ISL,OSL,Session_ID\n1,40,3,ann\n": "time=Arrival Time,input=ISL,output=OSL,session=Session_ID",
    "time,created,prompt_tokens,completion_tokens\nsoon,1,40,3\n": (
        "time=created,input=prompt_tokens,output=completion_tokens"
    ),
    "num_prefill_tokens,num_decode_tokens,blocks,model_name\n40,,x y z,m\n": (
        "input=num_prefill_tokens,ids=blocks,model=model_name"
    ),
    json.dumps({"at": 1, "usage": {"prompt_tokens": 40, "completion_tokens": 3}}): (
        "input=usage.prompt_tokens,output=usage.completion_tokens"
    ),
    json.dumps(
        {"input_tokens": 30, "cache_read_input_tokens": 10, "output_tokens": 3, "usage": {"input_tokens": 9}}
    ): ("input=input_tokens+cache_read_input_tokens,cached=cache_read_input_tokens,output=output_tokens"),
    json.dumps({"prompt_tokens": 40, "cache_read_input_tokens": 10, "model": None}): (
        "input=prompt_tokens,cached=cache_read_input_tokens"
    ),
    json.dumps({"usage": {"input_tokens": 30, "cache_creation_input_tokens": 10, "output_tokens": None}}): (
        "input=usage.input_tokens+usage.cache_creation_input_tokens"
    ),
}
"""What nobody knows the whole of, and what probably is what there; what can't be that isn't."""


@pytest.mark.parametrize("text", list(LIKELY))
def test_what_columns_are_called_elsewhere_is_a_line_to_paste(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = tmp_path / ("t.jsonl" if text.startswith("{") else "t.csv")
    file.write_text(text)
    assert main(["replay", str(file)]) == 2
    _, _, told = capsys.readouterr().err.partition("of another format")
    assert told.strip().partition("; ")[0] == f": --columns {LIKELY[text]}"
    columns, _, unit = LIKELY[text].partition(" --time-unit ")
    [(_, prompt, *_)] = read(file, text, columns, sharing=parse_sharing("none"), time_unit=unit or None)
    assert prompt == 40


@pytest.mark.parametrize(
    "text",
    [
        "input_length,x\nlong,1\n",
        ",x\n1,1\n",
        '"a,b.isl",x\n1,1\n',
        "time,output_tokens\n1,2\n",
        'x,"isl,osl"\n1,2\n',
    ],
)
def test_without_the_length_of_a_prompt_there_is_no_such_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "t.csv").write_text(text)
    assert main(["replay", str(tmp_path / "t.csv")]) == 2
    assert capsys.readouterr().err.endswith("; --columns names the fields of another format\n")
