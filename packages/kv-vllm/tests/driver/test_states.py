"""With a vLLM: groups of states. vLLM's scheduler keeps a state where one may be reused and hands it over; the
device leaves a state where a step ends, as vLLM's runners do, and goes on from the block of the token before."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

pytest.importorskip("kv_sim")

from kv_offload.scheduler.loading.matching import Matching
from kv_offload.scheduler.state.jobs import JobBook
from kv_offload.scheduler.state.pins import Pins
from kv_offload.scheduler.storing.handed_states import HandedStates
from kv_offload.scheduler.storing.tails import Tails
from kv_sim.actions import Action, Kind
from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.engine.output import Step
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.fuzz import run_seed
from kv_sim.history.draws import config_for
from kv_sim.memory.device import Device
from kv_sim.violation import Invariant, Violation
from kv_sim.world import World
from kv_vllm.installed import vllm_version

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def subjects():
    pytest.importorskip("vllm")
    vllm_version()
    from kv_vllm.driver.subjects import OUR_SUBJECTS

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


def loaded_within_a_step(subjects, runner, drafts):
    """A history in which a state that the GPU has lost is loaded within a step."""
    groups = (GroupConfig(), STATE)
    config = WorldConfig(engine="vllm", num_blocks=40, block_size=8, groups=groups, hands_over_states=True)
    world = World(replace(config, runner=runner, spec_tokens=drafts), subjects["our-offloading"])
    run_to_the_end(world, RequestSpec("a", 0, 17, 0, 3, 3))
    assert world.engine.reset(running=False, connector=False)
    run_to_the_end(world, RequestSpec("b", 0, 20, 0, 3, 3))
    return world


@pytest.mark.parametrize("runner", [1, 2])
@pytest.mark.parametrize("drafts", [0, 2])
def test_a_state_that_a_step_loads_comes_after_its_copy(subjects, monkeypatch, runner, drafts):
    """vLLM's runners copy it to where the request goes on before they call ``start_load_kv``."""
    monkeypatch.setattr(Matching, "_charge_step", lambda self, local, boundary: True)
    with pytest.raises(Violation) as raised:
        loaded_within_a_step(subjects, runner, drafts)
    assert raised.value.invariant is Invariant.CONTENT
    assert "request b token 15" in raised.value.message
    assert "load states asynchronously, or fill both" in raised.value.message


@pytest.mark.parametrize("runner", [1, 2])
@pytest.mark.parametrize("drafts", [0, 2])
def test_who_loads_a_state_within_the_step_may_fill_where_the_request_goes_on(
    subjects, monkeypatch, runner, drafts
):
    from kv_vllm.world_offload import TensorWorkerSide

    start, load_states_late, late = TensorWorkerSide.start_load_kv, Step.load_states_late, {}

    def noted(self, states):
        late.update(states)
        load_states_late(self, states)

    def fills_both(self, *args, **kwargs):
        start(self, *args, **kwargs)
        device = self._device
        while late:
            source, target = late.popitem()
            device.shadow.about_to_load(device.rank, target, "the connector writes it", ())
            device.memory[target] = device.memory[source]

    monkeypatch.setattr(Matching, "_charge_step", lambda self, local, boundary: True)
    monkeypatch.setattr(Step, "load_states_late", noted)
    monkeypatch.setattr(TensorWorkerSide, "start_load_kv", fills_both)
    world = loaded_within_a_step(subjects, runner, drafts)
    assert world.coverage.situations["match: load in the step"] == 1
    run_to_the_end(world, RequestSpec("c", 0, 21, 0, 3, 3))


FINE = WorldConfig(
    engine="vllm",
    num_blocks=40,
    block_size=8,
    hashes_per_block=4,
    groups=(GroupConfig(), STATE),
    hands_over_states=True,
    max_step_tokens=32,
)
STEP, SETTLE = Action(Kind.STEP), Action(Kind.SETTLE)


@pytest.fixture
def seen(monkeypatch):
    """What vLLM offers within blocks, and what of it is stored: boundaries."""
    offered, stored = [], []
    taken = Tails._taken

    def counted(self, state, offers, tables, is_there):
        offered.extend(boundary for _, _, boundary in offers if boundary % self._tokens_per_block)
        found = taken(self, state, offers, tables, is_there)
        stored.extend(boundary for boundary, _ in found)
        return found

    monkeypatch.setattr(Tails, "_taken", counted)
    return offered, stored


def run_to_the_end(world, *specs):
    for spec in specs:
        world.engine.add(spec)
    for _ in range(8):
        world.apply(STEP)
        world.apply(SETTLE)


@pytest.mark.parametrize("name", ["our-offloading", "our-offloading-held"])
@pytest.mark.parametrize("runner", [1, 2])
def test_each_state_within_a_block_is_taken_and_gone_on_from(subjects, seen, name, runner):
    """vLLM hands over the state at the last hash of a prompt, and begins where a load of ours ends."""
    subject = subjects[name]
    subject = replace(subject, extra_config={**subject.extra_config, "blocks_per_chunk": 1}, blocks_per_chunk=1)
    world = World(replace(FINE, runner=runner), subject)
    run_to_the_end(world, RequestSpec("a", 0, 29, 0, 3, 3), RequestSpec("b", 1, 13, 0, 3, 3))
    assert seen == ([28, 12], [28, 12])
    assert world.engine.reset(running=False, connector=False)
    world.engine.add(RequestSpec("c", 0, 31, 0, 1, 1))
    world.apply(STEP)
    assert world.engine.scheduler.requests["c"].num_computed_tokens == 28
    world.rest()
    assert world.coverage.situations["match: a load ends within a block"]


@pytest.mark.parametrize("runner", [1, 2])
def test_each_device_is_told_what_a_step_hands_over_and_which_blocks_are_new(subjects, monkeypatch, runner):
    begun, begin = [], Device.begin_step

    def noted(self, new_blocks, handed):
        new_blocks = list(new_blocks)
        begun.append((self.rank, set(new_blocks), list(handed)))
        begin(self, new_blocks, handed)

    monkeypatch.setattr(Device, "begin_step", noted)
    world = World(replace(FINE, runner=runner, tp_size=2), subjects["our-offloading"])
    run_to_the_end(world, RequestSpec("a", 0, 29, 0, 3, 3))
    first, second = ([(new, handed) for of, new, handed in begun if of == rank] for rank in (0, 1))
    assert first == second
    assert [(len(new), len(handed)) for new, handed in first[:3]] == [(4, 0), (2, 0), (1, 1)]
    assert not any(new or handed for new, handed in first[3:])
    [(request, block, tokens)] = first[2][1]
    assert (request, tokens) == ("a", 4)
    assert block in first[1][0]
    assert world.engine.reset(running=False, connector=False)
    begun.clear()
    world.engine.add(RequestSpec("c", 0, 31, 0, 1, 1))
    world.apply(STEP)  # begins to load: four blocks of tokens, and one of states
    assert [(len(new), handed) for _, new, handed in begun] == [(5, [])] * 2
    world.rest()


def test_who_is_aborted_at_its_last_hash_registers_the_state(subjects, seen):
    world = World(FINE, subjects["our-offloading"])
    world.engine.add(RequestSpec("a", 0, 29, 0, 3, 3))
    world.apply(STEP)  # to the last whole block
    world.apply(STEP)
    world.engine.abort("a")
    assert seen == ([28], [28])
    world.rest()


def test_nothing_breaks_where_hashes_are_finer(subjects, seen):
    for seed in range(300):
        config = config_for(subjects["our-offloading"], Random(seed), "vllm")
        if config.has_tails:
            run = run_seed(subjects["our-offloading"], seed, engine="vllm")
            assert run.failure is None, run.failure.violation
    offered, stored = seen
    assert len(offered) == len(stored) > 20
