"""With a vLLM: groups of states. vLLM's scheduler keeps a state where one may be reused and hands it over; the
device leaves a state where a step ends, as vLLM's runners do, and goes on from the block of the token before."""

from collections import Counter
from random import Random

import pytest

pytest.importorskip("kv_sim")

from kv_offload.handed_states import HandedStates
from kv_offload.jobs import JobBook
from kv_offload.pins import Pins
from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.fuzz import config_for, run_seed
from kv_sim.violation import Invariant, Violation
from kv_sim.world import World
from kv_vllm.installed import vllm_version

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def subjects():
    pytest.importorskip("vllm")
    vllm_version()
    from kv_vllm.subjects import OUR_SUBJECTS

    return OUR_SUBJECTS


def runs(subject, seeds, **wanted):
    """The histories of these seeds whose world has states, and what else is wanted of it."""
    for seed in seeds:
        config = config_for(subject, Random(seed), "vllm")
        if STATE in config.groups and all(getattr(config, name) == value for name, value in wanted.items()):
            yield run_seed(subject, seed, engine="vllm")


@pytest.mark.parametrize(
    ("name", "loads"), [("our-offloading", 2), ("our-offloading-chunks", 1), ("our-offloading-held", 0)]
)
def test_states_are_stored_and_loaded(subjects, monkeypatch, name, loads):
    counts = Counter()
    pin, begin = Pins.pin, HandedStates._begin

    def counted_pin(self, job_id, blocks):
        counts["pinned"] += 1
        pin(self, job_id, blocks)

    def counted_begin(self, state, boundary, taken):
        counts["offered"] += 1
        begin(self, state, boundary, taken)

    monkeypatch.setattr(Pins, "pin", counted_pin)
    monkeypatch.setattr(HandedStates, "_begin", counted_begin)
    for run in runs(subjects[name], range(120)):
        assert run.failure is None, run.failure.violation
        counts["loads"] += run.coverage.situations["match: asynchronous load"]
    assert counts["loads"] >= loads
    assert counts["offered"] >= counts["pinned"] > 20


def first_failure(found):
    return next((run.failure for run in found if run.failure is not None), None)


def test_a_state_that_is_not_pinned_is_overwritten(subjects, monkeypatch):
    """Runner V2 zeroes new blocks before anyone can wait for a copy."""
    monkeypatch.setattr(Pins, "pin", lambda *args: None)
    failure = first_failure(runs(subjects["our-offloading"], range(160), runner=2, zero_new_blocks=True))
    assert failure is not None and failure.violation.invariant is Invariant.OWNERSHIP


def test_a_state_that_is_not_watched_is_overwritten(subjects, monkeypatch):
    """Its request lets go of the block while it runs, and somebody gets it."""
    begin, release = HandedStates._begin, JobBook.release

    def unwatched(self, state, boundary, taken):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(JobBook, "release", lambda *args: None)
            begin(self, state, boundary, taken)
        assert JobBook.release is release

    monkeypatch.setattr(HandedStates, "_begin", unwatched)
    # Few blocks, and a state kept for each: somebody soon gets one that another has let go of.
    silent = frozenset({"fail", "tear", "lose", "repeat", "restart"})
    config = WorldConfig(engine="vllm", num_blocks=14, block_size=2, groups=(GroupConfig(), STATE), silent=silent)
    seen = set()
    for seed in range(30):
        try:
            World(config, subjects["our-offloading"]).run(Random(seed), 80)
        except Violation as violation:
            seen.add(violation.invariant)
            break
    assert seen & {Invariant.OWNERSHIP, Invariant.CONTENT}
