"""With a vLLM: the driver is its scheduler on the testbed's memory, and calls a connector as the testbed does."""

from dataclasses import asdict
from random import Random

import pytest

pytest.importorskip("kv_sim")

from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.engine import Engine
from kv_sim.engine.request import RequestSpec
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.fuzz import config_for, run_seed
from kv_sim.guard import HistoryEnds
from kv_sim.memory.device import Device
from kv_sim.violation import Invariant, Violation
from kv_sim.world import World
from kv_sim.zoo.registry import PLANTED
from kv_vllm.installed import vllm_version

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

ONLY_ONE_HAS = {"set_host_xfer_buffer_ops", "has_connector_metadata", "has_pending_push_work"}
"""Calls that a real engine makes at its start or when it likes, and questions of no consequence."""


@pytest.fixture(autouse=True)
def engine():
    pytest.importorskip("vllm")
    vllm_version()
    from kv_vllm.driver import VllmEngine

    return VllmEngine


def calls_of(engine_class, subject, seed, actions=60):
    """Every call of a history, to every half, and whether it went to its end."""
    random, calls = Random(seed), []
    config = config_for(subject, random, "vllm")
    world = World(
        config, subject, engine_class=engine_class, observe=lambda side, name, *_: calls.append((side, name))
    )
    whole = True
    try:
        for _ in range(actions):
            world.act(random)
    except HistoryEnds:
        whole = False
    if whole:
        world.engine.check()
    return [call for call in calls if call[1] not in ONLY_ONE_HAS], whole


@pytest.mark.parametrize("name", ["memory", "later", "patient"])
def test_both_engines_make_the_same_calls(name, engine):
    """The scheduler's and each worker's, in the same order: runners V1 and V2, drafts, several ranks."""
    compared = 0
    for seed in range(12):
        config = config_for(SUBJECTS[name], Random(seed), "vllm")
        if vllm_version() < (0, 33) and config.runner == 2 and config.spec_tokens:
            continue  # there the end of a step doesn't wait for drafts
        theirs, whole = calls_of(engine, SUBJECTS[name], seed)
        ours, _ = calls_of(Engine, SUBJECTS[name], seed)
        assert theirs == (ours if whole else ours[: len(theirs)])
        compared += len(theirs)
    assert compared > 1000


@pytest.mark.parametrize("name", ["memory", "later+memory"])
def test_a_history_is_a_function_of_its_seed(name):
    runs = [run_seed(SUBJECTS[name], 5, engine="vllm", actions=60) for _ in range(2)]
    assert runs[0].failure is None
    assert runs[0].digest == runs[1].digest
    assert runs[0].steps == runs[1].steps > 20


def test_wrong_bytes_are_found(monkeypatch):
    """A copy that moves nothing leaves a block with what was in it."""
    monkeypatch.setattr(Device, "move_page", lambda *args: None)
    failures = (run_seed(SUBJECTS["later"], seed, engine="vllm").failure for seed in range(25))
    assert Invariant.CONTENT in {failure.violation.invariant for failure in failures if failure is not None}


def test_a_wrong_token_is_found(engine, monkeypatch):
    attend = engine._attend

    def other_token(self, step, twin, *args):
        attend(self, step, twin, *args)
        step.tokens[twin.request_id] = [token + 1 for token in step.tokens.get(twin.request_id, [])]

    monkeypatch.setattr(engine, "_attend", other_token)
    failure = run_seed(SUBJECTS["memory"], 0, engine="vllm").failure
    assert failure is not None
    assert failure.violation.invariant is Invariant.CONTENT
    assert "the model gave" in str(failure.violation)


def spec(name, tokens=10, **more):
    return {"spec": {**asdict(RequestSpec(name, 0, tokens, 0, 1, 1)), **more}}


def test_an_illegal_report_is_the_connectors_fault_and_not_a_crash_of_vllms(monkeypatch):
    from kv_sim.examples.memory import MemoryWorker

    monkeypatch.setattr(MemoryWorker, "get_finished", lambda self, ids: ({"nobody"}, set()))
    world = World(WorldConfig(engine="vllm"), SUBJECTS["memory"])
    world.apply(Action(Kind.ADD, spec("r1")))
    with pytest.raises(Violation, match="PROTOCOL  request nobody: the end of a store is reported") as raised:
        world.apply(Action(Kind.STEP))
    assert raised.value.invariant is Invariant.PROTOCOL


def test_what_no_vllm_can_be_is_not_asked_of_it(engine):
    config = WorldConfig(run_ahead=1, spec_tokens=2)
    fitted = engine.fit(config)
    assert (fitted.spec_tokens, fitted.silent) == (0, {"same_id"})
    assert engine.fit(WorldConfig(spec_tokens=2)).spec_tokens == 2


QUICK = ("ShortKeys", "LoadNotAwaited", "ReportsEveryEnd", "AsksForEver", "FirstSaveCounts", "NoFlush")
"""Planted bugs that a few histories find."""


@pytest.mark.parametrize("name", QUICK)
def test_planted_bugs_are_found(name):
    (planted,) = [planted for planted in PLANTED if planted.subject.kv_connector == name]
    failures = (run_seed(planted.subject, seed, engine="vllm").failure for seed in range(6))
    assert any(failure is not None for failure in failures)
