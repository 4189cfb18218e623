"""Turns of text: what adds to the turn before, and what is a whole prompt; when each of them arrives."""

import json

import pytest
from kv_sim_foreign_traces import ASKED, MORE, SAID, lengths, shared

from kv_sim.replay.readers.format import Turns
from kv_sim.replay.readers.opening import open_trace

ADDS = "a later turn of a session is what it adds to the one before and its answer (--turns)"
APART = (
    "later turns of sessions don't begin with the prompt before: if each is only what it adds, prompts are longer "
    "(--turns added)"
)
TURNS = [(0, "a", SAID, 16), (1000, "b", SAID, 16), (2000, "a", "y" * 43, 5), (3000, "b", "y" * 43, None)]
GROWN = [(0, 32, 16), (1, 32, 16), (2, 64, 5), (3, 64, 0)]
"""The second turns: 32 tokens, 16 of the answer, 64 characters."""


def test_turns_of_aibrix_add_to_the_turn_before(read):
    records = [
        {"timestamp": time, "requests": [{"prompt": said, "output_length": answer, "session_id": session}]}
        for time, session, said, answer in TURNS
    ]
    requests, notes = read(*records)
    assert lengths(requests) == GROWN
    first, other, second, another = requests
    assert first.blocks == other.blocks == second.blocks[:2] == another.blocks[:2]
    assert shared(second, another) == 2, "an answer is its session's own"
    assert ADDS in notes
    apart, notes = read(*({**one, "requests": [{**one["requests"][0], "session_id": None}]} for one in records))
    assert [one.input_tokens for one in apart] == [32, 32, 16, 16]
    assert ADDS not in notes


COLUMNS = {"time": "timestamp", "prompt": "prompt", "output": "output_tokens", "session": "session_id"}


@pytest.mark.parametrize(
    ("said", "options"),
    [
        (lambda text: {"prompt": f"<|user|>{text}<|assistant|>"}, {}),
        (lambda text: {"prompt": f"<|user|>{text}<|assistant|>"}, {"columns": COLUMNS}),
        (lambda text: {"messages": [{"role": "user", "content": text}]}, {}),
    ],
)
def test_turns_of_a_log_add_where_that_is_said(read, said, options):
    """As a chat's log has them, with what was asked and answered in each."""
    records = [
        {"timestamp": time / 1000, "session_id": session, **said(text), "output_tokens": answer or 0}
        for time, session, text, answer in TURNS
    ]
    requests, notes = read(*records, turns=Turns.ADDED, **options)
    assert lengths(requests) == GROWN
    assert shared(requests[2], requests[3]) == 2, "an answer is its session's own"
    assert ADDS in notes and APART not in notes
    for turns, is_said in ((Turns.AUTO, True), (Turns.WHOLE, False)):
        requests, notes = read(*records, turns=turns, **options)
        assert [one.input_tokens for one in requests] == [32, 32, 16, 16]
        assert (APART in notes) is is_said and ADDS not in notes


@pytest.mark.parametrize("times", [("timestamp", 2000), ("delay", 2000)])
def test_turns_of_aiperf_do_too(read, times):
    session = {"turns": [{"text": SAID, "output_length": 16}, {"text": "y" * 43, "output_length": 5}]}
    session["turns"][1][times[0]] = times[1]
    requests, notes = read(session, session, stagger_seconds=1)
    assert lengths(requests) == [(0, 32, 16), (1, 32, 16), (2, 64, 5), (3, 64, 5)]
    assert (shared(requests[0], requests[1]), shared(requests[2], requests[3])) == (2, 2)
    assert ADDS in notes


def test_what_the_system_says_is_no_turn_of_aiperf(read):
    turns = [{"role": "system", "text": "z" * 54}, {"text": SAID}, {"text": "y" * 43}]
    requests, _ = read({"turns": turns}, {"turns": turns[1:]})
    assert lengths(requests) == [(0, 48, 0), (0, 32, 0), (60, 64, 0), (60, 48, 0)]


@pytest.mark.parametrize(
    ("turn", "seconds"), [({"timestamp": 3000}, 3), ({"delay": 500}, 1.5), ({}, 61), ({"timestamp": None}, 61)]
)
def test_a_session_of_aiperf_goes_on_in_a_later_line(read, turn, seconds):
    first = {"turns": [{"text": SAID, "output_length": 16, "delay": 1000}]}
    later = {"session_id": "a", "turns": [{"text": "y" * 43, **turn}]}
    sessions = ({**first, "session_id": "a"}, {**first, "session_id": "b"}, first, {**first, "session_id": ""})
    requests, notes = read(*sessions, later, stagger_seconds=0.125)
    begins = [(0.125 * number, 32, 16) for number in range(4)]
    assert lengths(requests) == sorted([*begins, (seconds - 1, 64, 0)])
    assert (shared(requests[0], requests[-1]), ADDS in notes) == (2, True)
    delayed = "1 later turn has a delay: taken from the arrival of the turn before" in notes
    assert delayed is ("delay" in turn)


def test_but_not_in_another_file(tmp_path):
    """Nor does one that has no name go on at all."""
    for name, session in (("1", "a"), ("2", "a"), ("3", None), ("4", None)):
        record = {"session_id": session, "turns": [{"text": SAID}]}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(record))
    trace = open_trace(tmp_path)
    assert lengths(trace) == [(0, 32, 0)] * 4
    assert "4 sessions count their own time, so all begin at once (--stagger)" in trace.notes


@pytest.mark.parametrize(
    ("turns", "found"),
    [
        ([{}], [(0, 13)]),
        ([{"output_length": 3}, {}], [(0, 13), (60, 28)]),
        ([{}, {}, {"role": "system"}], [(0, 22), (60, 35)]),
    ],
)
def test_what_the_system_says_is_one_where_it_is_more_than_that(read, turns, found):
    first, *more = [{"text": "z" * 27, **one} for one in turns]
    requests, _ = read({"turns": [{**first, "role": "system"}, *more]})
    assert [(one.arrival_seconds, one.input_tokens) for one in requests] == found


@pytest.mark.parametrize("own", ["timestamp", "delay", "output_length", "extra"])
def test_but_where_it_has_a_time_or_an_answer_of_its_own_it_is_one(read, own):
    times = {"timestamp": 0} if own == "timestamp" else {"delay": 0}
    said = {"role": "system", "text": "z" * 41, own: {} if own == "extra" else 0}
    requests, _ = read({"turns": [said, {"text": "y" * 43, **times}]})
    assert [(one.arrival_seconds, one.input_tokens) for one in requests] == [(0, 16), (0, 32)]


def test_sessions_of_payloads_have_whole_prompts(read):
    sessions = [{"session_id": "a", "payloads": [ASKED, MORE]}, {"session_id": "b", "payloads": [ASKED]}]
    requests, notes = read({"data": sessions})
    assert lengths(requests) == [(0, 32, 0), (0, 32, 0), (60, 45, 0)]
    assert [shared(requests[0], one) for one in requests] == [2, 2, 1]
    assert "2 sessions count their own time, so all begin at once (--stagger)" in notes
    requests, _ = read({"data": [{"payloads": [{"prompt": [*range(40)]}, {"prompt": SAID[:40]}]}]})
    assert lengths(requests) == [(0, 40, 0), (60, 10, 0)]
