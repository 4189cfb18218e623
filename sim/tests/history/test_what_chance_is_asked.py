"""What is drawn, of what, with which weights and in which order: all that chance is asked for one world.

A seed stands for a history. So one more question, or another weight, gives every later seed another history, and
what a seed was kept for is no longer tried.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kv_sim_weighed import Asked

from kv_sim.actions import Action, Kind
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.engine.request_spec import RequestSpec, Turn
from kv_sim.examples.catalogue import LATER, P2P
from kv_sim.history.arrivals import Arrivals
from kv_sim.history.choices import legal_choices, pick
from kv_sim.history.draws import draw_config, with_fine_hashes, with_states
from kv_sim.history.features import (
    with_a_window_alone,
    with_failing_loads,
    with_loads,
    with_own_cache,
    with_pauses,
    with_producer_and_consumer,
    with_sessions,
    with_tails,
    with_two_engines,
)
from kv_sim.subject import Subject, Trait
from kv_sim.world import World

NEVER = 0.999
FULL, WINDOW, STATE = GroupConfig(), GroupConfig("sliding", 8), GroupConfig("state", 2)
SESSIONS = WorldConfig(
    block_size=8, num_blocks=60, hashes_per_block=4, sessions=True, silent=frozenset({"same_id"})
)
OF_A_REQUEST: list[tuple[Any, ...]] = [
    ("choice", 0, 0, 1, 7, 8),
    ("choice", 1, 1, 2, 3, 8, 9, 16),
    ("choice", 0, 0, 1, 3),
    ("choices", {None: 8, "s": 1, "t": 1}),
    ("choices", {None: 8, "s": 1}),
    ("random",),
]
OF_A_TURN: list[tuple[Any, ...]] = [
    ("choice", 1, 1, 2, 7, 8, 9, 16),
    ("choice", 1, 1, 2, 3, 8),
    ("choice", 0, 0, 1, 3),
]
CONVERSATION = ("choices", {0: 60, 1: 30, 2: 20, 3: 15, 4: 12})


def drawn(source: Arrivals, *chances: float, nth: int = 0, taken: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """A request, and what chance was asked for it."""
    chance = Asked(*chances, nth=nth)
    return source.draw(chance, taken), chance.asked


# -- requests -----------------------------------------------------------------------------------


def test_a_session_is_drawn_of_these() -> None:
    source = Arrivals(SESSIONS)
    first, asked = drawn(source, 0.04, 0.49, nth=4)
    assert first == RequestSpec("r1", 4, 42, 8, 8, 8, "s", turns=(Turn(8, 8, 8), Turn(8, 8, 8)))
    assert asked == [
        CONVERSATION,
        ("randint", 1, 11),
        ("choice", -1, 0, 0, 1, 2, 3, 7),
        *OF_A_REQUEST,
        ("random",),
        ("choice", 0, 1, 1, 2, 3),
        *OF_A_TURN * 3,  # there is no room for the third
    ]
    second, asked = drawn(source, 0.39, 0.03, 0.49, nth=4)
    assert second == RequestSpec("r2", 4, 50, 8, 8, 8, "s", None, True, turns=(Turn(8, 8, 8),))
    assert asked == [
        CONVERSATION,
        ("random",),
        ("choice", 1, 8, 9),
        *OF_A_REQUEST,
        ("random",),
        ("choice", 0, 1, 1, 2, 3),
        *OF_A_TURN * 2,
    ]
    third, asked = drawn(source, 0.4, 0.04, 0.5, nth=4)
    assert third == RequestSpec("r3", 4, 42, 8, 8, 8, "s")
    assert asked == [
        CONVERSATION,
        ("random",),
        ("randint", 1, 11),
        ("choice", -1, 0, 0, 1, 2, 3, 7),
        *OF_A_REQUEST,
        ("random",),
    ]


def test_one_that_comes_again_has_the_prompt_of_one_before() -> None:
    """Or that and one token of its own, which is one less that it wants."""
    source = Arrivals(replace(SESSIONS, hashes_per_block=1, sessions=False, prefix_caching=False))
    kept = RequestSpec("r1", 4, 68, 0, 16, 19, "t", "s")
    assert drawn(source, nth=-1) == (
        kept,
        [CONVERSATION, ("randint", 1, 11), ("choice", -1, 0, 0, 1), *OF_A_REQUEST],
    )
    again, asked = drawn(source, 0.4, 0.03, 0.3, nth=-1)
    assert again == RequestSpec("r2", 4, 68, 1, 15, 18, "t", "s", True)
    assert asked[-2:] == [("random",)] * 2
    assert drawn(source, 0.03, 0.3)[0] == RequestSpec("r3", 4, 68, 0, 16, 19, "t", "s", True)
    assert drawn(source, 0.4, 0.04, 0.29)[0] == RequestSpec("r4", 0, 7, 0, 1, 1), "another from now on"
    assert drawn(source, 0.4, 0.04, 0.3, nth=-1)[0] == RequestSpec("r5", 0, 7, 0, 1, 1), (
        "it wants no less than one"
    )


@pytest.mark.parametrize(("chance", "output", "most"), [(0.49, 1, 1), (0.5, 16, 19)])
def test_with_windows_half_want_one_token(chance: float, output: int, most: int) -> None:
    config = replace(SESSIONS, hashes_per_block=1, groups=(FULL, WINDOW), num_blocks=120, sessions=False)
    spec, asked = drawn(Arrivals(config, of_peers=True), NEVER, chance, nth=-1)
    assert spec == RequestSpec("r1", 4, 68, 0, output, most, "t", "s")
    assert asked[-2:] == [("random",)] * 2


def test_which_ids_come_back() -> None:
    source = Arrivals(replace(SESSIONS, hashes_per_block=1, sessions=False, silent=frozenset()))
    found = [
        drawn(source),
        drawn(source, NEVER, 0.2),
        drawn(source, NEVER, 0.19),
        drawn(source, 0.19, nth=1),
        drawn(source, NEVER, 0.19, taken=("r1",)),
    ]
    before, after = OF_A_REQUEST[2:4]
    assert [(spec.request_id, asked[asked.index(before) + 1 : asked.index(after)]) for spec, asked in found] == [
        ("r1", []),
        ("r2", [("random",)]),
        ("r1", [("random",), ("randint", 1, 2)]),
        ("r2", [("random",), ("randint", 1, 2)]),
        ("r3", [("random",), ("randint", 1, 2)]),
    ]


@pytest.mark.parametrize(
    ("blocks", "size", "drafts", "nth", "drawn_tokens", "turns"),
    [
        (3, 4, 0, -1, (1, 4, 1, 4), 0),
        (3, 4, 0, 4, (1, 4, 2, 2), 0),
        (9, 4, 0, -1, (16, 4, 8, 11), 0),
        (9, 4, 2, -1, (12, 4, 8, 11), 0),
        (9, 4, 2, 2, (12, 1, 2, 3), 1),
        (9, 4, 2, 4, (19, 4, 4, 4), 0),
        (40, 4, 2, 3, (17, 3, 3, 6), 2),
        (40, 4, 5, -1, (22, 4, 8, 11), 0),
        (40, 4, 5, 4, (19, 4, 4, 4), 1),
        (4, 8, 3, 1, (16, 0, 1, 1), 0),
        (4, 8, 3, 3, (4, 7, 3, 6), 0),
        (4, 8, 3, 4, (1, 8, 8, 8), 0),
    ],
)
def test_a_prompt_and_then_its_output_are_as_long_as_there_is_room(
    blocks: int, size: int, drafts: int, nth: int, drawn_tokens: tuple[int, ...], turns: int
) -> None:
    """Beside two steps of drafts, and a token more; and a session has the turns that fit, too."""
    config = WorldConfig(num_blocks=blocks, block_size=size, spec_tokens=drafts, sessions=True)
    spec, _ = drawn(Arrivals(config), NEVER, 0.1, nth=nth)
    tokens = (spec.shared_tokens, spec.own_tokens, spec.output_tokens, spec.max_tokens)
    assert (tokens, len(spec.turns)) == (drawn_tokens, turns)


# -- worlds -------------------------------------------------------------------------------------

OF_A_WORLD: list[tuple[Any, ...]] = [
    ("choices", {1: 3, 2: 1}),
    ("choice", 4, 5, 8, 11),
    ("choices", {0: 4, 1: 3, 2: 1, 3: 1}),
    *[("random",)] * 11,
    ("choice", 9, 12, 16, 24, 40),
    ("choice", 2, 4, 4, 8),
    ("choice", 1, 1, 2),
    ("choices", {1: 3, 2: 1}),
    ("choices", {1: 5, 2: 1}),
    ("choice", 1, 2, 4, 6),
    ("choice", 4, 8, 16, 32),
    ("random",),
    ("choice", 1, 2),
    ("random",),
    ("choice", 0, 1, 2),
    ("choice", *["kv_both"] * 5, "kv_consumer"),
    ("choice", "recompute", "fail"),
    ("choice", 4, 8, 16, 64),
    ("choice", 1, 1, 1, 5),
]


def test_a_world_is_drawn_of_these() -> None:
    some = Asked(*[0.49, 0.5] * 5, 0.5, 0.69, 0.24, nth=-1)
    assert draw_config(some) == WorldConfig(
        num_blocks=80,
        block_size=8,
        groups=(FULL, GroupConfig("sliding", 11)),
        layers=2,
        tp_size=2,
        pp_size=2,
        max_running=6,
        max_step_tokens=32,
        run_ahead=3,
        async_scheduling=True,
        runner=2,
        zero_new_blocks=True,
        spec_tokens=2,
        role="kv_consumer",
        failure_policy="fail",
        host_slots=64,
        trouble=5,
        silent=frozenset({"abort", "tear", "repeat", "reset", "same_id"}),
    )
    assert some.asked == OF_A_WORLD
    assert not draw_config(Asked(*[NEVER] * 11, 0.7, nth=-1)).async_scheduling
    few = Asked(*[NEVER] * 9, 0.1, NEVER, 0.25)
    assert draw_config(few) == WorldConfig(
        num_blocks=9,
        block_size=2,
        max_running=1,
        max_step_tokens=4,
        host_slots=4,
        silent=frozenset({"spec"}),
    )
    every_role = ("choice", *["kv_both"] * 5, "kv_consumer", "kv_producer")
    assert few.asked == [OF_A_WORLD[0], *OF_A_WORLD[2:21], *OF_A_WORLD[22:24], every_role, *OF_A_WORLD[26:]]


def test_finer_hashes_and_states_are_drawn_of_these() -> None:
    config = WorldConfig(block_size=8, num_blocks=24)
    for chance, changes in ((0.5, {"hashes_per_block": 2}), (0.49, {})):
        asked = Asked(chance)
        assert with_fine_hashes(config, asked) == replace(config, **changes)
        assert asked.asked == [("random",), *[("choice", 2, 8)] * bool(changes)]
    config = replace(config, groups=(FULL, WINDOW), spec_tokens=2, host_slots=8)
    states = {"hands_over_states": True}
    for chance, nth, changes in (
        (0.39, 0, {}),
        (0.4, 0, {"groups": (FULL, STATE), **states}),
        (0.4, 1, {"groups": (FULL, WINDOW, STATE), "num_blocks": 36, **states}),
    ):
        asked = Asked(chance, nth=nth)
        assert with_states(config, asked) == replace(config, **changes)
        assert asked.asked == [("random",), *[("choice", (FULL,), (FULL, WINDOW))] * bool(changes)]


def with_states_drawn(config: WorldConfig) -> WorldConfig:
    """Drawn they are, and whether they are handed over isn't."""
    return with_states(config, Asked())


ALL_KINDS = {"groups": (FULL, WINDOW, STATE), "hands_over_states": True}
OF_TWO = {"engines": 2, "role": "kv_both", "silent": frozenset({"fail", "reset_all"})}
ROLES_OF_TWO = {
    (0, 3, 7, 8, 10, 12, 14, 15): OF_TWO,
    (1, 2, 4, 6, 9, 11, 17, 18, 19): {**OF_TWO, "role": "kv_producer"},
    (5, 13, 16): {**OF_TWO, "role": "kv_consumer"},
}
OF_ONE = {**OF_TWO, "zero_new_blocks": False, "hashes_per_block": 1}
ROLES_OF_ONE = {
    (0, 3, 7, 8, 10, 12, 13, 14, 15, 16): {**OF_ONE, "role": "kv_producer"},
    (1, 2, 4, 5, 6, 9, 11, 17, 18, 19): {**OF_ONE, "role": "kv_consumer"},
}


@pytest.mark.parametrize(
    ("change", "of", "changes"),
    [
        (with_sessions, {}, {(2, 4, 5, 11, 15, 16, 17, 19): {"sessions": True}}),
        (
            with_own_cache,
            {},
            {(0, 1, 3, 4, 7, 9, 10, 11, 14, 15, 16, 19): {"prefix_caching": False, "num_blocks": 120}},
        ),
        (with_pauses, {}, {(4, 9, 18): {"pauses": True}}),
        (
            with_a_window_alone,
            {},
            {(1,): {"groups": (GroupConfig("sliding", 5),)}, (5, 12): {"groups": (GroupConfig("sliding", 8),)}},
        ),
        (with_a_window_alone, {"groups": (FULL, WINDOW)}, {}),
        (with_a_window_alone, {"hashes_per_block": 2}, {}),
        (with_loads, {}, {(3, 5, 10, 13, 19): {"prefix_caching": False}}),
        (
            with_failing_loads,
            {"prefix_caching": False},
            {
                (1, 4, 6, 7, 8, 9, 11, 12, 13, 17): {
                    "run_ahead": 0,
                    "async_scheduling": False,
                    "silent": frozenset(),
                }
            },
        ),
        (
            with_tails,
            ALL_KINDS,
            {
                (0, 1, 2, 3, 4, 8, 10, 11, 16, 17, 19): {
                    "num_blocks": 40,
                    "hashes_per_block": 2,
                    "groups": (FULL, STATE),
                },
                (5, 13, 14): {"num_blocks": 40, "hashes_per_block": 8, "groups": (FULL, STATE)},
            },
        ),
        (
            with_states_drawn,
            {"groups": (FULL, WINDOW)},
            {
                (1, 5, 8, 9, 11, 15, 17, 19): {"groups": (FULL, STATE)},
                (0, 2, 3, 4, 6, 7, 10, 12, 13, 14, 16, 18): {"groups": (FULL, STATE), "hands_over_states": True},
            },
        ),
        (with_sessions, {"groups": (FULL, STATE)}, {}),
        (
            with_sessions,
            {"groups": (FULL, STATE), "async_scheduling": False},
            {(2, 4, 5, 11, 15, 16, 17, 19): {"sessions": True}},
        ),
        (with_two_engines, {}, ROLES_OF_TWO),
        (with_two_engines, {"zero_new_blocks": True, "run_ahead": 0}, ROLES_OF_TWO),
        (with_two_engines, {"zero_new_blocks": True}, {tuple(range(20)): OF_TWO}),
        (with_two_engines, {"hashes_per_block": 2}, {tuple(range(20)): OF_TWO}),
        (with_producer_and_consumer, {}, ROLES_OF_ONE),
        (with_producer_and_consumer, {"zero_new_blocks": True, "hashes_per_block": 2}, ROLES_OF_ONE),
        (with_loads, {"groups": (FULL, STATE)}, {}),
        (with_loads, {"hashes_per_block": 2}, {}),
        (with_failing_loads, {}, {}),
        (with_tails, {**ALL_KINDS, "hands_over_states": False}, {}),
    ],
)
def test_which_worlds_are_changed_their_sizes_say(
    change: Callable[[WorldConfig], WorldConfig],
    of: dict[str, Any],
    changes: dict[tuple[int, ...], dict[str, Any]],
) -> None:
    """These, by the room in host memory, and no others."""
    plain = WorldConfig(
        block_size=8, num_blocks=60, run_ahead=2, async_scheduling=True, silent=frozenset({"fail"})
    )
    worlds = [replace(plain, **of, host_slots=slots) for slots in range(20)]
    by_slots = {slots: how for some, how in changes.items() for slots in some}
    assert [change(world) for world in worlds] == [
        replace(world, **by_slots.get(slots, {})) for slots, world in enumerate(worlds)
    ]


# -- actions ------------------------------------------------------------------------------------

USUAL = {
    **{"add": 12, "abort": 5, "turn": 10, "step": 30, "schedule": 12, "execute": 14, "retire": 14, "process": 14},
    **{"settle": 4, "finish": 14, "advance": 6, "fail": 4, "spoil": 1, "lose": 1, "find": 3, "repeat": 2},
    **{"restart": 1, "reset": 2, "pause": 2, "sleep": 12, "wake": 12},
}
OF_PEERS = {"add": 24, "step": 90, "reset": 6, "fail": 16, "lose": 12, "find": 12}


@pytest.mark.parametrize(
    ("subject", "trouble", "weights"),
    [
        (LATER, 1, USUAL),
        (
            LATER,
            5,
            {**USUAL, "fail": 20, "spoil": 5, "lose": 5, "find": 15, "repeat": 10, "restart": 5},
        ),
        (P2P, 1, {**USUAL, **OF_PEERS}),
    ],
)
def test_so_much_more_often_is_one_kind_picked_than_another(
    subject: Subject, trouble: int, weights: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kv_sim.history.choices.legal_choices", lambda world, at: {kind: {} for kind in Kind})
    chance = Asked(nth=3)
    assert pick(World(WorldConfig(trouble=trouble), subject), chance) == Action(Kind.STEP)
    ((_, asked),) = chance.asked
    assert list(asked) == list(Kind)
    assert asked == weights


def asked_for(world: World, *chances: float) -> dict[str, tuple[dict[str, Any], list[tuple[Any, ...]]]]:
    """What each kind of action but a new request becomes, and what chance is asked for that."""
    found = {}
    for kind, args in legal_choices(world).items():
        if kind is not Kind.ADD and callable(args):
            chance = Asked(*chances, nth=1)
            found[kind.value] = args(chance), chance.asked
    return found


@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize(("first", "second"), [(0.49, 0.5), (0.5, 0.49), (0.74, 0.9), (0.75, 0.9)])
def test_an_action_is_drawn_of_these(run_ahead: int, first: float, second: float) -> None:
    """Each of two ranks has a copy that may go on, and one that ended; of two sessions one is loaded."""
    subject = replace(LATER, traits=frozenset(Trait))
    world = World(WorldConfig(tp_size=2, run_ahead=run_ahead), subject)
    for conversation, name in enumerate(("r1", "r2")):
        world.take(Kind.SETTLE)
        world.engine.add(RequestSpec(name, conversation, 9, 0, 1, 1))
        for _ in range(3):
            assert world.apply(Action(Kind.STEP))
    requests = [world.engine.add(RequestSpec(name, 2, 9, 0, 4, 4, turns=())) for name in ("r3", "r4")]
    requests[0].awaits_load = True
    world.coverage.situation("match: load in the step")
    ended = [(device.rank, copy) for device in world.engine.devices for copy in device.copies.ended]
    begun = [(device.rank, copy) for device in world.engine.devices for copy in device.copies.startable()]
    assert [[(rank, copy.copy_id) for rank, copy in some] for some in (ended, begun)] == [
        [(0, 0), (1, 0)],
        [(0, 1), (1, 1)],
    ]
    ranks, copies, half = ("choice", 0, 1), ("choice", *begun), ("random",)
    memory, load = first < 0.5 and not run_ahead, {"load": True} if first < 0.75 else {}
    expected = {
        "turn": ({"request": "r4"}, [("choice", "r3", "r4")]),
        **{kind: ({"rank": 1, "copy": 1}, [copies]) for kind in ("finish", "fail", "lose")},
        "advance": ({"rank": 1, "copy": 1, "pages": 2}, [copies, ("randint", 1, 2)]),
        "repeat": ({"rank": 1, "copy": 0}, [("choice", *ended)]),
        "spoil": ({"rank": 1, **load}, [ranks, half]),
        "restart": ({"rank": 1, "memory": memory}, [ranks] if run_ahead else [ranks, half]),
        "abort": (
            {"request": "r3" if first < 0.75 else "r4"},
            [half, ("choice", *requests[: 1 if first < 0.75 else 2])],
        ),
        "reset": ({"running": first < 0.5, "connector": second < 0.5}, [half, half]),
    }
    if run_ahead:
        del expected["spoil"]
    assert asked_for(world, first, second) == expected
