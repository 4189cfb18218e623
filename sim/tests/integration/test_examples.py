"""The unmutated examples, alone and below a MultiConnector, break nothing; and they were really tried."""

from functools import cache
from random import Random

import pytest

from kv_multi.last_report import LastReport
from kv_multi.loads import LoadReports
from kv_multi.quarantine import Quarantine
from kv_sim.config import WorldConfig
from kv_sim.examples.catalogue import LATER, MEMORY, SUBJECTS, several
from kv_sim.examples.layerwise import LayerwiseWorker
from kv_sim.fuzz import Run, run_seed
from kv_sim.history.coverage import Coverage
from kv_sim.history.draws import config_for
from kv_sim.subject import Trait
from kv_sim.violation import Invariant, Violation
from kv_sim.world import World

FIRST_SEED = 1_000
HISTORIES, MORE = 4, 30


@pytest.fixture(scope="module", params=sorted(SUBJECTS))
def name(request: pytest.FixtureRequest) -> str:
    """Of the module: all tests of one subject run one after the other, and share its histories."""
    subject: str = request.param
    return subject


@cache
def runs(name: str) -> list[Run]:
    """What became of some histories of a subject, or of more where it is asked what they reached."""
    count = MORE if name in OF_ONE else HISTORIES
    return [run_seed(SUBJECTS[name], seed) for seed in range(FIRST_SEED, FIRST_SEED + count)]


def coverage_of(name: str) -> Coverage:
    """What they reached; none of them may fail."""
    total = Coverage()
    for seed, run in enumerate(runs(name), FIRST_SEED):
        assert run.failure is None, f"seed {seed}: {run.failure.violation}"
        total.add(run.coverage)
    return total


ALWAYS = (
    "a request is preempted",
    "a request resumes, runner V1",
    "a request resumes, runner V2",
    "frees are deferred",
    "drafts are rejected",
    "reset answered True",
    "reset answered False",
    "reset answered None",
    "a copy fails",
    "a copy is torn",
    "match: the answer is dropped",
    "match: a preempted request loads",
)
OF_ONE = {
    "memory": ("match: load in the step",),
    "later": ("match: asynchronous load", "a step while a load is under way"),
    "patient": ("match: load in the step", "match: ask again"),
}


def test_it_breaks_nothing_and_is_driven_through_what_it_is_about(name: str) -> None:
    coverage = coverage_of(name)
    assert coverage.pairs
    assert [situation for situation in OF_ONE.get(name, ()) if not coverage.situations[situation]] == []


def test_together_they_were_driven_through_everything_that_matters() -> None:
    total = Coverage()
    for name in OF_ONE:
        total.add(coverage_of(name))
    assert [situation for situation in ALWAYS if not total.situations[situation]] == []


def test_checkers_only_look(name: str) -> None:
    """Whether anybody watches changes nothing: with all checkers off the same seed has the same digest."""
    watched = runs(name)[0]
    alone = run_seed(SUBJECTS[name], FIRST_SEED, without=frozenset(Invariant))
    assert (watched.digest, watched.steps) == (alone.digest, alone.steps)


def test_several_claim_what_all_of_them_claim() -> None:
    both = several(MEMORY, LATER)
    assert both.traits == (MEMORY.traits & LATER.traits) - {Trait.EVENTS}
    config = both.transfer_config(WorldConfig(role="kv_consumer", host_slots=8))
    for child in config.kv_connector_extra_config["connectors"]:
        assert child["kv_role"] == "kv_consumer"
        assert child["kv_connector_extra_config"]["host_slots"] == 8


def test_events_of_the_memory_example_mirror_its_index() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + 12):
        random = Random(seed)
        world = World(config_for(MEMORY, random), MEMORY)
        world.run(random, 60)
        world.engine.take_events()
        half = world.engine.connectors[-1].side  # type: ignore[attr-defined]
        told = {key[-1]: count for key, count in world.engine.mirror.blocks.items()}
        assert told == dict.fromkeys(half._slot_of, 1)


def test_who_calls_a_child_that_broke_down_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quarantine, "_switch_off", lambda *args: None)
    failures = [run_seed(SUBJECTS["later+flaky"], seed).failure for seed in range(12)]
    [first, *_] = [failure.violation for failure in failures if failure is not None]
    assert first.invariant is Invariant.NO_CRASH
    assert "is called, although this side broke down" in first.message


def violations_of(name: str, seeds: range) -> list[Violation]:
    failures = [run_seed(SUBJECTS[name], seed).failure for seed in seeds]
    return [failure.violation for failure in failures if failure is not None]


@pytest.mark.parametrize(("name", "is_async"), [("flaky-busy+later", True), ("flaky-patient+memory", False)])
def test_children_break_down_while_they_load(name: str, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = []
    abandon = LoadReports.abandon

    def watched(self: LoadReports, child: int) -> None:
        loads = self._waiting if is_async else self._in_step
        lost.extend(load for load in loads.values() if load.child == child)
        abandon(self, child)

    monkeypatch.setattr(LoadReports, "abandon", watched)
    assert violations_of(name, range(18, 30)) == []
    assert lost


def test_who_lets_one_half_of_a_child_live_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quarantine, "obey", lambda self, reasons: None)
    first = violations_of("later+flaky", range(12))[0]
    assert "broke down" in first.message or "switched off" in first.message


def test_a_child_holds_what_another_one_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LastReport, "filter", lambda self, output: None)
    found = {violation.invariant for violation in violations_of("later+holding", range(20, 31))}
    assert {Invariant.PROTOCOL} <= found <= {Invariant.PROTOCOL, Invariant.OWNERSHIP}


@pytest.mark.parametrize(
    ("hook", "invariants"),
    [
        ("wait_for_layer_load", {Invariant.CONTENT, Invariant.OWNERSHIP, Invariant.CONSERVATION}),
        ("save_kv_layer", {Invariant.NO_CRASH}),
    ],
)
def test_who_leaves_out_a_hook_of_layers_is_caught(
    hook: str, invariants: set[Invariant], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LayerwiseWorker, hook, lambda *args, **kwargs: None)
    found = {violation.invariant for violation in violations_of("layerwise", range(8))}
    assert found
    assert found <= invariants
