"""PROTOCOL and WORK, rule by rule: every answer to a match, every report of a transfer's end, every retry."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from kv_sim_notes import Notes

from kv_api import KVConnectorOutput, KVConnectorTransferResults
from kv_sim.checkers import protocol, work
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.request_spec import RequestSpec

LOCAL = 4
"""Tokens of nine that the GPU has."""


def request(name: str = "r1") -> SimRequest:
    """Eight tokens of a prompt and one that was sampled."""
    made = SimRequest(RequestSpec(name, 0, 8, 0, 4, 4), 4, 16)
    made.num_output_tokens = 1
    return made


@pytest.mark.parametrize("answer", [(None, False), (0, False), (1, False), (4, False), (1, True), (5, True)])
def test_what_may_be_answered_to_a_match(answer: Any) -> None:
    notes = Notes()
    assert protocol.check_match(request(), LOCAL, answer, notes) == answer
    assert notes.told == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (4, "which is no pair (tokens, is asynchronous)"),
        (None, "which is no pair (tokens, is asynchronous)"),
        ([4, False], "which is no tuple (tokens, is asynchronous)"),
        ((4,), "which is no pair (tokens, is asynchronous)"),
        ((4, False, 0), "which is no pair (tokens, is asynchronous)"),
        ((4, 0), "whose second part is neither True nor False"),
        ((None, None), "whose second part is neither True nor False"),
        ((None, True), "which is 'ask again' and asynchronous at once"),
        ((-1, False), "whose first part is neither an int of 0 or more nor None"),
        ((True, False), "whose first part is neither an int of 0 or more nor None"),
        ((4.0, False), "whose first part is neither an int of 0 or more nor None"),
        ((0, True), "which is an asynchronous load of 0 tokens"),
        (
            (5, False),
            "but at most 4 of its 9 tokens can be loaded: a load within the step leaves a token to compute",
        ),
        ((6, True), "but at most 5 of its 9 tokens can be loaded"),
    ],
)
def test_what_may_not(answer: Any, why: str) -> None:
    notes = Notes()
    assert protocol.check_match(request(), LOCAL, answer, notes) == (0, False)
    assert notes.told == [f"PROTOCOL  request r1: get_num_new_matched_tokens(…, 4) answered {answer!r}, {why}"]


def test_what_is_wrong_is_shown_without_its_place_in_memory() -> None:
    notes = Notes()
    protocol.check_match(request(), LOCAL, (object(), False), notes)
    assert "answered (<object object>, False), whose" in notes.told[0]


class Nothing(dict[str, int]):
    """Says something, though Python takes it for false."""


@pytest.mark.parametrize("name", ["kv_connector_stats", "kv_connector_worker_meta"])
def test_what_any_of_the_workers_says_all_of_them_say(name: str) -> None:
    def said(what: Any) -> Any:
        return KVConnectorOutput(**{name: what})

    notes = Notes()
    for reports in ([None], [None, None]):
        protocol.check_joined(map(said, reports), said(None), notes)
    for reports in ([Nothing()], [None, Nothing(), Nothing()]):
        protocol.check_joined(map(said, reports), said(Nothing()), notes)
    assert notes.take() == []
    for reports in ([Nothing(), Nothing()], [None, Nothing(), Nothing()], [Nothing(), None, Nothing()]):
        protocol.check_joined(map(said, reports), said(None), notes)
        assert notes.take() == [
            "PROTOCOL  Nothing.aggregate answered None, expected the reports of two workers as one"
        ]


LOAD = "finished_recving reports the end of its load, but "
STORE = "finished_sending reports the end of its store, but "


@pytest.mark.parametrize(("loads", "stores"), [(True, False), (False, True), (True, True)])
def test_every_end_is_reported_once_and_for_whom_it_was_awaited(loads: bool, stores: bool) -> None:
    """A load that is awaited, a store that is held for, and either of them for who was aborted while loading."""
    living: dict[str, SimRequest] = {}
    legal: dict[str, set[str]] = {"load": set(), "store": set()}
    told: dict[str, list[str]] = {"load": [], "store": []}
    after: dict[str, tuple[bool, bool]] = {}
    cases = product([Status.RUNNING, Status.FINISHED_ABORTED], [False, True], [False, True])
    for number, (status, awaits, held) in enumerate(cases):
        one = living[f"r{number}"] = request(f"r{number}")
        one.status, one.awaits_load, one.is_held = status, awaits, held
        name = f"PROTOCOL  request {one.request_id}: "
        if loads and awaits:
            legal["load"].add(one.request_id)
            awaits = False
        elif loads:
            told["load"].append(f"{name}{LOAD}none is under way, or its end was reported before")
        if stores and (held or (awaits and status.is_finished)):
            legal["store"].add(one.request_id)
            awaits = held = False
        elif stores:
            told["store"].append(f"{name}{STORE}its blocks are not held")
        after[one.request_id] = awaits, held
    told["load"] += [f"PROTOCOL  request r9: {LOAD}the engine has no such request any more"] * loads
    told["store"] += [f"PROTOCOL  request r9: {STORE}the engine has no such request any more"] * stores

    notes, scheduler, reported = Notes(), SimpleNamespace(requests=living), {*living, "r9"}
    results = KVConnectorTransferResults(
        finished_recving=set(reported) if loads else set(), finished_sending=set(reported) if stores else set()
    )
    protocol.check_reports(scheduler, results, notes)  # type: ignore[arg-type]
    assert notes.told == told["load"] + told["store"]
    assert (results.finished_recving, results.finished_sending) == (legal["load"], legal["store"])
    assert {name: (one.awaits_load, one.is_held) for name, one in living.items()} == after


def test_retries_are_counted_by_request_and_an_answer_ends_the_row() -> None:
    notes = Notes()
    retries = work.Retries(notes)
    for _ in range(work.MOST_RETRIES):
        retries.matched("r1", (None, False))
        retries.matched("r2", (None, False))
    retries.matched("r2", (0, False))
    retries.matched("r3", (4, True))
    for _ in range(work.MOST_RETRIES):
        retries.matched("r2", (None, False))
    assert notes.told == []
    for count in (61, 62):
        retries.matched("r1", (None, False))
        assert notes.take() == [
            f"WORK  request r1: get_num_new_matched_tokens answered 'ask again' {count} times in a row"
        ]
