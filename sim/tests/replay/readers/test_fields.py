"""The fields of one record, and what says how it is read: what is just allowed, and what isn't."""

import json
import time

import pytest

from kv_api import ConfigError
from kv_sim.replay.readers.catalogue import FORMATS
from kv_sim.replay.readers.fields import ids_in, number, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions
from kv_sim.replay.readers.record import MOST_TOKENS, MalformedError, Record
from kv_sim.replay.readers.requests.sharing import parse_sharing
from kv_sim.replay.trace import EngineMemory
from kv_sim.replay.units import MOST_BYTES


def test_counts_and_times_at_the_border():
    assert whole({"n": MOST_TOKENS}, "n") == whole({"n": "100000000"}, "n") == 100_000_000
    assert number({"t": 2**63 - 1}, "t") == 2**63 - 1
    assert number({"t": -(2**63) + 1}, "t") == -(2**63) + 1
    for beyond in (2**63, -(2**63)):
        with pytest.raises(MalformedError, match=r"t: expected a time within 2\*\*63, got "):
            number({"t": beyond}, "t")


def test_an_id_of_more_digits_than_python_reads_is_a_name():
    digits = 5000 * "1"
    assert ids_in({"ids": f"[7, 'a' {digits}]"}, "ids") == [7, "a", digits]


@pytest.mark.parametrize(
    "text", ["1 2 a", "1,2,a", "{1,2,a}", "1|2|a", "[1; 2; 'a']", "(1, 2, 'a')", '["1", 2, "a"]']
)
def test_ids_as_text(text):
    assert [str(one) for one in ids_in({"ids": text}, "ids")] == ["1", "2", "a"]


@pytest.mark.parametrize("text", ["[[1, 2], [3]]", "[1, [2]]", '[{"id": 1}, {"id": 2}]'])
def test_ids_as_text_that_are_lists_again(text):
    with pytest.raises(MalformedError, match="ids: expected a list of ids, got one of lists: "):
        ids_in({"ids": text}, "ids")


@pytest.mark.parametrize(
    ("block_bytes", "gpu_blocks", "memory"),
    [
        (16, 1, EngineMemory(1, 16)),
        (32, 2**53 - 1, EngineMemory(2, 16 * (2**53 - 1))),
        (16 * MOST_BYTES, 1, EngineMemory(MOST_BYTES, 16)),
        (16 * MOST_BYTES + 16, 1, None),
        (0, 1, None),
    ],
)
def test_a_recorded_engine_at_the_border(tmp_path, block_bytes, gpu_blocks, memory):
    file = tmp_path / "trace.jsonl"
    request = {"timestamp": 0, "input_length": 16, "output_length": 1, "block_size": 16, "hash_ids": [1]}
    file.write_text(json.dumps({**request, "block_bytes": block_bytes, "gpu_blocks": gpu_blocks}) + "\n")
    if memory is None:
        with pytest.raises(ConfigError, match="block_bytes: expected a multiple of block_size, 16, of 1 to "):
            open_trace(file)
    else:
        assert open_trace(file).engine == memory


def test_block_sizes_at_the_border():
    assert TraceOptions(block_tokens=1).block_tokens == 1
    assert TraceOptions(block_tokens=MOST_TOKENS).block_tokens == MOST_TOKENS
    with pytest.raises(ConfigError, match=r"^--block-size: expected at least 1, got 0$"):
        TraceOptions(block_tokens=0)


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("partial", "Partial.KEEP or Partial.DROP"),
        ("ids", "IdMeaning.AUTO or IdMeaning.PREFIX or IdMeaning.BLOCK"),
        ("scope", "IdScope.AUTO or IdScope.GLOBAL or IdScope.SESSION"),
        ("on_error", "OnError.STOP or OnError.SKIP"),
        ("unsorted", "Unsorted.STOP or Unsorted.SORT"),
        ("turns", "Turns.AUTO or Turns.WHOLE or Turns.ADDED"),
    ],
)
def test_a_name_is_no_choice(name, choices):
    """It would be neither, and so be read as the usual one."""
    with pytest.raises(ConfigError) as raised:
        TraceOptions(**{name: "drop"})
    assert str(raised.value) == f"{name}: expected {choices}, got 'drop'"


def test_an_assumption_at_the_border():
    assert parse_sharing("zipf:tokens=999999999").tokens == 999_999_999
    with pytest.raises(ConfigError, match="tokens: expected a number of at least 0, got '1000000000'"):
        parse_sharing("zipf:tokens=1000000000")


def test_there_is_no_half_of_a_prefix():
    with pytest.raises(ConfigError, match=r": prefixes: expected a number of at least 0, got '1\.5'"):
        parse_sharing("zipf:prefixes=1.5")


def test_a_session_s_turn_without_time_needs_a_delay(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text('{"session_id": "a", "input_length": 1, "output_length": 1, "hash_ids": []}\n')
    with pytest.raises(ConfigError, match=r":1: timestamp: no such field, and no session_id with a delay instead"):
        open_trace(file)


def test_a_session_s_own_clock_can_have_another_unit(tmp_path):
    file = tmp_path / "trace.json"
    requests = [{"t": t, "in": 64, "hash_ids": [1]} for t in (0, 1500)]
    file.write_text(json.dumps({"id": "a", "block_size": 64, "requests": requests}))
    assert open_trace(file, TraceOptions(time_unit="ms")).arrivals.tolist() == [0, 1.5]


@pytest.fixture(params=["UTC", "EAST-9"])
def zone(monkeypatch, request):
    """Where the machine stands, which is no matter."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("zone")
def test_times_of_several_zones_are_compared(tmp_path):
    file = tmp_path / "trace.csv"
    rows = ("2023-11-16T18:17:03+02:00,1,1", "2023-11-16 16:17:04,1,1", "2023-11-16T17:17:05+01:00,1,1")
    file.write_text("\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *rows)) + "\n")
    columns = open_trace(file, TraceOptions(sharing=parse_sharing("none")))
    assert columns.arrivals.tolist() == [0, 1, 2]


def test_a_format_need_not_have_a_usual_block(tmp_path, monkeypatch):
    def parse(record):
        yield Record(0, record["length"], 1, record["ids"])

    monkeypatch.setitem(FORMATS, "made", Format("made", Container.JSON, ("length", "ids"), parse))
    file = tmp_path / "trace.jsonl"
    file.write_text('{"length": 900, "ids": [1, 2, 3, 4, 5, 6]}\n{"length": 901, "ids": [1]}\n')
    with pytest.raises(ConfigError) as caught:
        open_trace(file)
    assert str(caught.value) == f"{file}: the block size can't be derived from this trace: give --block-size"
    assert open_trace(file, TraceOptions(block_tokens=150)).block_tokens == 150
