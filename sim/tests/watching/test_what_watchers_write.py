"""Logs and traces of what is rare: sessions, what comes at rest, lost copies, the end; what a tracker sees."""

import json
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kv_api import Direction
from kv_sim.actions import Action, Kind
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.engine.request import Status
from kv_sim.engine.request_spec import RequestSpec, Turn
from kv_sim.examples.catalogue import LATER, MEMORY, SUBJECTS
from kv_sim.fuzz import replay, run_seed
from kv_sim.site import Call
from kv_sim.subject import Subject
from kv_sim.watching.brief import brief
from kv_sim.watching.describe import describe, describe_state
from kv_sim.watching.engine_tracks import BLOCKS, COPIES, REQUESTS
from kv_sim.watching.log import Log
from kv_sim.watching.perfetto import Perfetto
from kv_sim.watching.tracks import Tracks
from kv_sim.watching.watch import Tracker, WatchedWorld, Watcher
from kv_sim.world import World

STEP = Action(Kind.STEP)


def add(name: str, shared_tokens: int = 9, conversation: int = 0, **more: Any) -> Action:
    return Action(Kind.ADD, {"spec": RequestSpec(name, conversation, shared_tokens, 0, 1, 1, **more).to_json()})


def written(
    history: list[Action], folder: Path, subject: Subject = LATER, **world: Any
) -> tuple[str, list[dict[str, Any]]]:
    """The log and the trace."""
    lines: list[str] = []
    watchers = [Log(lines.append), Perfetto(folder / "trace.json")]
    replay(subject, WorldConfig(**world), history, make_world=partial(WatchedWorld, watchers=watchers))
    return "".join(line + "\n" for line in lines), json.loads((folder / "trace.json").read_text())["traceEvents"]


def test_the_end_stands_under_one_heading_and_is_marked(tmp_path: Path) -> None:
    log, events = written([add("r1"), STEP], tmp_path, tp_size=2)
    assert log.endswith(
        " end\n"
        "     worker 0    shutdown\n"
        "     worker 1    shutdown\n"
        "     scheduler   shutdown\n"
        "at rest: nothing is wrong\n"
    )
    marks = [event["name"] for event in events if event["name"].endswith(" shutdown")]
    assert marks == ["worker 0 shutdown", "worker 1 shutdown", "scheduler shutdown"]


def test_a_call_that_says_nothing_is_named_where_a_copy_begins_in_it(tmp_path: Path) -> None:
    log, _ = written([add("r1"), STEP, STEP], tmp_path)
    assert "     worker 0    wait_for_save\n     rank 0      store copy 0 begins: " in log
    assert log.count("wait_for_save") < log.count("executes step")


def test_what_is_done_after_the_last_action_stands_under_a_heading_of_its_own() -> None:
    lines: list[str] = []
    log = Log(lines.append)
    made = WatchedWorld(WorldConfig(), MEMORY, watchers=[log])
    made.engine.reset(running=False, connector=True)
    made.end()
    log.ends(None)
    assert lines[2:] == [
        "rest all",
        "     scheduler   reset_cache -> True",
        " end",
        "     worker 0    shutdown",
        "     scheduler   shutdown",
        "at rest: nothing is wrong",
    ]


def test_what_came_of_a_call_that_raised_is_written_at_the_end(tmp_path: Path) -> None:
    """Of such a call nobody is told."""
    lines, file = list[str](), tmp_path / "trace.json"
    log, perfetto = Log(lines.append), Perfetto(file)
    made = WatchedWorld(WorldConfig(), MEMORY, watchers=[log, perfetto])
    made.engine.add(RequestSpec("r1", 0, 9, 0, 1, 1))
    queue = made.engine.devices[0].copies.open()
    queue.submit(Direction.STORE, [(1, 0)])
    queue.submit(Direction.STORE, [])
    for watcher in (log, perfetto):
        watcher.ends(None)
    assert lines[2:] == [
        "rest all",
        "     rank 0      store copy 0 begins: block 1 → host 0",
        "     rank 0      store copy 1 begins:",
        "     rank 0      store copy 1 is done",
        "     engine      r1 new → waiting, 0/9 tokens, blocks []",
        "at rest: nothing is wrong",
    ]
    begun = [event["name"] for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "B"]
    assert begun == ["waiting", "store copy 0", "store copy 1"]


def test_a_worker_may_wait_for_its_device_and_the_scheduler_hears_of_it_then() -> None:
    lines: list[str] = []
    log = Log(lines.append)
    made = WatchedWorld(WorldConfig(run_ahead=1, max_step_tokens=4), LATER, watchers=[log])
    for action in (add("r1"), Action(Kind.SCHEDULE), Action(Kind.EXECUTE, {"rank": 0}), Action(Kind.SCHEDULE)):
        assert made.apply(action)
    lines.clear()
    log.called(Call(0, "worker 0", "drain", (1,), None))
    made.engine.devices[0].synchronize()
    log.called(Call(0, "worker 0", "drain", (2,), None))
    made.engine.execute(0)
    made.engine.devices[0].synchronize()
    log.called(Call(0, "scheduler", "drain", (3,), None))
    log.acted(9, STEP, legal=True)
    assert [line for line in lines if "executes" not in line] == [
        "   9 step",
        "     worker 0    drain 1",
        "     worker 0    drain 2",
        "     rank 0      step 1 retires",
        "     rank 0      step 2 retires",
        "     scheduler   drain 3",
    ]


class Seen(Watcher):
    """Keeps the world."""

    def begins(self, world: World) -> None:
        self.world = world


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_step_that_retires_is_in_the_log(seed: int) -> None:
    """Within a call of a worker as well, which may wait for its device."""
    lines, seen = list[str](), Seen()
    run_seed(MEMORY, seed, make_world=partial(WatchedWorld, watchers=[Log(lines.append), seen]))
    retired = [line.split() for line in lines if line.endswith(" retires")]
    steps = [(int(words[1]), int(words[3])) for words in retired]
    assert len(steps) == len(set(steps)) == sum(device.retired_steps for device in seen.world.engine.devices)


def test_a_lost_copy(tmp_path: Path) -> None:
    lose, find = (Action(kind, {"rank": 0, "copy": 0}) for kind in (Kind.LOSE, Kind.FIND))
    log, events = written([add("r1"), STEP, STEP, lose, find], tmp_path)
    assert "   4 lose     rank 0, copy 0\n     rank 0      store copy 0 is lost\n" in log
    marks = [event["name"] for event in events if event["pid"] == COPIES and event["ph"] == "i"]
    assert marks[:3] == ["lost", "0 of 2 pages", "2 of 2 pages"]


def test_sessions(tmp_path: Path) -> None:
    """Two of them wait for each other's blocks, until the world gives one up: that is no abort of the history."""
    history = [*(add(f"r{n}", 15, n, turns=(Turn(8, 1, 1),)) for n in (1, 2)), STEP]
    log, events = written(history, tmp_path, MEMORY, num_blocks=9, max_step_tokens=32)
    assert (
        "   1 add      r1: 15 tokens of conversation 1, samples 1 of at most 1, a session; 8 more, samples 1\n"
        in log
    )
    assert (
        "     engine      r2 waiting for its next turn → waiting, turn 2, 15/23 tokens, blocks [5 6 7 8]\n" in log
    )
    assert "rest abort    r1\n" in log
    assert not any(event.get("s") == "g" for event in events)


def test_the_null_block_is_held_by_nobody(tmp_path: Path) -> None:
    groups = (GroupConfig("sliding", 4), GroupConfig())
    log, events = written([add("r1", 30), STEP, STEP, STEP], tmp_path, SUBJECTS["offload"], groups=groups)
    assert "blocks [· · · · 4] [" in log
    assert {event["ph"] for event in events if (event["pid"], event["tid"]) == (BLOCKS, 1)} == {"M"}


def test_a_session_of_several_turns() -> None:
    turns = (Turn(8, 1, 1), Turn(2, 3, 4))
    assert describe(add("r1", turns=turns)).endswith(", a session; 8 more, samples 1; 2 more, samples 3")
    assert describe(add("r1", turns=())).endswith(", a session")
    for turn, text in ((0, "running"), (1, "running, turn 2")):
        state: Any = SimpleNamespace(status=Status.RUNNING, turn=turn, is_held=False)
        assert describe_state(state) == text
    state.is_held = True
    assert describe_state(state) == "running, turn 2 and held"


def test_a_track_is_named_once() -> None:
    tracks = Tracks()
    for name in ("r1", "another"):
        tracks.name(REQUESTS, "requests", 1, name)
    assert [event["args"] for event in tracks.names] == [
        {"name": "requests"},
        {"sort_index": REQUESTS},
        {"name": "r1"},
        {"sort_index": 1},
    ]


def test_a_step_that_was_over_before_the_first_look() -> None:
    copies = SimpleNamespace(launched_steps=1)
    device = SimpleNamespace(rank=0, copies=copies, retired_steps=1)
    engine: Any = SimpleNamespace(
        devices=[device], executable=lambda rank: None, steps=[SimpleNamespace(number=4)]
    )
    tracker = Tracker()
    assert [(change.what, change.step) for change in tracker.kernels(engine)] == [("launches", 4), ("retires", 4)]
    assert [*tracker.kernels(engine)] == []


class Number(Enum):
    THREE = 3


@dataclass(slots=True)
class Slotted:
    _hidden: int
    name: str


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Number.THREE, "3"),
        (Slotted(1, "x"), "Slotted(_hidden=1, name=x)"),
        (SimpleNamespace(expected_finished_count=2, names=["a"]), "SimpleNamespace(names=[a])"),
    ],
)
def test_values_that_are_brief(value: Any, text: str) -> None:
    assert brief(value) == text
