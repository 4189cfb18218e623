"""The testbed tests itself: its books balance after every action, histories replay, worlds are reproducible."""

import json
import pickle
from functools import partial
from itertools import product
from random import Random
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_sim_seeds import seeds

from kv_api import KVConnectorBase_V1
from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.examples.memory import MemoryConnector
from kv_sim.fuzz import Failure, replay, run_seed
from kv_sim.guard import HistoryEnds, NotCreated
from kv_sim.history.draws import config_for, draw_config
from kv_sim.site import Call
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, Referee, Violation
from kv_sim.world import World
from kv_sim.world_state import HEARD


@pytest.mark.parametrize("name", ["memory", "later+patient", "offload-chunks"])
def test_the_books_balance_after_every_action(name: str) -> None:
    subject = SUBJECTS[name]
    for seed in seeds(12):
        random = Random(seed)
        world = World(config_for(subject, random), subject)
        for _ in range(60):
            world.act(random)
            world.engine.check()
        world.rest()


class Sixth(MemoryConnector):
    """Of its objects only five can be made."""

    made: ClassVar[list["Sixth"]] = []
    ends: ClassVar[list["Sixth"]] = []
    error: ClassVar[BaseException]

    def __init__(self, *args: Any) -> None:
        if len(self.made) == 5:
            raise self.error
        super().__init__(*args)
        self.made.append(self)

    def shutdown(self) -> None:
        self.ends.append(self)
        raise OSError("no device")


@pytest.mark.parametrize(
    ("error", "raised"), [(OSError("no device"), NotCreated), (KeyboardInterrupt("no device"), KeyboardInterrupt)]
)
def test_what_was_made_before_a_world_that_can_not_be_made_is_shut_down(
    error: BaseException, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers and a scheduler's side of the first engine, and the workers of the second."""
    Sixth.made.clear()
    Sixth.ends.clear()
    monkeypatch.setattr(Sixth, "error", error, raising=False)
    subject = Subject("Sixth", __name__, {"host_slots": 8}, engines=2, shares_store=True)
    with pytest.raises(raised, match="no device"):
        World(WorldConfig(engines=2, tp_size=2), subject)
    first, second = Sixth.made[:3], Sixth.made[3:]
    assert Sixth.ends == [*second, *first]


@settings(max_examples=max(10, settings().max_examples // 4))
@given(random=st.randoms(use_true_random=False), name=st.sampled_from(sorted(SUBJECTS)))
def test_hypothesis_drives_the_same_world(random: Random, name: str) -> None:
    subject = SUBJECTS[name]
    world = World(config_for(subject, random), subject)
    world.run(random, 40)
    world.engine.check()


@pytest.mark.parametrize("name", ["memory", "later+patient", "offload-chunks"])
def test_a_recorded_history_replays_to_the_same_digest_through_json(name: str) -> None:
    subject = SUBJECTS[name]
    for seed in seeds(8):
        random = Random(seed)
        world = World(config_for(subject, random), subject)
        world.run(random, 60)
        text = json.dumps([action.to_json() for action in world.history])
        written = json.loads(text)
        history = [Action.from_json(values) for values in written]
        assert written == json.loads(text), "it can be read again"
        config = WorldConfig.from_json(json.loads(json.dumps(world.config.to_json())))
        again, violation = replay(Subject.from_json(subject.to_json()), config, history)
        assert violation is None
        assert again.history == world.history
        assert again.digest == world.digest


@pytest.mark.once
def test_different_seeds_make_different_worlds() -> None:
    subject = SUBJECTS["memory"]
    assert len({run_seed(subject, seed, actions=20).digest for seed in range(20)}) == 20
    assert len({str(draw_config(Random(seed))) for seed in range(50)}) > 40


def test_what_is_taken_and_not_applied_leaves_no_record() -> None:
    one, other = (World(WorldConfig(), SUBJECTS["memory"]) for _ in range(2))
    spec = RequestSpec("r1", 0, 9, 0, 2, 2)
    for world in (one, other):
        world.engine.add(spec)
    assert one.apply(Action(Kind.STEP)) and other.take(Kind.STEP)
    assert other.take(Kind.ABORT, request="r1") and not other.take(Kind.ABORT, request="r1")
    assert (len(one.history), other.history) == (1, [])
    assert (one.engine.num_steps, [*other.engine.scheduler.requests]) == (other.engine.num_steps, [])
    other.rest()
    assert other.history == []


@pytest.mark.parametrize("name", ["offload", "p2p", "p2p-two-engines", "offload-file-shared"])
def test_a_world_that_is_watched_hears_of_more_calls_and_does_the_same(name: str) -> None:
    watched = partial(World, observe=lambda call: None)
    for seed in seeds(3):
        one, other = run_seed(SUBJECTS[name], seed), run_seed(SUBJECTS[name], seed, make_world=watched)
        assert one.digest == other.digest
        assert (one.coverage.pairs, one.coverage.situations) == (other.coverage.pairs, other.coverage.situations)


@pytest.mark.parametrize("name", ["p2p", "shared"])
def test_nobody_looks_at_calls_that_are_not_passed_on(name: str) -> None:
    world = World(WorldConfig(engines=SUBJECTS[name].engines), SUBJECTS[name])
    methods = {method for method in dir(KVConnectorBase_V1) if not method.startswith("_")}
    assert HEARD - methods == {"request_finished_all_groups"}
    nothing: Any = None  # an argument that anybody who looks at it fails at
    world.tickets._carries["r1"] = "ticket"  # what a reset and a step change, which have nothing to look at
    world.tickets._untold.add("ticket")
    for method in methods - HEARD:
        world._called(world.sites[0], Call(0, "scheduler", method, nothing, nothing))
    assert (world.tickets._stale, world.tickets._untold) == (set(), {"ticket"})
    world.break_off(None)


def test_a_digest_tells_what_was_done_although_nothing_came_of_it() -> None:
    digests = set()
    for more in ([], [False], [True], [False, True], [True, False]):
        world = World(WorldConfig(), SUBJECTS["memory"])
        world.engine.add(RequestSpec("r1", 0, 9, 0, 2, 2))
        for running in (False, *more):
            assert world.apply(Action(Kind.RESET, {"running": running, "connector": False}))
        digests.add(world.digest)
    assert len(digests) == 5


def test_a_digest_tells_what_is_in_memory() -> None:
    world = World(WorldConfig(tp_size=2), SUBJECTS["memory"])
    digests = [world.digest]
    for device in world.engine.devices:
        device.memory[-1, -1, -1] ^= 1
        digests.append(world.digest)
    assert [len(bytes.fromhex(digest)) for digest in digests] == [16] * 3
    assert len(set(digests)) == 3
    assert world.digest == digests[-1]


def test_a_plain_world_is_small_and_leaves_nothing_out() -> None:
    """What a schedule file of today says of it is what one of tomorrow must."""
    assert WorldConfig().to_json() == {
        "engine": "builtin",
        "num_blocks": 24,
        "block_size": 4,
        "hashes_per_block": 1,
        "groups": [{"kind": "full", "window": 0, "parts": 1}],
        "hands_over_states": False,
        "prefix_caching": True,
        "evicts": 0,
        "layers": 1,
        "tp_size": 1,
        "pp_size": 1,
        "stages": "alike",
        "max_running": 4,
        "max_step_tokens": 16,
        "run_ahead": 0,
        "async_scheduling": False,
        "runner": 1,
        "zero_new_blocks": False,
        "spec_tokens": 0,
        "drafter": "text",
        "role": "kv_both",
        "failure_policy": "recompute",
        "host_slots": 64,
        "engines": 1,
        "stranger": "none",
        "sessions": False,
        "images": False,
        "pauses": False,
        "trouble": 1,
        "silent": [],
    }


def test_only_the_second_runner_writes_new_blocks_before_a_fence() -> None:
    """It zeroes them then, or copies what is shared of one."""
    some = [
        WorldConfig(runner=runner, zero_new_blocks=zeroes, hashes_per_block=hashes)
        for runner, zeroes, hashes in product((1, 2), (False, True), (1, 2))
    ]
    assert [config.writes_before_fences for config in some] == [False] * 5 + [True] * 3


def test_a_violation_crosses_to_another_process_whole() -> None:
    found = pickle.loads(pickle.dumps(Violation(Invariant.WORK, "too much")))
    assert (found.invariant, found.message, str(found)) == (Invariant.WORK, "too much", "WORK  too much")


@pytest.mark.parametrize("ends", [Violation(Invariant.HITS, "at once"), HistoryEnds(), None])
def test_a_world_that_breaks_or_ends_while_it_is_set_up_has_no_history(ends: BaseException | None) -> None:
    """And nobody looks at what it was told to go without."""
    switched_off: list[set[Invariant]] = []

    def make_world(config: WorldConfig, subject: Subject, *, referee: Referee) -> World:
        switched_off.append(referee.switched_off)
        if ends is not None:
            raise ends
        return World(config, subject, referee=referee)

    config = config_for(SUBJECTS["memory"], Random(3))
    without = frozenset({Invariant.WORK, Invariant.HITS})
    run = run_seed(SUBJECTS["memory"], 3, actions=5, without=without, make_world=make_world)
    assert switched_off == [without]
    if ends is not None:
        failure = Failure(SUBJECTS["memory"], config, [], ends, 3) if isinstance(ends, Violation) else None
        assert (run.steps, run.digest, run.failure, run.coverage.pairs) == (0, "", failure, {})


@pytest.mark.parametrize("count", [0, 1, 7])
def test_so_many_actions_are_taken(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr(World, "act", lambda world, random: taken.append(random.random()))
    World(WorldConfig(), SUBJECTS["memory"]).run(Random(3), count)
    drawn = Random(3)
    assert taken == [drawn.random() for _ in range(count)]


def test_which_drafts_are_rejected_is_drawn() -> None:
    rejected = set()
    world, random = World(WorldConfig(spec_tokens=2, num_blocks=60), SUBJECTS["memory"]), Random(3)
    for _ in range(150):
        world.act(random)
        rejected.update(world.history[-1].args.get("rejects", {}).values())
    world.rest()
    assert rejected == {1, 2}


@pytest.mark.parametrize("back", [0, 1])
def test_an_id_is_taken_while_any_step_under_way_computes_it(back: int) -> None:
    world = World(WorldConfig(run_ahead=1), SUBJECTS["memory"])
    add = Action(Kind.ADD, {"spec": RequestSpec("r1", 0, 9, 0, 4, 4).to_json()})
    assert all(map(world.apply, (add, Action(Kind.SCHEDULE), Action(Kind.ABORT, {"request": "r1"}))))
    assert world.engine.scheduler.requests == {}
    if back:
        assert world.apply(Action(Kind.EXECUTE, {"rank": 0}))
        assert world.sites[0].taken_ids() == {"r1"}
        assert world.apply(Action(Kind.PROCESS))
    assert world.sites[0].taken_ids() == (set() if back else {"r1"})
    assert world.apply(add) is bool(back)
    world.rest()


def test_an_action_in_a_line() -> None:
    assert str(Action(Kind.STEP, {"rejects": {"r1": 1, "r2": 2}, "x": 3})) == "step     rejects=r1:1,r2:2 x=3"
    assert str(Action(Kind.SCHEDULE)) == "schedule"
    assert str(Action(Kind.ABORT, {"request": "r1"})) == "abort    request=r1"
