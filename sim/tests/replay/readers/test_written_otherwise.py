"""What means the same, written as other programs do: dates, ids, documents in a line, lines above a table."""

import json

import pytest

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions
from kv_sim.replay.readers.requests.sharing import Sharing

PROMPT = {"prompt": "x" * 100}
MOONCAKE = [
    {"timestamp": 0, "input_length": 1000, "output_length": 1, "hash_ids": [1, 2]},
    {"timestamp": 1000, "input_length": 1500, "output_length": 2, "hash_ids": [1, 2, 3]},
]
REFUSED = "; a trace is text in UTF-8, JSON lines, JSON or a table, or Parquet or Arrow"


def written(tmp_path, text, name="trace.jsonl"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def seen(columns):
    return [(one.arrival_seconds, one.input_tokens, one.output_tokens, one.blocks) for one in columns]


@pytest.fixture
def usual(tmp_path):
    """What the two requests are, written as they mostly are."""
    return seen(open_trace(written(tmp_path, "".join(json.dumps(one) + "\n" for one in MOONCAKE), "usual.jsonl")))


@pytest.mark.parametrize(
    "date",
    [
        *("Sat Jan 31 2026 12:00:02 GMT+0200 (Central European Time)", "Sat Jan 31 2026 10:00:02 GMT+0000"),
        *("Sat Jan 31 10:00:02 2026", "sat jan 31 10:00:02 UTC 2026", "Sat Jan 31 10:00:02 GMT 2026"),
        *("2026-01-31 10:00:02 +0000 UTC", "2026-01-31 11:00:02.000000000 +0100 CET m=+0.012345"),
        *("2026-01-31 10:00:02.000 +0000", "2026-01-31 05:00:02 -05:00"),
        *("2026/01/31 10:00:02", "2026-01-31T11:00:02+01:00[Europe/Berlin]", "2026-01-31T10:00:02Z[UTC]"),
        *({"$date": "2026-01-31T10:00:02Z"}, {"$date": {"$numberLong": "1769853602000"}}),
        {"$date": 1_769_853_602_000},
    ],
)
def test_dates_of_browsers_of_c_of_go_of_java_and_of_mongodb(tmp_path, date):
    records = [{**PROMPT, "timestamp": one} for one in ("2026-01-31T10:00:00Z", date)]
    lines = "".join(json.dumps(one) + "\n" for one in records)
    assert open_trace(written(tmp_path, lines)).arrivals.tolist() == [0, 2]


def test_a_day_of_one_digit_stands_behind_two_blanks_in_c(tmp_path):
    records = [{**PROMPT, "timestamp": one} for one in ("2026-03-01T10:00:00Z", "Sun Mar  1 10:00:02 2026")]
    lines = "".join(json.dumps(one) + "\n" for one in records)
    assert open_trace(written(tmp_path, lines)).arrivals.tolist() == [0, 2]


@pytest.mark.parametrize(
    "date",
    [
        *("Sat Jan 31 10:00:02 PST 2026", "2026-01-31 10:00:02 PST", "2026-01-31 10:00:02[Europe/Berlin]"),
        *("01/31/2026 10:00:02", "2026/13/31 10:00:02", "Sat Jam 31 10:00:02 2026", "2026/01/31"),
        *({"$date": "soon"}, {"$date": None}, {"$date": 10**30}, {"$date": 1, "$oid": "a"}, {"date": 1}),
    ],
)
def test_what_may_be_several_dates_or_none_is_refused(tmp_path, date):
    with pytest.raises(ConfigError, match=r"timestamp: expected a (number|date)"):
        open_trace(written(tmp_path, json.dumps({**PROMPT, "timestamp": date}) + "\n"))


def test_numbers_and_names_as_mongodb_exports_them(tmp_path):
    messages = [{"role": "user", "content": "x" * 100}]
    usage = {"prompt_tokens": {"$numberInt": "26"}, "completion_tokens": {"$numberLong": "7"}}
    record = {"_id": {"$oid": "6"}, "created_at": {"$date": 1}, "messages": messages, "usage": usage}
    [request] = open_trace(written(tmp_path, json.dumps({**record, "session_id": {"$oid": "s"}}) + "\n"))
    assert request.output_tokens == 7


def test_azures_dates_may_be_written_otherwise(tmp_path):
    rows = "2023-11-16 18:15:00 +0000 UTC,10,1\nThu Nov 16 2023 18:15:01 GMT+0000 (UTC),20,2\n"
    path = written(tmp_path, f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}", "trace.csv")
    assert open_trace(path, TraceOptions(sharing=Sharing())).arrivals.tolist() == [0, 1]


def test_ids_that_pandas_made_floats_of_are_integers(tmp_path, usual):
    records = [{**one, "hash_ids": [*map(float, one["hash_ids"])]} for one in MOONCAKE]
    assert seen(open_trace(written(tmp_path, "".join(json.dumps(one) + "\n" for one in records)))) == usual


@pytest.mark.parametrize("ids", [[1.0, 2.5], [1.0, None], [1.0, True], [2.0**53, 1], [float("inf"), 1]])
def test_floats_that_stand_for_no_integer_or_for_several_are_no_ids(tmp_path, ids):
    with pytest.raises(ConfigError, match="hash_ids: expected integers or strings, got"):
        open_trace(written(tmp_path, json.dumps({**MOONCAKE[0], "hash_ids": ids}) + "\n"))


@pytest.mark.parametrize("between", ["", " ", "\t", "\n", "\x1e"])
def test_several_documents_may_stand_in_a_line(tmp_path, usual, between):
    text = between.join(json.dumps(one) for one in MOONCAKE)
    assert seen(open_trace(written(tmp_path, text))) == usual
    more = [json.dumps({**one, "timestamp": one["timestamp"] + 2000}) for one in MOONCAKE]
    assert len(open_trace(written(tmp_path, f"{text}\n{between.join(more)}\n"))) == 4


@pytest.mark.parametrize("behind", ['{"a": 1', "[1]", "5", "]", '"', ","])
def test_a_line_with_anything_else_in_it_is_refused_whole(tmp_path, behind):
    text = "".join(json.dumps(one) for one in MOONCAKE) + behind
    with pytest.raises(ConfigError, match=r"trace.jsonl:1: not JSON"):
        open_trace(written(tmp_path, f"{text}\n{json.dumps(MOONCAKE[0])}\n"))


def test_a_line_for_spreadsheets_stands_above_a_table(tmp_path):
    text = "sep=;\r\narrived_at;num_prefill_tokens;num_decode_tokens\r\n0;10;1\r\n5;20;2\r\n"
    columns = open_trace(written(tmp_path, text, "trace.csv"), TraceOptions(sharing=Sharing()))
    assert [one[:3] for one in seen(columns)] == [(0, 10, 1), (5, 20, 2)]


@pytest.mark.parametrize("comment", ["# made on Monday, by me", "// made by me"])
def test_a_comment_above_records_has_to_go(tmp_path, comment):
    with pytest.raises(ConfigError) as refused:
        open_trace(written(tmp_path, f"{comment}\n{json.dumps(MOONCAKE[0])}\n"))
    assert str(refused.value).endswith("(remove what is above the records: tail -n +2 leaves out a first line)")


@pytest.mark.parametrize(
    ("begin", "what"),
    [
        (b"\x04\x22\x4d\x18", "packed with lz4"),
        (b"\xff\x06\0\0sNaPpY", "packed with snappy"),
        (b"7z\xbc\xaf\x27\x1c", "an archive of 7-Zip"),
        (b"ORC\x11", "ORC"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        ('{"a": 1}\n'.encode("utf-16-le"), "text in UTF-16"),
        ('{"a": 1}\n'.encode("utf-16-be"), "text in UTF-16"),
    ],
)
def test_what_can_t_be_read_is_refused_as_what_it_is(tmp_path, begin, what):
    path = written(tmp_path, begin + b"\1" * 50)
    with pytest.raises(ConfigError) as refused:
        open_trace(path)
    assert str(refused.value) == f"{path}: this is {what}{REFUSED}"


def test_times_of_lmbench_that_are_no_epoch_are_said_to_be_taken_for_nanoseconds(tmp_path):
    records = [{**one, "timestamp": str(one["timestamp"])} for one in MOONCAKE]
    columns = open_trace(written(tmp_path, "".join(json.dumps(one) + "\n" for one in records)))
    assert "times are taken for ns, as LMBench's are (--time-unit)" in columns.notes


def chat(*spoken):
    return [{"role": role, "content": text} for role, text in spoken]


ONE = chat(("user", "it's \n" * 20))
TWO = [*ONE, *chat(("assistant", None), ("user", "y" * 50))]


def table(*cells):
    rows = (f'{number},"{cell.replace(chr(34), 2 * chr(34))}",7\n' for number, cell in enumerate(cells))
    return "at,said,answered\n" + "".join(rows)


COLUMNS = {"time": "at", "prompt": "said", "output": "answered"}


def test_what_python_prints_of_messages_is_as_their_json(tmp_path):
    usual = written(tmp_path, table(json.dumps(ONE), json.dumps(TWO)), "usual.csv")
    printed = written(tmp_path, table(str(ONE), str(TWO)), "printed.csv")
    first, second = (seen(open_trace(path, TraceOptions(columns=COLUMNS))) for path in (usual, printed))
    assert first == second


@pytest.mark.parametrize("printed", ["[{'role': 'user'}\n {'role': 'b'}]", "{'role': <object>}", "[ { 'a'"])
def test_what_was_printed_and_can_t_be_read_is_refused(tmp_path, printed):
    path = written(tmp_path, table(printed), "printed.csv")
    with pytest.raises(ConfigError, match="said: expected text or JSON, got what was printed of it"):
        open_trace(path, TraceOptions(columns=COLUMNS))


def test_times_of_mooncake_s_fields_with_fractions_may_be_seconds(tmp_path):
    for times, are_asked in (((0, 1.5), True), ((0, 1.0), False), ((1.79e9, 1.79e9 + 0.5), False)):
        records = [{**one, "timestamp": time} for one, time in zip(MOONCAKE, times, strict=True)]
        columns = open_trace(written(tmp_path, "".join(json.dumps(one) + "\n" for one in records)))
        said = "times of format mooncake count ms, and these have fractions: are they seconds? (--time-unit s)"
        assert (said in columns.notes) is are_asked


def test_chats_of_bailian_need_not_name_those_they_go_on_with(tmp_path):
    records = [{**one, "chat_id": one["timestamp"], "type": "text", "turn": 1} for one in MOONCAKE]
    columns = open_trace(written(tmp_path, "".join(json.dumps(one) + "\n" for one in records)))
    assert (columns.notes[0], columns.arrivals.tolist()) == ("format: bailian", [0, 1000])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:a\nsize 5\n",
            "stands for a file that Git LFS keeps",
        ),
        ("<!DOCTYPE html>\n<html>\n", "is a page of HTML"),
        ("<html><body>no</body></html>\n", "is a page of HTML"),
    ],
)
def test_what_stands_in_place_of_a_file_is_refused_as_that(tmp_path, text, what):
    with pytest.raises(ConfigError, match=what):
        open_trace(written(tmp_path, text))


def test_ids_in_text_may_be_floats_too(tmp_path):
    rows = '0,1024,"[1.0, 2.0]"\n1,1024,"[1, 2]"\n2,1024,"[9007199254740993.0, .0]"\n'
    path = written(tmp_path, f"t,n,ids\n{rows}", "trace.csv")
    first, second, third = open_trace(path, TraceOptions(columns={"time": "t", "input": "n", "ids": "ids"}))
    assert first.blocks == second.blocks != third.blocks


# -- token ids -----------------------------------------------------------------------------------

IDS = [*range(100, 164)]


@pytest.mark.parametrize("field", ["prompt", "prompt_token_ids"])
@pytest.mark.parametrize(
    "ids", [[*map(str, IDS)], json.dumps(IDS), str(IDS).replace(",", ""), f" {json.dumps(IDS, indent=1)}\n"]
)
def test_token_ids_may_be_text(read, field, ids):
    """Several texts were several prompts, and a list of numbers in a text was what a user said."""
    usual, _ = read({"prompt": IDS})
    requests, notes = read({field: ids, "output_token_ids": ids})
    assert seen(requests) == [(0, 64, 64, usual[0].blocks)]
    assert notes[0] == "format: vllm"


def test_a_field_of_token_ids_has_no_other_text(read):
    usual, _ = read({"prompt": IDS})
    requests, _ = read({"prompt_token_ids": " ".join(map(str, IDS))}, {"prompt": ["1", "a"]})
    assert requests[0].blocks == usual[0].blocks
    assert [one.input_tokens for one in requests] == [64, 1, 1]
    with pytest.raises(ConfigError, match=r":1: prompt_token_ids: expected token ids, got 'Hello, 1 2' \("):
        read({"prompt_token_ids": "Hello, 1 2"}, {"prompt_token_ids": IDS})


def test_messages_in_a_prompt_may_be_json(read):
    messages = [{"role": "system", "content": "x" * 100}, {"role": "user", "content": "[1]"}]
    assert read({"prompt": json.dumps(messages)}) == read({"prompt": messages})
