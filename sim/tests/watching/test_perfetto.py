"""The trace: what a viewer needs, spans that nest, and the things that one looks for in it."""

import json
import re
from collections import defaultdict
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from kv_sim_seeds import seeds

from kv_api import Direction
from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import LATER, SUBJECTS
from kv_sim.fuzz import replay, run_seed
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Violation
from kv_sim.watching.describe import describe_world
from kv_sim.watching.engine_tracks import BLOCKS, COPIES, ENGINE, MOST_BLOCKS, REQUESTS, STEPS
from kv_sim.watching.perfetto import WORLD, Perfetto
from kv_sim.watching.tracks import ACTION_US, Tracks
from kv_sim.watching.watch import WatchedWorld

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


@pytest.mark.once
@pytest.mark.parametrize("name", ["memory", "later+patient", "offload-chunks"])
def test_a_trace_is_whole(name: str, tmp_path: Path) -> None:
    for seed in seeds(3):
        events, _ = trace_of(SUBJECTS[name], seed, tmp_path / "trace.json")
        check(events)


@pytest.mark.once
def test_watching_changes_nothing(tmp_path: Path) -> None:
    for seed in seeds(4):
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
    assert by_request["r1"] == ["waiting", "running", "at its limit", "at its limit and held"]
    assert by_request["r2"] == ["waiting", "waiting for a load", "aborted"]
    assert all(re.fullmatch(r"(r|almost-)[12](, life \d+)?", name) for name in by_request)


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


def test_a_trace_of_a_short_history_is_this(tmp_path: Path) -> None:
    """But for the times: every track with its place, and all that is on it."""
    subject, file = replace(LATER, traits=LATER.traits - {Trait.KEEPS}), tmp_path / "trace.json"
    history = [request("r1", shared_tokens=5), Action(Kind.ABORT, {"request": "r9"})]
    config = WorldConfig(num_blocks=4, run_ahead=1)
    replay(subject, config, history, make_world=partial(WatchedWorld, watchers=[Perfetto(file)]))
    text = file.read_text()
    assert text.endswith("}\n")
    whole = json.loads(text)
    assert whole["displayTimeUnit"] == "ms"
    names = [event for event in whole["traceEvents"] if event["ph"] == "M"]
    assert whole["traceEvents"][: len(names)] == names
    assert {event["ts"] for event in names} == {0}
    tracks = {
        (WORLD, "world"): {1: "actions"},
        (REQUESTS, "requests"): {1: "r1"},
        (STEPS, "steps"): {1: "step 0", 2: "step 0, rank 0", 3: "step 1", 4: "step 1, rank 0"},
        (BLOCKS, "blocks"): {1: "block 0 (null)", 2: "block 1", 3: "block 2", 4: "block 3"},
        (COPIES, "copies of rank 0"): {1: "streams of their own"},
    }
    meta = [(e["pid"], e["tid"], e["name"], *e["args"].values()) for e in names]
    assert sorted(meta) == sorted(
        [(pid, 0, "process_name", name) for pid, name in tracks]
        + [(pid, 0, "process_sort_index", pid) for pid, _ in tracks]
        + [(pid, tid, "thread_name", name) for (pid, _), own in tracks.items() for tid, name in own.items()]
        + [(pid, tid, "thread_sort_index", tid) for (pid, _), own in tracks.items() for tid in own]
    )
    on: dict[tuple[int, int], list[tuple[Any, ...]]] = defaultdict(list)
    for e in whole["traceEvents"][len(names) :]:
        on[e["pid"], e["tid"]].append((e["ph"], e["name"], *([e["args"]] if "args" in e else []), *e.get("s", "")))
    add = "add      r1: 5 tokens of conversation 0, samples 1 of at most 1"
    assert on[WORLD, 1][:6] == [
        ("i", "world", {"world": describe_world(config)}, "t"),
        ("B", add, {"number": 1}),
        ("E", add, history[0].args),
        ("B", "abort    r9", {"number": 2}),
        ("i", "abort    r9", "g"),
        ("E", "abort    r9", {"skipped": "not legal here"}),
    ]
    assert on[WORLD, 1][6][-1] == {"number": "at rest"}
    states = [("waiting", 0, 5), ("running", 0, 5), ("at its limit", 5, 6), ("at its limit and held", 5, 6)]
    spans = [
        [("B", name, {"request": "r1", "tokens": f"{done} of {known} computed"}), ("E", name)]
        for name, done, known in states
    ]
    assert on[REQUESTS, 1] == [*chain(*spans), ("i", "at its limit", "t")]
    assert on[STEPS, 1][:2] == [("B", "step 1", {"r1": "5 tokens"}), ("E", "step 1")]
    assert on[STEPS, 2] == [("B", "kernels of step 1"), ("E", "kernels of step 1")]
    assert on[STEPS, 3][:2] == [("B", "step 2"), ("E", "step 2")] or not on[STEPS, 3]
    written = [("B", "r1"), ("i", "rank 0: step 1 for request r1", "t"), ("E", "r1")]
    assert (on[BLOCKS, 1], on[BLOCKS, 2], on[BLOCKS, 3], on[BLOCKS, 4]) == ([], written, written, [])
    assert on[COPIES, 1] == [
        ("B", "store copy 0", {"pages": "block 1 → host 63", "after launch": 1, "stream": "own 0"}),
        ("i", "1 of 1 pages", "t"),
        ("E", "store copy 0", {"state": "done"}),
    ]


def test_a_block_that_several_hold_or_nobody_does_yet(tmp_path: Path) -> None:
    shares = [request("r1"), Action(Kind.STEP), request("r2"), request("r10"), Action(Kind.STEP)]
    spans = check(replayed(shares, tmp_path / "trace.json", WorldConfig(num_blocks=70)))
    assert "r1 r10 r2" in [name for name, _, _ in spans[BLOCKS, 2]]
    ended = [request("r1", shared_tokens=3), Action(Kind.SCHEDULE), Action(Kind.ABORT, {"request": "r1"})]
    config = WorldConfig(num_blocks=70, run_ahead=1, role="kv_consumer")
    events = replayed(ended, tmp_path / "trace.json", config)
    assert [name for name, _, _ in check(events)[BLOCKS, 2]][:2] == ["r1", "waits to be freed"]
    assert max(event["tid"] for event in events if event["pid"] == BLOCKS) == MOST_BLOCKS


def test_blocks_beyond_the_first_have_no_track(tmp_path: Path) -> None:
    config = WorldConfig(num_blocks=70, max_step_tokens=280)
    events = replayed([request("r1", shared_tokens=272), Action(Kind.STEP)], tmp_path / "trace.json", config)
    check(events)
    drawn = {phase: [e["tid"] for e in events if e["pid"] == BLOCKS and e["ph"] == phase] for phase in "Bi"}
    assert (max(drawn["B"]), max(drawn["i"])) == (MOST_BLOCKS, MOST_BLOCKS)


def test_what_happens_within_an_action_is_spread_over_its_time() -> None:
    tracks = Tracks()
    for places in (1, 3, 0):
        for number in range(places):
            tracks.begin(WORLD, 1, f"span {number}")
            tracks.tick()
        tracks.end_action()
    tracks.begin(WORLD, 1, "last")
    tracks.end_action()
    begun = [event["ts"] for event in tracks.events if event["ph"] == "B"]
    assert begun == [0, ACTION_US, ACTION_US * 5 / 4, ACTION_US * 6 / 4, 3 * ACTION_US]


def test_an_action_begins_at_once_and_ends_after_what_is_seen_in_it(tmp_path: Path) -> None:
    """What nothing happens in as well: what is seen after it, and then that it has ended, take a third each."""
    events = replayed([request("r1"), Action(Kind.ABORT, {"request": "r9"})], tmp_path / "trace.json")
    assert [(event["name"], event["ph"], event["ts"]) for event in events if "r9" in event["name"]] == [
        ("abort    r9", "B", 1000),
        ("abort    r9", "i", 1000),
        ("abort    r9", "E", 1666.667),
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_copies_of_one_stream_share_a_track_unless_they_are_under_way_at_once(tmp_path: Path, rank: int) -> None:
    file = tmp_path / "trace.json"
    perfetto = Perfetto(file)
    made = WatchedWorld(WorldConfig(tp_size=2), LATER, watchers=[perfetto])
    queue = made.engine.devices[rank].copies.open()
    for first, streams in ((0, ("a", "b", "a", "")), (4, ("b", "", "a", ""))):
        for slot, stream in enumerate(streams, first):
            queue.submit(Direction.STORE, [(1, slot)], stream=stream)
        for kind in (Kind.STEP, Kind.SETTLE):
            made.apply(Action(kind))
    perfetto.ends(None)
    events = [event for event in json.loads(file.read_text())["traceEvents"] if event["pid"] == COPIES + rank]
    assert {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"} == {
        1: "a",
        2: "b",
        3: "a",
        4: "streams of their own",
        5: "streams of their own",
    }
    assert [event["tid"] for event in events if event["ph"] == "B"] == [1, 2, 3, 4, 2, 4, 1, 5]


def test_a_second_engine_is_drawn_like_the_first(tmp_path: Path) -> None:
    """With names and processes of its own."""
    file, drawn = tmp_path / "trace.json", []
    config = WorldConfig(engines=2, run_ahead=1, max_step_tokens=8)
    kinds = (Kind.SCHEDULE, Kind.SCHEDULE, Kind.STEP, Kind.SETTLE, Kind.STEP)
    for at in (0, 1):
        made = WatchedWorld(config, LATER, watchers=[perfetto := Perfetto(file)])
        queue = made.engines[at].devices[0].copies.open()
        for slot in (0, 1):
            queue.submit(Direction.STORE, [(20, slot)], stream="a")
        for action in (request("r1", shared_tokens=30), *map(Action, kinds)):
            assert made.apply(replace(action, args={**action.args, **made.sites[at].where}))
        perfetto.ends(None)
        events = json.loads(file.read_text())["traceEvents"]
        own = [{**e, "pid": e["pid"] % ENGINE} for e in events if e["pid"] // ENGINE == at and e["pid"] != WORLD]
        # The second one has more blocks.
        drawn.append([e for e in own if e["pid"] != BLOCKS or e["tid"] <= config.num_blocks])
    for at, of_one in enumerate(drawn):  # where they are in a list of processes, and their names
        for event in of_one:
            if event["name"] == "process_sort_index":
                assert event["args"].pop("sort_index") % ENGINE == event["pid"]
            if event["name"] == "process_name":
                engine, number, event["args"]["name"] = event["args"]["name"].split(" ", 2)
                assert (engine, number) == ("engine", str(at))
    assert drawn[0] == drawn[1]
    assert {event["pid"] for event in drawn[1]} == {REQUESTS, STEPS, BLOCKS, COPIES}
