"""Pauses and sleep: who is scheduled, when there is work, and what a connector and its copies meet."""

from dataclasses import replace
from typing import Any

import pytest

from kv_api import Direction
from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.pause import Pause, PauseMode
from kv_sim.engine.request import Status
from kv_sim.examples.catalogue import LATER, MEMORY, PATIENT
from kv_sim.memory.content import POISON
from kv_sim.memory.copy import State
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant, Violation
from kv_sim.world import World

CONFIG = WorldConfig(tp_size=2, max_running=2, host_slots=8)


def do(made: World, kind: Kind, **args: Any) -> bool:
    return made.apply(Action(kind, args))


def world(*names: str, subject: Subject = MEMORY, output: int = 4, **changes: Any) -> World:
    """With these requests, of which two run."""
    made = World(replace(CONFIG, **changes), subject)
    for number, name in enumerate(names):
        spec = {"request_id": name, "conversation": number, "shared_tokens": 9, "own_tokens": 0}
        assert do(made, Kind.ADD, spec={**spec, "output_tokens": output, "max_tokens": output})
    assert not names or do(made, Kind.STEP)
    return made


def statuses(made: World) -> dict[str, Status]:
    return {name: request.status for name, request in made.engine.scheduler.requests.items()}


def steps(made: World) -> int:
    """How many there are until there is no work."""
    count = 0
    while do(made, Kind.STEP):
        do(made, Kind.SETTLE)
        count += 1
        assert count < 50
    return count


@pytest.mark.parametrize(
    ("mode", "left"),
    [
        ("abort", {}),
        ("wait", {"r3": Status.WAITING}),
        ("keep", {"r1": Status.RUNNING, "r2": Status.RUNNING, "r3": Status.WAITING}),
    ],
)
def test_who_is_there_when_a_pause_has_come_to_rest(mode: PauseMode, left: dict[str, Status]) -> None:
    made = world("r1", "r2", "r3")
    assert do(made, Kind.PAUSE, mode=mode)
    assert not do(made, Kind.PAUSE, mode=mode)
    counts = [request.num_output_tokens for request in made.engine.scheduler.requests.values()]
    assert bool(steps(made)) is (mode != "keep")
    assert statuses(made) == left
    if mode == "keep":
        assert counts == [request.num_output_tokens for request in made.engine.scheduler.requests.values()]
    assert do(made, Kind.WAKE)
    assert not do(made, Kind.WAKE)
    steps(made)
    assert not made.engine.scheduler.requests
    made.rest()


def test_a_step_that_tells_of_an_end_goes_on_with_nobody_who_is_kept() -> None:
    made = world("r1", "r2", "r3")
    assert do(made, Kind.PAUSE, mode="keep")
    assert do(made, Kind.ABORT, request="r2")
    computed = [request.num_computed_tokens for request in made.engine.scheduler.requests.values()]
    assert steps(made)
    assert statuses(made) == {"r1": Status.RUNNING, "r3": Status.WAITING}
    assert computed == [request.num_computed_tokens for request in made.engine.scheduler.requests.values()]


def test_who_was_preempted_waits_with_the_new_ones_and_who_loads_does_not() -> None:
    made = world("r1", subject=LATER)
    made.rest()
    assert do(made, Kind.RESET, running=False, connector=False)
    spec = {"request_id": "r2", "conversation": 0, "shared_tokens": 9, "own_tokens": 0}
    assert do(made, Kind.ADD, spec={**spec, "output_tokens": 2, "max_tokens": 2})
    assert do(made, Kind.STEP)
    assert statuses(made) == {"r2": Status.WAITING_FOR_REMOTE_KVS}
    assert do(made, Kind.PAUSE, mode="wait")
    assert steps(made)
    assert not made.engine.scheduler.requests, "it has run to its end"
    assert do(made, Kind.WAKE)
    made = world("r1", "r2", "r3")
    assert do(made, Kind.PAUSE, mode="wait")
    assert do(made, Kind.RESET, running=True, connector=False)
    steps(made)
    assert {**statuses(made)} == {"r1": Status.PREEMPTED, "r2": Status.PREEMPTED, "r3": Status.WAITING}


def test_a_pause_that_keeps_requests_still_ends_what_the_connector_has_begun() -> None:
    """In empty steps. And who ended before is let go in them."""
    made = world("r1", "r2", subject=PATIENT)
    assert do(made, Kind.STEP)  # before, it asked to be asked again
    assert do(made, Kind.PAUSE, mode="keep")
    assert do(made, Kind.STEP)
    assert not made.engine.scheduler.connector.has_pending_push_work()
    assert not made.engine.has_work
    made = world("r1", subject=LATER, output=1)
    assert do(made, Kind.PAUSE, mode="keep")
    assert made.engine.scheduler.requests["r1"].is_held
    assert do(made, Kind.STEP), "one in which its end is told"
    assert made.engine.scheduler.has_work
    do(made, Kind.SETTLE)
    assert steps(made) == 1, "and one in which that of its copies is"
    assert not made.engine.scheduler.requests


def test_a_session_that_waits_is_no_work() -> None:
    made = world()
    spec = {"request_id": "r1", "conversation": 0, "shared_tokens": 5, "own_tokens": 0, "turns": []}
    assert do(made, Kind.ADD, spec={**spec, "output_tokens": 1, "max_tokens": 1})
    steps(made)
    assert statuses(made) == {"r1": Status.WAITING_FOR_STREAMING_REQ}
    assert do(made, Kind.PAUSE, mode="wait")
    assert not made.engine.has_work
    assert not do(made, Kind.STEP)
    assert do(made, Kind.SLEEP)
    assert not made.engine.is_asleep, "it holds blocks"
    assert made.coverage.situations["the engine can't sleep"] == 1
    made.rest()


def test_what_sleeps_has_paused_and_has_no_work() -> None:
    made = world("r1")
    assert do(made, Kind.PAUSE, mode="wait")
    assert not do(made, Kind.SLEEP), "a request runs, if no step is under way"
    made = world("r1", run_ahead=1)
    assert not do(made, Kind.SLEEP)
    assert do(made, Kind.PAUSE, mode="wait")
    while do(made, Kind.STEP):
        pass
    assert made.engine.steps
    assert not made.engine.has_work
    assert not do(made, Kind.SLEEP), "a step is under way"
    made.engine.finish_step()
    steps(made)
    assert do(made, Kind.SLEEP)
    assert not do(made, Kind.SLEEP)
    assert made.coverage.situations["the engine sleeps"] == 1
    made.rest()
    assert not made.engine.is_asleep


def test_what_becomes_of_the_memory_and_what_workers_are_told() -> None:
    made = world("r1", "r2", "r3")
    heard: list[tuple[str, str, bool]] = []

    def hear(side: str, name: str, args: tuple[Any, ...], answer: Any) -> None:
        heard.append((side, name, made.engine.devices[1].is_asleep))

    for guard in made.engine.guards:
        guard._log = hear
    assert do(made, Kind.PAUSE, mode="keep")
    written = made.engine.devices[1].memory.copy()
    assert (written != POISON).any()
    assert do(made, Kind.SLEEP)
    assert made.engine.is_asleep
    assert all((device.memory == POISON).all() for device in made.engine.devices)
    assert heard[-3:] == [
        ("scheduler", "reset_cache", False),
        ("worker 0", "unregister_kv_caches", False),
        ("worker 1", "unregister_kv_caches", False),
    ]
    assert statuses(made) == {"r1": Status.PREEMPTED, "r2": Status.PREEMPTED, "r3": Status.WAITING}
    assert made.coverage.situations["the engine sleeps and keeps requests"] == 1
    heard.clear()
    assert do(made, Kind.WAKE)
    told = [("restore_kv_caches", False), ("get_handshake_metadata", False)]
    assert heard == [
        *[("worker 0", name, True) for name, _ in told],
        *[("worker 1", name, asleep) for name, asleep in told],
        ("scheduler", "set_xfer_handshake_metadata_pp_aware", False),
    ]
    steps(made)
    assert not made.engine.scheduler.requests
    assert not made.referee.switched_off
    made.rest()


def test_a_connector_that_does_not_forget_keeps_the_engine_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    made = world("r1", output=1)
    assert do(made, Kind.PAUSE, mode="wait")
    steps(made)
    monkeypatch.setattr(made.engine.scheduler.connector.connector, "reset_cache", lambda: False)  # type: ignore[attr-defined]
    assert do(made, Kind.SLEEP)
    assert not made.engine.is_asleep
    assert made.engine.pause_state is Pause.NEW
    assert do(made, Kind.WAKE)


def test_an_abort_in_its_sleep_brings_an_empty_step() -> None:
    made = world("r1", "r2")
    assert do(made, Kind.PAUSE, mode="keep")
    assert do(made, Kind.SLEEP)
    assert not do(made, Kind.STEP)
    assert do(made, Kind.ABORT, request="r2")
    assert do(made, Kind.STEP)
    assert made.coverage.situations["a step while the engine sleeps"] == 1
    assert not do(made, Kind.STEP)
    assert statuses(made) == {"r1": Status.PREEMPTED}


@pytest.mark.parametrize("direction", Direction)
def test_no_copy_is_under_way_when_the_engine_falls_asleep_and_none_begins_then(direction: Direction) -> None:
    made = world("r1", output=1)
    assert do(made, Kind.PAUSE, mode="wait")
    steps(made)
    device = made.engine.devices[1]
    copies, slot = device.copies.open(), device.allocate_host(1)
    number = copies.submit(direction, [(3, slot)])
    with pytest.raises(Violation) as found:
        do(made, Kind.SLEEP)
    assert found.value.invariant is Invariant.OWNERSHIP
    assert str(found.value).endswith(
        f"rank 1 block 3 (of request r1): the engine goes to sleep while {direction.value} copy {number} "
        "(begun for request r1) is under way"
    )
    device.copies.fail(device.copies.running[number])
    assert do(made, Kind.SLEEP)
    number = copies.submit(direction, [(3, slot)])
    with pytest.raises(Violation, match=rf"rank 1 block 3 .*: {direction.value} copy {number} uses it while the"):
        do(made, Kind.SETTLE)


def test_a_copy_that_was_lost_is_lost_for_good() -> None:
    made = world("r1", output=1, subject=replace(MEMORY, traits=MEMORY.traits | {Trait.LOSSES}))
    assert do(made, Kind.PAUSE, mode="wait")
    steps(made)
    device = made.engine.devices[0]
    number = device.copies.open().submit(Direction.STORE, [(3, device.allocate_host(1))])
    assert do(made, Kind.LOSE, rank=0, copy=number)
    assert do(made, Kind.SLEEP)
    assert not do(made, Kind.FIND, rank=0, copy=number)
    assert device.copies.running[number].state is State.LOST


def test_a_connector_reads_and_writes_no_block_meanwhile() -> None:
    made = world("r1")
    cache = made.engine.devices[0].kv_cache(0)
    page = cache.read(1)
    assert do(made, Kind.PAUSE, mode="keep")
    assert do(made, Kind.SLEEP)
    for use in (lambda: cache.read(1), lambda: cache.write(1, page)):
        with pytest.raises(Violation, match=r"rank 0 block 1 .*: the connector uses it while the engine sleeps"):
            use()
    assert do(made, Kind.WAKE)
    assert (cache.read(1) == POISON).all()
