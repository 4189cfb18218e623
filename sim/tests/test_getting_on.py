"""At rest everybody gets on or is given up: sessions that keep others from blocks, and nobody else."""

from typing import Any

import pytest

from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.request import Status
from kv_sim.engine.request_spec import RequestSpec, Turn
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.history.rest import come_to_rest
from kv_sim.violation import Violation
from kv_sim.world import World


def test_sessions_that_wait_for_each_others_blocks_are_given_up() -> None:
    """Each has half of the blocks and needs more, and none is taken away from either."""
    world = World(WorldConfig(num_blocks=9, max_step_tokens=32), SUBJECTS["memory"])
    for name, conversation in (("r1", 0), ("r2", 1)):
        made = RequestSpec(name, conversation, 15, 0, 1, 1, turns=(Turn(8, 1, 1),))
        world.apply(Action(Kind.ADD, {"spec": made.to_json()}))
    world.apply(Action(Kind.STEP))
    assert world.engine.scheduler.blocks.block_pool.num_free == 0
    world.rest()
    ended = {request.request_id: request.turn for request in world.engine.outcome.ended[:2]}
    assert ended == {"r1": 1, "r2": 1}


def test_whoever_copies_in_threads_has_time_where_nothing_gets_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until somebody is given up, which takes so many steps; then they get on."""
    world = World(WorldConfig(num_blocks=9, max_step_tokens=32), SUBJECTS["memory"])
    told: list[str] = []
    take = world.take

    def takes(kind: Kind, **args: Any) -> Any:
        told.extend([kind.value] * (kind in (Kind.STEP, Kind.ABORT)))
        return take(kind, **args)

    monkeypatch.setattr(world, "take", takes)
    monkeypatch.setattr(world.engine, "let_others_work", lambda: told.append("others"))
    for name, conversation in (("r1", 0), ("r2", 1)):
        made = RequestSpec(name, conversation, 15, 0, 1, 1, turns=(Turn(8, 1, 1),))
        world.apply(Action(Kind.ADD, {"spec": made.to_json()}))
    world.apply(Action(Kind.STEP))
    told.clear()
    world.rest()
    assert told[:53] == [*["step", "others"] * 25, "abort", "step", "step"]


def test_copies_end_before_each_step_and_each_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a session's turns come when nothing is under way."""
    world = World(WorldConfig(run_ahead=1), SUBJECTS["later"])
    world.engine.add(RequestSpec("r1", 0, 9, 0, 1, 1))
    for _ in range(3):
        assert world.apply(Action(Kind.STEP))
    world.engine.add(RequestSpec("r2", 1, 9, 0, 1, 1, turns=(Turn(4, 1, 1),)))
    told: list[str] = []
    take, finish = world.take, world.engine.finish_step

    def takes(kind: Kind, **args: Any) -> Any:
        found = take(kind, **args)
        told.append(kind.value if found else f"nothing to {kind.value}")
        return found

    def finishes() -> None:
        told.append("finish a step")
        finish()

    monkeypatch.setattr(world, "take", takes)
    monkeypatch.setattr(world.engine, "finish_step", finishes)
    assert come_to_rest(world)
    assert told == [
        *("settle", "finish a step", "nothing to settle"),
        *("step", "nothing to settle", "finish a step", "nothing to settle", "turn"),
        *("step", "nothing to settle", "finish a step", "nothing to settle", "turn"),
        *("step", "settle", "finish a step", "nothing to settle"),
        *("step", "nothing to settle", "finish a step", "nothing to settle"),
    ]


def test_a_session_waits_for_room_as_long_as_others_get_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kv_sim.history.rest.PATIENCE", 3)
    world = World(WorldConfig(num_blocks=9, max_step_tokens=32), SUBJECTS["memory"])
    session = RequestSpec("r1", 0, 7, 0, 1, 1, turns=(Turn(16, 1, 1),))
    for made in (session, RequestSpec("r2", 1, 8, 0, 10, 10)):
        world.apply(Action(Kind.ADD, {"spec": made.to_json()}))
    for _ in range(2):
        world.apply(Action(Kind.STEP))
    world.rest()
    ended = {request.request_id: request.num_tokens for request in world.engine.outcome.ended[:2]}
    assert ended == {"r1": 7 + 16 + 1, "r2": 8 + 10}


def test_who_computes_its_prompt_gets_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kv_sim.history.rest.PATIENCE", 3)
    world = World(WorldConfig(num_blocks=9, max_step_tokens=2), SUBJECTS["memory"])
    session = RequestSpec("r1", 0, 7, 0, 1, 1, turns=(Turn(16, 1, 1),))
    for made in (session, RequestSpec("r2", 1, 24, 0, 1, 1)):
        world.apply(Action(Kind.ADD, {"spec": made.to_json()}))
    for _ in range(11):
        world.apply(Action(Kind.STEP))
    r2 = world.engine.scheduler.requests["r2"]
    assert (r2.is_prefill_chunk, world.engine.scheduler.blocks.block_pool.num_free) == (True, 2)
    world.rest()
    ended = {request.request_id: request.num_tokens for request in world.engine.outcome.ended[:2]}
    assert ended == {"r1": 7 + 16 + 1, "r2": 25}


def test_nobody_else_is_given_up() -> None:
    """A plain request that was loaded, and has no room to go on."""
    world = World(WorldConfig(), SUBJECTS["later"])
    for name, tokens in (("r1", 9), ("r2", 17)):
        world.engine.scheduler.blocks.block_pool.reset()
        world.apply(Action(Kind.ADD, {"spec": RequestSpec(name, 0, tokens, 0, 1, 1).to_json()}))
        for kind in (Kind.STEP, Kind.STEP, Kind.SETTLE, Kind.STEP)[: 4 if name == "r1" else 1]:
            world.apply(Action(kind))
    r2, pool = world.engine.scheduler.requests["r2"], world.engine.scheduler.blocks.block_pool
    assert r2.status is Status.WAITING_FOR_REMOTE_KVS
    pool.touch([block for block, count in enumerate(pool.ref_counts) if not count])
    with pytest.raises(
        Violation, match="LIVENESS  after 400 steps without new work these requests are left: <request r2 w"
    ):
        world.rest()


@pytest.mark.parametrize(("turns", "steps"), [((), 20), ((Turn(4, 2, 2),) * 3, 32)])
def test_who_ends_one_after_the_other_is_not_stuck(
    monkeypatch: pytest.MonkeyPatch, turns: tuple[Turn, ...], steps: int
) -> None:
    """However long it takes altogether: as where each waits for blocks that are held for another's time."""
    monkeypatch.setattr("kv_sim.history.rest.MOST_STEPS", 8)
    world = World(WorldConfig(num_blocks=16, max_running=1), SUBJECTS["memory"])
    for name in ("r1", "r2", "r3", "r4"):
        world.engine.add(RequestSpec(name, 0, 9, 0, 5, 5, turns=turns or None))
    assert come_to_rest(world)
    assert world.engine.num_steps >= steps
    assert not world.engine.scheduler.requests


@pytest.mark.parametrize(("num_blocks", "steps"), [(8, 8), (30, 30)])
def test_who_is_stuck_while_others_end_is_told_so(
    monkeypatch: pytest.MonkeyPatch, num_blocks: int, steps: int
) -> None:
    """Whoever has many blocks may move one in each step."""
    monkeypatch.setattr("kv_sim.history.rest.MOST_STEPS", 8)
    world = World(WorldConfig(num_blocks=num_blocks, max_running=1), SUBJECTS["memory"])
    world.engine.add(RequestSpec("r1", 0, 9, 0, 5, 5))
    monkeypatch.setattr(world.engine.scheduler.connector, "has_pending_push_work", lambda: True, raising=False)
    assert not come_to_rest(world)
    assert world.engine.num_steps == 5 + steps
