"""Offloading to host memory breaks nothing, however it is set up: policies, chunks, holding, loads in the step."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

import kv_multi.options
import kv_offload.options
import kv_offload_cpu.options
from kv_offload_cpu import POLICIES, CPUOffloadingSpec
from kv_sim.examples.catalogue import offloading
from kv_sim.fuzz import run_seed
from kv_sim.history.coverage import Coverage
from kv_sim.history.draws import config_for
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant
from kv_sim.world import World

SETTINGS = st.fixed_dictionaries(
    {
        "eviction_policy": st.sampled_from(sorted(POLICIES)),
        "blocks_per_chunk": st.integers(1, 4),
        "hold_blocks": st.sampled_from(["auto", "always", "never"]),
        "sync_load_budget_bytes": st.sampled_from([0, 64, 1 << 20]),
        "offload_prompt_only": st.booleans(),
        "self_describing_kv_events": st.booleans(),
        "store_threshold": st.sampled_from([0, 0, 2, 3]),
        "max_deferred_lookups": st.sampled_from([0, 1, 50]),
    }
)

FEWER = settings(max_examples=max(10, settings().max_examples // 4))


def subject_of(setup: dict[str, object]) -> Subject:
    without = set()
    if setup["hold_blocks"] == "never":
        without.add(Trait.ZEROING)  # a fence comes too late there, as the README says
    return offloading(without=frozenset(without), **setup)


@FEWER
@given(setup=SETTINGS, random=st.randoms(use_true_random=False))
def test_nothing_breaks(setup: dict[str, object], random: Random) -> None:
    subject = subject_of(setup)
    World(config_for(subject, random), subject).run(random, 40)


@FEWER
@given(setup=SETTINGS, random=st.randoms(use_true_random=False))
def test_nothing_breaks_where_hardly_anything_fits(setup: dict[str, object], random: Random) -> None:
    subject = subject_of(setup)
    config = config_for(subject, random)
    factor = subject.blocks_per_chunk
    World(replace(config, host_slots=max(factor, config.host_slots // 8)), subject).run(random, 40)


def test_they_were_really_tried() -> None:
    total = Coverage()
    for seed, policy in enumerate(sorted(POLICIES) * 5):
        run = run_seed(offloading(eviction_policy=policy, sync_load_budget_bytes=256), seed)
        assert run.failure is None, f"{policy}, seed {seed}: {run.failure.violation}"
        total.add(run.coverage)
    for situation in ("match: asynchronous load", "match: load in the step", "match: ask again", "a copy fails"):
        assert total.situations[situation] > 3, situation


def test_what_is_stored_from_the_third_time_on_is_not_there_after_the_first() -> None:
    again = offloading(store_threshold=3)
    assert again.keeps_from == 3
    hasty = replace(again, keeps_from=1)
    failures = [run_seed(hasty, seed).failure for seed in range(6)]
    assert {failure.violation.invariant for failure in failures if failure is not None} == {Invariant.HITS}


def test_nobody_takes_the_keys_of_another_for_misspelt_ones() -> None:
    """All of them may lie in one mapping, and no package knows those of the others."""
    connector = {*kv_offload.Options.__dataclass_fields__, *kv_offload.options.NO_OPTIONS}
    several = {"connectors", "load_policy", "on_child_error", "name", "save"}
    everything = dict.fromkeys(connector | several | CPUOffloadingSpec.extra_keys)
    room = {"cpu_bytes_to_use": 1}
    spec = {"spec_name": "CPUOffloadingSpec", "spec_module_path": None}
    assert kv_offload.parse_options(everything | spec) == kv_offload.Options()
    foreign = {key: None for key in everything if key not in CPUOffloadingSpec.extra_keys}
    assert kv_offload_cpu.options.read_options(foreign | room) == kv_offload_cpu.Options(1)
    kv_multi.options.parse_options({key: None for key in everything if key not in several})

    class OfAVendor(CPUOffloadingSpec):
        extra_keys = CPUOffloadingSpec.extra_keys | {"block_sizes", "checksums"}

    theirs = foreign | room | dict.fromkeys(OfAVendor.extra_keys - CPUOffloadingSpec.extra_keys)
    assert kv_offload_cpu.options.read_options(theirs, OfAVendor.extra_keys) == kv_offload_cpu.Options(1)
