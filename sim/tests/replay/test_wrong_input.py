"""What can't be read or meant is refused: exit code 2, one line that says what and where, no traceback."""

import gzip
import json
import lzma
import os
import socket

import pytest
import zstandard
from kv_sim_slow_replay import same

from kv_sim.command.cli import main
from kv_sim.replay import open_trace
from kv_sim.replay.readers.options import OnError, TraceOptions
from kv_sim.replay.readers.sharing import parse_sharing

COLUMNS = (
    "expected those of one of the formats baseten, baseten-text, openai-table, azure, burstgpt, vidur, litellm, "
    "splitwise; --columns says which is what in another one"
)
FIELDS = (
    "expected those of one of the formats weka, lmcache, bailian, recorded, servegen, lmbench, mooncake, "
    "baseten, aibrix, aiperf, aiperf-turns, aiperf-inputs, otel, guidellm, langfuse, langsmith, sglang, "
    "sagemaker, bedrock, baseten-text, vllm, conversations, openai, bench, mooncake-lengths, litellm; --columns "
    "says which is what in another one; if it is only this record: --format with --on-error skip"
)
NEAR = (
    "expected those of lmbench (timestamp, input_length, hash_ids) or mooncake-lengths (timestamp, "
    "input_length, output_length, no hash_ids) or mooncake (input_length, hash_ids) or one of the formats "
    "weka, lmcache, bailian, recorded, servegen, baseten, aibrix, aiperf, aiperf-turns, aiperf-inputs, otel, "
    "guidellm, langfuse, langsmith, sglang, sagemaker, bedrock, baseten-text, vllm, conversations, openai, "
    "bench, litellm; --columns says which is what in another one; if it is only this record: --format with "
    "--on-error skip"
)

GOOD = json.dumps({"timestamp": 1000, "input_length": 512, "output_length": 1, "hash_ids": [1]})


def line(**fields):
    return json.dumps({**json.loads(GOOD), **fields}) + "\n"


def session(block_size, *requests):
    return json.dumps({"id": "a", "block_size": block_size, "requests": [*requests]}) + "\n"


FILES = {
    "empty": ("", "{file}: there is nothing in this file"),
    "blank": ("\n \n", "{file}: there is nothing in this file"),
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
    "no ids": (line(hash_ids="1,2"), "{file}:1: hash_ids: expected a list of ids, got '1,2' {more}"),
    "an odd id": (line(hash_ids=[1.5]), "{file}:1: hash_ids: expected integers or strings, got 1.5 {more}"),
    "no time": (
        line(timestamp=None),
        "{file}:1: timestamp: no such field, and no session_id with a delay instead; --columns says where it is "
        "{more}",
    ),
    "not a time": (line(timestamp="noon"), "{file}:1: timestamp: expected a number, got 'noon' {more}"),
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
        "{file}:1: no known format has the fields timestamp, input_length; " + NEAR,
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
        "{file}:1: no known format has the fields arrived_at, num_prefill_tokens, num_decode_tokens; " + FIELDS,
    ),
    "columns of an object": (
        "input_length,hash_ids\n1,2\n",
        "{file}:1: no known format has the columns input_length, hash_ids; " + COLUMNS,
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
    "a chat": (
        '{"prompt": [{"role": "user", "content": "hi"}]}\n',
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
    "a document of numbers": ("[\n3]\n", "{file}: record 1: expected an object, got int"),
    "a bad record of a document": (
        f"[{GOOD},\n{line(hash_ids=[True])}]",
        "{file}: record 2: hash_ids: expected integers or strings, got True {more}",
    ),
    "a document with blank lines": ("[\n\n" + GOOD + "\n\n,oops]", "{file}:5: not JSON from column 2 on"),
    "not even the first line": ("{oops}\n{}\n" + GOOD + "\n", "{file}:1: not JSON from column 2 on {more}"),
    "no line at all": ("{oops}\n{sorry}\n", "{file}:1: not JSON from column 2 on"),
    "a document that is cut off": ("[\n" + GOOD + ",\n", "{file}:3: not JSON from column 1 on"),
    "a bad turn": (
        session(64, {"type": "subagent", "requests": [{"t": 0}]}),
        "{file}:1: requests[0].requests[0].in: expected a whole number of at least 0, got no such field {more}",
    ),
}


def refused(capsys, *command):
    """The message of a command that is refused."""
    assert main([*map(str, command)]) == 2
    out, err = capsys.readouterr()
    assert not out and "Traceback" not in err
    [text] = err.splitlines()
    return text.removeprefix(f"kv-sim {command[0]}: ")


@pytest.mark.parametrize("what", list(FILES))
def test_a_file(tmp_path, capsys, what):
    text, message = FILES[what]
    file = tmp_path / "trace"
    file.write_text(text)
    assert refused(capsys, "replay", file) == message.format(file=file, more="(--on-error skip goes on)")


@pytest.mark.parametrize("cut", [20, 60, 100])
def test_a_truncated_archive(tmp_path, capsys, cut):
    file = tmp_path / "trace.jsonl.xz"
    file.write_bytes(lzma.compress((GOOD + "\n").encode() * 999)[:cut])
    assert refused(capsys, "size", file).startswith(f"{file}: truncated or damaged after line ")


def test_a_damaged_gzip(tmp_path, capsys):
    file = tmp_path / "trace.jsonl.gz"
    good = gzip.compress((GOOD + "\n").encode() * 999)
    file.write_bytes(good[:12] + b"\xff" * 20 + good[32:])
    assert refused(capsys, "size", file).startswith(f"{file}: truncated or damaged after line 0: Error -3 ")


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


def test_zstd_without_the_package(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    file = tmp_path / "trace.zst"
    file.write_bytes(b"\x28\xb5\x2f\xfd and so on")
    assert refused(capsys, "replay", file) == (
        f"{file}: packed with zstd, which needs the package zstandard: pip install 'kv-sim[zstd]', or unpack it"
    )


@pytest.fixture
def packed():
    """A few thousand requests, and how to pack them."""
    text = "".join(line(timestamp=1000 * n, hash_ids=[n * n]) for n in range(3000)).encode()
    return text, lambda data: zstandard.ZstdCompressor().compress(data)


def test_zstd_is_read_to_the_end_of_its_last_frame(tmp_path, packed):
    text, pack = packed
    plain, one, two = tmp_path / "trace.jsonl", tmp_path / "one.jsonl.zst", tmp_path / "two.jsonl.zst"
    plain.write_bytes(text)
    one.write_bytes(pack(text))
    two.write_bytes(pack(text[:5000]) + pack(b"") + pack(text[5000:]))
    expected = open_trace(plain)
    for file in (one, two):
        assert same(open_trace(file), expected)


@pytest.mark.parametrize("cut", [5, 100, 9000, -1])
def test_zstd_that_is_cut_off(tmp_path, capsys, packed, cut):
    text, pack = packed
    file = tmp_path / "trace.jsonl.zst"
    file.write_bytes(pack(text)[:cut])
    said = refused(capsys, "replay", file)
    assert said.startswith(f"{file}: truncated or damaged after line ")
    assert said.endswith(": the last frame doesn't end")


def test_zstd_that_is_damaged(tmp_path, capsys, packed):
    text, pack = packed
    good = pack(text)
    file = tmp_path / "trace.jsonl.zst"
    file.write_bytes(good[:6] + b"\xff" * 40 + good[46:])
    assert refused(capsys, "replay", file).startswith(f"{file}: truncated or damaged after line 0: zstd")


def test_a_place_without_a_trace(tmp_path, capsys):
    assert refused(capsys, "replay", tmp_path / "none.jsonl") == (
        f"{tmp_path}/none.jsonl: there is no such file; traces that ship with kv-sim: "
        "mooncake-conversation, mooncake-synthetic"
    )
    assert refused(capsys, "replay", tmp_path) == (
        f"{tmp_path}: there is no trace in this folder "
        "(.json .jsonl .ndjson .csv .tsv .txt .log, also with .xz .gz .bz2 .zst)"
    )
    (tmp_path / "inner").mkdir()
    for name in ("b.parquet", "inner/a.jsonl.lz4"):
        (tmp_path / name).touch()
    told = refused(capsys, "replay", tmp_path)
    assert told.endswith(".zst); other files: 2 (b.parquet, inner/a.jsonl.lz4)")


@pytest.mark.parametrize("command", [("replay",), ("replay", "--stream", "--capacity", "5blocks"), ("size",)])
def test_what_can_not_be_opened_twice(tmp_path, capsys, monkeypatch, command):
    """It would be found empty, after its first bytes were looked at."""
    twice = "a trace is a file, since it is opened more than once: save it first"
    name, *options = command
    assert refused(capsys, name, "-", *options) == f"-: {twice}"
    assert refused(capsys, name, "/dev/null", *options) == f"/dev/null: this is a device, and {twice}"
    reading, writing = os.pipe()
    os.write(writing, GOOD.encode())
    os.close(writing)
    try:
        for place in (f"/dev/fd/{reading}", f"/proc/self/fd/{reading}"):
            assert refused(capsys, name, place, *options) == f"{place}: this is a pipe, and {twice}"
    finally:
        os.close(reading)
    monkeypatch.chdir(tmp_path)  # a socket's whole name may be too long
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
        said = refused(capsys, name, tmp_path / "socket", *options)
        assert said == f"{tmp_path}/socket: this is a socket, and {twice}"


def test_a_file_can_be_given_by_its_number_or_be_called_minus(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-").write_text(GOOD + "\n")
    with open("-") as file:
        for place in (f"/dev/fd/{file.fileno()}", "-"):
            assert main(["replay", place, "--capacity", "5blocks", "--jobs", "1"]) == 0
            assert ": 1 request in " in capsys.readouterr().out


OPTIONS = {
    ("--capacity", "64"): "--capacity 64: 64 what? Expected 20000blocks, 10Mtokens, 64GiB or 64GB",
    ("--capacity", "64g"): "--capacity 64g: 'g' can mean GB (powers of 1000) or GiB (powers of 1024): say which",
    ("--capacity", "64G"): "--capacity 64G: 'G' can mean GB (powers of 1000) or GiB (powers of 1024): say which",
    ("--capacity", "64k"): "--capacity 64k: 'k' can mean KB (powers of 1000) or KiB (powers of 1024): say which",
    ("--capacity", "64Mbit"): (
        "--capacity 64Mbit: 'Mbit' would be bits: say MB (powers of 1000) or MiB (powers of 1024)"
    ),
    ("--capacity", "64Gb"): "--capacity 64Gb: 'Gb' would be bits: say GB (powers of 1000) or GiB (powers of 1024)",
    ("--capacity", "64gigs"): (
        "--capacity 64gigs: unknown unit 'gigs'; expected 20000blocks, 10Mtokens, 64GiB or 64GB"
    ),
    ("--capacity", "64xtokens"): (
        "--capacity 64xtokens: unknown unit 'xtokens'; expected 20000blocks, 10Mtokens, 64GiB or 64GB"
    ),
    (
        "--capacity",
        "64bit",
    ): "--capacity 64bit: unknown unit 'bit'; expected 20000blocks, 10Mtokens, 64GiB or 64GB",
    (
        "--capacity",
        "64Tib",
    ): "--capacity 64Tib: 'Tib' would be bits: say TB (powers of 1000) or TiB (powers of 1024)",
    ("--capacity", "GiB"): "--capacity GiB: expected a size such as 20000blocks, 10Mtokens, 64GiB or 64GB",
    ("--capacity", "1e100blocks"): (
        "--capacity 1e100blocks: expected a size such as 20000blocks, 10Mtokens, 64GiB or 64GB"
    ),
    ("--capacity", "64GiB"): "--capacity 64GiB: bytes of what? Say --model or --bytes-per-token",
    ("--capacity", "100tokens"): "--capacity 100tokens: less than one block of 512 tokens",
    ("--capacity", "1MiB", "--bytes-per-token", "131072"): (
        "--capacity 1MiB: less than one block of 512 tokens, which takes 64 MiB"
    ),
    ("--gpu-capacity", "1"): "--gpu-capacity 1: 1 what? Expected 20000blocks, 10Mtokens, 64GiB or 64GB",
    ("--policy", "lruu"): "unknown policy 'lruu'; known: arc, lru, s3fifo, sieve; did you mean 'lru'?",
    ("--model", "lama"): (
        "--model: unknown model 'lama'; known: deepseek-v3, kimi-k2, llama-3.1-405b, llama-3.1-70b, llama-3.1-8b, "
        "llama-3.2-3b, mistral-7b, mixtral-8x7b, qwen2.5-14b, qwen2.5-32b, qwen2.5-72b, qwen2.5-7b, "
        "qwen3-235b-a22b, qwen3-30b-a3b, qwen3-32b, qwen3-8b; any other: the path of its config.json, or "
        "--bytes-per-token"
    ),
    ("--kv-dtype", "fp7", "--model", "qwen3-8b"): (
        "--kv-dtype: unknown dtype 'fp7'; known: bf16, fp16, fp8, int8; did you mean 'fp8'?"
    ),
    ("--model", "qwen3-8b", "--bytes-per-token", "7"): "--model and --bytes-per-token: give one of them",
    ("--bytes-per-token", "0"): "--bytes-per-token: expected 1 to 1099511627776, got 0",
    ("--bytes-per-token", "1" + "0" * 400): f"--bytes-per-token: expected 1 to 1099511627776, got 1{'0' * 400}",
    ("--format", "moncake"): (
        "--format: unknown format 'moncake'; known: aibrix, aiperf, aiperf-inputs, aiperf-turns, azure, "
        "bailian, baseten, baseten-text, bedrock, bench, burstgpt, conversations, guidellm, langfuse, langsmith, "
        "litellm, lmbench, lmcache, mooncake, mooncake-lengths, openai, openai-table, otel, recorded, sagemaker, "
        "servegen, sglang, splitwise, vidur, vllm, weka; did you mean 'mooncake'?"
    ),
    ("--time-unit", "m"): "--time-unit: unknown unit 'm'; known: ms, ns, s, us; did you mean 'ms'?",
    ("--block-size", "0"): "--block-size: expected at least 1, got 0",
    ("--block-size", "100000001"): "--block-size: expected at most 100000000, got 100000001",
    ("--requests", "0"): "--requests: expected at least 1, got 0",
    ("--seed", "7"): "--seed is for --assume-sharing, which isn't given",
    ("--kv-dtype", "fp8", "--bytes-per-token", "7"): "--kv-dtype is for --model, which isn't given",
    ("--stagger", "-1"): "--stagger: expected at least 0 seconds, got -1",
    ("--stagger", "nan"): "--stagger: expected at least 0 seconds, got nan",
    ("--stagger", "inf"): "--stagger: expected at least 0 seconds, got inf",
    ("--jobs", "0"): "--jobs: more than 0, got 0",
    ("--assume-sharing", "some"): (
        "--assume-sharing some: expected 'none' or 'zipf[:prefixes=100,tokens=1024,skew=1,share=0.8]'"
    ),
    ("--assume-sharing", "zipf:share=2"): (
        "--assume-sharing zipf:share=2: prefixes is at least 1, share at most 1"
    ),
    ("--assume-sharing", "zipf:prefixes=0"): (
        "--assume-sharing zipf:prefixes=0: prefixes is at least 1, share at most 1"
    ),
    ("--assume-sharing", "zipf:tokens=1.5"): (
        "--assume-sharing zipf:tokens=1.5: tokens: expected a number of at least 0, got '1.5'"
    ),
    ("--assume-sharing", "zipf:skew=-1"): (
        "--assume-sharing zipf:skew=-1: skew: expected a number of at least 0, got '-1'"
    ),
    ("--assume-sharing", "zipf:prefixes=1e9"): (
        "--assume-sharing zipf:prefixes=1e9: prefixes: expected a number of at least 0, got '1e9'"
    ),
    ("--assume-sharing", "zipf:share"): (
        "--assume-sharing zipf:share: share: expected a number of at least 0, got ''"
    ),
    ("--assume-sharing", "zipf:shares=1"): (
        "--assume-sharing zipf:shares=1: unknown setting 'shares'; known: prefixes, share, skew, tokens; "
        "did you mean 'share'?"
    ),
    ("--assume-sharing", "none:share=1"): (
        "--assume-sharing none:share=1: expected 'none' or 'zipf[:prefixes=100,tokens=1024,skew=1,share=0.8]'"
    ),
    ("--html", "/nowhere/report.html"): "--html /nowhere/report.html: there is no such folder",
    ("--json", "/nowhere/report.json"): "--json /nowhere/report.json: there is no such folder",
}


@pytest.mark.parametrize("options", list(OPTIONS), ids=" ".join)
def test_an_option(tmp_path, capsys, options):
    file = tmp_path / "trace.jsonl"
    file.write_text(GOOD + "\n")
    assert refused(capsys, "replay", file, *options) == OPTIONS[options]


def test_options_of_one_command(tmp_path, capsys):
    file = tmp_path / "trace.jsonl"
    file.write_text(GOOD + "\n")
    assert refused(capsys, "size", file, "--points", "1") == "--points: expected at least 2, got 1"
    said = refused(capsys, "size", file, "--points", "3", "--capacity", "5blocks")
    assert said == "--points and --capacity: give one of them"
    assert refused(capsys, "replay", file, "--store-threshold", "-1") == (
        "--store-threshold: expected at least 0, got -1"
    )
    assert refused(capsys, "replay", file, "--write-oracle", "/nowhere/x") == (
        "--write-oracle /nowhere/x: there is no such folder"
    )
    two = tmp_path / "two.jsonl"
    two.write_text(line(input_length=1024, hash_ids=[1, 2]) + line(input_length=1024, hash_ids=[3, 2]))
    assert refused(capsys, "replay", two, "--ids", "prefix") == (
        f"{two}: --ids prefix, but these aren't prefix ids: id 2 comes after 1 and after 3 ({two}:2)"
    )


def test_a_first_record_that_is_another_is_left_out_as_it_is_said(tmp_path, capsys):
    file = tmp_path / "trace.jsonl"
    file.write_text('{"made": "today"}\n' + GOOD + "\n")
    assert refused(capsys, "replay", file).endswith("; if it is only this record: --format with --on-error skip")
    command = ["replay", str(file), "--format", "mooncake", "--on-error", "skip", "--capacity", "5blocks"]
    assert main([*command, "--jobs", "1"]) == 0


@pytest.mark.parametrize("name", ["replay", "size"])
def test_what_can_not_be_read_is_named(tmp_path, capsys, monkeypatch, name):
    """Reading tells nobody of which file it was, other than opening."""
    assert refused(capsys, name, "/proc/self/mem") == "/proc/self/mem: Input/output error"
    file = tmp_path / "trace.jsonl"
    file.write_text(GOOD)
    monkeypatch.setattr(type(file), "open", lambda *_, **__: os.open("/proc/1/none", os.O_RDONLY))
    assert refused(capsys, name, file) == f"{file}: No such file or directory"
