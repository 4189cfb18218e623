"""With a vLLM: ranks that share the tokens of a block, as under decode context parallelism."""

from dataclasses import replace
from random import Random

import pytest

pytest.importorskip("kv_sim")

from kv_api import groups
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.fuzz import run_seed
from kv_sim.history.draws import config_for

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("a_vllm")]

SHARED = WorldConfig(num_blocks=8, max_running=4, block_size=8, tp_size=2)


@pytest.fixture
def subjects():
    from kv_vllm.driver.subjects import OUR_SUBJECTS

    return OUR_SUBJECTS


def sharing(subject, seeds):
    """Of these seeds the ones in whose worlds ranks share the tokens of a block."""
    from kv_vllm.vllm_world import sharing_ranks_of

    return [seed for seed in seeds if sharing_ranks_of(config_for(subject, Random(seed), "vllm")) > 1]


def test_all_ranks_of_a_world_share_blocks_if_they_can():
    from kv_vllm.vllm_world import sharing_ranks_of

    assert sharing_ranks_of(SHARED) == 2
    assert sharing_ranks_of(replace(SHARED, pp_size=2)) == 4
    for other in (
        {"tp_size": 1},
        {"num_blocks": 9},
        {"block_size": 9},
        {"groups": (GroupConfig(), GroupConfig())},
        {"groups": (GroupConfig("sliding", 8),)},
    ):
        assert sharing_ranks_of(replace(SHARED, **other)) == 1, other


def test_a_rank_has_a_part_of_the_tokens_in_a_page_as_large_as_before():
    from kv_vllm.vllm_world import kv_cache_config, vllm_config

    alone, shared = (kv_cache_config(SHARED, ranks).kv_cache_groups[0].kv_cache_spec for ranks in (1, 2))
    assert (alone.block_size, shared.block_size, shared.dcp_sharded) == (8, 4, True)
    assert alone.page_size_bytes == shared.page_size_bytes == SHARED.page_bytes
    config = vllm_config(SHARED, None, 0, 2)
    assert (config.cache_config.block_size, config.parallel_config.decode_context_parallel_size) == (4, 2)


@pytest.mark.parametrize("name", ["our-offloading", "our-offloading-chunks", "our-offloading-held"])
def test_what_is_stored_is_what_is_loaded(subjects, name):
    loads = 0
    for seed in sharing(subjects[name], range(40)):
        run = run_seed(subjects[name], seed, engine="vllm")
        assert run.failure is None, f"seed {seed}: {run.failure.violation}"
        loads += run.coverage.situations["match: asynchronous load"]
    assert loads > 3


def test_who_takes_a_block_for_what_one_rank_has_of_it_is_found(subjects, monkeypatch):
    monkeypatch.setattr(groups, "workers_of", lambda vllm_config, kv_cache_spec: 1)
    seeds = sharing(subjects["our-offloading"], range(20))
    assert any(run_seed(subjects["our-offloading"], seed, engine="vllm").failure for seed in seeds)


def test_who_does_not_know_of_it_is_not_driven_so(subjects):
    """As kv-p2p, which refuses such an engine."""
    [seed, *_] = sharing(subjects["our-p2p"], range(40))
    assert run_seed(subjects["our-p2p"], seed, engine="vllm").failure is None
