"""The differential: what is counted, what is left out, and when it fails."""

from collections import Counter
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
from kv_vllm_parrots import Parrot, altered

from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.engine.pause import MODES
from kv_sim.engine.request import Status
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.history.draws import draw_config
from kv_sim.subject import Trait
from kv_vllm.differential import run as module
from kv_vllm.differential.comparison import Divergence
from kv_vllm.differential.matrix import CELLS, EXCLUSIONS, Cell, exclusion_of, hidden, without_states
from kv_vllm.differential.run import CellResult, differential, missed, run_cell, show_cell, show_situations
from kv_vllm.differential.situations import MINIMA, situations_of, wanted
from kv_vllm.differential.trace import (
    Abort,
    Add,
    Call,
    NextTurn,
    Paused,
    Process,
    Reset,
    Resumed,
    Sampled,
    Schedule,
    Trace,
    Turn,
)

NEW = (0, 33)


def parrot(config, trace, script):
    return Parrot(trace.turns, script)


class Greedy(Parrot):
    """Gives every request block 99."""

    def change(self, turn):
        return [altered(c, blocks=[[99]]) if c.name == "update_state_after_alloc" else c for c in turn.calls]


@pytest.fixture
def lines():
    return []


@pytest.mark.once
def test_histories_that_agree_are_counted():
    result = run_cell(CELLS[2], {"later": SUBJECTS["later"]}, range(10), parrot, NEW)
    assert (result.agree, result.diverging) == (10, [])
    assert result.calls > 500
    assert result.situations["preempted"] >= result.situations["resumed"] > 0


def test_a_planted_difference_is_found_and_shown(lines):
    def greedy(config, trace, script):
        return Greedy(trace.turns, script)

    assert not differential(CELLS[:1], ["memory"], range(3), greedy, NEW, lines.append)
    text = "\n".join(lines)
    assert "Scheduler, runner 1: 0 of 3 histories agree" in text
    assert "diverging: memory 0, memory 1, memory 2" in text
    assert "made [[99]]" in text


def test_one_subject_alone_needs_no_minima(lines):
    assert differential(CELLS[:1], ["memory"], range(3), parrot, NEW, lines.append)


@pytest.mark.parametrize("bad", [0, 1])
def test_one_cell_that_diverges_is_enough_to_fail(bad, lines, monkeypatch):
    found = ("memory", 0, WorldConfig(), Divergence(0, Schedule(1), "x()", "y()"))
    monkeypatch.setattr(
        module, "run_cell", lambda cell, *args: CellResult(cell, diverging=[found] * (cell is CELLS[bad]))
    )
    assert not differential(CELLS[:2], ["memory"], range(1), parrot, NEW, lines.append)


def test_a_missed_minimum_fails(lines, monkeypatch):
    monkeypatch.setattr(module, "ACTIONS", 5)
    assert not differential(CELLS[:1], ["later", "patient", "memory"], range(20), parrot, NEW, lines.append)
    assert any(
        line.startswith("missed: 'asynchronous hit' in Scheduler, runner 1: 0 of 4 times") for line in lines
    )


def test_minima_grow_with_the_histories():
    assert wanted(500) == MINIMA
    assert wanted(50)["asynchronous hit"] == MINIMA["asynchronous hit"] // 10
    assert not any(wanted(0).values())
    assert missed({"a": 1, "b": 3}, {"a": 2, "b": 3, "c": 0, "d": 1}) == ["a", "d"]


def test_every_state_in_which_a_request_is_aborted_is_asked_for():
    aborted = {name.removeprefix("abort: ") for name in MINIMA if name.startswith("abort: ")}
    assert aborted == {"load reported", *(status.value for status in Status if not status.is_finished)}
    assert {"failed load, recompute", "failed load, fail"} <= MINIMA.keys()
    assert {f"a pause: {mode}" for mode in MODES} <= MINIMA.keys()


def test_the_table_has_a_line_for_each_situation(lines):
    show_situations([CellResult(cell) for cell in CELLS], {}, lines.append)
    assert len(lines) == 1 + len(MINIMA)


def test_each_scheduler_is_met_with_each_runner():
    cells = [(cell.async_scheduling, cell.runner) for cell in CELLS]
    assert cells == [(False, 1), (False, 2), (True, 1), (True, 2)]


@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize("name", ["later", "patient", "memory"])
def test_worlds_of_a_cell_are_legal(cell, name):
    for seed in range(200):
        world = cell.world(draw_config(Random(seed)), SUBJECTS[name])
        assert (world.async_scheduling, world.runner) == (cell.async_scheduling, cell.runner)
        assert {group.kind for group in world.groups} in ({"full"}, {"sliding"}, {"full", "sliding"})
        assert world.run_ahead or not world.async_scheduling
        assert not (world.run_ahead and world.role == "kv_producer")
        assert not (world.run_ahead and world.engines > 1 and world.role != "kv_both")
        assert world.is_unequal or world.hashes_per_block == 1
        assert not (name == "patient" and world.runner == 2 and world.zero_new_blocks)


@pytest.mark.parametrize(
    ("cell", "drawn", "traits", "moved"),
    [
        (Cell(False, 1), (0, "kv_producer", True), (), (0, "kv_producer", True)),
        (Cell(False, 1), (2, "kv_producer", False), (), (2, "kv_both", False)),
        (Cell(False, 2), (2, "kv_consumer", True), (), (2, "kv_consumer", False)),
        (Cell(False, 2), (0, "kv_both", True), (Trait.ZEROING,), (0, "kv_both", True)),
        (Cell(True, 1), (0, "kv_producer", True), (Trait.ZEROING,), (1, "kv_both", True)),
        (Cell(True, 2), (2, "kv_consumer", False), (Trait.ZEROING,), (2, "kv_consumer", False)),
    ],
)
def test_how_a_world_is_moved_into_a_cell(cell, drawn, traits, moved):
    run_ahead, role, zeroes = drawn
    world = WorldConfig(run_ahead=run_ahead, role=role, zero_new_blocks=zeroes)
    found = cell.world(world, SimpleNamespace(traits=traits))
    assert (found.run_ahead, found.role, found.zero_new_blocks) == moved
    assert (found.async_scheduling, found.runner) == (cell.async_scheduling, cell.runner)
    assert str(cell) == f"{'AsyncScheduler' if cell.async_scheduling else 'Scheduler'}, runner {cell.runner}"


@pytest.mark.parametrize(("run_ahead", "role"), [(0, "kv_consumer"), (1, "kv_both")])
def test_of_two_engines_none_is_a_producer_under_run_ahead(run_ahead, role):
    drawn = WorldConfig(run_ahead=run_ahead, role="kv_consumer", engines=2)
    assert Cell(False, 1).world(drawn, SUBJECTS["p2p"]).role == role


def test_hashes_are_no_finer_than_blocks():
    """Of vLLM's, groups that are all alike have one for each block."""
    assert without_states(WorldConfig(hashes_per_block=2)) == WorldConfig()


def test_states_are_left_out_of_a_world():
    groups = (GroupConfig("state"), GroupConfig(), GroupConfig("sliding", 8))
    assert without_states(WorldConfig(groups=groups)) == WorldConfig(groups=groups[1:])
    assert without_states(WorldConfig(groups=groups, evicts=2)) == WorldConfig(groups=groups[1:])


def test_without_states_there_may_be_no_larger_blocks() -> None:
    small, smaller = (GroupConfig("sliding", 8, parts=parts) for parts in (2, 4))
    unequal = WorldConfig(groups=(small, smaller, GroupConfig(), STATE), hashes_per_block=4)
    assert without_states(unequal) == replace(unequal, groups=unequal.groups[:3])
    alike = replace(small, parts=1)
    of_states = replace(unequal, groups=(small, smaller, STATE), evicts=2)
    assert without_states(of_states) == WorldConfig(groups=(alike, alike))


def trace_of(*turns):
    return Trace(list(turns), all_groups=False, requires_delivery=False)


ENDS = Turn(Process(1, {"r": Sampled((5, 0), ends=True, surplus=1)}, {}))
WASTES = Turn(Process(1, {"q": Sampled((5,), ends=False), **ENDS.event.sampled}, {}))
STOPS_OF_TWO = Turn(Process(1, {"q": Sampled((5,), ends=False), "r": Sampled((6,), ends=True)}, {}))
ONE = Turn(Process(1, {"r": Sampled((5,), ends=False)}, {}))
TWO = Turn(Process(1, {"r": Sampled((5, 6), ends=False)}, {}))
GONE = Turn(Abort("r", "running"))
PREEMPTED = Turn(Reset(True, False, True))
FAILS = Turn(Process(1, {}, {"invalid_block_ids": [1]}))
SHARED = Turn(Process(1, {}, {"invalid_block_ids": [1]}, shares_failed_blocks=True))
STOPS = Turn(Process(1, {"r": Sampled((5,), ends=True)}, {}, stops_preempted=True))
NOTHING = Turn(Schedule(1))
KEEPS_ROOM = Turn(Schedule(2, keeps_room=True))


@pytest.mark.parametrize(
    ("config", "turns", "version", "expected"),
    [
        (WorldConfig(), [NOTHING, ENDS], NEW, None),
        (WorldConfig(spec_tokens=1), [NOTHING, ENDS], NEW, None),
        (WorldConfig(spec_tokens=1), [NOTHING, ENDS], (0, 32), 1),
        (WorldConfig(spec_tokens=1, run_ahead=1, async_scheduling=True), [NOTHING, ENDS], (0, 32), 1),
        (WorldConfig(spec_tokens=1, run_ahead=1, async_scheduling=True), [ONE, WASTES], (0, 32), 1),
        (WorldConfig(spec_tokens=1, run_ahead=1, async_scheduling=True), [ONE, STOPS_OF_TWO], (0, 32), None),
        (WorldConfig(spec_tokens=1), [ONE, STOPS_OF_TWO], (0, 32), 1),
        (WorldConfig(spec_tokens=1), [TWO, NOTHING, GONE, PREEMPTED], (0, 32), None),
        (WorldConfig(spec_tokens=1), [ONE, GONE, PREEMPTED], (0, 32), None),
        (WorldConfig(spec_tokens=1), [GONE, PREEMPTED, NOTHING, TWO, GONE], (0, 32), 4),
        (WorldConfig(spec_tokens=1), [NOTHING, TWO, GONE], (0, 32), 2),
        (WorldConfig(spec_tokens=1), [NOTHING, TWO, PREEMPTED], (0, 32), 2),
        (WorldConfig(spec_tokens=1), [NOTHING, TWO, GONE], NEW, None),
        (WorldConfig(spec_tokens=1, run_ahead=1), [NOTHING], NEW, 0),
        (WorldConfig(spec_tokens=1, run_ahead=1, async_scheduling=True), [NOTHING], NEW, None),
        (WorldConfig(failure_policy="recompute"), [NOTHING, FAILS, NOTHING], NEW, 2),
        (WorldConfig(failure_policy="recompute"), [FAILS, NOTHING], NEW, 1),
        (WorldConfig(failure_policy="fail"), [NOTHING, FAILS, NOTHING], NEW, None),
        (WorldConfig(failure_policy="fail"), [NOTHING, FAILS, SHARED], NEW, 2),
        (WorldConfig(failure_policy="recompute"), [NOTHING, SHARED, NOTHING], NEW, 1),
        (WorldConfig(), [NOTHING, ONE, STOPS], (0, 32), 2),
        (WorldConfig(), [NOTHING, ONE, STOPS], NEW, None),
        (WorldConfig(), [NOTHING, TWO, GONE], (0, 32), None),
        (WorldConfig(), [NOTHING, ONE, KEEPS_ROOM, KEEPS_ROOM], NEW, 2),
        (WorldConfig(spec_tokens=1, run_ahead=1, async_scheduling=True), [NOTHING, TWO, GONE], (0, 32), None),
        (
            WorldConfig(spec_tokens=1),
            [TWO, Turn(Reset(False, True, True)), Turn(Abort("q", "running"))],
            (0, 32),
            None,
        ),
    ],
)
def test_exclusions(config, turns, version, expected):
    found = exclusion_of(config, trace_of(*turns), version)
    assert (None if found is None else found[1]) == expected


def test_what_an_old_vllm_hides_is_not_asked_for():
    assert hidden(NEW) == frozenset()
    assert hidden((0, 32)) == {"accepted drafts go to waste"}
    assert hidden((0, 32)) <= set(MINIMA)
    assert all(len(exclusion.reason) > 80 for exclusion in EXCLUSIONS)


def test_an_excluded_end_is_cut_off_and_its_beginning_compared(monkeypatch):
    call = Call("on_new_request", {}, None)
    turns = [Turn(Add("r", (1,), 1, None, None, False), [call]), FAILS, Turn(Schedule(2), [call])]
    monkeypatch.setattr(module, "record", lambda *args: trace_of(*turns))
    monkeypatch.setattr(Cell, "world", lambda *args: WorldConfig(failure_policy="recompute"))
    result = run_cell(Cell(True, 1), {"later": SUBJECTS["later"]}, [0], parrot, NEW)
    assert (result.agree, result.calls, len(result.excluded)) == (1, 1, 1)


def test_a_history_that_a_checker_ended_is_named_and_compared_as_far_as_it_goes(monkeypatch):
    turns = [Turn(Add("r", (1,), 1, None, None, False), [Call("on_new_request", {}, None)])]
    cuts = iter(["CONTENT  some block", None])
    monkeypatch.setattr(module, "record", lambda *args: Trace(turns, False, False, next(cuts)))
    result = run_cell(Cell(True, 1), {"later": SUBJECTS["later"]}, [4, 5], parrot, NEW)
    assert (result.agree, result.calls) == (2, 2)
    assert result.cut_short == ["later, seed 4: CONTENT  some block"]


def test_what_was_excluded_is_counted_and_the_others_are_compared(monkeypatch):
    call = Call("on_new_request", {}, None)
    add = Turn(Add("r", (1,), 1, None, None, False), [call])
    traces = iter([[NOTHING], [add, FAILS, add], [add, FAILS, add], [add]])
    worlds = iter([WorldConfig(spec_tokens=1, run_ahead=1), *[WorldConfig(failure_policy="recompute")] * 3])
    monkeypatch.setattr(module, "record", lambda *args: trace_of(*next(traces)))
    monkeypatch.setattr(Cell, "world", lambda *args: next(worlds))
    subjects = {"later": SUBJECTS["later"], "memory": SUBJECTS["memory"]}
    result = run_cell(Cell(True, 1), subjects, iter([0, 1]), parrot, NEW)
    assert (result.agree, result.calls, [*result.excluded.values()]) == (3, 3, [1, 2])


def test_what_is_shown_of_a_cell(lines):
    divergence = Divergence(1, Schedule(2), "x()", "y()", ("z: 1, made 2",))
    result = CellResult(
        Cell(True, 2),
        agree=3,
        calls=40,
        diverging=[("later", seed, WorldConfig(), divergence) for seed in range(13)],
        excluded=Counter(b=2, a=1),
        cut_short=["memory, seed 3: it ended"],
    )
    show_cell(result, lines.append)
    assert "\n".join(lines).splitlines() == [
        f"{Cell(True, 2)}: 3 of 16 histories agree, in 40 calls",
        "  1 excluded: a",
        "  2 excluded: b",
        "  cut short: memory, seed 3: it ended",
        "  diverging: " + ", ".join(f"later {seed}" for seed in range(12)),
        f"  the first: later, seed 0, {WorldConfig().to_json()}",
        f"    turn 1, {Schedule(2)}",
        "      expected: x()",
        "      made:     y()",
        "        z: 1, made 2",
    ]


def test_what_is_shown_of_situations(lines, monkeypatch):
    monkeypatch.setattr(module, "MINIMA", {"rare": 2, "a longer one": 9})
    results = [
        CellResult(Cell(True, 1), situations=Counter({"rare": 1, "a longer one": 5})),
        CellResult(Cell(False, 2), situations=Counter({"rare": 2})),
    ]
    show_situations(results, {"rare": 2}, lines.append)
    assert lines == [
        "situation      least  async, runner 1   sync, runner 2",
        "rare               2              1 !                2",
        "a longer one       -                5                0",
        f"missed: 'rare' in {Cell(True, 1)}: 1 of 2 times",
    ]
    show_situations(results[::-1], {"rare": 3, "a longer one": 1}, lines.append)
    assert lines[-3:] == [
        f"missed: 'rare' in {Cell(False, 2)}: 2 of 3 times",
        f"missed: 'a longer one' in {Cell(False, 2)}: 0 of 1 times",
        f"missed: 'rare' in {Cell(True, 1)}: 1 of 3 times",
    ]


def test_what_is_excluded_or_hidden_is_explained_once(lines, monkeypatch):
    """And only what was met; in an old vLLM, nobody misses what it hides."""
    excluded = Counter(exclusion.name for exclusion in EXCLUSIONS[:2])

    def result(cell, *args):
        return CellResult(cell, agree=1, situations=Counter(MINIMA), excluded=excluded)

    monkeypatch.setattr(module, "run_cell", result)
    names = ["later", "patient", "memory"]
    assert differential(CELLS[:2], names, range(7), parrot, NEW, lines.append)
    assert lines[0] == "vLLM 0.33; a cell: 7 histories of each of later, patient, memory"
    explained = [f"excluded: {exclusion.name}\n  {exclusion.reason}" for exclusion in EXCLUSIONS[:2]]
    assert [line for line in lines if line.startswith("excluded: ")] == lines[-2:] == explained

    def without(cell, *args):
        return CellResult(cell, situations=Counter({n: c for n, c in MINIMA.items() if n not in hidden((0, 32))}))

    monkeypatch.setattr(module, "run_cell", without)
    assert differential(CELLS[:1], names, range(500), parrot, (0, 32), lines.append)
    assert not differential(CELLS[:1], names, range(500), parrot, NEW, lines.append)
    assert differential(CELLS[:1], names[:2], range(500), parrot, NEW, lines.append)


def step(**parts):
    empty = {"new": [], "cached": [], "resumed": [], "counts": {}, "drafts": {}, "finished": [], "preempted": []}
    return Call("build_connector_meta", {**empty, **parts}, None)


def match(tokens, *, is_async=False):
    return Call("get_num_new_matched_tokens", {"request": "r"}, (tokens, is_async))


def alloc(name="r"):
    return Call("update_state_after_alloc", {"request": name}, None)


def steps(*parts):
    """Steps of which each says who is in it, and how."""
    return [Turn(Schedule(number), [step(**one)]) for number, one in enumerate(parts)]


R = [{"request": "r"}]
AGAIN = {"new": R, "finished": ["r"]}


def ended(name, *held):
    return [Call(name, {}, (is_held, None)) for is_held in held]


SITUATIONS = {
    "an id": ([Turn(Add(name, (1,), 1, None, None, False)) for name in "rqrr"], {"an id comes back": 2}),
    "asked again": ([Turn(Schedule(0), [match(None), step()])], {"ask again": 1}),
    "no room": (
        [
            Turn(Schedule(0), [match(4, is_async=True), step()]),
            Turn(Schedule(1), [alloc("q"), alloc(), match(4), alloc("q"), step()]),
        ],
        {"failed allocation": 2},
    ),
    "hits": (
        [
            Turn(Schedule(0), [match(0), alloc(), match(4, is_async=True), alloc(), step()]),
            Turn(Schedule(1), [match(4), alloc(), step()]),
        ],
        {"asynchronous hit": 1, "in-step hit": 1},
    ),
    "finished and new": (steps(AGAIN, AGAIN), {"an id is finished and new in one step": 2}),
    "preempted, and new": (
        steps({"new": R}, {"preempted": ["r"]}, {"new": R}, AGAIN),
        {"preempted": 1, "resumed": 1, "an id is finished and new in one step": 1},
    ),
    "preempted, and goes on": (
        steps({"preempted": ["r"]}, {"cached": R, "resumed": ["r"], "finished": ["q"]}, {"new": R}),
        {"preempted": 1, "resumed": 1, "a session goes on": 1},
    ),
    "preempted, and never seen again": (
        steps({"preempted": ["r"]}, {"finished": ["r"]}, {"new": R}),
        {"preempted": 1},
    ),
    "drafts": (steps({"drafts": {"q": 2}}), {"drafts are scheduled": 1}),
    "a session": (
        [
            *steps({"new": R}),
            Turn(NextTurn("r", (2, 3))),
            *steps({"new": R}),
            Turn(NextTurn("r", ())),
        ],
        {"a session goes on": 1, "a session is told to end": 1},
    ),
    "outputs": (
        [
            Turn(
                Process(
                    1,
                    {"r": Sampled((1, 0, 0), True, 2), "q": Sampled((1, 2), False), "s": Sampled((1,), True)},
                    {"finished_sending": ["a", "b"]},
                )
            ),
            *[Turn(Process(number, {}, {"invalid_block_ids": [1]})) for number in (2, 3)],
        ],
        {"accepted drafts go to waste": 1, "a store is reported": 2, "failed load, fail": 2},
    ),
    "aborts": (
        [
            Turn(Abort("r", "running"), ended("request_finished", True)),
            Turn(Abort("q", "waiting"), ended("request_finished_all_groups", True, False)),
        ],
        {"abort: running": 1, "abort: waiting": 1, "blocks held after the end": 2},
    ),
    "resets": (
        [Turn(Reset(True, True, None)), Turn(Reset(False, False, True)), Turn(Reset(False, False, False))],
        {
            "reset: raised": 1,
            "reset: done": 1,
            "reset: refused": 1,
            "reset with running requests": 1,
            "reset with the connector": 1,
        },
    ),
    "pauses": (
        [Turn(Paused("keep")), Turn(Resumed()), Turn(Paused("wait"))],
        {"a pause: keep": 1, "a pause: wait": 1},
    ),
}


@pytest.mark.parametrize(("turns", "expected"), SITUATIONS.values(), ids=SITUATIONS)
def test_situations_are_counted(turns, expected):
    counts = situations_of(trace_of(*turns), WorldConfig(failure_policy="fail"))
    assert +counts == expected
    assert set(counts) <= set(MINIMA)


def test_a_world_of_several_groups_is_counted():
    two = WorldConfig(groups=(GroupConfig(), GroupConfig("sliding", 8)))
    assert +situations_of(trace_of(), two) == {"several groups": 1}
