"""Shrinking where each failing try waits: a connector leaves a file open, or a thread that runs."""

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from threading import Event, Thread
from typing import Any, ClassVar

import pytest

from kv_api import TwoSidedHMAConnector
from kv_sim.actions import Action, Kind
from kv_sim.checkers import ending
from kv_sim.config import WorldConfig
from kv_sim.examples.catalogue import MEMORY
from kv_sim.examples.memory import MemoryScheduler, MemoryWorker
from kv_sim.failures.shrink import LITTLE_PATIENCE, shrink
from kv_sim.fuzz import Failure, Replayed, replay, run_seed
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, LeftBehind, Violation

LEFT = LeftBehind(Invariant.CONSERVATION, "m")
Answers = Callable[[Sequence[Action], float], Violation | None]


class LeavingScheduler(MemoryScheduler):
    """Begins something when it is made, or when it hears of a request, and never ends it."""

    stop: ClassVar[Event]
    leaves: ClassVar[Sequence[str]]
    at_once: ClassVar[bool]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.at_once:
            self._leave()

    def on_new_request(self, request: Any) -> None:
        super().on_new_request(request)
        if not self.at_once:
            self._leave()

    def _leave(self) -> None:
        if "file" in self.leaves:
            weakref.finalize(self, os.close, os.open(os.devnull, os.O_RDONLY))
        if "thread" in self.leaves or "daemon" in self.leaves:
            Thread(target=self.stop.wait, daemon="daemon" in self.leaves, name="left").start()


class Leaving(TwoSidedHMAConnector):
    scheduler_class, worker_class = LeavingScheduler, MemoryWorker


@pytest.fixture(autouse=True)
def stop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ending, "PATIENCE_SECONDS", 0.2)
    LeavingScheduler.stop = Event()
    yield
    LeavingScheduler.stop.set()


def counted(monkeypatch: pytest.MonkeyPatch, answers: Answers | None = None) -> list[tuple[int, float]]:
    """The number of actions of each try, and its patience. ``answers``: what it finds, without a world."""
    tries: list[tuple[int, float]] = []

    def tried(
        subject: Subject, config: WorldConfig, history: list[Action], without: Any, patience: float = 1.0
    ) -> Replayed:
        tries.append((len(history), patience))
        if answers is None:
            return replay(subject, config, history, without, patience=patience)
        world: Any = type("Ended", (), {"history": [*history]})
        return Replayed(world, answers(history, patience))

    monkeypatch.setattr("kv_sim.failures.shrink.replay", tried)
    return tries


@pytest.mark.parametrize("leaves", [["file"], ["thread"], ["file", "daemon"]], ids=" ".join)
@pytest.mark.parametrize("at_once", [True, False])
def test_few_tries_are_made_and_only_the_last_waits_in_full(
    leaves: list[str], at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    LeavingScheduler.leaves, LeavingScheduler.at_once = leaves, at_once
    found = run_seed(Subject("Leaving", __name__, traits=frozenset()), 2, actions=20).failure
    assert found is not None
    assert isinstance(found.violation, LeftBehind)
    tries = counted(monkeypatch)
    best = shrink(found)
    assert len(best.history) == (0 if at_once else 1)
    assert best.violation.invariant is Invariant.CONSERVATION
    patience = [patience for _, patience in tries]
    assert patience == [LITTLE_PATIENCE] * (len(tries) - 1) + [1]
    assert len(tries) <= (5 if at_once else 20)


STEPS = [Action(Kind.STEP)] * 8
PLAINEST = WorldConfig(max_step_tokens=64, num_blocks=40)


def test_what_only_ends_later_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a hurry all of it seems to be left; three of the actions are needed."""
    found = Failure(MEMORY, PLAINEST, STEPS, LEFT, 7)
    tries = counted(monkeypatch, lambda history, patience: LEFT if patience < 1 or len(history) >= 3 else None)
    best = shrink(found)
    assert (len(best.history), best.violation) == (3, LEFT)
    in_full = [actions for actions, patience in tries if patience == 1]
    assert in_full[:2] == [0, 8], "the shortest in a hurry, and then from the beginning"


def test_another_failure_in_the_end_is_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Violation(Invariant.WORK, "m")
    found = Failure(MEMORY, PLAINEST, STEPS, LEFT, 7)
    tries = counted(monkeypatch, lambda history, patience: LEFT if patience < 1 or len(history) >= 3 else other)
    assert len(shrink(found).history) == 3
    assert (8, 1) in tries


def test_where_nothing_is_left_behind_each_try_has_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Violation(Invariant.CONSERVATION, "m")
    tries = counted(monkeypatch, lambda history, patience: plain)
    assert shrink(Failure(MEMORY, PLAINEST, STEPS, plain, 7)).history == []
    assert [patience for _, patience in tries] == [1, 1, 1]


def test_both_rounds_together_have_so_many_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = counted(monkeypatch, lambda history, patience: LEFT if patience < 1 or len(history) >= 5 else None)
    shrink(Failure(MEMORY, PLAINEST, STEPS, LEFT, 7), most_replays=6)
    assert len(tries) == 6 + 1, "and one to see whether the shortest fails with all the time"
