"""With a vLLM: groups whose blocks have several sizes, as where layers have pages of different bytes (Gemma 4)."""

from collections import Counter
from dataclasses import replace
from itertools import islice
from random import Random

import pytest

pytest.importorskip("kv_sim")

from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.examples.catalogue import OFFLOAD
from kv_sim.fuzz import run_seed
from kv_sim.history.draws import config_for
from kv_sim.subject import Trait
from kv_sim.zoo.registry import PLANTED

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

SMALL, WINDOW = GroupConfig(parts=2), GroupConfig("sliding", 5, parts=4)
WORLD = WorldConfig(
    engine="vllm", num_blocks=60, block_size=4, hashes_per_block=4, groups=(SMALL, WINDOW, GroupConfig())
)


@pytest.fixture(autouse=True)
def driver():
    pytest.importorskip("vllm")
    from kv_vllm import driver

    return driver


def seeds_of(subject, engine="vllm"):
    """Seeds of such worlds."""
    return (seed for seed in range(1000) if config_for(subject, Random(seed), engine).is_unequal)


def test_vllm_is_told_each_size_and_takes_the_same_from_it():
    from vllm.config import KVTransferConfig
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    from kv_vllm.vllm_scheduler import make_scheduler
    from kv_vllm.vllm_world import hash_tokens, kv_cache_config, vllm_config

    cache = kv_cache_config(WORLD)
    specs = [group.kv_cache_spec for group in cache.kv_cache_groups]
    assert [spec.block_size for spec in specs] == [2, 1, 4]
    assert {spec.page_size_bytes for spec in specs} == {WORLD.page_bytes}
    config = vllm_config(WORLD, KVTransferConfig(kv_connector="ExampleConnector", kv_role="kv_both"))
    assert resolve_kv_cache_block_sizes(cache, config) == (WORLD.block_size, hash_tokens(WORLD)) == (4, 1)
    config.kv_transfer_config = None
    scheduler = make_scheduler(WORLD, config, log_stats=False)
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    assert [manager.block_size for manager in managers] == [2, 1, 4]


@pytest.mark.parametrize("name", ["our-offloading", "our-offloading-chunks", "our-p2p"])
def test_ours_store_load_and_pull_there_as_vllm_loads_them(name):
    from kv_vllm.driver.subjects import OUR_SUBJECTS

    subject, seen = OUR_SUBJECTS[name], Counter()
    for seed in islice(seeds_of(subject), 8):
        run = run_seed(subject, seed, engine="vllm")
        assert run.failure is None, (seed, run.failure)
        seen += run.coverage.situations
    assert seen["match: blocks of several sizes"], seen


def test_who_takes_the_blocks_of_the_first_group_for_all_is_found():
    [planted] = [planted for planted in PLANTED if planted.name == "BlocksOfTheFirst"]
    failures = (run_seed(planted.subject, seed, engine="vllm").failure for seed in seeds_of(planted.subject))
    found = next(failure for failure in failures if failure is not None)
    assert found.violation.invariant in {planted.invariant, *planted.others}


def test_beside_states_all_blocks_have_one_size():
    """With smaller ones, vLLM would find states within the larger ones."""
    from kv_vllm.driver.engine import VllmEngine

    assert VllmEngine.fit(WORLD) == replace(WORLD, silent=WORLD.silent | {"same_id"})
    beside = VllmEngine.fit(replace(WORLD, groups=(SMALL, STATE), hashes_per_block=2))
    assert (beside.groups, beside.hashes_per_block) == ((GroupConfig(), STATE), 1)


def compare(seeds, number):
    """The first difference between the two engines in these histories, and the hits on the GPU."""
    from kv_vllm.differential.comparison import Script, follow
    from kv_vllm.differential.matrix import CELLS, exclusion_of
    from kv_vllm.differential.recorder import record
    from kv_vllm.differential.run import ACTIONS
    from kv_vllm.differential.scheduler import VllmScheduler
    from kv_vllm.installed import vllm_version

    cell, hits = CELLS[number], 0
    for seed in seeds:
        random = Random(seed)
        config = cell.world(config_for(OFFLOAD, random), OFFLOAD)
        if not config.is_unequal:
            continue  # only its states had larger blocks
        trace, script = record(OFFLOAD, config, random, ACTIONS), Script()
        excluded = exclusion_of(config, trace, vllm_version())
        if excluded is not None:
            del trace.turns[excluded[1] :]
        calls = [call for turn in trace.turns for call in turn.calls]
        hits += sum(call.arguments.get("local", 0) > 0 for call in calls)
        found = follow(trace.turns, VllmScheduler(config, trace, script), script)
        if found is not None:
            return seed, str(found)
    return hits
