"""What is legal in a world, what is done with what isn't, and that only what is legal and claimed is chosen."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from kv_sim_seeds import seeds
from kv_sim_weighed import Weighed

from kv_api import Direction
from kv_sim.actions import Action, Kind
from kv_sim.checkers.tickets import Tickets
from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.engine.pause import MODES, Pause
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import LATER, MEMORY, OFFLOAD, P2P_TWO, PATIENT
from kv_sim.history.choices import TROUBLE, WEIGHTS, legal_choices, pick
from kv_sim.history.coverage import STRANGE
from kv_sim.history.draws import config_for
from kv_sim.history.expected import FORGETS
from kv_sim.memory.copy import Result, State
from kv_sim.memory.device import Device
from kv_sim.memory.errands import Errands
from kv_sim.memory.launched import LaunchedStep
from kv_sim.memory.shadow import Shadow
from kv_sim.site import Call
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Referee, Violation
from kv_sim.world import World

CONFIG = WorldConfig(tp_size=2, run_ahead=1)
STAGES, UNEQUAL = "match: stages hold different layers", "match: blocks of several sizes"


def add(name: str, tokens: int = 9, output: int = 1) -> Action:
    return Action(Kind.ADD, {"spec": asdict(RequestSpec(name, 0, tokens, 0, output, output))})


def act(kind: str, **args: Any) -> Action:
    return Action(Kind(kind), args)


def legal(made: World, *actions: Action) -> list[bool]:
    """Which of these are. What isn't is not in the history, and leaves no trace."""
    found = []
    for action in actions:
        before = made.digest, list(made.history), Counter(made.coverage.pairs), Counter(made.coverage.situations)
        found.append(made.apply(action))
        if not found[-1]:
            after = made.digest, made.history, made.coverage.pairs, made.coverage.situations
            assert after == before, action
    return found


OF_A_COPY = ("finish", "advance", "fail", "lose", "find", "repeat")


def test_in_an_empty_world_hardly_anything_is_legal() -> None:
    made = World(CONFIG, LATER)
    assert not any(legal(made, *(act(kind) for kind in ("step", "schedule", "process", "settle"))))
    assert not any(legal(made, *(act(kind, rank=rank) for kind in ("execute", "retire") for rank in range(3))))
    assert not any(legal(made, *(act(kind, rank=rank, copy=0) for kind in OF_A_COPY for rank in range(3))))
    assert not any(
        legal(made, act("spoil", rank=2), act("restart", rank=2, memory=False), act("abort", request="r1"))
    )
    assert all(legal(made, act("spoil", rank=1), act("restart", rank=1, memory=False), add("r1")))
    assert all(legal(made, act("spoil", rank=0, load=True)))
    assert [(d.copies.spoiled, d.copies.spoiled_load) for d in made.engine.devices] == [
        (False, True),
        (True, False),
    ]
    assert [device.copies.restarts for device in made.engine.devices] == [0, 1]
    assert not made.coverage.situations, "a restart of what has no copies shows nothing"
    assert all(legal(made, act("reset", running=False, connector=False)))
    assert not any(legal(made, add("r1", 5)))


def test_steps_are_scheduled_executed_retired_and_processed() -> None:
    made = World(CONFIG, LATER)
    script = [
        (add("r1", output=3), True, 0),
        (act("schedule"), True, 1),
        (act("process"), False, 1),
        (act("retire", rank=0), False, 1),
        (act("execute", rank=1), True, 1),
        (act("execute", rank=1), False, 1),
        (act("execute", rank=2), False, 1),
        (act("retire", rank=0), False, 1),
        (act("process"), False, 1),
        (act("execute", rank=0), True, 1),
        (act("process"), False, 1),
        (act("schedule"), True, 2),
        (act("schedule"), False, 2),
        (act("execute", rank=0), True, 2),
        (act("retire", rank=1), True, 2),
        (act("retire", rank=1), False, 2),
        (act("process"), False, 2),
        (act("retire", rank=0), True, 2),
        (act("process"), True, 1),
        (act("process"), False, 1),
        (act("step"), True, 1),  # all of two steps, but for the run-ahead
        (act("schedule"), True, 2),
        (act("step"), True, 1),
    ]
    for number, (action, is_legal, under_way) in enumerate(script):
        assert (legal(made, action), len(made.engine.steps)) == ([is_legal], under_way), (number, str(action))
    assert made.history == [action for action, is_legal, _ in script if is_legal]
    made.rest()


@pytest.mark.parametrize("subject", [LATER, MEMORY], ids=["a step and its blocks", "a step"])
def test_an_id_is_taken_as_long_as_anything_of_it_is_under_way(subject: Subject) -> None:
    made = World(CONFIG, subject)
    assert all(legal(made, add("r1"), act("schedule"), act("abort", request="r1")))
    assert "r1" not in {r.request_id for r in made.engine.scheduler.requests.values() if not r.status.is_finished}
    assert made.sites[0].taken_ids() == {"r1"}
    assert legal(made, act("abort", request="r1"), add("r1"), add("r2")) == [False, False, True]
    made.rest()
    assert made.sites[0].taken_ids() == set()
    assert legal(made, add("r1")) == [True]


def test_a_request_that_is_longer_than_the_model_can_not_come() -> None:
    most = CONFIG.max_model_len
    assert legal(World(CONFIG, MEMORY), add("r1", most), add("r1", most - 1)) == [False, True]


def stored(config: WorldConfig = CONFIG, subject: Subject = LATER) -> World:
    """A world in which copy 0 of each rank, of two pages, may begin."""
    made = World(config, subject)
    assert all(legal(made, add("r1"), act("step"), act("step"), act("step")))
    assert all([copy.copy_id for copy in device.copies.startable()] == [0] for device in made.engine.devices)
    return made


@pytest.mark.parametrize("kind", ["finish", "advance", "fail", "lose"])
def test_a_copy_that_may_begin_may_end(kind: str) -> None:
    made = stored()
    assert not any(legal(made, *(act(kind, rank=rank, copy=copy) for rank, copy in ((0, 1), (1, 1), (2, 0)))))
    assert legal(made, act("repeat", rank=0, copy=0)) == [False], "it has not ended"
    assert legal(made, act(kind, rank=1, copy=0)) == [True]
    first, other = (device.copies for device in made.engine.devices)
    assert [copy.copy_id for copy in first.startable()] == [0], "it is the other rank's"
    assert not other.startable()
    assert not any(legal(made, *(act(each, rank=1, copy=0) for each in ("finish", "advance", "fail", "lose"))))
    state = {"finish": State.DONE, "advance": State.DONE, "fail": State.FAILED, "lose": State.LOST}[kind]
    (copy,) = [*other.ended, *other.running.values()]
    assert copy.state is state
    (queue,) = other._queues.values()
    ends = [] if state is State.LOST else [Result(0, state is State.DONE)]
    assert queue.poll() == ends
    assert legal(made, act("repeat", rank=1, copy=0)) == [state is not State.LOST]
    assert queue.poll() == ends
    assert legal(made, act("repeat", rank=1, copy=1), act("repeat", rank=2, copy=0)) == [False, False]


@pytest.mark.parametrize(("runner", "zeroes", "may"), [(1, True, True), (2, False, True), (2, True, False)])
def test_what_was_lost_is_found_where_new_blocks_are_written_after_the_fence(
    runner: Any, zeroes: bool, may: bool
) -> None:
    subject = replace(LATER, traits=LATER.traits | {Trait.LOSSES})
    made = stored(replace(CONFIG, runner=runner, zero_new_blocks=zeroes), subject)
    assert legal(made, act("find", rank=1, copy=0), act("lose", rank=1, copy=0)) == [False, True]
    assert (Kind.FIND in legal_choices(made)) is may
    if may:
        assert drawn(made, Kind.FIND) == {(1, 0)}
    assert legal(made, act("find", rank=0, copy=0), act("find", rank=2, copy=0)) == [False, False]
    assert legal(made, act("find", rank=1, copy=0), act("finish", rank=1, copy=0)) == [may, may]
    assert made.coverage.situations["a lost copy is found"] == may


@pytest.mark.parametrize(
    ("traits", "silent", "may"),
    [({Trait.LOSSES}, set(), True), ({Trait.LOSSES}, {"lose"}, False), (set(), set(), False)],
)
def test_only_who_may_lose_copies_finds_them(traits: set[Trait], silent: set[str], may: bool) -> None:
    subject = replace(LATER, traits=(LATER.traits - {Trait.LOSSES}) | traits)
    made = stored(replace(CONFIG, silent=frozenset(silent)), subject)
    device = made.engine.devices[0]
    device.lose(device.copies.running[0])
    assert [kind in legal_choices(made) for kind in (Kind.FIND, Kind.LOSE)] == [may, may]


def run_a_step(device: Device, **uses: set[int]) -> None:
    device.launch(LaunchedStep(1, [], [], [], 4, (0,), **uses))
    device.retire()


@pytest.mark.parametrize(
    "use",
    [
        lambda device: device.take_over([2]),
        lambda device: run_a_step(device, reads={2}),
        lambda device: run_a_step(device, writes={2}),
    ],
)
def test_a_lost_load_may_write_its_blocks_until_a_step_uses_them(use: Callable[[Device], None]) -> None:
    """One that gets them, and one that only goes on in them."""
    shadow = Shadow(1, Referee())
    device = Device(0, CONFIG, shadow)
    slot = device.allocate_host(4)
    shadow.load_rights.update({1: "r1", 2: "r1", 3: "r1"})
    load = device.copies.open().submit(Direction.LOAD, [(block, slot) for block in (1, 2, 3, 4)])
    copy = device.copies.running[load]
    device.lose(copy)
    shadow.load_rights.clear()
    assert copy.given_up_to == {1, 2, 3}, "nothing was ever loaded into the last one"
    use(device)
    device.copies.find(copy)
    device.copies.advance(copy, 1)
    with pytest.raises(Violation, match=r"rank 0 block 2 .*no load into it is under way"):
        device.copies.advance(copy, 1)


def test_a_load_that_is_lost_again_after_it_was_given_up_may_still_write_what_nobody_has_used() -> None:
    shadow = Shadow(1, Referee())
    device = Device(0, CONFIG, shadow)
    slot = device.allocate_host(3)
    shadow.load_rights.update({1: "r1", 2: "r1", 3: "r1"})
    load = device.copies.open().submit(Direction.LOAD, [(block, slot) for block in (1, 2, 3)])
    copy = device.copies.running[load]
    device.lose(copy)
    shadow.load_rights.clear()
    device.copies.find(copy)
    device.copies.advance(copy, 1)
    device.take_over([3])
    device.lose(copy)
    assert copy.given_up_to == {2}


def test_copies_advance_and_settle() -> None:
    made = stored()
    device = made.engine.devices[0]
    assert legal(made, act("advance", rank=0, copy=0, pages=1)) == [True]
    assert device.copies.running[0].copied == 1
    assert legal(made, act("settle"), act("settle")) == [True, False]
    assert all([copy.state for copy in each.copies.ended] == [State.DONE] for each in made.engine.devices)


def test_one_settling_ends_also_what_waits_for_something_that_it_ends() -> None:
    made = stored()
    errands, done = Errands(made.engine.devices[0], in_order=True), list[int]()
    for number in range(3):
        errands.submit(done.append, number)
    assert legal(made, act("settle")) == [True]
    assert done == [0, 1, 2]


def test_what_was_reached_is_counted() -> None:
    made = stored()
    before = Counter(made.coverage.situations)
    script = [
        act("advance", rank=0, copy=0, pages=1),
        act("fail", rank=0, copy=0),
        act("lose", rank=1, copy=0),
        act("restart", rank=0, memory=True),  # no memory is lost under run-ahead, and no copy is left there
        act("restart", rank=1, memory=True),
        act("reset", running=False, connector=False),
    ]
    assert all(legal(made, *script))
    held = "at its limit and held"
    reached = {name: count for name, count in made.coverage.situations.items() if count != before[name]}
    assert reached == {
        "a copy is torn": 1,
        "a copy is lost": 1,
        "a restart ends copies": 1,
        "reset answered False": 1,
    }
    pairs = {pair: count for pair, count in made.coverage.pairs.items() if pair[0] not in ("add", "step")}
    assert pairs == Counter((action.kind.value, held) for action in script)
    made = stored(replace(CONFIG, run_ahead=0))
    assert all(legal(made, act("fail", rank=0, copy=0), act("restart", rank=0, memory=True)))
    for name in ("a copy fails", "a restart loses host memory"):
        assert made.coverage.situations[name] == 1
    assert not made.coverage.situations["a restart ends copies"]
    assert made.engine.devices[0].copies.lost_slots
    assert not made.engine.devices[1].copies.lost_slots
    made = World(replace(CONFIG, run_ahead=0), MEMORY)
    assert legal(made, act("restart", rank=0, memory=True)) == [True]
    assert not made.coverage.situations, "it keeps nothing in host memory"


@pytest.mark.parametrize(("awaits", "lost", "times"), [(True, 2, 1), (True, 1, 0), (True, 0, 0), (False, 2, 0)])
def test_a_load_stands_still_whose_ranks_have_lost_all_copies(awaits: bool, lost: int, times: int) -> None:
    made = stored()
    assert all(legal(made, add("r2"), *(act("lose", rank=rank, copy=0) for rank in range(lost))))
    made.engine.scheduler.requests["r2"].awaits_load = awaits
    assert legal(made, act("abort", request="r2")) == [True]
    assert made.coverage.situations["a load that stands still is aborted"] == times


@pytest.mark.parametrize(
    ("asked", "answer", "times"), [(True, True, 1), (True, None, 0), (True, False, 0), (False, True, 0)]
)
def test_whether_a_connector_forgot_at_a_reset(
    monkeypatch: pytest.MonkeyPatch, asked: bool, answer: bool | None, times: int
) -> None:
    made = World(CONFIG, MEMORY)
    monkeypatch.setattr(made.engine.scheduler.connector, "reset_cache", lambda: answer)
    assert all(legal(made, act("reset", running=False, connector=asked)))
    assert made.coverage.situations[FORGETS] == times


def test_rejected_drafts_are_recorded_as_they_came() -> None:
    """No more than there were, and of no request that had none."""
    made = World(replace(CONFIG, spec_tokens=2, run_ahead=0), MEMORY)
    assert all(legal(made, add("r1", output=8), act("step", rejects={"r1": 1})))
    assert made.history[-1] == act("step"), "the prompt has none"
    assert all(legal(made, act("step", rejects={"r1": 9, "r9": 1}), act("step", rejects={"r1": 1}), act("step")))
    assert made.history[-3:] == [act("step", rejects={"r1": 2}), act("step", rejects={"r1": 1}), act("step")]
    made.rest()


def test_what_was_drawn_for_an_action_that_fails_is_kept() -> None:
    made = World(CONFIG, LATER)
    made.engine.reset = lambda **how: [][0]  # type: ignore[method-assign,assignment]
    with pytest.raises(IndexError):
        made.apply(act("reset", running=True, connector=True))
    assert made.history == [act("reset", running=True, connector=True)]


@pytest.mark.parametrize("has_tails", [False, True])
@pytest.mark.parametrize(
    ("local", "answer", "ends_within"),
    [
        (4, (2, True), True),
        (2, (4, True), True),
        (2, (4, False), True),
        (1, (3, True), False),
        (2, (2, True), False),
        (4, (4, True), False),
        (2, (0, False), False),
    ],
)
def test_loads_that_end_within_a_block_are_counted(
    has_tails: bool, local: int, answer: tuple[int, bool], ends_within: bool
) -> None:
    tails = {"hashes_per_block": 2, "groups": (GroupConfig(), STATE), "hands_over_states": True}
    made = World(replace(CONFIG, **tails) if has_tails else CONFIG, OFFLOAD)
    asked = made.engine.add(RequestSpec("r1", 0, 9, 0, 1, 1))
    made._called(made.sites[0], Call(0, "scheduler", "get_num_new_matched_tokens", (asked, local), answer))
    assert made.coverage.situations["match: a load ends within a block"] == (ends_within and has_tails)
    before = made.digest
    made._called(made.sites[0], Call(0, "scheduler", "get_num_new_matched_tokens", (asked, local), (None, False)))
    assert made.coverage.situations["match: ask again"] == 1
    assert made.digest != before


@pytest.mark.parametrize("answer", [(4, True), (4, False), (0, False), (None, False)])
def test_what_is_found_counts_whenever_it_is_loaded(
    answer: tuple[int | None, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not whether it is loaded within the step, which the second value says."""
    made = World(CONFIG, OFFLOAD)
    asked = made.engine.add(RequestSpec("r1", 0, 9, 0, 1, 1))
    of_all: Any = SimpleNamespace(stranger="path", stages="more_first", is_unequal=True, has_tails=False)
    made.config = of_all
    monkeypatch.setattr(Tickets, "bearers", {"r1"})
    made._called(made.sites[0], Call(0, "scheduler", "get_num_new_matched_tokens", (asked, 0), answer))
    has_some = bool(answer[0])
    assert {name: made.coverage.situations[name] for name in (STRANGE, STAGES, UNEQUAL)} == {
        STRANGE: not has_some,
        STAGES: has_some,
        UNEQUAL: has_some,
    }


# -- what is chosen -----------------------------------------------------------------------------


def every(made: World, kind: Kind) -> list[Action]:
    """All actions of a kind that could be meant."""
    ranks = range(made.config.world_size)
    copies = range(max((len(device.copies._queues) for device in made.engine.devices), default=0))
    if kind in (Kind.EXECUTE, Kind.RETIRE):
        return [Action(kind, {"rank": rank}) for rank in ranks]
    if kind.value in OF_A_COPY:
        return [Action(kind, {"rank": rank, "copy": copy}) for rank, copy in product(ranks, copies)]
    if kind in (Kind.ABORT, Kind.TURN):
        return [Action(kind, {"request": name}) for name in made.engine.scheduler.requests]
    if kind is Kind.PAUSE:
        return [Action(kind, {"mode": mode}) for mode in MODES]
    return [Action(kind)]


NEEDS = {
    Kind.FAIL: ("fail", Trait.FAILURES),
    Kind.SPOIL: ("fail", Trait.FAILURES),
    Kind.LOSE: ("lose", Trait.LOSSES),
    Kind.FIND: ("lose", Trait.LOSSES),
    Kind.REPEAT: ("repeat", Trait.REPEATS),
    Kind.RESTART: ("restart", Trait.FAILURES),
}
LEFT_OUT = (Kind.ADVANCE, Kind.ABORT, Kind.RESET)


def is_meant(made: World, kind: Kind) -> bool:
    """Whether a world takes actions of a kind at all."""
    config = made.config
    if kind in (Kind.PAUSE, Kind.SLEEP):
        return config.pauses if kind is Kind.PAUSE else Trait.SLEEP in made.subject.traits
    name, trait = NEEDS.get(kind, (kind.value if kind in LEFT_OUT else "", None))
    if name in config.silent or (trait is not None and trait not in made.subject.traits):
        return False
    if kind is Kind.FIND and config.writes_before_fences:
        return False
    return not (kind in (Kind.SPOIL, Kind.SCHEDULE) and bool(config.run_ahead) is (kind is Kind.SPOIL))


@pytest.mark.parametrize("subject", [MEMORY, LATER, PATIENT, OFFLOAD], ids=lambda subject: subject.kv_connector)
def test_all_that_is_chosen_is_legal_and_what_is_not_chosen_is_not(subject: Subject) -> None:
    for seed in seeds(12):
        random = Random(seed)
        made = World(config_for(subject, random), subject)
        for _ in range(50):
            choices = legal_choices(made)
            assert all(is_meant(made, kind) for kind in choices)
            unfinished = [r for r in made.engine.scheduler.requests.values() if not r.status.is_finished]
            assert (Kind.ADD in choices) is (len(unfinished) < 2 * made.config.max_running + 2)
            copies_may = any(device.copies.startable() for device in made.engine.devices)
            assert (Kind.WAKE in choices) is (made.engine.pause_state is not Pause.NONE)
            for kind in Kind:
                if kind in (Kind.ADD, Kind.RESET, Kind.SPOIL, Kind.RESTART):
                    assert kind is Kind.ADD or (kind in choices) is is_meant(made, kind)
                elif kind not in choices and is_meant(made, kind) and (copies_may or kind is not Kind.REPEAT):
                    assert not any(made.apply(action) for action in every(made, kind)), kind
            action = pick(made, random)
            assert action.kind in choices
            assert made.apply(action, random), action
        made.rest()


def drawn(made: World, kind: Kind) -> set[tuple[Any, ...]]:
    """All that is drawn for a kind of action."""
    args = legal_choices(made)[kind]
    assert callable(args)
    return {tuple(args(Random(seed)).values()) for seed in range(60)}


def test_what_is_drawn_for_an_action() -> None:
    made = stored()
    assert drawn(made, Kind.FINISH) == drawn(made, Kind.FAIL) == {(0, 0), (1, 0)}
    assert drawn(made, Kind.ADVANCE) == {(rank, 0, pages) for rank in (0, 1) for pages in (1, 2)}
    assert drawn(made, Kind.RESTART) == {(0, False), (1, False)}
    assert drawn(made, Kind.RESET) == set(product([False, True], repeat=2))
    assert Kind.SPOIL not in legal_choices(made)
    made = stored(replace(CONFIG, run_ahead=0, silent=frozenset({"reset_all"})))
    assert drawn(made, Kind.SPOIL) == {(0,), (1,)}
    made.coverage.situation("match: load in the step")
    assert drawn(made, Kind.SPOIL) == {(rank, *load) for rank in (0, 1) for load in ((), (True,))}
    assert drawn(made, Kind.RESTART) == set(product([0, 1], [False, True]))
    assert drawn(made, Kind.RESET) == {(False, False), (True, False)}
    made = stored(subject=replace(LATER, traits=LATER.traits - {Trait.RESET}))
    assert drawn(made, Kind.RESET) == {(False, False), (True, False)}


def test_any_session_that_may_hear_more_gets_its_turn() -> None:
    made = World(CONFIG, LATER)
    for name, turns in (("r1", ()), ("r2", None), ("r3", ()), ("r4", ())):
        made.engine.add(RequestSpec(name, 0, 9, 0, 1, 1, turns=turns))
    assert drawn(made, Kind.TURN) == {("r1",), ("r3",), ("r4",)}
    assert legal(made, *(act("turn", request=name) for name in ("r4", "r4", "r2"))) == [True, False, False]
    assert drawn(made, Kind.TURN) == {("r1",), ("r3",)}


@pytest.mark.parametrize("sleeps", [True, False])
def test_who_pauses_may_sleep_where_that_is_claimed_and_wakes(sleeps: bool) -> None:
    subject = replace(MEMORY, traits=MEMORY.traits | {Trait.SLEEP} if sleeps else frozenset())
    made = World(replace(CONFIG, pauses=True), subject)

    def may() -> set[Kind]:
        return {Kind.PAUSE, Kind.SLEEP, Kind.WAKE} & legal_choices(made).keys()

    assert (may(), drawn(made, Kind.PAUSE)) == ({Kind.PAUSE}, {(mode,) for mode in MODES})
    assert legal(made, act("pause", mode="keep")) == [True]
    assert may() == ({Kind.SLEEP, Kind.WAKE} if sleeps else {Kind.WAKE})
    if sleeps:
        assert legal(made, act("sleep")) == [True]
        assert may() == {Kind.WAKE}
    assert legal(made, act("wake"), act("wake")) == [True, False]
    assert may() == {Kind.PAUSE}
    assert not {Kind.PAUSE, Kind.SLEEP, Kind.WAKE} & legal_choices(World(CONFIG, subject)).keys()


def test_the_last_ends_of_copies_are_repeated() -> None:
    made = stored()
    for device in made.engine.devices:
        queue = device.copies.open()
        for _ in range(2 + 2 * device.rank):
            queue.submit(device.copies.running[0].direction, [])
    assert drawn(made, Kind.REPEAT) == {(0, 1), (0, 2), (1, 2), (1, 3), (1, 4)}


def test_who_loads_is_aborted_more_often() -> None:
    made = World(replace(CONFIG, run_ahead=0), LATER)
    for name in ("r1", "r2", "r3"):
        made.engine.add(RequestSpec(name, 0, 9, 0, 1, 1))
    args: Any = legal_choices(made)[Kind.ABORT]
    assert {args(Random(seed))["request"] for seed in range(30)} == {"r1", "r2", "r3"}
    made.engine.scheduler.requests["r2"].awaits_load = True
    args = legal_choices(made)[Kind.ABORT]
    often = Counter(args(Random(seed))["request"] for seed in range(400))
    assert set(often) == {"r1", "r2", "r3"}
    assert 290 < often["r2"] < 370, "three quarters, and a third of the rest"


@pytest.mark.parametrize("trouble", [0, 1, 5])
def test_trouble_comes_more_often_where_there_is_more_of_it(trouble: int) -> None:
    made, random = stored(replace(CONFIG, trouble=trouble)), Weighed(0)
    pick(made, random)
    assert random.weighed == {
        kind: WEIGHTS[kind] * (trouble if kind in TROUBLE else 1) for kind in legal_choices(made)
    }
    assert set(TROUBLE) == {kind for kind in Kind if kind in NEEDS}
    assert set(WEIGHTS) == set(Kind)
    assert min(WEIGHTS.values()) > 0


@pytest.mark.parametrize("trouble", [0, 1, 5, 9])
def test_what_is_waited_for_fails_more_often_once_a_step_has_loaded(trouble: int) -> None:
    made, random = stored(replace(CONFIG, trouble=trouble, run_ahead=0)), Weighed(0)
    made.coverage.situation("match: load in the step")
    pick(made, random)
    assert random.weighed is not None
    often = max(trouble, 6) if trouble else 0
    assert random.weighed[Kind.SPOIL] == WEIGHTS[Kind.SPOIL] * often
    assert random.weighed[Kind.FAIL] == WEIGHTS[Kind.FAIL] * trouble


@pytest.mark.parametrize("subject", [LATER, PATIENT], ids=["resets", "does not"])
@pytest.mark.parametrize("silent", [frozenset[str](), frozenset({"reset_all"})], ids=["may", "may not"])
def test_the_cache_is_reset_more_often_while_something_is_loaded(subject: Subject, silent: frozenset[str]) -> None:
    made = World(replace(CONFIG, silent=silent), subject)
    request = made.engine.add(RequestSpec("r1", 0, 9, 0, 1, 1))
    for request.awaits_load in (False, True):
        random = Weighed(0)
        pick(made, random)
        often = 6 if subject is LATER and not silent and request.awaits_load else 1
        assert random.weighed == {
            kind: WEIGHTS[kind] * (often if kind is Kind.RESET else 1) for kind in legal_choices(made)
        }


def test_more_requests_come_while_something_of_before_a_reset_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    made, weights = World(WorldConfig(num_blocks=80, engines=2), P2P_TWO), []
    for has_revoked in (False, True):
        monkeypatch.setattr(Tickets, "has_revoked", has_revoked)
        random = Weighed(0)
        pick(made, random)
        assert random.weighed is not None
        weights.append(random.weighed)
    before, after = weights
    assert after == {**before, Kind.ADD: 3 * before[Kind.ADD]}


@pytest.mark.parametrize("at", [0, 1])
def test_what_happens_at_an_engine_is_chosen_by_what_is_there(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests are aborted, a request is drawn for it, and it alone is reset more often while it loads."""
    made = World(WorldConfig(num_blocks=80, engines=2), P2P_TWO)
    made.engines[at].add(RequestSpec("r1", 0, 9, 0, 1, 1)).awaits_load = True
    monkeypatch.setattr(made, "draw_request", lambda random, at=0: RequestSpec(f"for {at}", 0, 9, 0, 1, 1))
    weights = {}
    for number in (0, 1):
        choices: Any = legal_choices(made, number)
        assert (Kind.ABORT in choices) is (number == at)
        assert choices[Kind.ADD](Random(0))["spec"]["request_id"] == f"for {number}"
        random = Weighed(0)
        assert pick(made, random, number).args.get("engine", 0) == number
        assert random.weighed is not None
        weights[number] = random.weighed[Kind.RESET]
    assert weights[at] == 6 * weights[1 - at]
