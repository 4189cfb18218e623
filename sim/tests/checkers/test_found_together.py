"""HITS and events at rest, of made-up engines that share a store: what is known of what any of them has stored."""

from dataclasses import replace
from typing import Any

import pytest
from kv_sim_made_up_engine import CONFIG, KEEPS, TELLS, Engine, asked, copies, judge, request
from kv_sim_notes import Notes

from kv_sim.checkers.served import Served
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.memory.copy import State
from kv_sim.subject import Subject, Trait

SHARE = {"shares_store": True, "engines": 2}
KEEP: Subject = replace(KEEPS, **SHARE)
TELL: Subject = replace(TELLS, **SHARE)


def nothing(spec: RequestSpec) -> int:
    return 0


def missing(of: int, room: int) -> str:
    return (
        "HITS  request r1 is repeated at rest: 0 of its 9 tokens are found, but earlier requests computed the "
        "first 8 and ended well, no copy failed, and there was room for all: "
        f"at most {room} of {of} host slots were needed"
    )


def test_what_another_one_stored_comes_and_is_missed() -> None:
    here, there = Engine([], nothing), Engine([request()], nothing)
    assert judge(here, KEEP, beside=[there]) == [missing(64, 2)]
    assert asked(here) == [("r1", 9)]
    assert asked(there) == []


@pytest.mark.parametrize("device", [copies(State.FAILED), copies(running=1), copies(restarts=1)])
def test_what_was_left_out_elsewhere_need_not_be_found(device: Any) -> None:
    there = Engine([request()], nothing, copies(), device)
    assert judge(Engine([request()], nothing), KEEP, beside=[there]) == []


def test_beside_a_stranger_nobody_knows_the_room() -> None:
    here = Engine([request()], nothing)
    here.served.strangers = [Served(Notes(), 4, is_on=True)]
    assert judge(here, KEEP) == []
    assert asked(here) == [("r1", 9)]


@pytest.mark.parametrize(("slots", "is_known"), [(12, True), (11, False)])
def test_what_any_reset_forgot_may_still_take_room(slots: int, is_known: bool) -> None:
    """Two blocks, forgotten twice here and three times elsewhere."""
    here, there = Engine([request()], nothing), Engine([], nothing)
    here.served.resets, there.served.resets = 2, 3
    told = judge(here, KEEP, replace(CONFIG, host_slots=slots), beside=[there])
    assert told == ([missing(12, 12)] if is_known else [])


ODD = (
    "ACCOUNTING  request r1 is repeated at rest: block 0 of its prompt is not found, but according to the "
    "events so far it "
)


@pytest.mark.parametrize("subject", [TELL, TELLS])
def test_events_are_those_of_all(subject: Subject) -> None:
    """A reset at one of several takes back what others told, and isn't told by them."""
    ended, config = request(), replace(CONFIG, host_slots=1)
    for teller in range(2):
        engines = Engine([ended], nothing), Engine([], nothing)
        engines[teller].mirror.blocks["CPU", None, ended.prompt_hashes[0]] = 1
        assert judge(engines[0], subject, config, beside=engines[1:]) == [f"{ODD}is stored"]
        assert judge(engines[0], replace(subject, traits=frozenset({Trait.KEEPS})), config, engines[1:]) == []
        for one in engines:
            one.served.resets = 1
            expected = [] if subject.shares_store else [f"{ODD}is stored"]
            assert judge(engines[0], subject, config, beside=engines[1:]) == expected
            one.served.resets = 0
