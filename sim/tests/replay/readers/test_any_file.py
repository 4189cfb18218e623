"""Whatever stands in a trace, it is read or refused; it never ends a replay otherwise."""

import json
from contextlib import suppress
from copy import deepcopy

import kv_sim_foreign_traces
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import OnError, TraceOptions, Unsorted
from kv_sim.replay.readers.requests.sharing import parse_sharing

REQUEST = {"timestamp": 5, "input_length": 1024, "output_length": 7, "hash_ids": [1, 2]}
CALL = {"t": 0, "type": "s", "in": 128, "out": 2, "hash_ids": [1, 2], "api_time": 0.5}
RECORDS = {
    "mooncake": REQUEST,
    "mooncake, a session": {"session_id": "a", "delay": 3, "input_length": 9, "output_length": 1, "hash_ids": [4]},
    "bailian": {**REQUEST, "chat_id": 1, "parent_chat_id": -1, "type": "text", "turn": 1},
    "lmbench": {**REQUEST, "timestamp": "1753780607550317897"},
    "weka": {"id": "a", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": [CALL, CALL]},
    "lmcache": {"timestamp": 1.5, "chunk_size": 256, "seq_len": 800, "chunk_hashes": ["a", "b", "c"]},
    "recorded": {**REQUEST, "block_size": 512},
    "vllm": {"prompt": "You are a helpful assistant.", "output_tokens": 5},
    "conversations": {"conversations": [{"from": "human", "value": "Hello?"}, {"from": "gpt", "value": "Hello!"}]},
    "conversations-dated": {
        "timestamp": "2024-05-06T07:08:09Z",
        "conversation": [
            {"role": "user", "content": "Hello?", "timestamp": None},
            {"role": "assistant", "content": "Hello!", "timestamp": "2024-05-06T07:08:09Z"},
        ],
    },
    "openai": {
        "timestamp": "2026-11-25T08:00:00Z",
        "body": {"model": "m", "tools": [{"type": "function"}], "messages": [{"role": "user", "content": "Hi"}]},
        "response": {"body": {"usage": {"completion_tokens": 3}}},
    },
}
MORE = kv_sim_foreign_traces.CASES
RECORDS |= {
    name: json.loads(text if text.endswith("}") else text.splitlines()[-1])
    for name, (text, _, _) in MORE.items()
    if text[0] == "{"
}
RECORDS |= {name: json.loads(text)[-1] for name, (text, _, _) in MORE.items() if text[0] == "["}
TABLES = {
    "azure": ("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.9799600,4808,10"),
    "burstgpt": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "5,GPT-4,472,18,490,API log",
    ),
    "vidur": ("arrived_at,num_prefill_tokens,num_decode_tokens", "1.5,200,30"),
    **{name: text.splitlines()[:2] for name, (text, _, _) in MORE.items() if text[0] not in "{["},
}
ROWS = RECORDS | {
    name: dict(zip(header.split(","), row.split(","), strict=False)) for name, (header, row) in TABLES.items()
}
HUGE = (10**400, -(2**70), 2**63, float("inf"), float("nan"), 1e308, "1e999", "nan", "٣", "1_0", "\ud800", "\x00")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(HUGE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
OF_COLUMNS = st.datetimes() | st.decimals(allow_nan=False, allow_infinity=False) | st.binary(max_size=3)
OPTIONS = st.builds(
    TraceOptions,
    on_error=st.sampled_from(OnError),
    unsorted=st.sampled_from(Unsorted),
    sharing=st.sampled_from([None, parse_sharing("none")]),
    block_tokens=st.sampled_from([None, 1, 512]),
)


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Reads a text as a trace, if it is one."""
    file = tmp_path_factory.mktemp("any") / "trace"

    def read(text, options):
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        with suppress(ConfigError):
            open_trace(file, options).check()

    return read


@pytest.fixture(scope="module")
def read_rows(tmp_path_factory):
    """The same of the same row twice, if there is a column for each of its values."""
    file = tmp_path_factory.mktemp("any") / "trace"

    def read_rows(row, options):
        try:
            pyarrow.parquet.write_table(pyarrow.table({name: [value] * 2 for name, value in row.items()}), file)
        except (pyarrow.ArrowException, OverflowError, UnicodeEncodeError):
            reject()
        with suppress(ConfigError):
            open_trace(file, options).check()

    return read_rows


def places(value):
    """Every field and item of a record, at any depth: what it is in, and its key there."""
    keys = range(len(value)) if isinstance(value, list) else value
    for key in keys:
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


@pytest.mark.once
@example(["mooncake"], [(0, 1, "1e999")], TraceOptions())
@example(["mooncake", "mooncake"], [(1, 0, 10**400)], TraceOptions())
@example(["mooncake"], [(0, 2, 2**70)], TraceOptions(block_tokens=1))
@example(["chatgpt"], [(0, 8, 1)], TraceOptions())
@example(["atif"], [(0, 2, [None]), (0, 6, [])], TraceOptions())
@given(
    st.lists(st.sampled_from(sorted(RECORDS)), min_size=1, max_size=1).flatmap(
        lambda names: st.integers(1, 3).map(lambda count: names * count)
    ),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), VALUES), min_size=1, max_size=3),
    OPTIONS,
)
def test_records_with_other_values(read, names, changes, options):
    records = [deepcopy(RECORDS[name]) for name in names]
    for number, place, value in changes:
        found = [*places(records[number % len(records)])]
        inside, key = found[place % len(found)]
        inside[key] = value
    read("".join(json.dumps(record) + "\n" for record in records), options)


@given(
    st.sampled_from(sorted(TABLES)),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2), st.text(max_size=6) | VALUES.map(str))),
    OPTIONS,
)
def test_tables_with_other_cells(read, name, changes, options):
    header, row = TABLES[name]
    rows = [header.split(","), row.split(","), row.split(",")]
    for column, number, cell in changes:
        cells = rows[number]
        cells[column % len(cells)] = cell
    read("\n".join(map(",".join, rows)) + "\n", options)


@example("azure", [(0, 5)], TraceOptions(sharing=parse_sharing("none")))
@example("openai-table", [(1, 5)], TraceOptions())
@example("openai-table", [(2, 5)], TraceOptions())
@given(
    st.sampled_from(sorted(ROWS)),
    st.lists(st.tuples(st.integers(0, 8), VALUES | OF_COLUMNS), max_size=3),
    OPTIONS,
)
def test_rows_with_other_values(read_rows, name, changes, options):
    """Of Parquet, where also a value of what is a table otherwise may be anything."""
    row = deepcopy(ROWS[name])
    for place, value in changes:
        row[[*row][place % len(row)]] = value
    read_rows(row, options)


@pytest.mark.once
@given(st.text() | st.lists(VALUES, max_size=3).map(json.dumps), OPTIONS)
def test_any_text(read, text, options):
    read(text, options)
