"""Which seeds a worker of a campaign runs, and what it sends; how long that takes. No history is run here."""

from itertools import chain, count
from types import SimpleNamespace
from typing import Any

import pytest
from kv_sim_campaigns import failure, reached

from kv_sim.actions import USUAL_ACTIONS
from kv_sim.campaign import processes
from kv_sim.campaign.found import Batch
from kv_sim.campaign.processes import Plan, run_campaign, work
from kv_sim.config import BUILTIN_ENGINE
from kv_sim.examples.catalogue import LATER, MEMORY
from kv_sim.fuzz import Run
from kv_sim.history.coverage import Coverage
from kv_sim.subject import Subject


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_every_seed_is_run_once(jobs: int) -> None:
    plan = Plan({}, start=7, histories=10, jobs=jobs)
    seeds = [list(plan.seeds(worker)) for worker in range(jobs)]
    assert sorted(chain(*seeds)) == list(range(7, 17))
    assert seeds[0] == list(range(7, 17, jobs))
    assert next(Plan({}).seeds(0)) == 0


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that were run, each of which takes two steps and reaches one situation."""
    seeds: list[int] = []

    def run_seed(subject: Any, seed: int, **options: Any) -> Run:
        assert options == {"engine": BUILTIN_ENGINE, "actions": USUAL_ACTIONS}
        seeds.append(seed)
        return Run(steps=2, digest="", coverage=reached({}, {"a": 1}).coverage, failure=None)

    monkeypatch.setattr(processes, "run_seed", run_seed)
    return seeds


def test_a_worker_sends_after_every_fifth_seed_and_at_its_end(ran: list[int]) -> None:
    sent: list[Batch] = []
    work(Plan({"memory": MEMORY}, start=3, histories=12), 0, sent.append, lambda: False)
    assert ran == list(range(3, 15))
    assert [(batch.steps, batch.is_last) for batch in sent] == [(10, False), (10, False), (4, True)]
    assert [batch.coverage.situations for batch in sent] == [{"a": 5}, {"a": 5}, {"a": 2}]


def test_who_broke_is_not_run_again_and_a_crash_of_the_testbed_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in another batch. Of several crashes the first is told."""
    ran: list[tuple[str, int]] = []

    def run_seed(subject: Subject, seed: int, **options: Any) -> Run:
        ran.append((subject.kv_connector, seed))
        if subject is LATER and seed in (1, 2):
            raise KeyError(seed)
        found = failure(seed, subject) if subject is MEMORY and seed == 3 else None
        return Run(steps=2, digest="", coverage=Coverage(), failure=found)

    monkeypatch.setattr(processes, "run_seed", run_seed)
    sent: list[Batch] = []
    work(Plan({"memory": MEMORY, "later": LATER}, histories=7), 0, sent.append, lambda: False)
    assert [seed for name, seed in ran if name == MEMORY.kv_connector] == [0, 1, 2, 3]
    assert [seed for name, seed in ran if name == LATER.kv_connector] == [*range(7)]
    first, last = sent
    assert first.crash is not None
    assert first.crash.startswith("later, seed 1: KeyError: 1\nTraceback (most recent call last):\n")
    assert (first.histories, last.histories) == ({"memory": 4, "later": 3}, {"later": 2})
    assert {name: found.seed for name, found in first.failures.items()} == {"memory": 3}
    assert (last.failures, last.crash) == ({}, None)


def test_a_worker_that_is_told_to_end_or_interrupted_sends_what_it_has(ran: list[int]) -> None:
    sent: list[Batch] = []
    work(Plan({"memory": MEMORY}), 0, sent.append, lambda: len(ran) == 3)
    assert [(batch.steps, batch.is_last) for batch in sent] == [(6, True)]

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(Plan({"memory": MEMORY}), 0, sent.append, interrupt)
    assert (sent[-1].steps, sent[-1].is_last, len(sent)) == (0, True, 2)


@pytest.mark.parametrize(("minutes", "many", "at", "seconds"), [(0.1, 5, [6, 8], 9), (0.05, 2, [4], 5)])
def test_a_campaign_knows_how_long_it_has_taken(
    ran: list[int], monkeypatch: pytest.MonkeyPatch, minutes: float, many: int, at: list[int], seconds: int
) -> None:
    """The clock goes on by a second whenever it is read: at the beginning, and then before each history."""
    clock = count(100)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    seen: list[float] = []
    plan = Plan({"memory": MEMORY}, minutes=minutes)
    found = run_campaign(plan, lambda campaign: seen.append(campaign.seconds))
    assert (len(ran), seen, found.seconds) == (many, at, seconds)
