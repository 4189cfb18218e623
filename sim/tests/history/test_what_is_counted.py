"""What counts as reached: each situation by what makes it one, and nothing else with it."""

from types import SimpleNamespace
from typing import Any

import pytest

from kv_api import KVConnectorOutput
from kv_sim.actions import Action, Kind
from kv_sim.engine.pause import Pause
from kv_sim.engine.request import Status
from kv_sim.history.coverage import Coverage
from kv_sim.memory.settled import Offer

QUIET = Status.RUNNING


def request(name: str = "r1", status: Status = QUIET, **changes: Any) -> Any:
    values = {"turn": 0, "turns_arrived": 0, "num_preemptions": 0, "num_stale_output_tokens": 0, "is_held": False}
    spec = SimpleNamespace(turns=changes.pop("turns", None), skip_reading_prefix_cache=changes.pop("skips", False))
    return SimpleNamespace(request_id=name, status=status, spec=spec, **{**values, **changes})


@pytest.mark.parametrize(
    ("answer", "changes", "counted"),
    [
        ((None, False), {"num_preemptions": 1}, ["ask again"]),
        ((0, False), {"num_preemptions": 1, "skips": True}, []),
        ((4, True), {}, ["asynchronous load"]),
        ((4, False), {}, ["load in the step"]),
        ((4, False), {"num_preemptions": 1}, ["load in the step", "a preempted request loads"]),
        ((4, True), {"skips": True}, ["asynchronous load", "the answer is dropped"]),
    ],
)
def test_what_a_match_finds(answer: Any, changes: dict[str, Any], counted: list[str]) -> None:
    made = Coverage()
    made.matched(request(**changes), answer)
    assert made.situations == dict.fromkeys((f"match: {name}" for name in counted), 1)


@pytest.mark.parametrize(
    ("output", "counted"),
    [
        ({"finished_recving": {"r1", "r2"}}, ["a load by a ticket ends well"]),
        ({"finished_recving": {"r2"}}, []),  # it came without one
        ({"finished_recving": {"r3"}}, []),  # it came with one, and is gone
        ({"finished_sending": {"r1"}}, []),
        ({"finished_recving": {"r1"}, "failed_recving": {"r1"}}, ["a load by a ticket fails"]),
        ({"finished_recving": {"r1"}, "failed_recving": {"r2"}}, ["a load by a ticket ends well"]),
        ({"finished_recving": {"r1"}, "invalid_block_ids": {8}}, ["a load by a ticket fails"]),
        ({"finished_recving": {"r1"}, "invalid_block_ids": {9}}, ["a load by a ticket ends well"]),
    ],
)
def test_what_became_of_a_ticket(output: dict[str, Any], counted: list[str]) -> None:
    made, tables = Coverage(), {"r1": SimpleNamespace(groups=[[7], [0, 8]]), "r2": SimpleNamespace(groups=[[9]])}
    scheduler = SimpleNamespace(requests={"r1": request("r1"), "r2": request("r2")})
    scheduler.blocks = SimpleNamespace(tables=tables)
    engine: Any = SimpleNamespace(scheduler=scheduler)
    made.reported(engine, KVConnectorOutput(**output), {"r1", "r3"})
    assert made.situations == dict.fromkeys(counted, 1)


@pytest.mark.parametrize(
    ("carries", "answer", "number", "invalid", "counted"),
    [
        ({"r1"}, (4, False), 0, set(), "a load by a ticket ends well"),
        ({"r1"}, (4, False), 0, {9}, "a load by a ticket ends well"),
        ({"r1"}, (4, False), 1, {8}, "a load by a ticket ends well"),  # a block of the other engine
        ({"r1"}, (4, False), 0, {8}, "a load by a ticket fails"),
        ({"r1"}, (4, True), 0, set(), None),  # it isn't loaded in the step
        ({"r1"}, (0, False), 0, set(), None),
        ({"r2"}, (4, False), 0, set(), None),  # it came without one
    ],
)
def test_what_became_of_a_ticket_in_a_step(
    carries: set[str], answer: Any, number: int, invalid: set[int], counted: str | None
) -> None:
    made, step, later = (
        Coverage(),
        SimpleNamespace(number=1, sync_targets={"r1": [7, 8]}),
        SimpleNamespace(number=2),
    )
    engine: Any = SimpleNamespace(steps=[step], place=SimpleNamespace(number=0))
    made.matched(request(), answer, carries)
    made.situations.clear()
    made.pulls(engine, step)  # type: ignore[arg-type]
    later.sync_targets = {}
    engine.steps = [step, later]
    made.pulls(engine, later)  # type: ignore[arg-type]
    assert not made.situations, "it hasn't come back"
    other: Any = SimpleNamespace(place=SimpleNamespace(number=number))
    made.reported(other, KVConnectorOutput(invalid_block_ids=invalid), carries)
    engine.steps = [later]
    made.pulls(engine, later)  # type: ignore[arg-type]
    assert made.situations == ({} if counted is None else {counted: 1})


def test_who_is_asked_again_loads_what_the_last_answer_says() -> None:
    made, step = Coverage(), SimpleNamespace(number=5, sync_targets={"r1": [7, 8]})
    engine = SimpleNamespace(place=SimpleNamespace(number=1), steps=[step])
    for answer in ((8, False), (0, False)):
        made.matched(request(), answer, {"r1"})
    made.situations.clear()
    made.pulls(engine, step)  # type: ignore[arg-type]
    engine.steps = []
    made.pulls(engine, SimpleNamespace(number=6, sync_targets={}))  # type: ignore[arg-type]
    assert not made.situations


@pytest.mark.parametrize(("local", "failed", "counted"), [(4, False, 1), (0, False, 0), (4, True, 0)])
@pytest.mark.parametrize("is_async", [True, False])
def test_a_load_by_a_ticket_that_goes_on_after_tokens_on_the_gpu(
    local: int, failed: bool, counted: int, is_async: bool
) -> None:
    made, step = Coverage(), SimpleNamespace(number=5, sync_targets={"r1": [7, 8]})
    scheduler = SimpleNamespace(requests={"r1": request("r1")}, blocks=SimpleNamespace(tables={}))
    engine: Any = SimpleNamespace(place=SimpleNamespace(number=1), steps=[step], scheduler=scheduler)
    for before in (8 - local, local):  # the last answer counts
        made.matched(request("r1"), (4, is_async), {"r1"}, before)
    output = KVConnectorOutput(invalid_block_ids={8} if failed else set())
    if is_async:
        output.finished_recving = {"r1"}
        output.failed_recving = {"r1"} if failed else set()
    else:
        made.pulls(engine, step)  # type: ignore[arg-type]
    made.reported(engine, output, {"r1"})
    engine.steps = []
    made.pulls(engine, SimpleNamespace(number=6, sync_targets={}))  # type: ignore[arg-type]
    assert made.situations["a load by a ticket fails" if failed else "a load by a ticket ends well"] == 1
    assert made.situations["a load by a ticket goes on after tokens on the GPU"] == counted


def test_a_step_of_one_engine_ends_whatever_the_other_schedules() -> None:
    made, step = Coverage(), SimpleNamespace(number=5, sync_targets={"r1": [7, 8]})
    here, there = (SimpleNamespace(place=SimpleNamespace(number=number), steps=[step]) for number in (1, 2))
    made.matched(request(), (8, False), {"r1"})
    made.situations.clear()
    made.pulls(here, step)  # type: ignore[arg-type]
    made.pulls(there, SimpleNamespace(number=6, sync_targets={}))  # type: ignore[arg-type]
    assert not made.situations
    here.steps = []
    made.pulls(here, SimpleNamespace(number=6, sync_targets={}))  # type: ignore[arg-type]
    assert made.situations == {"a load by a ticket ends well": 1}


PAUSED = Status.WAITING_FOR_STREAMING_REQ


@pytest.mark.parametrize(
    ("status", "arrived", "turn", "turns", "counted"),
    [
        (QUIET, 1, 1, ["a turn"], "a session's next input comes before it stops"),
        (PAUSED, 1, 1, ["a turn"], "a session ends while it waits"),
        (PAUSED, 0, 0, None, "a session ends while it waits"),
        (PAUSED, 0, 0, ["a turn"], None),
        (PAUSED, 1, 0, ["a turn"], None),
        (PAUSED, 0, 1, ["a turn"], None),
    ],
)
def test_when_a_turn_arrives(status: Status, arrived: int, turn: int, turns: Any, counted: str | None) -> None:
    made = Coverage()
    made.turn_arrives(request(status=status, turns_arrived=arrived, turn=turn, turns=turns))
    assert [*made.situations] == ([] if counted is None else [counted])


def scheduled(made: Coverage, *requests: Any, new: tuple[str, ...] = (), **changes: Any) -> list[str]:
    """The situations of a step in which nothing is odd but for this."""
    scheduler = SimpleNamespace(
        requests={one.request_id: one for one in requests},
        deferred_frees=changes.pop("frees", []),
        holding=[one for one in requests if one.status is not Status.WAITING],
    )
    resumed = SimpleNamespace(resumed_req_ids=changes.pop("resumed", set()))
    step = {name: changes.pop(name, []) for name in ("ends", "handed")}
    step["rejected"] = changes.pop("rejected", {})
    values = {
        "kv_cache_block_copies": [],
        "preempted_req_ids": set(),
        "finished_req_ids": {"r9"},
        "total_num_scheduled_tokens": 1,
        "scheduled_cached_reqs": resumed,
        "scheduled_new_reqs": [SimpleNamespace(req_id=name) for name in new],
    }
    engine: Any = SimpleNamespace(config=SimpleNamespace(block_size=4), scheduler=scheduler)
    engine.pause_state, engine.is_asleep = changes.pop("pause", Pause.NONE), changes.pop("is_asleep", False)
    before = made.situations.copy()
    output: Any = SimpleNamespace(output=SimpleNamespace(**{**values, **changes}), **step)
    made.scheduled(engine, output)
    return list((made.situations - before).elements())


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ({}, []),
        ({"new": ("r1",)}, []),
        (
            {"ends": [(4, 3), (4, 5)]},
            ["match: less than the end of a block", "match: more than the end of a block"],
        ),
        ({"ends": [(4, 4)]}, ["match: less than the end of a block"]),  # the end isn't loaded
        ({"kv_cache_block_copies": [(1, 2)]}, ["a block is copied on write"]),
        ({"handed": [Offer("r1", 4, 2)]}, ["a state within a block is handed over"]),
        ({"preempted_req_ids": {"r1"}}, ["a request is preempted"]),
        ({"resumed": {"r1"}}, ["a request resumes, runner V1"]),
        ({"new": ("r1",), "finished_req_ids": {"r1", "r9"}}, ["an id is finished and new in one step"]),
        ({"frees": [1]}, ["frees are deferred"]),
        ({"rejected": {"r1": 1}}, ["drafts are rejected"]),
        ({"total_num_scheduled_tokens": 0}, ["an empty step"]),
    ],
)
def test_what_a_step_is(changes: dict[str, Any], counted: list[str]) -> None:
    assert scheduled(Coverage(), request(), request("r2"), **changes) == counted


def test_who_is_in_a_step() -> None:
    made, preempted = Coverage(), request(num_preemptions=1)
    loading = request("r3", Status.WAITING_FOR_REMOTE_KVS)
    assert scheduled(made, preempted, new=("r1",)) == ["a request resumes, runner V2"]
    assert scheduled(made, preempted, request("r2"), new=("r2",)) == []
    assert scheduled(made, loading, request("r2")) == ["a step while a load is under way"]


def test_in_which_pause_a_step_is() -> None:
    waits, name = request("r2", Status.WAITING), "a step that schedules no running request"
    assert scheduled(Coverage(), request(), waits, pause=Pause.ALL) == [name]
    assert scheduled(Coverage(), request(), waits, pause=Pause.NEW) == []
    assert scheduled(Coverage(), waits, pause=Pause.ALL) == []
    assert scheduled(Coverage(), waits, pause=Pause.ALL, is_asleep=True) == ["a step while the engine sleeps"]


def test_a_session_goes_on_once_in_a_turn() -> None:
    """Also one that was preempted: it goes on, and doesn't resume."""
    made = Coverage()
    assert scheduled(made, request(num_preemptions=1), new=("r1",)) == ["a request resumes, runner V2"]
    later = request(num_preemptions=1, turn=1)
    assert scheduled(made, later) == []
    assert scheduled(made, later, new=("r1",)) == ["a session goes on"]
    assert scheduled(made, later, new=("r1",)) == ["a request resumes, runner V2"]
    assert scheduled(Coverage(), later, new=("r1",)) == ["a session goes on"], "it is seen for the first time"
    stale = request(turn=2, num_stale_output_tokens=1)
    assert scheduled(made, stale, new=("r1",)) == [
        "a session goes on",
        "a session goes on before its last turn is over",
    ]


@pytest.mark.parametrize(
    ("kind", "states"),
    [
        (Kind.STEP, {"running", "running and held", "waiting"}),
        (Kind.ABORT, {"running and held"}),
        (Kind.TURN, {"running and held"}),
    ],
)
def test_whom_an_action_meets(kind: Kind, states: set[str]) -> None:
    some = [request(), request("r2", is_held=True), request("r3", Status.WAITING)]
    engine: Any = SimpleNamespace(scheduler=SimpleNamespace(requests={one.request_id: one for one in some}))
    assert Coverage().states(engine, Action(kind, {"request": "r2"})) == states


def test_counts_of_several_worlds_add_up() -> None:
    made, other = Coverage(), Coverage()
    for one in (made, other, other):
        one.count(Kind.STEP, {"running"})
        one.situation("an empty step")
    made.add(other)
    assert (made.pairs, made.situations) == ({("step", "running"): 3}, {"an empty step": 3})
