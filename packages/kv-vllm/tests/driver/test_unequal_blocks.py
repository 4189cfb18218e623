"""With a vLLM: groups whose blocks have several sizes, as where layers have pages of different bytes (Gemma 4)."""

from collections import Counter
from dataclasses import replace
from itertools import islice
from random import Random

import pytest

pytest.importorskip("kv_sim")

from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.engine.blocks import KVCacheManager
from kv_sim.examples.catalogue import OFFLOAD
from kv_sim.fuzz import run_seed
from kv_sim.history.draws import config_for
from kv_sim.violation import Invariant

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


def test_who_takes_smaller_blocks_for_larger_ones_is_found(monkeypatch):
    from kv_vllm.connectors import offloading
    from kv_vllm.driver.subjects import OUR_SUBJECTS

    describe = offloading.describe_group

    def wrong(spec):
        found = describe(spec)
        return replace(found, tokens_per_block=2 * found.tokens_per_block) if found.window_tokens else found

    monkeypatch.setattr(offloading, "describe_group", wrong)
    subject = OUR_SUBJECTS["our-offloading"]
    failures = (run_seed(subject, seed, engine="vllm").failure for seed in islice(seeds_of(subject), 20))
    found = next(failure.violation for failure in failures if failure is not None)
    assert found.invariant in {Invariant.CONTENT, Invariant.OWNERSHIP, Invariant.HITS, Invariant.GEOMETRY}, found


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


FREES_BLOCKS_THAT_NO_HIT_NEEDS = 738
"""The seed of a world with a prefix cache and a window that begins within the largest block."""


@pytest.mark.parametrize("number", [1, 3])
def test_both_engines_decide_the_same(number):
    seeds = [*islice(seeds_of(OFFLOAD, "builtin"), 24), FREES_BLOCKS_THAT_NO_HIT_NEEDS]
    alike = [seed for seed in seeds if not config_for(OFFLOAD, Random(seed)).pauses]
    assert len(alike) > 12
    assert compare(alike, number) > 0


def test_an_engine_that_keeps_blocks_that_no_hit_needs_is_found(monkeypatch):
    begin = KVCacheManager.__init__

    def keeping(self, config):
        begin(self, config)
        self._never_hit = [0] * len(config.groups)

    monkeypatch.setattr(KVCacheManager, "__init__", keeping)
    assert compare([FREES_BLOCKS_THAT_NO_HIT_NEEDS], 1)[0] == FREES_BLOCKS_THAT_NO_HIT_NEEDS
