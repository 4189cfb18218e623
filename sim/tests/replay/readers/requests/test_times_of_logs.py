"""Times, sessions and models of logs, under the names that logs have for them; a log with holes in its times."""

import json
import re

import pytest

from kv_api import ConfigError
from kv_sim.replay.readers.extended_json import plain_of
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import OnError, TraceOptions
from kv_sim.replay.readers.requests.sharing import Sharing

MADE_UP = "the trace has no times: one request a second is assumed"
SPOKEN = {"messages": [{"role": "user", "content": "x" * 100}]}
PROMPT = {"prompt": "x" * 100}


def written(tmp_path, *records):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    "date",
    [
        *(
            "2026-01-31T12:00:02+02:00",
            "2026-01-31 10:00:02 UTC",
            "2026-01-31t10:00:02z",
            "2026-01-31 10:00:02+00",
        ),
        *("2026-01-31 10:00:02.000000 UTC", " 2026-01-31 10:00:02,000 ", "2026-01-31T05:00:02.000-0500"),
        *("31/Jan/2026:10:00:02 +0000", "[31/jan/2026:12:00:02 +0200]"),
        *("Sat, 31 Jan 2026 10:00:02 GMT", " sat, 31 jan 2026 05:00:02 -0500", "Sat, 31 Jan 2026 10:00:02"),
    ],
)
def test_dates_as_programs_write_them(tmp_path, date):
    records = [{**PROMPT, "timestamp": one} for one in ("2026-01-31T10:00:00Z", date)]
    assert open_trace(written(tmp_path, *records)).arrivals.tolist() == [0, 2]


@pytest.mark.parametrize(
    "date", ["31/Jam/2026:10:00:02 +0000", "31/Jan/2026:10:00:02", "31/02/2026", "Sat, 31 Jam", "Sat, 5"]
)
def test_what_is_nearly_a_date_is_none(tmp_path, date):
    with pytest.raises(ConfigError, match=f"timestamp: expected a number or a date, got '{re.escape(date)}'"):
        open_trace(written(tmp_path, {**PROMPT, "timestamp": date}))


MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@pytest.mark.parametrize(("number", "name"), [*enumerate(MONTHS, 1)])
def test_months_of_web_servers(tmp_path, number, name):
    dates = (f"2026-{number:02}-28T10:00:00Z", f"28/{name}/2026:10:00:02 +0000")
    records = [{**PROMPT, "timestamp": date} for date in dates]
    assert open_trace(written(tmp_path, *records)).arrivals.tolist() == [0, 2]


NAMES = ["timestamp", "created", "created_at", "time", "startTime", "start_time"]


@pytest.mark.parametrize("name", [*NAMES, "@timestamp", "time_iso8601", "time_local", "started_at", "ts"])
@pytest.mark.parametrize("asked", [SPOKEN, PROMPT], ids=["messages", "prompt"])
def test_a_log_has_its_own_times(tmp_path, asked, name):
    when = ["2025-11-01T10:00:01.5Z", "2025-11-01T10:01:01.5Z"]
    columns = open_trace(written(tmp_path, *({**asked, name: one} for one in when)))
    assert columns.arrivals.tolist() == [0, 60]
    assert MADE_UP not in columns.notes


def test_a_date_that_is_called_something_else_is_told(tmp_path):
    logged = {**PROMPT, "when": "2026-01-31T10:00:00Z", "model": "m", "seed": 20260131, "day": "2026-01-31"}
    notes = open_trace(written(tmp_path, logged, logged)).notes
    assert f"{MADE_UP} (if when or day is the time, call it timestamp)" in notes
    assert MADE_UP in open_trace(written(tmp_path, PROMPT, logged)).notes, "the first record decides"
    assert not any("call it" in note for note in open_trace(written(tmp_path, {**logged, "time": 5})).notes)


@pytest.mark.parametrize("asked", [SPOKEN, PROMPT], ids=["messages", "prompt"])
def test_models_share_nothing_and_sessions_are_kept(tmp_path, asked):
    records = [{**asked, "model": model, "session_id": model} for model in (7, 7, "b")]
    columns = open_trace(written(tmp_path, *records), TraceOptions(sessions=True))
    assert columns.sessions.tolist() == [0, 0, 1]
    first, second, third = (request.blocks for request in columns)
    assert first == second and not {*first} & {*third}


DAY = "2026-01-31"
HOLES = [
    ([5, None, 6], "2: it has no time, but a request above it has one", [0, 1]),
    ([None, 5, None], "2: it has a time, but requests above it have none", [0, 2]),
    ([DAY, None, DAY], "2: it has no time, but a request above it has one", [0, 0]),
    ([None, DAY, None], "2: it has a time, but requests above it have none", [0, 2]),
]


@pytest.mark.parametrize(("times", "problem", "left"), HOLES)
def test_a_hole_in_the_times_is_an_error(tmp_path, times, problem, left):
    path = written(tmp_path, *({**PROMPT, "timestamp": time} for time in times))
    with pytest.raises(ConfigError) as refused:
        open_trace(path)
    assert str(refused.value) == f"{path}:{problem} (--on-error skip goes on)"
    columns = open_trace(path, TraceOptions(on_error=OnError.SKIP))
    assert columns.arrivals.tolist() == left
    assert f"1 malformed record was skipped, first: {path}:{problem}" in columns.notes


def test_messages_that_are_only_added_are_refused(tmp_path):
    path = written(tmp_path, {**SPOKEN, "message_mode": "delta", "timestamp": 1})
    with pytest.raises(ConfigError, match="message_mode: expected messages that are a whole prompt, got 'delta'"):
        open_trace(path)


def test_blocks_of_text_are_no_ids_that_needed_chaining(tmp_path):
    notes = open_trace(written(tmp_path, {"prompt": "x" * 1000})).notes
    assert not any("chained" in note for note in notes)


def test_burstgpt_has_models_and_may_have_sessions(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "1,7,0.5,ChatGPT,64,7,71,Conversation log\n2,7,0.5,GPT-4,64,7,71,Conversation log\n"
    )
    columns = open_trace(path, TraceOptions(sessions=True, sharing=Sharing(1, 64, 0.0, 1.0)))
    assert columns.sessions.tolist() == [0, 0]
    assert len({request.blocks for request in columns}) == 2


DATES = ["2026-01-31T10:00:00Z", "2026-01-31T10:00:03Z", 1769853606]


@pytest.mark.parametrize("unit", ["ms", "s"])
@pytest.mark.parametrize("times", [DATES[:2], DATES, DATES[::-1]], ids=["dates", "first", "last"])
def test_dates_have_no_unit(tmp_path, unit, times):
    path = written(tmp_path, *({**PROMPT, "timestamp": time} for time in times))
    with pytest.raises(ConfigError) as refused:
        open_trace(path, TraceOptions(time_unit=unit))
    assert str(refused.value) == "--time-unit: the times of this trace are dates, which have no unit"


@pytest.mark.parametrize(
    ("times", "own", "other"), [(DATES, "a number", "a date"), (DATES[::-1], "a date", "a number")]
)
def test_dates_and_numbers_do_not_go_together(tmp_path, times, own, other):
    path = written(tmp_path, *({**PROMPT, "timestamp": time} for time in times))
    line = 3 if own == "a number" else 2
    problem = f"{path}:{line}: its time is {own}, and that of a request above it {other}"
    with pytest.raises(ConfigError) as refused:
        open_trace(path)
    assert str(refused.value) == f"{problem} (--on-error skip goes on)"
    columns = open_trace(path, TraceOptions(on_error=OnError.SKIP))
    assert columns.arrivals.tolist() == ([0, 3] if line == 3 else [0])


HASHED = {"input_length": 512, "output_length": 1, "hash_ids": [1]}


@pytest.mark.parametrize("record", [HASHED, {"text_input": "a"}], ids=["mooncake", "aiperf"])
@pytest.mark.parametrize("first", [{"delay": None}, {"delay": None, "timestamp": None}])
def test_sessions_may_have_nothing_but_delays(tmp_path, record, first):
    """As they are published for aiperf. Nobody says when one begins, but a turn isn't before the last one."""
    delays = [
        ("a", first),
        ("a", {"delay": 2500}),
        ("a", first),
        ("b", first),
        ("b", {"delay": 250}),
        ("b", first),
    ]
    records = [{**record, "session_id": session, **delay} for session, delay in delays]
    columns = open_trace(written(tmp_path, *records))
    assert columns.arrivals.tolist() == [0, 2.5, 2.5, 3, 3.25, 5]
    assert MADE_UP in columns.notes
    assert "2 later turns have a delay: taken from the arrival of the turn before" in columns.notes


@pytest.mark.parametrize("record", [HASHED, {"text_input": "a"}], ids=["mooncake", "aiperf"])
def test_a_delay_of_a_first_turn_makes_no_clock_of_the_session_s_own(tmp_path, record):
    records = [{**record, "session_id": session, "delay": 1500} for session in "aba"]
    columns = open_trace(written(tmp_path, *records))
    assert (columns.arrivals - columns.arrivals[0]).tolist() == [0, 0, 1.5]
    assert not any("count their own time" in note for note in columns.notes)


@pytest.mark.parametrize("record", [HASHED, {"text_input": "a"}], ids=["mooncake", "aiperf"])
def test_but_not_where_others_have_times(tmp_path, record):
    path = written(tmp_path, {**record, "timestamp": 1}, {**record, "session_id": "a", "delay": None})
    with pytest.raises(ConfigError, match=":2: it has no time, but a request above it has one"):
        open_trace(path)


def test_what_mongodb_exports_stands_for_a_time_or_a_name():
    assert plain_of({"$date": {"$numberLong": "-1000"}}) == "1969-12-31T23:59:59+00:00"
    assert plain_of({"$oid": "65a0"}) == "65a0"
    assert plain_of({"$date": 0, "more": 1}) == {"$date": 0, "more": 1}
