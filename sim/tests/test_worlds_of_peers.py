"""Where engines serve each other: what of a hold the engine knows itself, and what comes again, or more often."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from kv_sim.actions import Action, Kind
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.engine.request import RequestSpec, SimRequest
from kv_sim.examples.catalogue import LATER, P2P, SUBJECTS
from kv_sim.history.choices import (
    AFTER_RESET,
    OF_PULLS,
    WEIGHTS,
    WHERE_COPIES_ARE_LOST,
    WHILE_HELD,
    WHILE_LOADING,
    WHILE_UNTOLD,
    legal_choices,
    pick,
)
from kv_sim.subject import Subject
from kv_sim.world import World

WINDOW = GroupConfig("sliding", 64)


def add(world: World, name: str, conversation: int = 0, tokens: int = 17) -> SimRequest:
    return world.engine.add(RequestSpec(name, conversation, tokens, 0, 1, 1))


def step(world: World) -> None:
    assert world.apply(Action(Kind.STEP))


# -- what comes more often ----------------------------------------------------------------------


class Weighed(Random):
    """Writes down what is weighed first."""

    weighed: dict[Any, int] | None = None

    def choices(self, population: Any, weights: Any = None, **how: Any) -> Any:
        if self.weighed is None:
            self.weighed = dict(zip(population, weights, strict=True))
        return super().choices(population, weights, **how)


def weight(world: World, kind: Kind) -> float:
    """How much more often than usual in its world."""
    random = Weighed(0)
    before = list(world.history)
    pick(world, random)
    assert world.history == before
    assert random.weighed is not None
    usual = WEIGHTS[kind] * (OF_PULLS.get(kind, 1) if world.subject.serves_peers else 1)
    return random.weighed[kind] / usual


def test_while_something_is_held_the_cache_is_reset_more_often_and_after_that_more_requests_come() -> None:
    world = World(WorldConfig(prefix_caching=False, num_blocks=60), P2P)
    add(world, "r1", tokens=9)
    weights = [(weight(world, Kind.RESET), weight(world, Kind.ADD))]
    step(world)
    step(world)
    weights.append((weight(world, Kind.RESET), weight(world, Kind.ADD)))
    assert world.tickets.has_held
    assert not world.tickets.has_untold
    world.tickets._untold.add("a ticket")
    weights.append((weight(world, Kind.RESET), weight(world, Kind.ADD)))
    assert world.apply(Action(Kind.RESET, {"running": False, "connector": True}))
    weights.append((weight(world, Kind.RESET), weight(world, Kind.ADD)))
    assert weights == [(1, 1), (WHILE_HELD, 1), (WHILE_UNTOLD, 1), (1, AFTER_RESET)]


def test_who_may_not_reset_all_does_not_do_so_more_often() -> None:
    world = World(WorldConfig(prefix_caching=False, num_blocks=60, silent=frozenset({"reset_all"})), P2P)
    add(world, "r1", tokens=9)
    step(world)
    step(world)
    assert world.tickets.has_held
    assert weight(world, Kind.RESET) == 1


def test_while_something_is_held_fewer_resets_are_with_the_running_requests() -> None:
    world = World(WorldConfig(prefix_caching=False, num_blocks=60), P2P)

    def share() -> float:
        args: Any = legal_choices(world)[Kind.RESET]
        return sum(args(Random(seed))["running"] for seed in range(400)) / 400

    assert share() == pytest.approx(0.5, abs=0.08)
    add(world, "r1", tokens=9)
    step(world)
    step(world)
    assert share() == pytest.approx(0.2, abs=0.08)


@pytest.mark.parametrize("subject", [P2P, replace(LATER, traits=SUBJECTS["offload"].traits)], ids=["p2p", "other"])
def test_who_pulls_is_aborted_more_often_where_all_copies_are_lost(subject: Subject) -> None:
    world = World(WorldConfig(prefix_caching=False, num_blocks=60), subject)
    add(world, "r1", tokens=9)
    for _ in range(3):
        step(world)
    if subject is P2P:
        add(world, "r2", tokens=9)
        step(world)
    else:
        add(world, "r2", 1).awaits_load = True
    (device,) = world.engine.devices
    (copy,) = device.copies.running.values()
    assert weight(world, Kind.ABORT) == 1
    assert not world.stands_still
    device.lose(copy)
    assert world.stands_still
    assert weight(world, Kind.ABORT) == (WHERE_COPIES_ARE_LOST if subject is P2P else 1)
    assert weight(world, Kind.RESET) == WHILE_LOADING * (WHILE_HELD if subject is P2P else 1)
    said = "a load that stands still is aborted"
    assert world.coverage.situations[said] == 0
    assert world.apply(Action(Kind.ABORT, {"request": "r2"}))
    assert world.coverage.situations[said] == 1
