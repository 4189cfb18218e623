"""The trace: what a viewer needs, spans that nest, and the things that one looks for in it."""

import json
import re
from collections import defaultdict
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kv_sim_seeds import seeds

from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.request import RequestSpec
from kv_sim.examples.catalogue import LATER, SUBJECTS
from kv_sim.fuzz import replay, run_seed
from kv_sim.perfetto import ACTION_US, BLOCKS, COPIES, REQUESTS, STEPS, WORLD, Perfetto
from kv_sim.subject import Subject
from kv_sim.violation import Violation
from kv_sim.watch import WatchedWorld

Event = dict[str, Any]


def request(name: str, *, shared_tokens: int = 9, own_tokens: int = 0) -> Action:
    spec = RequestSpec(name, 0, shared_tokens, own_tokens, output_tokens=1, max_tokens=1)
    return Action(Kind.ADD, {"spec": asdict(spec)})


def trace_of(subject: Subject, seed: int, file: Path) -> tuple[list[Event], Violation | None]:
    run = run_seed(subject, seed, make_world=partial(WatchedWorld, watchers=[Perfetto(file)]))
    return json.loads(file.read_text())["traceEvents"], run.failure.violation if run.failure else None


def replayed(history: list[Action], file: Path, config: WorldConfig | None = None) -> list[Event]:
    watchers = [Perfetto(file)]
    replay(LATER, config or WorldConfig(), history, make_world=partial(WatchedWorld, watchers=watchers))
    events: list[Event] = json.loads(file.read_text())["traceEvents"]
    return events


def check(events: list[Event]) -> dict[tuple[int, int], list[tuple[str, float, float]]]:
    """Every event is complete and every span closed; returns the spans of each track."""
    tracks = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    opened: dict[tuple[int, int], list[Event]] = defaultdict(list)
    now: dict[tuple[int, int], float] = defaultdict(float)
    spans: dict[tuple[int, int], list[tuple[str, float, float]]] = defaultdict(list)
    for event in events:
        assert {"ph", "ts", "pid", "tid", "name"} <= event.keys(), event
        track = (event["pid"], event["tid"])
        if event["ph"] == "M":
            continue
        assert event["ph"] in "BEi", event
        assert track in tracks, event
        assert event["pid"] in processes, event
        assert event["ts"] >= now[track], event
        now[track] = event["ts"]
        if event["ph"] == "B":
            assert not opened[track], f"{event} begins within {opened[track]}"
            opened[track].append(event)
        elif event["ph"] == "E":
            begin = opened[track].pop()
            assert begin["name"] == event["name"]
            assert begin["ts"] < event["ts"], f"{begin} takes no time"
            assert event["pid"] < COPIES or event["args"], f"{begin} was pushed off its track"
            spans[track].append((event["name"], begin["ts"], event["ts"]))
        else:
            assert event["s"] in "gpt", event
    assert not any(opened.values()), f"never ended: {opened}"
    return spans


@pytest.mark.parametrize("name", ["memory", "later+patient", "offload-chunks"])
def test_a_trace_is_whole(name: str, tmp_path: Path) -> None:
    for seed in seeds(5):
        events, _ = trace_of(SUBJECTS[name], seed, tmp_path / "trace.json")
        check(events)


def test_watching_changes_nothing(tmp_path: Path) -> None:
    for seed in seeds(10):
        make_world = partial(WatchedWorld, watchers=[Perfetto(tmp_path / "trace.json")])
        assert run_seed(LATER, seed, make_world=make_world).digest == run_seed(LATER, seed).digest


HISTORY = [
    request("r1"),
    Action(Kind.STEP),
    Action(Kind.STEP),
    Action(Kind.ADVANCE, {"rank": 0, "copy": 0, "pages": 1}),
    Action(Kind.SETTLE),
    Action(Kind.STEP),
    Action(Kind.RESET, {"running": False, "connector": False}),
    request("r2", own_tokens=1),
    Action(Kind.STEP),
    Action(Kind.ABORT, {"request": "r2"}),
]


def test_actions_take_a_millisecond_each(tmp_path: Path) -> None:
    spans = check(replayed(HISTORY, tmp_path / "trace.json"))[WORLD, 1]
    for number, (name, begin, end) in enumerate(spans):
        assert number * ACTION_US <= begin < end <= (number + 1) * ACTION_US, name
    assert [name.split()[0] for name, _, _ in spans][: len(HISTORY)] == [action.kind.value for action in HISTORY]


def test_a_request_goes_through_its_states(tmp_path: Path) -> None:
    events = replayed(HISTORY, tmp_path / "trace.json")
    spans = check(events)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    by_request = {names[track]: [s for s, _, _ in found] for track, found in spans.items() if track[0] == REQUESTS}
    assert by_request["r1"] == ["waiting", "running", "stopped", "stopped and held"]
    assert by_request["r2"] == ["waiting", "waiting for a load", "aborted"]
    assert all(re.fullmatch(r"r[12](, life \d+)?", name) for name in by_request)


def test_a_step_of_one_action_has_its_span(tmp_path: Path) -> None:
    spans = check(replayed(HISTORY, tmp_path / "trace.json"))
    [(name, begin, end)] = spans[STEPS, 1][:1]
    assert name == "step 1"
    assert ACTION_US < begin < end < 2 * ACTION_US
    [(kernels, launched, retired)] = spans[STEPS, 2][:1]
    assert kernels == "kernels of step 1"
    assert begin < launched < retired <= end


def test_steps_under_way_at_once_have_tracks_of_their_own(tmp_path: Path) -> None:
    history = [request("r1", shared_tokens=30), *[Action(Kind.SCHEDULE)] * 3]
    config = WorldConfig(run_ahead=2, async_scheduling=True, max_step_tokens=8)
    spans = check(replayed(history, tmp_path / "trace.json", config))
    begins = [spans[STEPS, track][0] for track in (1, 3, 5)]
    assert [name for name, _, _ in begins] == ["step 1", "step 2", "step 3"]
    assert begins[2][1] < begins[0][2], "the third began before the first came back"


def test_a_copy_shows_its_pages_and_its_end(tmp_path: Path) -> None:
    events = replayed(HISTORY, tmp_path / "trace.json")
    copies = [e for e in events if e["pid"] == COPIES and e["ph"] != "M"]
    begin, half, whole, end = copies[:4]
    assert begin["args"]["pages"] == "block 1 → host 63, block 2 → host 62"
    assert [half["name"], whole["name"]] == ["1 of 2 pages", "2 of 2 pages"]
    assert end["args"] == {"state": "done"}
    assert copies[4]["name"] == "load copy 1"


def test_a_block_shows_its_holders_and_writers(tmp_path: Path) -> None:
    events = replayed(HISTORY, tmp_path / "trace.json")
    spans = check(events)
    assert next(name for name, _, _ in spans[BLOCKS, 2]) == "r1"
    written = [e["name"] for e in events if e["pid"] == BLOCKS and e["ph"] == "i"]
    assert "rank 0: step 1 for request r1" in written
    assert "rank 0: load copy 1" in written


def test_aborts_and_resets_are_marked(tmp_path: Path) -> None:
    marks = [e["name"] for e in replayed(HISTORY, tmp_path / "trace.json") if e.get("s") == "g"]
    assert marks == ["reset    the prefix cache", "abort    r2"]


def test_a_violation_is_marked(tmp_path: Path) -> None:
    hasty = Subject("Hasty", "broken_connectors", traits=frozenset())
    events, violation = trace_of(hasty, 0, tmp_path / "trace.json")
    check(events)
    assert violation is not None
    [mark] = [e for e in events if e.get("s") == "g" and "violation" in e.get("args", {})]
    assert mark["name"] == violation.invariant
    assert mark["args"]["violation"] == str(violation)
