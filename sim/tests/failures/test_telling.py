"""What is told of a failure: whether its actions fail again, and what shrinking them comes to in odd cases."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.examples.catalogue import MEMORY
from kv_sim.failures.deadline import within
from kv_sim.failures.report import action_lines, fail_line, shrunk_lines
from kv_sim.failures.schedule_file import Schedule, read_schedule
from kv_sim.failures.shrink import shrink
from kv_sim.failures.telling import tell
from kv_sim.fuzz import Failure
from kv_sim.violation import Invariant, Violation

PLAINEST = WorldConfig(max_step_tokens=64, num_blocks=40)
"""Nothing of it can be plainer."""


def failing(*kinds: Kind) -> Failure:
    return Failure(MEMORY, PLAINEST, [Action(kind) for kind in kinds], Violation(Invariant.HITS, "m"), 7)


@pytest.mark.parametrize(
    ("broken", "again"),
    [
        ([Invariant.HITS] * 3, None),
        ([Invariant.HITS, None, Invariant.HITS], 2),
        ([Invariant.WORK] * 3, 0),
        ([None] * 3, 0),
    ],
)
def test_another_failure_is_not_the_same_one_again(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, broken: Sequence[Invariant | None], again: int | None
) -> None:
    asked, without, notes = [], frozenset({Invariant.GEOMETRY}), list[str]()

    def replay(*args: Any) -> tuple[Any, Violation | None]:
        asked.append(args)
        found = broken[len(asked) - 1]
        return None, Violation(found, "other words") if found else None

    found = failing(Kind.STEP)
    monkeypatch.setattr("kv_sim.failures.telling.shrink", lambda failure, without, goes_on, tells: failure)
    monkeypatch.setattr("kv_sim.failures.telling.replay", replay)
    tell(found, "kv-sim fuzz", tmp_path, "f", say=lambda _: None, note=notes.append, without=without)
    assert asked == [(found.subject, found.config, found.history, without)] * 3
    told = [note.partition(":")[0] for note in notes]
    assert told == ([] if again is None else [f"replayed 3 times, these actions break HITS {again} times"])


def test_that_shrinking_took_too_long_is_said(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    notes, asked = list[str](), []
    violation = Violation(Invariant.HITS, "m")
    monkeypatch.setattr("kv_sim.failures.telling.replay", lambda *args: (None, violation))
    monkeypatch.setattr("kv_sim.failures.telling.within", lambda seconds: asked.append(seconds) or (lambda: False))
    tell(failing(Kind.STEP), "kv-sim fuzz", tmp_path, "f", say=lambda _: None, note=notes.append)
    assert notes == ["shrinking ended after 300 s, since each replay takes long; a shorter history may exist"]
    assert asked == [300]


@pytest.mark.parametrize("is_saved", [True, False])
def test_what_broke_is_said_first_and_what_is_left_last(
    is_saved: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, found, without = list[str](), failing(Kind.STEP, Kind.STEP), frozenset({Invariant.GEOMETRY})
    left = replace(found, history=found.history[:1])
    for note in ("one", "two"):
        found.violation.add_note(note)
    monkeypatch.setattr("kv_sim.failures.telling.shrink", lambda failure, without, goes_on, tells: left)
    monkeypatch.setattr("kv_sim.failures.telling.replay", lambda *args: (None, left.violation))
    (tmp_path / "a file").touch()
    folder = tmp_path if is_saved else tmp_path / "a file"

    def note(text: str) -> None:
        told.append(f"note: {text}")

    tell(found, "kv-sim fuzz", folder, "f", say=told.append, note=note, without=without)
    assert told[:3] == [fail_line(found), "note: one", "note: two"]
    if not is_saved:
        assert told.pop(3).startswith("note: the schedule was not saved: ")
    files = list(tmp_path.glob("f*"))
    assert [read_schedule(file) for file in files] == [Schedule.of(left, without)] * is_saved
    assert told[3:] == shrunk_lines(found, left, "kv-sim fuzz", files[0] if files else None)


def test_of_many_actions_the_last_twelve_are_shown_with_their_numbers() -> None:
    actions = [*failing(*[Kind.STEP] * 13, Kind.SETTLE).history]
    steps = [f"  {number:3} step" for number in range(1, 14)]
    assert action_lines(actions) == ["    … 2 before", *steps[2:], "   14 settle"]
    assert action_lines(actions[:12]) == steps[:12]


def test_a_time_lasts_and_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 12.9, 13.0])
    monkeypatch.setattr("kv_sim.failures.deadline.monotonic", lambda: next(times))
    goes_on = within(3)
    assert (goes_on(), goes_on()) == (True, False)


def shrunk(monkeypatch: pytest.MonkeyPatch, fails: Any, *kinds: Kind) -> tuple[Failure, int]:
    """What is left where a history fails if ``fails`` says so of its kinds, and after how many tries."""
    tried = []

    def replay(subject: Any, config: WorldConfig, history: Sequence[Action], without: Any) -> tuple[Any, Any]:
        tried.append(history)
        failed = fails([action.kind for action in history])
        return SimpleNamespace(history=history), Violation(Invariant.HITS, "m") if failed else None

    monkeypatch.setattr("kv_sim.failures.shrink.replay", replay)
    return shrink(failing(*kinds)), len(tried)


def test_one_action_that_is_not_needed_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shrunk(monkeypatch, lambda kinds: True, Kind.PROCESS)[0].history == []


def test_two_actions_become_one_where_neither_does_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    wholes = [Kind.SCHEDULE, Kind.PROCESS], [Kind.STEP]
    best, _ = shrunk(monkeypatch, lambda kinds: kinds in wholes, *wholes[0])
    assert best.history == [Action(Kind.STEP)]


def test_a_plain_world_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    best, tries = shrunk(monkeypatch, lambda kinds: True, Kind.STEP, Kind.STEP)
    assert (best.config, best.history) == (PLAINEST, [])
    assert tries < 10
