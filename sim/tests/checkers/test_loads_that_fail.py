"""HITS, where a load fails: what was found can be loaded, as long as copies end well."""

from types import SimpleNamespace
from typing import Any

import pytest
from kv_sim_notes import Notes

from kv_sim.actions import Action, Kind
from kv_sim.checkers.served import Served
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import LATER
from kv_sim.memory.copy import State
from kv_sim.world import World


def device(*ended: Any, restarts: int = 0, running: State = State.RUNNING, was_lost: bool = False) -> Any:
    under_way = {0: SimpleNamespace(state=running, was_lost=was_lost)}
    return SimpleNamespace(copies=SimpleNamespace(running=under_way, ended=[*ended], restarts=restarts))


def copy(state: State = State.DONE, *, was_lost: bool = False) -> Any:
    return SimpleNamespace(state=state, was_lost=was_lost)


SAID = "HITS  the load of %s failed, although no copy has failed: the connector reported a hit that it can't load"


@pytest.mark.parametrize(
    ("failed", "blocks", "named"),
    [
        ((), (), None),
        (("r2", "r1"), (), "request r1, request r2"),
        ((), (7, 3), "blocks [3, 7]"),
        (("r1",), (3,), "request r1"),
    ],
)
def test_a_load_that_fails_has_a_reason(failed: Any, blocks: Any, named: str | None) -> None:
    notes = Notes()
    Served(notes, 4, is_on=True).check_failures(failed, blocks, [device(copy()), device()])
    assert notes.told == ([] if named is None else [SAID % named])


@pytest.mark.parametrize(
    "trouble",
    [
        device(copy(), copy(State.FAILED)),
        device(copy(was_lost=True)),
        device(running=State.LOST),
        device(was_lost=True),
        device(restarts=1),
    ],
)
def test_a_copy_that_failed_or_was_lost_is_one(trouble: Any) -> None:
    """On whichever rank."""
    notes = Notes()
    Served(notes, 4, is_on=True).check_failures(["r1"], [], [device(), trouble])
    assert notes.told == []


@pytest.mark.parametrize("others", ["nobody", "shares_with", "strangers"])
def test_nobody_knows_it_of_who_keeps_nothing_or_shares_what_it_keeps(others: str) -> None:
    notes = Notes()
    served = Served(notes, 4, is_on=others != "nobody")
    if others != "nobody":
        setattr(served, others, [Served(notes, 4, is_on=True)])
    served.check_failures(["r1"], [3], [device()])
    assert notes.told == []


def test_an_engine_asks_it_of_each_step() -> None:
    """Of what each rank reports."""
    world = World(WorldConfig(), LATER)
    told: list[Any] = []
    world.engine.served.check_failures = lambda *args: told.append(args)  # type: ignore[method-assign]
    world.engine.add(RequestSpec("r1", 0, 5, 0, 1, 1))
    assert world.apply(Action(Kind.STEP))
    assert told == [(set(), set(), world.engine.devices)]
