"""What is learnt of a world: calls, changes of copies and kernels, situations that were reached."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from kv_api import Direction
from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.pause import Pause
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.request_spec import RequestSpec, Turn
from kv_sim.examples.catalogue import MEMORY
from kv_sim.history.coverage import Coverage
from kv_sim.memory.device import Device
from kv_sim.memory.launched import LaunchedStep
from kv_sim.memory.settled import Offer
from kv_sim.memory.shadow import Shadow
from kv_sim.site import Call
from kv_sim.violation import Referee, Violation
from kv_sim.watching.watch import AT_REST, Tracker, WatchedWorld, Watcher
from kv_sim.world import World

CONFIG = WorldConfig(tp_size=2)


def changes(tracker: Tracker, engine: Any) -> list[tuple[int, str, int]]:
    return [(change.rank, change.what, change.copy.copy_id) for change in tracker.copies(engine)]


def test_each_change_of_a_copy_is_told_once_and_in_order() -> None:
    devices = [Device(rank, CONFIG, Shadow(2, Referee())) for rank in range(2)]
    engine, tracker = SimpleNamespace(devices=devices), Tracker()
    for device in devices:
        device.allocate_host(8)
    (one, copies), (other, others) = ((device.copies.open(), device.copies) for device in devices)
    for slot in range(3):
        one.submit(Direction.STORE, [(1, slot), (2, slot + 3)])
    other.submit(Direction.STORE, [(3, 0)])
    assert changes(tracker, engine) == [(0, "begins", 0), (0, "begins", 1), (0, "begins", 2), (1, "begins", 0)]
    assert changes(tracker, engine) == []
    copies.advance(copies.running[0], 1)
    copies.fail(copies.running[1])
    copies.lose(copies.running[2])
    others.advance(others.running[0], 1)
    assert changes(tracker, engine) == [
        (0, "moves", 0),
        (0, "ends", 1),
        (0, "lost", 2),
        (1, "moves", 0),
        (1, "ends", 0),
    ]
    copies.find(copies.running[2])
    assert changes(tracker, engine) == [(0, "found", 2)]
    copies.lose(copies.running[2])
    assert changes(tracker, engine) == [(0, "lost", 2)]
    copies.advance(copies.running[0], 1)
    one.submit(Direction.STORE, [])
    one.wait([one.submit(Direction.STORE, [(4, 7)])])
    assert changes(tracker, engine) == [
        (0, "moves", 0),
        (0, "ends", 0),
        (0, "begins", 3),
        (0, "ends", 3),
        (0, "begins", 4),
        (0, "moves", 4),
        (0, "ends", 4),
    ]
    copies.restart(0)
    assert changes(tracker, engine) == [(0, "ends", 2)]
    assert changes(tracker, engine) == []
    late = [(rank, number, what) for rank, what, number in changes(Tracker(), engine)]
    of_some_pages = [("begins", "moves", "ends"), *[("begins", "ends")] * 3, ("begins", "moves", "ends")]
    assert late == [
        *((0, number, what) for number, all_of_it in enumerate(of_some_pages) for what in all_of_it),
        *((1, 0, what) for what in ("begins", "moves", "ends")),
    ]
    copies.ended[:] = [None] * len(copies.ended)  # type: ignore[list-item]
    assert changes(tracker, engine) == [], "what has ended is not looked at again"


def test_kernels_are_launched_and_retire() -> None:
    devices = [Device(rank, CONFIG, Shadow(2, Referee())) for rank in range(2)]
    steps = [LaunchedStep(number, [], [], [], 4, (0,)) for number in (4, 7, 9)]
    engine, tracker = SimpleNamespace(devices=devices, steps=steps, executable=lambda rank: None), Tracker()

    def told() -> list[tuple[int, str, int]]:
        return [(change.rank, change.what, change.step) for change in tracker.kernels(engine)]  # type: ignore[arg-type]

    assert told() == []
    engine.executable = lambda rank: steps[rank]
    for device in devices:
        device.launch(steps[device.rank])
    assert told() == [(0, "launches", 4), (1, "launches", 7)]
    assert told() == []
    engine.executable = lambda rank: None  # it is the last that was scheduled
    devices[1].launch(steps[2])
    assert told() == [(1, "launches", 9)]
    devices[0].retire()
    devices[1].synchronize()
    assert told() == [(0, "retires", 4), (1, "retires", 7), (1, "retires", 9)]
    assert told() == []


class Heard(Watcher):
    def __init__(self) -> None:
        self.said: list[Any] = []

    def begins(self, world: World) -> None:
        self.said.append("begins")

    def acts(self, number: int, action: Action) -> None:
        self.said.append((number, action.kind.value))

    def called(self, call: Call) -> None:
        self.said.append(call.method)

    def acted(self, number: int, action: Action, *, legal: bool) -> None:
        self.said.append((number, action.kind.value, legal, action.args))

    def ends(self, violation: Violation | None) -> None:
        self.said.append(("ends", violation))


def test_watchers_hear_of_everything_in_order() -> None:
    """What a connector is called while it is set up after the beginning, what happens at rest without a number."""
    heard, referee = [Heard(), Heard()], Referee()
    made = WatchedWorld(WorldConfig(spec_tokens=1), MEMORY, referee=referee, watchers=heard)
    assert made.referee is referee
    spec = {**vars(RequestSpec("r1", 0, 5, 0, 2, 2))}
    made.replay(
        [
            Action(Kind.ABORT, {"request": "r9"}),
            Action(Kind.ADD, {"spec": spec}),
            Action(Kind.STEP, {"rejects": {"x": 1}}),
        ]
    )
    assert heard[0].said == heard[1].said
    said = heard[0].said
    assert said[:2] == ["begins", "get_mem_pool_context"]
    marks = [each for each in said if isinstance(each, tuple)]
    assert marks[:7] == [
        (1, "abort"),
        (1, "abort", False, {"request": "r9"}),
        (2, "add"),
        (2, "add", True, {"spec": spec}),
        (3, "step"),
        (3, "step", True, {}),
        (AT_REST, "settle"),
    ]
    assert marks[-1] == ("ends", None)
    assert {each[0] for each in marks[6:-1]} == {AT_REST}
    assert {each[1] for each in marks[6:-1]} == {"step", "settle"}
    assert said[said.index((2, "add")) + 1] == "on_new_request"
    assert "build_connector_meta" in said[said.index((3, "step")) : said.index((3, "step", True, {}))]


def test_watchers_hear_what_sessions_get_at_rest() -> None:
    """Two of them wait for each other's blocks, until one is given up."""
    heard = Heard()
    made = WatchedWorld(WorldConfig(num_blocks=9, max_step_tokens=32), MEMORY, watchers=[heard])
    specs = [RequestSpec(f"r{n}", n, 15, 0, 1, 1, turns=(Turn(8, 1, 1),)).to_json() for n in (1, 2)]
    made.replay([*(Action(Kind.ADD, {"spec": spec}) for spec in specs), Action(Kind.STEP)])
    ends = [each for each in heard.said if len(each) == 4 and each[1] in ("turn", "abort")]
    assert ends == [
        (AT_REST, kind, True, {"request": name})
        for kind, name in (("turn", "r1"), ("turn", "r2"), ("abort", "r1"), ("turn", "r2"))
    ]


def test_watchers_hear_of_an_action_that_nobody_can_take_as_what_it_is() -> None:
    """Also where it is refused before it is written down: nobody is named whom it could meet."""
    heard = Heard()
    made = WatchedWorld(WorldConfig(), MEMORY, watchers=[heard])
    add = Action(Kind.ADD, {"spec": vars(RequestSpec("r1", 0, 5, 0, 2, 2))})
    with pytest.raises(KeyError, match="request"):
        made.replay([add, Action(Kind.ABORT, {})])
    assert made.history == [add]
    assert heard.said[-2:] == [(2, "abort", True, {}), ("ends", None)]


def test_watchers_hear_of_the_end_that_a_violation_makes() -> None:
    heard = Heard()
    made = WatchedWorld(WorldConfig(), MEMORY, watchers=[heard])
    half: Any = made.engine.connectors[-1].side  # type: ignore[attr-defined]
    half.on_new_request = lambda request: {}["nowhere"]
    ended: list[Any] = []
    half.shutdown = lambda: ended.append(half)
    with pytest.raises(Violation) as raised:
        made.replay([Action(Kind.ADD, {"spec": vars(RequestSpec("r1", 0, 5, 0, 2, 2))})])
    assert heard.said[-2][:3] == (1, "add", True), "it was legal"
    assert heard.said[-1] == ("ends", raised.value)
    assert ended == [half], "also where somebody watches"


# -- what was reached ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "of", "reached"),
    [
        ((None, False), {"num_preemptions": 1}, {"match: ask again"}),
        ((0, False), {"num_preemptions": 1}, set()),
        ((4, True), {}, {"match: asynchronous load"}),
        ((4, False), {}, {"match: load in the step"}),
        ((4, False), {"num_preemptions": 2}, {"match: load in the step", "match: a preempted request loads"}),
        ((4, True), {"skips": True}, {"match: asynchronous load", "match: the answer is dropped"}),
    ],
)
def test_what_an_answer_reaches(answer: Any, of: dict[str, Any], reached: set[str]) -> None:
    coverage = Coverage()
    skips = SimpleNamespace(skip_reading_prefix_cache=of.pop("skips", False))
    coverage.matched(SimpleNamespace(**{"request_id": "r1", "num_preemptions": 0, "spec": skips, **of}), answer)
    assert coverage.situations == Counter(reached)


def scheduled(coverage: Coverage | None = None, **of: Any) -> set[str]:
    """What a step reaches, in which nothing happens but this."""
    output = {
        "kv_cache_block_copies": None,
        "preempted_req_ids": set(),
        "scheduled_cached_reqs": SimpleNamespace(resumed_req_ids=of.pop("resumed", set())),
        "scheduled_new_reqs": [SimpleNamespace(req_id=name) for name in of.pop("new", ())],
        "finished_req_ids": set(),
        "total_num_scheduled_tokens": 1,
    }
    step: dict[str, Any] = {"ends": [], "rejected": {}, "handed": []}
    holding, stale, turn = of.pop("holding", []), of.pop("stale", 0), of.pop("turn", 0)
    requests = {f"r{n}": {"num_preemptions": n, "turn": turn, "num_stale_output_tokens": stale} for n in range(2)}
    engine = SimpleNamespace(
        config=WorldConfig(),
        pause_state=Pause.NONE,
        is_asleep=False,
        scheduler=SimpleNamespace(
            requests={name: SimpleNamespace(request_id=name, **values) for name, values in requests.items()},
            deferred_frees=of.pop("frees", []),
            holding=[SimpleNamespace(status=status) for status in holding],
        ),
    )
    for name, value in of.items():
        (step if name in step else output)[name] = value
    coverage = coverage or Coverage()
    coverage.situations.clear()
    coverage.scheduled(engine, SimpleNamespace(output=SimpleNamespace(**output), **step))  # type: ignore[arg-type]
    assert set(coverage.situations.values()) <= {1}
    return set(coverage.situations)


@pytest.mark.parametrize(
    ("of", "reached"),
    [
        ({}, set()),
        ({"ends": [(2, 3)]}, {"match: more than the end of a block"}),
        ({"ends": [(3, 3)]}, {"match: less than the end of a block"}),
        (
            {"ends": [(3, 2), (2, 3)]},
            {"match: less than the end of a block", "match: more than the end of a block"},
        ),
        ({"kv_cache_block_copies": [1]}, {"a block is copied on write"}),
        ({"handed": [Offer("r1", 2, 2)]}, {"a state within a block is handed over"}),
        ({"preempted_req_ids": {"r1"}}, {"a request is preempted"}),
        ({"resumed": {"r1"}}, {"a request resumes, runner V1"}),
        ({"new": ["r0"], "finished_req_ids": {"r1"}}, set()),
        ({"new": ["r0"], "finished_req_ids": {"r0"}}, {"an id is finished and new in one step"}),
        ({"new": ["r0", "r1"]}, {"a request resumes, runner V2"}),
        ({"new": ["r0", "r1"], "turn": 1}, {"a session goes on"}),
        ({"new": ["r0"], "stale": 1}, set()),
        (
            {"new": ["r0"], "stale": 1, "turn": 2},
            {"a session goes on", "a session goes on before its last turn is over"},
        ),
        ({"frees": [1]}, {"frees are deferred"}),
        ({"rejected": {"r1": 1}}, {"drafts are rejected"}),
        ({"total_num_scheduled_tokens": 0}, {"an empty step"}),
        ({"holding": [Status.PREEMPTED]}, set()),
        ({"holding": [Status.PREEMPTED, Status.WAITING_FOR_REMOTE_KVS]}, {"a step while a load is under way"}),
    ],
)
def test_what_a_step_reaches(of: dict[str, Any], reached: set[str]) -> None:
    assert scheduled(**of) == reached


EARLY, AT_END = "a session's next input comes before it stops", "a session ends while it waits"


@pytest.mark.parametrize(
    ("status", "turns", "arrived", "reached"),
    [
        (Status.RUNNING, 1, 0, {EARLY}),
        (Status.WAITING, 1, 1, {EARLY}),
        (Status.RUNNING, 0, 0, {EARLY}),
        (Status.WAITING_FOR_STREAMING_REQ, 1, 0, set()),
        (Status.WAITING_FOR_STREAMING_REQ, 1, 1, {AT_END}),
        (Status.WAITING_FOR_STREAMING_REQ, 0, 0, {AT_END}),
    ],
)
def test_what_a_turn_reaches(status: Status, turns: int, arrived: int, reached: set[str]) -> None:
    """One that has arrived is taken up, unless the session has yet to stop."""
    made = SimRequest(RequestSpec("r1", 0, 4, 0, 1, 1, turns=(Turn(1, 1, 1),) * turns), 4, 8)
    made.status = status
    made.turn = made.turns_arrived = arrived
    coverage = Coverage()
    coverage.turn_arrives(made)
    assert set(coverage.situations) == reached


def test_a_session_goes_on_once_a_turn_and_from_the_beginning_if_its_id_comes_back() -> None:
    """Elsewhere it is one that was preempted, and resumes."""
    coverage = Coverage()
    reached = [scheduled(coverage, new=["r1"], turn=turn) for turn in (0, 1, 1, 2, 0, 1)]
    goes_on, resumes = {"a session goes on"}, {"a request resumes, runner V2"}
    assert reached == [resumes, goes_on, resumes, goes_on, resumes, goes_on]


def test_which_states_an_action_meets() -> None:
    requests = {name: SimRequest(RequestSpec(name, 0, 4, 0, 1, 1), 4, 0) for name in ("r1", "r2", "r3")}
    requests["r2"].status, requests["r2"].is_held = Status.FINISHED_STOPPED, True
    requests["r3"].status = Status.RUNNING
    engine: Any = SimpleNamespace(scheduler=SimpleNamespace(requests=requests))
    coverage, other = Coverage(), Coverage()
    assert coverage.states(engine, Action(Kind.STEP)) == {"waiting", "stopped and held", "running"}
    assert coverage.states(engine, Action(Kind.ABORT, {"request": "r3"})) == {"running"}
    assert coverage.states(engine, Action(Kind.TURN, {"request": "r1"})) == {"waiting"}
    assert coverage.states(engine, Action(Kind.ABORT, {"request": "r4"})) == set()
    coverage.count(Kind.STEP, {"running", "waiting"})
    coverage.situation("x")
    other.count(Kind.STEP, {"running"})
    other.situation("x")
    other.situation("y")
    coverage.add(other)
    assert coverage.pairs == {("step", "running"): 2, ("step", "waiting"): 1}
    assert coverage.situations == {"x": 2, "y": 1}
