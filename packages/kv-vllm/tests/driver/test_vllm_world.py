"""What vLLM is told of a world: its sizes, its switches, its groups; and that no world is told of another's."""

from dataclasses import replace

import pytest

from kv_sim.config import STATE, GroupConfig, WorldConfig

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

WORLD = WorldConfig(
    num_blocks=9,
    block_size=8,
    layers=2,
    tp_size=2,
    pp_size=3,
    max_running=5,
    max_step_tokens=24,
    groups=(GroupConfig(), GroupConfig("sliding", 12)),
)
WITH_STATES = replace(WORLD, groups=(GroupConfig(), STATE), hands_over_states=True, hashes_per_block=4)


@pytest.fixture
def module():
    pytest.importorskip("vllm")
    from kv_vllm import vllm_world

    return vllm_world


@pytest.fixture
def scheduling(module):
    from kv_vllm import vllm_scheduler

    return vllm_scheduler


def sizes_in(config):
    """What a configuration says of sizes."""
    scheduler, cache, parallel = config.scheduler_config, config.cache_config, config.parallel_config
    return {
        "model": (
            config.model_config.max_model_len,
            config.model_config.model_arch_config.total_num_hidden_layers,
            config.model_config.get_total_num_kv_heads(),
            config.model_config.get_num_kv_heads(parallel),
        ),
        "scheduler": (
            scheduler.max_num_seqs,
            scheduler.max_num_batched_tokens,
            scheduler.max_num_scheduled_tokens,
        ),
        "cache": (cache.block_size, cache.num_gpu_blocks, cache.kv_cache_layout),
        "parallel": (parallel.tensor_parallel_size, parallel.world_size, parallel.rank),
    }


def test_a_configuration_has_the_sizes_of_its_world_and_stays_as_it_is(module):
    """Also when another one is made, though all of them are copies of one."""
    config = module.vllm_config(WORLD, "how it transfers", rank=4)
    other = module.vllm_config(WorldConfig(), "in another way")
    config.compilation_config.static_forward_context["layer"] = "a layer"
    assert sizes_in(config) == {
        "model": (WORLD.max_model_len, 4, 6, 1),
        "scheduler": (5, 24, 24),
        "cache": (8, 9, "LBHNC"),
        "parallel": (6, 6, 4),
    }
    assert sizes_in(other) == {
        "model": (WorldConfig().max_model_len, 1, 1, 1),
        "scheduler": (4, 16, 16),
        "cache": (4, 24, "LBHNC"),
        "parallel": (1, 1, 0),
    }
    assert (config.kv_transfer_config, other.kv_transfer_config) == ("how it transfers", "in another way")
    assert (config.kv_events_config.enable_kv_cache_events, config.kv_events_config.publisher) == (True, "null")
    assert other.compilation_config.static_forward_context == {}


@pytest.mark.parametrize("is_on", [True, False])
def test_what_a_world_switches_is_switched(module, is_on):
    """Each of these vLLM would have derived from a GPU, from a model, or from options that a world hasn't."""
    several = {"groups": WORLD.groups, "runner": 2, "run_ahead": 2, "spec_tokens": 3}
    world = WorldConfig(async_scheduling=is_on, prefix_caching=is_on, **(several if is_on else {}))
    config = module.vllm_config(world, None)
    told = (config.max_concurrent_batches, config.use_v2_model_runner, config.num_speculative_tokens)
    assert told == ((3, True, 3) if is_on else (1, False, 0))
    assert config.scheduler_config.async_scheduling is is_on
    assert config.scheduler_config.disable_hybrid_kv_cache_manager is not is_on
    assert config.cache_config.enable_prefix_caching is is_on


def test_a_world_with_states_is_told_of_finer_hashes(module):
    plain, fine = (module.vllm_config(world, None).cache_config for world in (WORLD, WITH_STATES))
    assert (fine.hash_block_size, fine.prefix_match_unit, fine.mamba_cache_mode) == (2, 2, "align")
    assert plain.hash_block_size != 2 and plain.mamba_cache_mode != "align"
    assert (module.hash_tokens(WORLD), module.hash_tokens(WITH_STATES)) == (8, 2)


@pytest.mark.parametrize(("max_running", "kept"), [(6, None), (7, 0), (8, 16)])
def test_states_are_kept_in_one_of_three_ways(module, max_running, kept):
    """All that are computed, those that a repeated prompt needs, or one in two blocks."""
    world = replace(WITH_STATES, max_running=max_running)
    told = module.vllm_config(world, None).cache_config, module.kv_cache_config(world)
    assert [config.prefix_cache_retention_interval for config in told] == [kept, kept]
    assert module.kv_cache_config(replace(WORLD, max_running=7)).prefix_cache_retention_interval is None


def test_a_cache_has_the_groups_of_its_world(module):
    """Pages of each are as large as the testbed's."""
    cache = module.kv_cache_config(replace(WORLD, groups=(*WORLD.groups, STATE)))
    names = [[f"group{group}.layers.{layer}" for layer in range(2)] for group in range(3)]
    assert cache.num_blocks == 9
    assert [group.layer_names for group in cache.kv_cache_groups] == names
    assert [tensor.layers for tensor in cache.kv_cache_tensors] == names
    specs = [group.kv_cache_spec for group in cache.kv_cache_groups]
    assert [type(spec).__name__ for spec in specs] == ["FullAttentionSpec", "SlidingWindowSpec", "MambaSpec"]
    assert [(spec.block_size, spec.page_size_bytes) for spec in specs] == [(8, WORLD.page_bytes)] * 3
    assert (specs[1].sliding_window, specs[2].mamba_cache_mode) == (12, "align")
    for tensor in cache.kv_cache_tensors:
        layer_bytes = 9 * WORLD.page_bytes
        told = (tensor.size, tensor.layer_stride, tensor.block_stride)
        assert told == (2 * layer_bytes, layer_bytes, WORLD.page_bytes)


def test_what_attends_has_a_backend_for_blocks_of_any_size(module):
    """A group of states has none."""
    from kv_vllm.driver.surroundings.layers import attention_layers

    world = replace(WORLD, groups=(WORLD.groups[1], STATE, WORLD.groups[0]), hands_over_states=True)
    layers = attention_layers(world, module.vllm_config(world, None))
    assert [*layers] == [f"group{group}.layers.{layer}" for group in (0, 2) for layer in range(2)]
    [size] = {
        str(layer.get_attn_backend().get_supported_kernel_block_sizes()[0].base) for layer in layers.values()
    }
    assert size == "1"
    assert {float(scale) for layer in layers.values() for scale in (layer._k_scale, layer._v_scale)} == {1}


@pytest.mark.parametrize("zeroes", [True, False])
def test_whether_new_blocks_are_zeroed_is_for_the_world_to_say(module, zeroes):
    assert module.kv_cache_config(replace(WORLD, zero_new_blocks=zeroes)).needs_kv_cache_zeroing is zeroes
    assert module.WorldKVCacheConfig(9, [], []).needs_kv_cache_zeroing is False


@pytest.mark.parametrize("is_async", [True, False])
def test_the_scheduler_of_a_world(module, scheduling, is_async):
    from vllm.config import KVTransferConfig

    transfer = KVTransferConfig(
        kv_connector="NoConnector", kv_connector_module_path="kv_vllm.recording.nothing", kv_role="kv_both"
    )
    world = WorldConfig(async_scheduling=is_async, run_ahead=int(is_async))
    made = scheduling.make_scheduler(world, module.vllm_config(world, transfer), log_stats=is_async)
    assert type(made) is (scheduling.OrderedAsyncScheduler if is_async else scheduling.OrderedScheduler)
    assert (made.block_size, made.log_stats, made.kv_cache_config.num_blocks) == (4, is_async, 24)
    assert type(made.connector).__name__ == "NoConnector"
    made.shutdown()


def test_requests_are_ended_in_the_order_of_their_ids(scheduling):
    """One that is told alone is an id, not a collection of letters."""

    class Ends:
        def finish_requests(self, request_ids, finished_status):
            return [(request_ids, finished_status)]

    ordered = type("Ordered", (scheduling._Ordered, Ends), {})()
    assert ordered.finish_requests(["b", "c", "a"], "stopped") == [(name, "stopped") for name in "abc"]
    assert ordered.finish_requests("ba", "aborted") == [("ba", "aborted")]


def test_a_request_is_hashed_and_known_by_its_salt_and_its_adapter(module, scheduling):
    from vllm.sampling_params import SamplingParams

    module.vllm_config(WORLD, None)  # with which hashes begin

    def request(*identity, tokens=11):
        return scheduling.make_request("r", [*range(tokens)], SamplingParams(max_tokens=7), 4, *identity)

    plain, salted, adapted = request(), request(("salt", None)), request((None, "adapter"))
    assert (plain.request_id, plain.num_prompt_tokens, plain.max_tokens) == ("r", 11, 7)
    assert (plain.cache_salt, plain.lora_request) == (None, None)
    assert (salted.cache_salt, adapted.lora_request.lora_name) == ("salt", "adapter")
    assert [len(one.block_hashes) for one in (plain, salted, adapted)] == [2, 2, 2]
    assert len({one.block_hashes[0] for one in (plain, salted, adapted)}) == 3
    assert request(tokens=12).block_hashes[:2] == plain.block_hashes
