"""How records lie in a file, told by its first line; and where what is wrong with them stands."""

import base64
import codecs
import gzip
import io
import json
import pickle
import re
import tarfile
from random import Random

import pytest
from kv_sim_records import lines, mooncake

from kv_api import ConfigError
from kv_sim.replay.readers.files.folder import files_of
from kv_sim.replay.readers.files.lines import zstd
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import OnError, TraceOptions
from kv_sim.replay.readers.requests.sharing import parse_sharing

GOOD = json.dumps({"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]})
HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens"
DIGITS = 5000 * "1"


@pytest.mark.parametrize(
    "text",
    [
        f"  {GOOD}\n\t{GOOD}\n",
        f"\n  [\n{GOOD},\n{GOOD}]\n",
        f"[{GOOD}\n,{GOOD}]\n",
        f"X,{HEADER}\n1,2,3,4\n1,2,3,4\n",
        f" {HEADER}\n2,3,4\n2,3,4\n",
    ],
    ids=["lines", "document", "document of lines", "table", "indented table"],
)
def test_the_first_letter_tells_how_records_lie_in_a_file(tmp_path, text):
    file = tmp_path / "trace"
    file.write_text(text)
    assert len(open_trace(file, TraceOptions(sharing=parse_sharing("none")))) == 2


@pytest.mark.parametrize("ending", ["json", "jsonl.xz", "CSV.gz", "ndjson.zst", "tsv"])
def test_what_a_trace_may_be_called(tmp_path, ending):
    for name in (f"trace.{ending}", f"trace.{ending}.bak"):
        (tmp_path / name).touch()
    assert files_of(tmp_path) == [tmp_path / f"trace.{ending}"]


def test_a_log_that_another_one_took_the_place_of_is_read(tmp_path):
    names = ("app.log", "app.log.1", "app.log.2.gz", "a.json-20260131", "b.jsonl.2026-01-31_10", "c.log.20260131")
    others = ("d.py.1", "e.log.old", "f.log.12345", "g.1")
    for name in (*names, *others):
        (tmp_path / name).write_text(lines(mooncake(0, 512, [1])))
    trace = open_trace(tmp_path)
    assert len(trace) == len(names)
    assert "left out for their names: 4 (d.py.1, e.log.old, f.log.12345, …)" in trace.notes[1]
    said = "files of the folder that were read as logs that others took the place of:"
    assert trace.notes[2] == f"{said} 5 (a.json-20260131, app.log.1, app.log.2.gz, …)"


def test_what_is_hidden_or_empty_in_a_folder_is_left_out(tmp_path):
    """What Jupyter and macOS keep beside a trace; an hour without requests."""
    for name in (".ipynb_checkpoints/a.jsonl", "._a.jsonl", "a.jsonl", "b/.c.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(GOOD)
    for name, content in (("0.jsonl", b""), ("1.jsonl.gz", gzip.compress(b"\n\n"))):
        (tmp_path / "b" / name).write_bytes(content)
    columns = open_trace(tmp_path)
    assert (len(columns), columns.notes[1:]) == (
        1,
        (
            "files of the folder that were left out for their names: 3 (._a.jsonl, .ipynb_checkpoints/a.jsonl, "
            "b/.c.jsonl)",
            "files of the folder that were empty: 2 (b/0.jsonl, b/1.jsonl.gz)",
        ),
    )
    with pytest.raises(ConfigError) as caught:
        open_trace(tmp_path / "b")
    assert str(caught.value) == f"{tmp_path / 'b' / '0.jsonl'}: this file is empty"


def test_several_broken_lines_may_come_first(tmp_path):
    file = tmp_path / "trace"
    file.write_text("{oops}\n{sorry}\n" + GOOD + "\n")
    columns = open_trace(file, TraceOptions(on_error=OnError.SKIP))
    assert len(columns) == 1
    assert columns.notes[-1].startswith("2 malformed records were skipped")
    with pytest.raises(ConfigError) as caught:
        open_trace(file)
    assert str(caught.value) == f"{file}:1: not JSON from column 2 on (--on-error skip goes on)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"[\n{GOOD},\n{DIGITS}]\n", ":1: a number of more than 4300 digits"),
        (100_000 * "[\n" + 100_000 * "]\n", ":1: nested too deeply"),
        (f'[\n{GOOD},\n{{"who": "Zo\udceb"}},\n{GOOD}]\n', ":3: this is not text in UTF-8"),
        (f'\n[\n{GOOD},\n{{"who": "Zo\udceb"}}]\n', ":4: this is not text in UTF-8"),
        (f"{HEADER},num_decode_tokens\n1,2,3,4\n", ":1: two columns are called 'num_decode_tokens'"),
        (f"{99 * 'n'},{99 * 'n'}\n1,2\n", f":1: two columns are called '{59 * 'n'}"),
    ],
    ids=["digits", "pit", "bytes", "bytes after a blank line", "columns", "long columns"],
)
def test_where_a_file_is_broken(tmp_path, text, said):
    file = tmp_path / "trace"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        open_trace(file)
    assert str(caught.value) == f"{file}{said}"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (GOOD.encode("utf-16"), "text in UTF-16"),
        (codecs.BOM_UTF16_BE + GOOD.encode("utf-16-be"), "text in UTF-16"),
        (b"PK\3\4\x14", "a zip archive"),
        *((pickle.dumps({"rid": 1}, kind), "Python's pickle, as SGLang dumps requests") for kind in (2, 3, 4, 5)),
        (b"SQLite format 3\0\x10", "a database of SQLite"),
        (b"FEA1\0\0\0\0", "Feather's first version"),
        (b"Obj\1\4", "Avro"),
    ],
)
def test_what_else_a_file_is(tmp_path, content, what):
    file = tmp_path / "trace"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        open_trace(file)
    told = "a trace is text in UTF-8, JSON lines, JSON or a table, or Parquet or Arrow"
    assert str(caught.value) == f"{file}: this is {what}; {told}"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_tar_archive_is_none(tmp_path, pack):
    file, archive = tmp_path / "trace.tar", io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        inner = tarfile.TarInfo("trace.jsonl")
        inner.size = len(GOOD)
        tar.addfile(inner, io.BytesIO(GOOD.encode()))
    file.write_bytes(pack(archive.getvalue()))
    with pytest.raises(ConfigError) as caught:
        open_trace(file)
    told = "a trace is text in UTF-8, JSON lines, JSON or a table, or Parquet or Arrow"
    assert str(caught.value) == f"{file}: this is a tar archive; {told}"


@pytest.mark.parametrize("kind", [0x50, 0x5F])
def test_zstd_may_begin_with_a_frame_that_holds_nothing(tmp_path, kind):
    """pzstd writes such."""
    file = tmp_path / "trace.jsonl.zst"
    file.write_bytes(bytes([kind]) + b"\x2a\x4d\x18\4\0\0\0abcd" + zstd.compress(GOOD.encode()))
    assert len(open_trace(file)) == 1


def test_zstd_that_shrinks_little_is_read_to_the_end(tmp_path):
    """Then one of its blocks takes many reads."""
    random, file = Random(3), tmp_path / "trace.jsonl.zst"
    ids = [base64.b64encode(random.randbytes(600)).decode() for _ in range(200)]
    text = "".join(json.dumps({**json.loads(GOOD), "hash_ids": [one]}) + "\n" for one in ids)
    file.write_bytes(zstd.compress(text.encode()))
    assert file.stat().st_size > 1 << 16
    assert len(open_trace(file)) == 200


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        ([{"t": 0, "in": 64, "hash_ids": [1]}, 5], "requests[0].requests[1]: expected an object, got int"),
        (None, "requests[0].requests: expected a list, got NoneType"),
        ({}, "requests[0].requests: expected a list, got dict"),
    ],
)
def test_what_is_no_turn_of_a_subagent(tmp_path, inner, said):
    file = tmp_path / "trace"
    subagent = {"type": "subagent", "t": 1, "requests": inner}
    file.write_text(json.dumps({"id": "a", "block_size": 64, "requests": [subagent]}))
    with pytest.raises(ConfigError) as caught:
        open_trace(file)
    assert said in str(caught.value)


def test_between_documents_there_may_be_commas(tmp_path):
    """As in a list that lost its brackets, or in lines that were cut out of one."""
    file = tmp_path / "trace.jsonl"
    plain = "".join(json.dumps({**json.loads(GOOD), "timestamp": number}) + "\n" for number in range(3))
    file.write_text(plain)
    expected = [*open_trace(file)]
    for text in (
        plain.replace("}\n", "},\n"),
        plain.replace("}\n", "},\n").rstrip(",\n"),
        plain.replace("}\n", "} , "),
    ):
        file.write_text(text)
        assert [*open_trace(file)] == expected


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[{}, {},]", " (a comma too many)"),
        ('[{"a": 1 , }]', " (a comma too many)"),
        ("[{}, {},\n", ""),
        ("[{},, {}]", ""),
        ("[{} {}]", ""),
    ],
)
def test_a_comma_too_many_is_said(tmp_path, text, hint):
    file = tmp_path / "trace.json"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        open_trace(file)
    assert re.fullmatch(rf"{file}:[12]: not JSON from column \d+ on{re.escape(hint)}", str(refused.value))
