"""When the examples that break down do so, in every world; and that nobody may call them afterwards."""

from typing import Any

import pytest

from kv_sim.config import WorldConfig
from kv_sim.examples.catalogue import FLAKY, FLAKY_BUSY, FLAKY_PATIENT
from kv_sim.examples.later import Jobs, LaterScheduler, LaterWorker
from kv_sim.examples.patient import PatientWorker, Plan
from kv_sim.subject import Subject
from kv_sim.violation import CalledAgain
from kv_sim.world import World

OF_SCHEDULER = (
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished",
)
OF_WORKER = ("start_load_kv", "get_transfer_results", "handle_preemptions", "wait_for_save")
LATEST = 7
"""Calls of a method after which a side has broken down, or never does."""
WORLDS = range(20, 20 + 3 * 4 * LATEST)
JOB, NO_JOB = Jobs({"a": [(1, 1)]}), Jobs()


@pytest.fixture(autouse=True)
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that reach the connectors which don't break down; here they do nothing."""
    calls: list[str] = []
    for kind, names in ((LaterScheduler, OF_SCHEDULER), (LaterWorker, OF_WORKER), (PatientWorker, OF_WORKER)):
        for name in names:
            monkeypatch.setattr(kind, name, lambda self, *args, name=name: calls.append(name))
    return calls


def sides(subject: Subject, number: int, **config: Any) -> tuple[Any, Any]:
    """The scheduler's and the worker's in the world of a number, which blocks, room and their size add up to."""
    world = World(WorldConfig(num_blocks=number - 6, block_size=16, host_slots=4, **config), subject)
    worker, scheduler = (connector.side for connector in world.engine.connectors)  # type: ignore[attr-defined]
    return scheduler, worker


def breaks_down(side: Any, names: tuple[str, ...], *args: Any) -> tuple[str, int] | None:
    """In which call a side breaks down, and in the how many-eth. Then it may not be called any more."""
    for name in names:
        for count in range(1, LATEST + 1):
            try:
                getattr(side, name)(*args)
            except RuntimeError as error:
                said = str(error)
            else:
                continue
            assert (said, side.has_ended) == (f"the end of {name}", True)
            for again in names:
                with pytest.raises(CalledAgain, match=f"^{again} is called, although this side broke down$"):
                    getattr(side, again)(*args)
            return name, count
    assert not side.has_ended
    return None


def expected(names: tuple[str, ...], number: int) -> tuple[str, int]:
    return names[number % len(names)], 1 + number // len(names) % LATEST


@pytest.mark.parametrize("third", range(3))
def test_each_side_breaks_down_in_two_worlds_of_three(third: int) -> None:
    for number in WORLDS[third::3]:
        scheduler, worker = sides(FLAKY, number)
        ends = breaks_down(scheduler, OF_SCHEDULER, None), breaks_down(worker, OF_WORKER)
        assert ends[0] == (expected(OF_SCHEDULER, number) if number % 3 < 2 else None)
        assert ends[1] == (expected(OF_WORKER, number) if number % 3 > 0 else None)


@pytest.mark.parametrize("what", ["_loading", "_storing"])
def test_the_busy_one_breaks_down_while_it_is_at_work(what: str) -> None:
    for number in WORLDS:
        scheduler, worker = sides(FLAKY_BUSY, number)
        worker.bind_connector_metadata(NO_JOB)
        assert breaks_down(scheduler, OF_SCHEDULER, None) is None
        assert breaks_down(worker, OF_WORKER) is None
        getattr(scheduler, what)["a"] = []
        job = JOB if what == "_loading" else Jobs(stores=JOB.loads)
        ends = [breaks_down(scheduler, OF_SCHEDULER, None)]
        if number % 2:
            worker.bind_connector_metadata(job)
            ends.append(breaks_down(worker, OF_WORKER))
        else:  # told of it before it is bound
            ends.append(breaks_down(worker, OF_WORKER, job))
        assert ends[0] == (expected(OF_SCHEDULER, number) if number % 3 < 2 else None)
        assert ends[1] == (expected(OF_WORKER, number) if number % 3 > 0 else None)


def test_a_scheduler_may_outlive_its_worker_for_some_steps(called: list[str]) -> None:
    for number in WORLDS[(2 - WORLDS[0]) % 3 :: 3]:
        scheduler, _ = sides(FLAKY, number)
        called.clear()
        for _ in range(expected(OF_WORKER, number)[1] + 6):
            scheduler.build_connector_meta(None)
        with pytest.raises(CalledAgain, match=r"^a step is planned 6 steps after the worker's side broke down$"):
            scheduler.build_connector_meta(None)
        assert {*called} == {"build_connector_meta"}


@pytest.mark.parametrize(("subject", "metadata"), [(FLAKY, Plan()), (FLAKY_PATIENT, NO_JOB)])
def test_a_worker_may_not_outlive_its_scheduler(subject: Subject, metadata: Any) -> None:
    for side in sides(subject, 30):
        side.shutdown()
        assert side.has_ended
    _, worker = sides(subject, 30)
    with pytest.raises(CalledAgain, match=r"gets .* for a step, so the scheduler's broke down$"):
        worker.bind_connector_metadata(metadata)


def test_the_patient_one_breaks_down_in_a_load_that_a_step_needs(called: list[str]) -> None:
    for number in range(20, 40):
        for run_ahead in (0, 1):
            _, worker = sides(FLAKY_PATIENT, number, run_ahead=run_ahead)
            for loads, times in (([], 5), ([(1, 1)], 1 + number // 3 % 3 - 1)):
                worker.bind_connector_metadata(Plan(loads=loads))
                for _ in range(times):
                    worker.start_load_kv(None)
            assert called == ["start_load_kv"] * (5 + number // 3 % 3)
            called.clear()
            if run_ahead:
                for _ in range(9):
                    worker.start_load_kv(None)
                called.clear()
                continue
            with pytest.raises(RuntimeError, match=r"^the end of start_load_kv, with a load that the step needs$"):
                worker.start_load_kv(None)
            assert called == ["start_load_kv"] * (number % 2 == 0)
            called.clear()
            assert worker.has_ended
            with pytest.raises(CalledAgain):
                worker.wait_for_save()
