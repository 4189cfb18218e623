"""The differential: what is counted, what is left out, and when it fails."""

from random import Random

import pytest
from kv_vllm_parrots import Parrot, altered

from kv_sim.config import WorldConfig, draw_config
from kv_sim.examples.catalogue import SUBJECTS
from kv_vllm import differential as module
from kv_vllm.differential import CellResult, differential, missed, run_cell, show_situations
from kv_vllm.matrix import CELLS, EXCLUSIONS, Cell, exclusion_of, hidden
from kv_vllm.situations import MINIMA, situations_of, wanted
from kv_vllm.trace import Abort, Add, Call, Process, Reset, Sampled, Schedule, Trace, Turn

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


def test_a_missed_minimum_fails(lines, monkeypatch):
    monkeypatch.setattr(module, "ACTIONS", 5)
    assert not differential(CELLS[:1], ["later", "patient", "memory"], range(20), parrot, NEW, lines.append)
    assert any(
        line.startswith("missed: 'asynchronous hit' in Scheduler, runner 1: 0 of 4 times") for line in lines
    )


def test_minima_grow_with_the_histories():
    assert wanted(500) == MINIMA
    assert wanted(50)["asynchronous hit"] == MINIMA["asynchronous hit"] // 10
    assert missed({"a": 1, "b": 3}, {"a": 2, "b": 3, "c": 0}) == ["a"]


def test_the_table_has_a_line_for_each_situation(lines):
    show_situations([CellResult(cell) for cell in CELLS], {}, lines.append)
    assert len(lines) == 1 + len(MINIMA)


@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize("name", ["later", "patient", "memory"])
def test_worlds_of_a_cell_are_legal(cell, name):
    for seed in range(200):
        world = cell.world(draw_config(Random(seed)), SUBJECTS[name])
        assert (world.async_scheduling, world.runner) == (cell.async_scheduling, cell.runner)
        assert world.run_ahead or not world.async_scheduling
        assert not (world.run_ahead and world.role == "kv_producer")
        assert not (name == "patient" and world.runner == 2 and world.zero_new_blocks)


def trace_of(*turns):
    return Trace(list(turns), all_groups=False, requires_delivery=False)


ENDS = Turn(Process(1, {"r": Sampled((5, 0), ends=True, surplus=1)}, {}))
ONE = Turn(Process(1, {"r": Sampled((5,), ends=False)}, {}))
TWO = Turn(Process(1, {"r": Sampled((5, 6), ends=False)}, {}))
GONE = Turn(Abort("r", "running"))
PREEMPTED = Turn(Reset(True, False, True))
FAILS = Turn(Process(1, {}, {"invalid_block_ids": [1]}))
SHARED = Turn(Process(1, {}, {"invalid_block_ids": [1]}, shares_failed_blocks=True))
NOTHING = Turn(Schedule(1))


@pytest.mark.parametrize(
    ("config", "turns", "version", "expected"),
    [
        (WorldConfig(), [NOTHING, ENDS], NEW, None),
        (WorldConfig(spec_tokens=1), [NOTHING, ENDS], NEW, None),
        (WorldConfig(spec_tokens=1), [NOTHING, ENDS], (0, 32), 1),
        (WorldConfig(spec_tokens=1), [TWO, NOTHING, GONE, PREEMPTED], (0, 32), None),
        (WorldConfig(spec_tokens=1), [ONE, GONE, PREEMPTED], (0, 32), None),
        (WorldConfig(spec_tokens=1), [NOTHING, TWO, GONE], (0, 32), 2),
        (WorldConfig(spec_tokens=1), [NOTHING, TWO, PREEMPTED], (0, 32), 2),
        (WorldConfig(spec_tokens=1), [NOTHING, TWO, GONE], NEW, None),
        (WorldConfig(spec_tokens=1, run_ahead=1), [NOTHING], NEW, 0),
        (WorldConfig(spec_tokens=1, run_ahead=1, async_scheduling=True), [NOTHING], NEW, None),
        (WorldConfig(failure_policy="recompute"), [NOTHING, FAILS, NOTHING], NEW, 2),
        (WorldConfig(failure_policy="fail"), [NOTHING, FAILS, NOTHING], NEW, None),
        (WorldConfig(failure_policy="fail"), [NOTHING, FAILS, SHARED], NEW, 2),
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


def step(**parts):
    empty = {"new": [], "cached": [], "resumed": [], "counts": {}, "drafts": {}, "finished": [], "preempted": []}
    return Call("build_connector_meta", {**empty, **parts}, None)


def test_situations_are_counted():
    def match(answer):
        return Call("get_num_new_matched_tokens", {"request": "r"}, answer)

    alloc = Call("update_state_after_alloc", {"request": "r"}, None)
    counts = situations_of(
        trace_of(
            Turn(Add("r", (1,), 1, None, None, False)),
            Turn(Add("r", (1,), 1, None, None, False)),
            Turn(Schedule(1), [match((None, False)), step()]),
            Turn(Schedule(2), [match((4, True)), step()]),
            Turn(Schedule(3), [match((4, True)), alloc, step()]),
            Turn(Schedule(4), [match((4, False)), alloc, step(new=[{"request": "r"}], finished=["r"])]),
            Turn(Schedule(5), [step(preempted=["r"])]),
            Turn(Schedule(6), [step(new=[{"request": "r"}])]),
            Turn(Schedule(7), [step(preempted=["r"], drafts={"q": 2})]),
            Turn(Schedule(8), [step(cached=[{"request": "r"}], resumed=["r"])]),
            Turn(Process(1, {"r": Sampled((1, 0), True, 1)}, {"finished_sending": ["a", "b"]})),
            Turn(Process(2, {}, {"invalid_block_ids": [1]})),
            Turn(Abort("r", "running"), [Call("request_finished", {}, (True, None))]),
            Turn(Reset(True, True, None)),
            Turn(Reset(False, False, True)),
            Turn(Reset(False, False, False)),
        ),
        WorldConfig(failure_policy="fail"),
    )
    assert {name: count for name, count in counts.items() if count} == {
        "an id comes back": 1,
        "ask again": 1,
        "failed allocation": 1,
        "asynchronous hit": 1,
        "in-step hit": 1,
        "an id is finished and new in one step": 1,
        "preempted": 2,
        "resumed": 2,
        "drafts are scheduled": 1,
        "accepted drafts go to waste": 1,
        "a store is reported": 2,
        "failed load, fail": 1,
        "abort: running": 1,
        "blocks held after the end": 1,
        "reset: raised": 1,
        "reset: done": 1,
        "reset: refused": 1,
        "reset with running requests": 1,
        "reset with the connector": 1,
    }
    assert set(counts) <= set(MINIMA)
