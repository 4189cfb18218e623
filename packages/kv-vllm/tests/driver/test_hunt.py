"""Hunting, with the testbed's own engine: kinds of failures, and what is kept of each."""

from collections import Counter
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest

pytest.importorskip("kv_sim")

from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.failures.schedule_file import read_schedule
from kv_sim.fuzz import Failure, Replayed, replay
from kv_sim.violation import Invariant, TookTooLong, Violation
from kv_sim.zoo.registry import PLANTED
from kv_vllm.driver.hunt import Found, hunt, kind_of, show_found

NOTHING = "no match found any tokens, so no load was tried: does the connector store what it should?"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("request r12 token 80: block 9 holds 0xa8e8", "request # token #: block # holds #"),
        ("KeyError: 'r3' (scheduler.py:12 in A.b)", "KeyError: # (scheduler.py:# in A.b)"),
        ("no file /tmp/a-b_c/0123456789abcdef/x.bin", "no file x.bin"),
        ("no chunk 0123456789abcdef, and none of 0123abc", "no chunk #, and none of 0123abc"),
        ("store copy 3 (begun for request r1) is", "store copy #  is"),
        ("16 tokens in V1 and r_x", "# tokens in V1 and r_x"),
    ],
)
def test_kinds_leave_out_what_differs_from_one_history_to_the_next(message, kind):
    assert kind_of(Violation(Invariant.CONTENT, message)) == f"CONTENT  {kind}"


def found_in(name, tries, **options):
    (planted,) = [planted for planted in PLANTED if planted.subject.kv_connector == name]
    left = iter(range(tries))
    return hunt(planted.subject, count(), lambda: next(left, None) is not None, engine="builtin", **options)


def test_one_short_history_of_each_kind_is_kept(tmp_path):
    found = found_in("ReportsEveryEnd", 3)
    assert found.histories == 3
    assert (len(found.counts), found.unsteady) == (1, [])
    (kind,) = found.counts
    failure = found.failures[kind]
    assert len(failure.history) <= 4
    lines = []
    assert show_found("my.kv:Some", found, tmp_path, lines.append)
    assert lines[:2] == [
        f"my.kv:Some: 3 histories, {found.counts[kind]} failures",
        f"  {found.counts[kind]} times: {kind}",
    ]
    (file,) = tmp_path.iterdir()
    assert lines[2:] == [f"  {len(failure.history)} actions, {file}: {failure.violation}"]
    assert file.name.startswith("my.kv_some-protocol-request-r") and file.name.count("-") == 4
    again = read_schedule(file)
    assert kind_of(replay(again.subject, again.config, again.history).violation) == kind


@pytest.mark.once
def test_checkers_that_are_off_find_nothing_and_the_schedule_says_so(tmp_path):
    without = frozenset({Invariant.PROTOCOL})
    assert all(kind.startswith("PROTOCOL") for kind in found_in("ReportsEveryEnd", 4).counts)
    found = found_in("ReportsEveryEnd", 4, without=without)
    assert found.counts
    assert not any(kind.startswith("PROTOCOL") for kind in found.counts)
    show_found("Some", found, tmp_path, lambda line: None)
    assert {read_schedule(file).without for file in tmp_path.iterdir()} == {without}


@pytest.mark.parametrize("name", ["memory", "p2p", "shared"])
def test_it_knows_who_serves_peers_and_who_shares_a_store(name):
    found = hunt(SUBJECTS[name], count(), lambda: False)
    assert found.serves_peers is SUBJECTS[name].serves_peers
    assert found.shares_store is SUBJECTS[name].shares_store


def test_nothing_found_is_said(tmp_path):
    lines = []
    loads = Counter({"match: load in the step": 1})
    assert not show_found("Some", Found(histories=3, situations=loads), tmp_path, lines.append)
    assert lines == ["Some: 3 histories, 0 failures"]
    assert not show_found("Some", Found(histories=3), tmp_path, lines.append)
    assert lines[1:] == [lines[0], f"  note: {NOTHING}"]
    assert not show_found("Some", Found(), tmp_path, lines.append)
    assert lines[3:] == ["Some: 0 histories, 0 failures"], "of nothing that ran, nothing is to be known"
    assert not show_found("Some", Found(1, situations=loads, serves_peers=True), tmp_path, lines.append)
    assert lines[5].startswith("  note: no load by a ticket succeeded (0 failed")
    assert not show_found("Some", Found(1, situations=loads, shares_store=True), tmp_path, lines.append)
    assert lines[7].startswith("  note: no engine loaded what the other had stored")
    assert show_found("Some", Found(3, counts=Counter({"rare": 1, "kind": 2})), tmp_path, lines.append)
    assert lines[8:] == ["Some: 3 histories, 3 failures", "  2 times: kind", "  1 times: rare"]  # of itself enough
    assert list(tmp_path.iterdir()) == []


def broken(message):
    return Violation(Invariant.CONTENT, message)


ONE, OTHER = broken("some block"), broken("another one")


@pytest.fixture
def hunted(monkeypatch):
    """Hunts among seeds of which one fails with a violation, shrinks to another, and shows some when replayed."""
    shrunk = []

    loads = Counter({"match: load in the step": 1})

    def hunt_in(*seeds):
        shown = [iter(again) for _, _, _, again in seeds]

        def run_seed(subject, seed, *, engine, actions, without):
            assert (subject, engine) == (PLANTED[0].subject, "vllm")
            violation = seeds[seed][0]
            failure = None if violation is None else Failure(subject, WorldConfig(), [], violation, seed)
            return SimpleNamespace(failure=failure, coverage=SimpleNamespace(situations=loads))

        def shrink(failure, *, most_replays, without, goes_on):
            shrunk.append(failure.seed)
            _, violation, length, _ = seeds[failure.seed]
            return replace(failure, history=[Action(Kind.STEP)] * length, violation=violation)

        monkeypatch.setattr("kv_vllm.driver.hunt.run_seed", run_seed)
        monkeypatch.setattr("kv_vllm.driver.hunt.shrink", shrink)
        monkeypatch.setattr("kv_vllm.driver.hunt.replay", lambda *args: Replayed(None, next(shown[shrunk[-1]])))
        return hunt(PLANTED[0].subject, range(len(seeds)), lambda: True), shrunk

    return hunt_in


def test_of_each_kind_one_is_shrunk_and_the_first_of_the_shortest_kept(hunted):
    """Seeds 1 and 4 are of a kind that seed 0 shrinks to."""
    found, shrunk = hunted(
        (OTHER, ONE, 5, [ONE, ONE]),
        (ONE, ONE, 4, [ONE, ONE]),
        (None, None, 0, []),
        (broken("block 3"), ONE, 4, [ONE, ONE]),
        (ONE, ONE, 1, [ONE, ONE]),
    )
    assert shrunk == [0, 1, 3]
    assert (found.histories, found.unsteady) == (5, [])
    assert found.situations == {"match: load in the step": 5}
    assert {kind: failure.seed for kind, failure in found.failures.items()} == {kind_of(ONE): 1}
    assert found.counts == {kind_of(OTHER): 1, kind_of(ONE): 2, kind_of(broken("block 3")): 1}


@pytest.mark.parametrize("again", [[None, ONE], [ONE, None], [OTHER, ONE], [ONE, OTHER], [None, None]])
def test_a_failure_that_a_replay_does_not_show_is_told_apart(again, hunted):
    found, _ = hunted((OTHER, ONE, 2, again))
    assert (found.failures, found.unsteady) == ({}, [f"seed 0: {OTHER}"])
    lines = []
    assert show_found("Some", found, None, lines.append)
    assert lines[2:] == [f"  not shown by a replay: seed 0: {OTHER}"]


def test_what_takes_too_long_is_kept_as_it_is(hunted):
    """Each try to make it shorter would take as long."""
    late = TookTooLong(Invariant.NO_CRASH, "it hasn't returned")
    found, shrunk = hunted((late, ONE, 5, []), (late, ONE, 5, []))
    assert (shrunk, found.unsteady, found.counts) == ([], [], {kind_of(late): 2})
    assert [failure.seed for failure in found.failures.values()] == [0]


def test_an_interrupt_ends_it_and_keeps_what_was_found(hunted, monkeypatch):
    third = (broken("a third"), OTHER, 5, [OTHER, OTHER])
    found, shrunk = hunted((ONE, ONE, 5, [ONE, ONE]), (OTHER, OTHER, 5, iter_that(KeyboardInterrupt)), third)
    assert (found.was_interrupted, list(found.failures), shrunk) == (True, [kind_of(ONE)], [0, 1])


def test_a_failure_of_the_testbed_says_which_seed_it_was(hunted):
    with pytest.raises(AssertionError) as told:
        hunted((ONE, ONE, 5, [ONE, ONE]), (OTHER, OTHER, 5, iter_that(AssertionError)))
    assert told.value.__notes__ == ["in the history of seed 1"]


def iter_that(error):
    raise error
    yield
