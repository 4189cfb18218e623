"""A Parquet or Arrow file is the same trace as its rows would be as text, of any format; errors name the file."""

import json
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
from kv_sim_formats import CASES, options_for
from kv_sim_records import mooncake, seen
from kv_sim_slow_replay import same

from kv_api import ConfigError
from kv_sim.replay.readers.catalogue import FORMATS
from kv_sim.replay.readers.files.columnar import rows_of
from kv_sim.replay.readers.files.objects import objects_of
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import OnError, TraceOptions
from kv_sim.replay.readers.record import Moment
from kv_sim.replay.readers.unknown.own_columns import parse_columns

OF_SEVERAL_TYPES = {"langfuse", "langsmith"}
"""A field has a list in one record and text in another: no column is both."""


def written(file, rows):
    if isinstance(rows, list):
        names = dict.fromkeys(name for row in rows for name in row)
        rows = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    pyarrow.parquet.write_table(rows, file)
    return file


def in_columns(value):
    """What a file can hold: no objects without fields. A cell that is blank would be null."""
    if value == {}:
        return {"of no": "interest"}
    if isinstance(value, dict):
        return {name: in_columns(one) for name, one in value.items() if one not in (" ", "")}
    return [*map(in_columns, value)] if isinstance(value, list) else value


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in OF_SEVERAL_TYPES])
def test_of_any_format(tmp_path, name):
    text = tmp_path / "trace"
    text.write_text(CASES[name][0])
    packed = written(tmp_path / "packed", [in_columns(record) for _, record in objects_of(text).found])
    form = name if name == "openai-table" else None  # else its rows are taken for requests as JSON has them
    assert same(open_trace(packed, options_for(name, format=form)), open_trace(text, options_for(name)))


NOON, IN_TEXT = datetime(2026, 11, 27, 12, 0, 0, 123456), "2026-11-27T12:00:00.123456"
IN_UTC = NOON.replace(tzinfo=UTC)
NS, NS_1970 = pyarrow.timestamp("ns"), int(IN_UTC.timestamp()) * 10**9 + 123_456_789
"""Python has no value for it."""
MESSAGE = [("role", pyarrow.string()), ("at", pyarrow.timestamp("ns", tz="UTC")), ("tool", pyarrow.int8())]
SAID = [{"role": "user", "at": NS_1970, "tool": None}]
VALUES = {
    "nanoseconds": (NS, NS_1970, IN_TEXT),
    "somewhere": (pyarrow.timestamp("us", tz="America/New_York"), IN_UTC, IN_TEXT),
    "seconds": (pyarrow.timestamp("s", tz="+05:00"), IN_UTC.replace(microsecond=0), "2026-11-27T12:00:00"),
    "a day": (pyarrow.date32(), date(2026, 11, 27), "2026-11-27"),
    "a time": (pyarrow.time64("ns"), 43_201_000_000_001, "12:00:01.000000001"),
    "a duration": (pyarrow.duration("ns"), 1_500_000_001, Moment(1.5)),
    "a whole decimal": (pyarrow.decimal128(10, 2), Decimal("12.00"), 12),
    "a decimal": (pyarrow.decimal128(10, 2), Decimal("12.50"), 12.5),
    "text as bytes": (pyarrow.binary(), b"abc", "abc"),
    "bytes": (pyarrow.binary(), b"\xff\0", "ff00"),
    "a name": (pyarrow.uuid(), bytes(16), "00000000-0000-0000-0000-000000000000"),
    "one of few": (pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), "a", "a"),
    "objects": (pyarrow.list_(pyarrow.struct(MESSAGE)), SAID, [{"role": "user", "at": IN_TEXT}]),
    "a map": (pyarrow.map_(pyarrow.int8(), NS), [(1, NS_1970), (2, None)], {"1": IN_TEXT}),
    "large ids": (pyarrow.list_(pyarrow.uint64()), [2**64 - 1], [2**64 - 1]),
    "two of a kind": (pyarrow.list_(NS, 2), [NS_1970, None], [IN_TEXT, None]),
    "many of a kind": (pyarrow.large_list(NS), [NS_1970], [IN_TEXT]),
    "much text": (pyarrow.large_string(), "a", "a"),
    "whether": (pyarrow.bool_(), True, True),
    "a number": (pyarrow.float32(), 1.5, 1.5),
}


@pytest.mark.parametrize("what", VALUES)
def test_a_value_is_what_json_would_have_made_of_it(tmp_path, what):
    kind, value, read = VALUES[what]
    file = written(tmp_path / "trace", pyarrow.table({"it": pyarrow.array([value], kind)}))
    assert [*rows_of(file)] == [{"it": read}]
    assert type(next(rows_of(file))["it"]) is type(read)


@pytest.mark.parametrize(
    "what", sorted(VALUES.keys() - {"two of a kind"})
)  # of which older ones of pyarrow read no null
def test_null_is_not_there(tmp_path, what):
    kind, value, read = VALUES[what]
    rows = rows_of(written(tmp_path / "trace", pyarrow.table({"it": pyarrow.array([None, value], kind)})))
    assert [*rows] == [{}, {"it": read}]


def arrow(make, *, batch_size=1000, close=True):
    def write(table, file):
        with pyarrow.OSFile(str(file), "wb") as sink:
            writer = make(sink, table.schema)
            for batch in table.to_batches(max_chunksize=batch_size):
                writer.write_batch(batch)
            if close:
                writer.close()

    return write


WAYS = {
    "Parquet": pyarrow.parquet.write_table,
    "Arrow": arrow(pyarrow.ipc.new_file),
    "a stream of Arrow": arrow(pyarrow.ipc.new_stream),
    "Feather": lambda table, file: pyarrow.feather.write_feather(table, file, compression="lz4"),
    "small batches": arrow(pyarrow.ipc.new_file, batch_size=7),
    "a stream of small batches": arrow(pyarrow.ipc.new_stream, batch_size=7),
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_the_same_however_they_are_written(tmp_path, way):
    cells = {
        name: pyarrow.array([value] * 600, kind)
        for name, (kind, value, _) in VALUES.items()
        if name != "a name"  # whose type is none of its own in older ones of pyarrow
    }
    numbered = pyarrow.table({"number": range(600), **cells})
    WAYS[way](numbered, tmp_path / "trace")
    rows = [*rows_of(tmp_path / "trace")]
    assert [row.pop("number") for row in rows] == [*range(600)]
    assert all(row == {name: VALUES[name][2] for name in cells} for row in rows)


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_is_cut_off_is_refused(tmp_path, way):
    WAYS[way](pyarrow.Table.from_pylist([mooncake(n, 512, [n]) for n in range(30)]), tmp_path / "trace")
    whole = (tmp_path / "trace").read_bytes()
    for end in {*range(6, len(whole), 64), len(whole) - 8, len(whole) - 1}:
        (tmp_path / "trace").write_bytes(whole[:end])
        assert refused(tmp_path / "trace").startswith("truncated")


def test_a_stream_that_was_not_closed_is_refused(tmp_path):
    """Else the rows up to there would be taken for all."""
    arrow(pyarrow.ipc.new_stream, close=False)(pyarrow.table({"timestamp": [0]}), tmp_path / "trace")
    assert refused(tmp_path / "trace") == (
        "truncated, or not closed by its writer: the end of the stream is missing"
    )


@pytest.mark.parametrize("way", WAYS)
def test_without_rows_there_is_nothing(tmp_path, way):
    WAYS[way](pyarrow.table({"timestamp": pyarrow.array([], pyarrow.int64())}), tmp_path / "trace")
    assert refused(tmp_path / "trace") == "this file is empty"


def test_a_folder_of_arrow(tmp_path):
    for number, ending in enumerate(("arrow", "feather")):
        table = pyarrow.Table.from_pylist([mooncake(1000 * number, 512, [number])])
        WAYS["Arrow"](table, tmp_path / f"{number}.{ending}")
    assert seen(open_trace(tmp_path))[0] == [0, 1]


def test_what_datasets_keep_beside_their_rows_is_left_out(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        rows = pyarrow.Table.from_pylist([mooncake(0, 512, [1])])
        WAYS["a stream of Arrow"](rows, tmp_path / part / "data-00000-of-00001.arrow")
        for name in ("dataset_info.json", "state.json"):
            (tmp_path / part / name).write_text(json.dumps({"_fingerprint": "1"}, indent=2))
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    trace = open_trace(tmp_path)
    assert len(trace) == 2
    left_out = "dataset_dict.json, test/dataset_info.json, test/state.json, …"
    assert f"files of the folder that were left out for their names: 5 ({left_out})" in trace.notes


def test_a_folder_has_its_rows_in_the_order_of_names_and_parts_without_any_are_left_out(tmp_path):
    rows = [mooncake(1000 * n, 1024, [n // 2, n]) for n in range(600)]
    table = pyarrow.Table.from_pylist(rows)
    for number, begin in enumerate(range(0, 600, 200)):
        written(tmp_path / f"part-{number}.snappy.parquet", table[begin : begin + 200])
    written(tmp_path / "part-9.parquet", table[:0])
    whole = open_trace(written(tmp_path / "whole", table))
    parts = open_trace(tmp_path)
    assert same(parts, whole)
    assert len(seen(whole)[0]) == 600
    assert parts.notes[1:3] == (
        "files of the folder that were left out for their names: 1 (whole)",
        "files of the folder that were empty: 1 (part-9.parquet)",
    )


def test_columns_may_be_named_and_lie_in_objects(tmp_path):
    rows = [{"at": IN_UTC + timedelta(seconds=n), "usage": {"in": 512, "out": 3}, "ids": [n]} for n in range(2)]
    options = TraceOptions(
        columns=parse_columns("time=at,input=usage.in,output=usage.out,ids=ids"), block_tokens=512
    )
    columns = open_trace(written(tmp_path / "trace", rows), options)
    assert seen(columns) == ([0, 1], [(512, 3), (512, 3)], [0, 0])


def test_a_log_may_have_numbers_where_a_table_has_text(tmp_path):
    """The same request as JSON in a column, and as an object."""
    asked = {"messages": [{"role": "user", "content": "x" * 64}]}
    answered = {"request_created_at": 5.5, "completion_tokens": 7, "model": " "}
    for number, body in enumerate((json.dumps(asked), asked)):
        file = written(tmp_path / f"{number}", [{"request_body": body, **answered}])
        for form in ("openai-table", "openai"):
            assert seen(open_trace(file, TraceOptions(format=form)))[1] == [(22, 7)]


def refused(file, **options):
    with pytest.raises(ConfigError) as caught:
        open_trace(file, TraceOptions(**options))
    return str(caught.value).removeprefix(f"{file}: ")


def test_what_can_not_be_read_is_said(tmp_path, monkeypatch):
    file, cut = written(tmp_path / "trace", [mooncake(0, 512, [1])]), tmp_path / "cut"
    cut.write_bytes(file.read_bytes()[:-20])
    assert refused(cut).startswith("truncated, damaged or unreadable: Parquet magic bytes not found in footer.")
    twice = pyarrow.Table.from_arrays([pyarrow.array([1])] * 2, names=["a", "a"])
    assert refused(written(tmp_path / "twice", twice)) == "two columns are called 'a'"
    assert refused(written(tmp_path / "none", twice[:0])) == "this file is empty"
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    for kind in ("Parquet", "Arrow", "a stream of Arrow"):
        WAYS[kind](twice, file)
        assert refused(file) == (
            f"this is {kind}, which needs the package pyarrow: pip install 'kv-sim[parquet]', "
            "or save it as JSON lines"
        )


def test_a_row_that_is_no_request_is_named(tmp_path):
    rows = [mooncake(0, 512, [1]), mooncake(1, -1, [1]), mooncake(2, 512, None)]
    file = written(tmp_path / "trace", rows)
    negative = "input_length: expected a whole number of at least 0, got -1"
    assert refused(file) == f"record 2: {negative} (--on-error skip goes on)"
    notes = open_trace(file, TraceOptions(on_error=OnError.SKIP)).notes
    no_ids = "hash_ids: no such field, and it isn't of format mooncake without"
    skipped = f"{file}: record 2: {negative}; {file}: record 3: {no_ids}"
    assert notes[-1] == f"2 malformed records were skipped, first: {skipped}"
    assert refused(written(file, [{"a": 1}])).startswith("no known format has the columns a; expected those of ")
    assert not refused(file).endswith("--on-error skip")


def test_a_duration_has_its_own_unit(tmp_path):
    """Whatever the format counts in."""
    times = pyarrow.array([timedelta(seconds=2 * one) for one in range(3)], pyarrow.duration("ms"))
    rows = {"timestamp": times, "input_length": [1024] * 3, "output_length": [1] * 3, "hash_ids": [[1, 2]] * 3}
    columns = open_trace(written(tmp_path / "trace", pyarrow.table(rows)))
    assert columns.notes[0] == "format: mooncake"
    assert columns.arrivals.tolist() == [0, 2, 4]
