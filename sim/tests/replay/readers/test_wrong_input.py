"""Records that can't be read are refused: exit code 2, one line that says what and where, no traceback."""

import json

import pytest
from kv_sim_refusals import GOOD, line, refused

from kv_sim.cli.main import main
from kv_sim.replay import open_trace
from kv_sim.replay.readers.catalogue import FORMATS
from kv_sim.replay.readers.format import Container
from kv_sim.replay.readers.options import OnError, TraceOptions
from kv_sim.replay.readers.requests.sharing import parse_sharing

IN_TABLES = sum(one.lies_in(Container.CSV) for one in FORMATS.values())
IN_LINES = sum(one.lies_in(Container.JSON) for one in FORMATS.values())
OWN = "--columns names the fields of another format"
SKIP = "if only this record differs: --format with --on-error skip"
COLUMNS = f"expected those of one of {IN_TABLES} formats, which --help lists; {OWN}"
FIELDS = f"expected those of one of {IN_LINES} formats, which --help lists; {OWN}; {SKIP}"
NEAR = (
    "expected those of lmbench (timestamp, input_length, hash_ids) or mooncake-lengths (timestamp, "
    "input_length, output_length, no hash_ids) or mooncake (input_length, hash_ids) or one of "
    f"{IN_LINES - 3} other formats, which --help lists; {OWN}; {SKIP}"
)


def likely(refusal, columns):
    """The refusal of a record some of whose columns are called as elsewhere."""
    return refusal.replace("of another format", f"of another format: --columns {columns}")


def session(block_size, *requests):
    return json.dumps({"id": "a", "block_size": block_size, "requests": [*requests]}) + "\n"


FILES = {
    "empty": ("", "{file}: this file is empty"),
    "blank": ("\n \n", "{file}: this file is empty"),
    "no json": (GOOD + "\n{oops}\n", "{file}:2: not JSON from column 2 on {more}"),
    "cut off": (GOOD + "\n" + GOOD[:40] + "\n", "{file}:2: not JSON from column 41 on {more}"),
    "a number": (GOOD + "\n17\n", "{file}:2: expected an object, got 17 {more}"),
    "negative": (
        line(input_length=-1),
        "{file}:1: input_length: expected a whole number of at least 0, got -1 {more}",
    ),
    "a fraction": (
        line(output_length=1.5),
        "{file}:1: output_length: expected a whole number of at least 0, got 1.5 {more}",
    ),
    "true": (
        line(input_length=True),
        "{file}:1: input_length: expected a whole number of at least 0, got True {more}",
    ),
    "no ids": (
        line(hash_ids="1,2"),
        "{file}:1: hash_ids: expected a list of ids, got '1,2'; --columns ids=… takes text {more}",
    ),
    "an odd id": (line(hash_ids=[1.5]), "{file}:1: hash_ids: expected integers or strings, got 1.5 {more}"),
    "no time": (
        line(timestamp=None),
        "{file}:1: timestamp: no such field, and no session_id with a delay instead; --columns says where it is "
        "{more}",
    ),
    "not a time": (line(timestamp="noon"), "{file}:1: timestamp: expected a number, got 'noon' {more}"),
    "a date where there are numbers": (
        line(timestamp="2026-01-31T00:00:00Z"),
        "{file}:1: timestamp: expected a number, got '2026-01-31T00:00:00Z'; --columns time=… takes dates {more}",
    ),
    "infinite": (
        line(timestamp=float("inf")),
        "{file}:1: timestamp: expected a time within 2**63, got inf {more}",
    ),
    "no number": (
        line(timestamp=float("nan")),
        "{file}:1: timestamp: expected a time within 2**63, got nan {more}",
    ),
    "before all times": (
        line(timestamp=-(2**63)),
        "{file}:1: timestamp: expected a time within 2**63, got -9223372036854775808 {more}",
    ),
    "a time beyond floats": (
        line(timestamp=10**400),
        "{file}:1: timestamp: expected a time within 2**63, got 1" + 56 * "0" + "... {more}",
    ),
    "a number of too many digits": (
        '{"timestamp": 1' + 5000 * "0" + "}\n",
        "{file}:1: a number of more than 4300 digits",
    ),
    "a pit": (
        GOOD + '\n{"timestamp": ' + 100_000 * "[" + 100_000 * "]" + "}\n",
        "{file}:2: nested too deeply {more}",
    ),
    "a pit at once": ('{"a": ' + 100_000 * "[" + 100_000 * "]" + "}\n", "{file}:1: nested too deeply"),
    "a pit of a document": (100_000 * "[\n" + 100_000 * "]\n", "{file}:1: nested too deeply"),
    "a cell too long": (
        "arrived_at,num_prefill_tokens,num_decode_tokens\n1,2,3\n" + 200_000 * "4" + ",5,6\n",
        "{file}:3: arrived_at: expected a number, got '" + 56 * "4" + "... {more}",
    ),
    "a title too long": (
        200_000 * "a" + ",b\n1,2\n",
        "{file}:1: no known format has the columns " + 40 * "a" + ", b; " + COLUMNS,
    ),
    "a quote that is open": (
        'arrived_at,num_prefill_tokens,num_decode_tokens\n1,2,3\n"4,5,6\n7,8,9\n',
        "{file}:3: a quote is not closed {more}",
    ),
    "a quote that is open in a title": ('arrived_at,"num_decode_tokens\n1,2\n', "{file}:1: a quote is not closed"),
    "too many tokens": (
        line(input_length=100_000_001),
        "{file}:1: input_length: expected at most 100000000, got 100000001 {more}",
    ),
    "more tokens than a number has room for": (
        line(output_length=2**70),
        "{file}:1: output_length: expected at most 100000000, got 1180591620717411303424 {more}",
    ),
    "unsorted": (
        GOOD + "\n" + line(timestamp=250),
        "{file}:2: it arrives 0.75 s before the request above it; --unsorted sort sorts them",
    ),
    "other fields": (
        '{"a": 1, "b": 2}\n',
        "{file}:1: no known format has the fields a, b; " + FIELDS,
    ),
    "fields of which some are known": (
        json.dumps({"timestamp": 1, "input_length": 3}),
        "{file}:1: no known format has the fields timestamp, input_length; "
        + likely(NEAR, "time=timestamp,input=input_length"),
    ),
    "other columns": (
        "time,tokens\n1,2\n",
        "{file}:1: no known format has the columns time, tokens; " + COLUMNS,
    ),
    "a column less": (
        "arrived_at,num_prefill_tokens,num_decode_tokens\n1,2\n",
        "{file}:2: 2 columns, expected 3: arrived_at, num_prefill_tokens, num_decode_tokens",
    ),
    "no records": (
        "arrived_at,num_prefill_tokens,num_decode_tokens\n",
        "{file}: no line of it is a record; expected JSON lines, JSON, or a table below its header",
    ),
    "no hashes": (
        "arrived_at,num_prefill_tokens,num_decode_tokens\n1,2,3\n",
        "{file}: format vidur has no block ids, so nothing says which prompts share a prefix. Say what to "
        "assume: --assume-sharing none, or for example --assume-sharing "
        "zipf:prefixes=100,tokens=1024,skew=1,share=0.8 (with --seed)",
    ),
    "not a date": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,2,3\n",
        "{file}:2: TIMESTAMP: expected a date and a time, got 'noon' {more}",
    ),
    "two sizes": (
        session(64, {"t": 0, "in": 64, "out": 1, "hash_ids": [1]})
        + session(32, {"t": 0, "in": 64, "hash_ids": [1]}),
        "{file}:2: blocks of 32 tokens after such of 64; one trace has blocks of one size",
    ),
    "no blocks": (session(0), "{file}:1: block_size: expected at least 1, got 0 {more}"),
    "no blocks of a document": (
        json.dumps(json.loads(session(0)), indent=1),
        "{file}:1: block_size: expected at least 1, got 0 {more}",
    ),
    "no requests": (session(64), "{file}: there is no request in it"),
    "requests that are none": (
        session(64).replace("[]", "{}"),
        "{file}:1: requests: expected a list, got dict {more}",
    ),
    "a turn that is none": (session(64, 5), "{file}:1: requests[0]: expected an object, got int {more}"),
    "a subagent without requests": (
        session(64, {"type": "subagent"}),
        "{file}:1: requests[0].requests: expected a list, got NoneType {more}",
    ),
    "an unknown scope": (
        session(64).replace('"id"', '"hash_id_scope": "world", "id"'),
        "{file}:1: hash_id_scope: expected 'local' or 'global', got 'world' {more}",
    ),
    "no chunks": (
        '{"timestamp": 1, "chunk_size": 0, "seq_len": 8, "chunk_hashes": []}\n',
        "{file}:1: chunk_size: expected at least 1, got 0 {more}",
    ),
    "recorded blocks of nothing": (
        '{"timestamp": 1, "input_length": 8, "output_length": 1, "block_size": 0, "hash_ids": []}\n',
        "{file}:1: block_size: expected at least 1, got 0 {more}",
    ),
    "no prompt": (
        '{"prompt": 7, "output_tokens": 1}\n',
        "{file}:1: prompt: expected text, a list of token ids, or a list of such prompts, got int {more}",
    ),
    "fields of a table": (
        '{"arrived_at": 0, "num_prefill_tokens": 1, "num_decode_tokens": 1}\n',
        "{file}:1: no known format has the fields arrived_at, num_prefill_tokens, num_decode_tokens; "
        + likely(FIELDS, "time=arrived_at,input=num_prefill_tokens,output=num_decode_tokens"),
    ),
    "columns of an object": (
        "input_length,hash_ids\n1,2\n",
        "{file}:1: no known format has the columns input_length, hash_ids; "
        + likely(COLUMNS, "input=input_length,ids=hash_ids"),
    ),
    "no fields": (
        "{}\n",
        "{file}:1: no known format has the fields none; " + FIELDS,
    ),
    "many fields": (
        json.dumps(dict.fromkeys("abcdefghijklmnop", 1)) + "\n",
        "{file}:1: no known format has the fields a, b, c, d, e, f, g, h, i, j, k, l; " + FIELDS,
    ),
    "a field less": (
        GOOD + '\n{"input_length": 1}\n',
        "{file}:2: hash_ids: no such field, and it isn't of format mooncake without {more}",
    ),
    "a first line that is cut off": (
        GOOD[:40] + "\n" + GOOD + "\n",
        "{file}:1: not JSON from column 41 on {more}",
    ),
    "an indented first line that is cut off": (
        " " + GOOD[:40] + "\n" + GOOD + "\n",
        "{file}:1: not JSON from column 41 on {more}",
    ),
    "a broken document of one object": (
        '{"id": "a",\n"requests": oops}\n',
        "{file}:2: not JSON from column 13 on",
    ),
    "a chat of which somebody has no name": (
        '{"prompt": [{"role": "user", "content": "hi"}, {"content": "ho"}]}\n',
        "{file}:1: prompt: expected text, a list of token ids, or a list of such prompts, got one of dict {more}",
    ),
    "a number among prompts": (
        '{"prompt": [1, "hi"]}\n',
        "{file}:1: prompt: expected text, a list of token ids, or a list of such prompts, got one of str {more}",
    ),
    "a token that is true": (
        '{"prompt": [true]}\n',
        "{file}:1: prompt: expected text, a list of token ids, or a list of such prompts, got one of bool {more}",
    ),
    "a column that is there twice": (
        "arrived_at,num_prefill_tokens,num_prefill_tokens ,num_decode_tokens\n1,2,3,4\n",
        "{file}:1: two columns are called 'num_prefill_tokens'",
    ),
    "a long line": (GOOD + "\n" + "7" * 60 + "\n", "{file}:2: expected an object, got " + "7" * 60 + " {more}"),
    "a longer line": (
        GOOD + "\n" + "7" * 61 + "\n",
        "{file}:2: expected an object, got " + "7" * 57 + "... {more}",
    ),
    "a long value": (
        line(input_length="x" * 58),
        "{file}:1: input_length: expected a whole number of at least 0, got '" + "x" * 58 + "' {more}",
    ),
    "a longer value": (
        line(input_length="x" * 59),
        "{file}:1: input_length: expected a whole number of at least 0, got '" + "x" * 56 + "... {more}",
    ),
    "a time that is true": (line(timestamp=True), "{file}:1: timestamp: expected a number, got True {more}"),
    "an id that is true": (
        line(hash_ids=[True]),
        "{file}:1: hash_ids: expected integers or strings, got True {more}",
    ),
    "a delay that goes back": (
        json.dumps({"session_id": "a", "delay": -5, "input_length": 1, "hash_ids": []}) + "\n",
        "{file}:1: delay: expected at least 0, got -5 {more}",
    ),
    "a delay of nobody": (
        json.dumps({"delay": 5, "input_length": 1, "hash_ids": []}) + "\n",
        "{file}:1: timestamp: no such field, and no session_id with a delay instead; --columns says where it is "
        "{more}",
    ),
    "a document": (
        '[\n{"a": 1},\n3]\n',
        "{file}: record 1: no known format has the fields a; " + FIELDS,
    ),
    "lines of numbers": ("[1, 2]\n[3]\n", "{file}:1: expected an object, got [1, 2]"),
    "a document of numbers": ("[\n3]\n", "{file}: record 1: expected an object, got int"),
    "a bad record of a document": (
        f"[{GOOD},\n{line(hash_ids=[True])}]",
        "{file}: record 2: hash_ids: expected integers or strings, got True {more}",
    ),
    "a document with blank lines": ("[\n\n" + GOOD + "\n\n,oops]", "{file}:5: not JSON from column 2 on"),
    "not even the first line": ("{oops}\n{}\n" + GOOD + "\n", "{file}:1: not JSON from column 2 on {more}"),
    "no line at all": ("{oops}\n{sorry}\n", "{file}:1: not JSON from column 2 on"),
    "several documents": (
        json.dumps({"messages": []}, indent=1) + "\n" + json.dumps({"messages": []}, indent=1)[:-1],
        "{file}:4: not JSON, and what follows isn't read {more}",
    ),
    "a list behind a document": (
        json.dumps(json.loads(GOOD), indent=1) + "\n" + json.dumps([5], indent=1),
        "{file}:9: expected an object, got int {more}",
    ),
    "a document that is cut off": ("[\n" + GOOD + ",\n", "{file}:3: not JSON from column 1 on"),
    "a bad turn": (
        session(64, {"type": "subagent", "requests": [{"t": 0}]}),
        "{file}:1: requests[0].requests[0].in: expected a whole number of at least 0, got no such field {more}",
    ),
}


@pytest.mark.parametrize("what", list(FILES))
def test_a_file(tmp_path, capsys, what):
    text, message = FILES[what]
    file = tmp_path / "trace"
    file.write_text(text)
    assert refused(capsys, "replay", file) == message.format(file=file, more="(--on-error skip goes on)")


def test_nothing_but_malformed_records(tmp_path, capsys):
    file = tmp_path / "trace.jsonl"
    file.write_text(line(input_length=-1) + line(input_length=-2))
    assert refused(capsys, "replay", file, "--on-error", "skip") == (
        f"{file}: there is no request in it (2 malformed records, first: "
        f"{file}:1: input_length: expected a whole number of at least 0, got -1)"
    )
    assert refused(capsys, "replay", file, "--format", "azure") == (
        f"{file}: --format azure is CSV, this looks like JSON"
    )


def test_dates_have_no_unit(tmp_path, capsys):
    file = tmp_path / "trace.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n")
    assert refused(capsys, "replay", file, "--time-unit", "ms", "--assume-sharing", "none") == (
        "--time-unit: the times of this trace are dates, which have no unit"
    )


def test_a_log_that_begins_within_a_line(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text(GOOD[:40] + "\n\n" + GOOD + "\n" + line(timestamp=2000))
    columns = open_trace(file, TraceOptions(on_error=OnError.SKIP))
    assert len(columns) == 2
    assert columns.notes[-1] == f"1 malformed record was skipped, first: {file}:1: not JSON from column 41 on"
    request = '{"t": 0, "in": 64, "hash_ids": [1]}'
    file.write_text('{"id": "a", "block_size": 64, "requests": [\n' + request + "\n]}\n")
    assert len(open_trace(file)) == 1, "a document, of which a line is an object"


HEADER = b"arrived_at,num_prefill_tokens,num_decode_tokens\n"
IN_LATIN_1 = {
    "a line": (f"{GOOD}\n\n".encode() + b'{"who": "Zo\xeb"}\n', 3, "(--on-error skip goes on)"),
    "the first line": (b'{"who": "Zo\xeb"}\n' + GOOD.encode(), 1, "(--on-error skip goes on)"),
    "a row": (HEADER + b"1,2,3\n1,2,\xb3\n", 3, "(--on-error skip goes on)"),
    "a header": (HEADER.replace(b"at", b"\xe0t") + b"1,2,3\n", 1, ""),
    "a document": (b"[\n\n" + GOOD.encode() + b',\n{"who": "Zo\xeb"}]', 4, ""),
}


@pytest.mark.parametrize("what", list(IN_LATIN_1))
def test_what_is_not_utf_8_is_told_with_its_line(tmp_path, capsys, what):
    data, number, more = IN_LATIN_1[what]
    file = tmp_path / "trace"
    file.write_bytes(data)
    said = refused(capsys, "replay", file, "--assume-sharing", "none")
    assert said == f"{file}:{number}: this is not text in UTF-8 {more}".rstrip()


@pytest.mark.parametrize("what", ["a line", "the first line", "a row"])
def test_a_line_that_is_not_utf_8_is_skipped_like_any_other(tmp_path, what):
    data, number, _ = IN_LATIN_1[what]
    file = tmp_path / "trace"
    file.write_bytes(data)
    columns = open_trace(file, TraceOptions(on_error=OnError.SKIP, sharing=parse_sharing("none")))
    assert len(columns) == 1
    skipped = f"1 malformed record was skipped, first: {file}:{number}: this is not text in UTF-8"
    assert skipped in columns.notes


def test_text_that_is_utf_8_is_read(tmp_path):
    file = tmp_path / "trace"
    file.write_text(json.dumps({**json.loads(GOOD), "who": "Zoë, 友"}, ensure_ascii=False), encoding="utf-8-sig")
    assert len(open_trace(file)) == 1


def test_junk(tmp_path, capsys):
    file = tmp_path / "trace.bin"
    file.write_bytes(bytes(range(128, 256)) * 9)
    assert refused(capsys, "replay", file) == f"{file}:1: this is not text in UTF-8"


def test_a_first_record_that_is_another_is_left_out_as_it_is_said(tmp_path, capsys):
    file = tmp_path / "trace.jsonl"
    file.write_text('{"made": "today"}\n' + GOOD + "\n")
    assert refused(capsys, "replay", file).endswith("; if only this record differs: --format with --on-error skip")
    command = ["replay", str(file), "--format", "mooncake", "--on-error", "skip", "--capacity", "5blocks"]
    assert main([*command, "--jobs", "1"]) == 0
