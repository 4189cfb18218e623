"""Where engines serve each other: what of a hold the engine knows itself, and what comes again, or more often."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from kv_sim_weighed import Weighed

from kv_sim.actions import Action, Kind
from kv_sim.checkers.tickets import Tickets
from kv_sim.config import NULL, GroupConfig, WorldConfig
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import LATER, P2P, SUBJECTS
from kv_sim.fuzz import run_seed
from kv_sim.history.arrivals import Arrivals
from kv_sim.history.choices import (
    OF_PULLS,
    WEIGHTS,
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


# -- what is known of a hold --------------------------------------------------------------------


@pytest.mark.parametrize("groups", [(GroupConfig(),), (GroupConfig(), WINDOW)])
def test_of_every_other_hold_the_engine_knows_the_first_half(groups: tuple[GroupConfig, ...]) -> None:
    """Of four blocks and a token two; all groups forget the rest, and nobody else's blocks."""
    world = World(WorldConfig(num_blocks=60, max_step_tokens=64, groups=groups), P2P)
    held = [add(world, "r1"), add(world, "r2", 1)]
    step(world)
    step(world)
    assert all(request.is_held for request in held)
    pool, tables = world.engine.scheduler.blocks.block_pool, world.engine.scheduler.blocks.tables
    known = [
        [[block in pool.key_of for block in table] for table in tables[request.request_id].groups]
        for request in held
    ]
    assert known == [
        [[True] * 4 + [False]] * len(groups),
        [[True] * 2 + [False] * 3] * len(groups),
    ]


def test_null_blocks_are_nobodys_to_forget() -> None:
    world = World(
        WorldConfig(num_blocks=60, max_step_tokens=64, groups=(GroupConfig(), GroupConfig("sliding", 4))), P2P
    )
    forgotten: list[set[int]] = []
    world.engine.scheduler.blocks.block_pool.evict_blocks = forgotten.append  # type: ignore[method-assign]
    add(world, "r1")
    add(world, "r2", 1)
    step(world)
    step(world)
    assert [len(blocks) for blocks in forgotten] == [3 + 2], "one slid out of the window"
    assert not any(NULL in blocks for blocks in forgotten)


def test_the_rest_is_pulled_by_who_has_the_beginning() -> None:
    world = World(WorldConfig(num_blocks=60, max_step_tokens=64), P2P)
    add(world, "r1", 1)
    add(world, "r2")
    step(world)
    step(world)
    asked: list[tuple[int, int]] = []
    hear = world.tickets.hear

    def hears(name: str, args: tuple[Any, ...], answer: Any, role: str) -> None:
        if name == "get_num_new_matched_tokens":
            asked.append((args[1], answer[0]))
        hear(name, args, answer, role)

    world.tickets.hear = hears  # type: ignore[method-assign]
    add(world, "r3")
    step(world)
    assert asked == [(8, 9)]
    (device,) = world.engine.devices
    (copy,) = device.copies.running.values()
    assert len(copy.pairs) == 3
    world.rest()


@pytest.mark.once
@pytest.mark.parametrize(("name", "least"), [("p2p", 4), ("p2p-hasty", 2)])
def test_who_has_some_blocks_itself_often_pulls_more(
    name: str, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing would be demanded of them."""
    found: list[int] = []
    check = Tickets._check_match

    def checks(tickets: Tickets, request: SimRequest, local: int, count: int | None, *, computes: int) -> None:
        issued = tickets._brought.get(request.request_id)
        if issued is not None and not issued.is_spent and issued.request.is_held and local:
            found.append((count or 0) // tickets._config.block_size)
        check(tickets, request, local, count, computes=computes)

    monkeypatch.setattr(Tickets, "_check_match", checks)
    for seed in range(60):
        assert run_seed(SUBJECTS[name], seed).failure is None
        if sum(map(bool, found)) > least:
            return
    pytest.fail(f"found {found}")


def test_most_prompts_come_again_also_where_there_is_a_prefix_cache() -> None:
    shares = {}
    for of_peers in (False, True):
        arrivals, random = Arrivals(WorldConfig(num_blocks=80), of_peers=of_peers), Random(5)
        prompts = [arrivals.draw(random, ()).prompt for _ in range(500)]
        again = sum(prompt in prompts[max(0, i - 6) : i] for i, prompt in enumerate(prompts))
        shares[of_peers] = again / 500
    assert shares[True] > 0.3
    assert shares[False] < 0.2
    for subject in (P2P, LATER):
        assert World(WorldConfig(), subject).arrivals._come_again == subject.serves_peers


# -- what comes more often ----------------------------------------------------------------------


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
    assert weights == [(1, 1), (3, 1), (9, 1), (1, 3)]


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
    assert not world.sites[0].stands_still
    said = "a load that stands still is aborted"
    add(world, "r4", 3).awaits_load = True
    assert world.apply(Action(Kind.ABORT, {"request": "r4"}))
    assert world.coverage.situations[said] == 0, "its copy may end yet"
    device.lose(copy)
    assert world.sites[0].stands_still
    assert weight(world, Kind.ABORT) == (6 if subject is P2P else 1)
    assert weight(world, Kind.RESET) == (6 * 3 if subject is P2P else 6)
    add(world, "r3", 2)
    assert world.apply(Action(Kind.ABORT, {"request": "r3"})), "it loads nothing"
    assert world.coverage.situations[said] == 0
    assert world.apply(Action(Kind.ABORT, {"request": "r2"}))
    assert world.coverage.situations[said] == 1
    assert world.sites[0].stands_still
    for request in [*world.engine.scheduler.requests.values(), add(world, "r5", 4)]:
        request.awaits_load = False
    assert weight(world, Kind.ABORT) == 1, "nobody waits for what is lost"
