"""From an engine to a world: its sizes, its connector as a subject, and which engine no world can be."""

from types import SimpleNamespace

import pytest

from kv_api import AttentionKind, ConfigError
from kv_api.groups import GroupDescription
from kv_sim.config import WorldConfig
from kv_vllm.recording.world import subject_of, world_of


def engine(**more):
    """What vLLM says of itself."""
    transfer = {
        "kv_connector": "OffloadingConnector",
        "kv_connector_module_path": "kv_vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "cpu_bytes_to_use": 4000,
            "blocks_per_chunk": 2,
            "copy_engine": "host",
            "copy_threads": 3,
            "host_memory": "shared",
            "shared_memory_dir": "/nowhere",
        },
    }
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(**transfer),
        cache_config=SimpleNamespace(block_size=16),
        parallel_config=SimpleNamespace(tensor_parallel_size=2, pipeline_parallel_size=3, world_size=6),
        scheduler_config=SimpleNamespace(max_num_seqs=4, max_num_batched_tokens=64, async_scheduling=1),
        **more,
    )


def blocks(count, sizes, **more):
    """KV caches, each of two layers; `sizes` are of the tensors."""
    layers = SimpleNamespace(layer_names=["a", "b"])
    return SimpleNamespace(
        num_blocks=count,
        kv_cache_groups=[layers, layers],
        kv_cache_tensors=[SimpleNamespace(size=size, block_stride=size) for size in sizes],
        **more,
    )


def group(kind, tokens_per_block=16, window_tokens=0, page_size_bytes=10):
    """What a KV cache group is."""
    return GroupDescription(kind, tokens_per_block, window_tokens, page_size_bytes)


@pytest.mark.parametrize(
    ("more", "run_ahead", "runner"),
    [
        ({}, 0, 1),
        ({"max_concurrent_batches": 2, "use_v2_model_runner": True}, 1, 2),
        ({"max_concurrent_batches": 0, "use_v2_model_runner": False}, 0, 1),
    ],
)
def test_the_world_of_an_engine(more, run_ahead, runner):
    groups = [group(AttentionKind.FULL), group(AttentionKind.SLIDING_WINDOW, window_tokens=40)]
    assert world_of(engine(**more), blocks(8, [160, 320]), groups) == {
        "format": "kv-vllm calls",
        "version": 1,
        "world": {
            "num_blocks": 8,
            "block_size": 16,
            "groups": [{"kind": "full", "window": 0}, {"kind": "sliding", "window": 40}],
            "layers": 1,
            "tp_size": 2,
            "pp_size": 3,
            "max_running": 4,
            "max_step_tokens": 64,
            "run_ahead": run_ahead,
            "async_scheduling": True,
            "runner": runner,
            "role": "kv_both",
            "failure_policy": "recompute",
            "host_slots": 4000 // (20 * 6),
        },
        "subject": {
            "kv_connector": "TimedOffloadingConnector",
            "module_path": "kv_sim.offload",
            "extra_config": {
                "blocks_per_chunk": 2,
                "spec_name": "WorldCPUOffloadingSpec",
                "spec_module_path": "kv_sim.offload",
            },
            "traits": ["failures", "groups", "ranks", "repeats", "reset", "unequal", "zeroing"],
            "blocks_per_chunk": 2,
        },
    }


def test_another_engine_is_another_world():
    one = engine()
    one.kv_transfer_config.kv_role, one.kv_transfer_config.kv_load_failure_policy = "kv_producer", "fail"
    one.scheduler_config.async_scheduling = 0
    world = world_of(one, blocks(8, [160]), [group(AttentionKind.FULL)] * 2)["world"]
    assert (world["role"], world["failure_policy"], world["async_scheduling"]) == ("kv_producer", "fail", False)


@pytest.mark.parametrize(
    ("cache", "host_bytes", "slots"),
    [
        (blocks(8, []), 4000, 4000 // (30 * 2 * 6)),
        (blocks(0, [160]), 4000, 4000 // (30 * 2 * 6)),
        (blocks(8, [160]), None, 64 // 6),
        (blocks(8, []), 4e3, 4000 // (30 * 2 * 6)),
        (blocks(8, [160]), 5, 1),
        (blocks(8, [160], hash_block_size=None), 5, 1),
        (blocks(8, [160], hash_block_size=16), 5, 1),
    ],
)
def test_slots_of_the_host(cache, host_bytes, slots):
    config = engine()
    config.kv_transfer_config.kv_connector_extra_config["cpu_bytes_to_use"] = host_bytes
    if host_bytes:
        config.kv_transfer_config.kv_connector_extra_config["file_bytes_to_use"] = 1 << 40
    groups = [group(AttentionKind.FULL), group(AttentionKind.FULL, page_size_bytes=30)]
    told = world_of(config, cache, groups)["world"]["host_slots"]
    assert (told, type(told)) == (slots, int)


def test_slots_where_nobody_said_how_many_bytes():
    config = engine()
    config.parallel_config.world_size = 1
    del config.kv_transfer_config.kv_connector_extra_config["cpu_bytes_to_use"]
    assert world_of(config, blocks(8, [160]), [group(AttentionKind.FULL)] * 2)["world"]["host_slots"] == 64


def test_a_block_that_ranks_share_is_as_long_as_all_their_parts():
    config = engine()
    config.parallel_config.decode_context_parallel_size = 2
    groups = [group(AttentionKind.FULL, 32)] * 2
    assert world_of(config, blocks(8, [160]), groups)["world"]["block_size"] == 32


@pytest.mark.parametrize("hash_tokens", [None, 8])
def test_blocks_of_several_sizes_are_parts_of_the_smallest_that_all_divide(hash_tokens):
    full, smaller = group(AttentionKind.FULL, 48), group(AttentionKind.FULL, 24)
    cache = blocks(8, [160], hash_block_size=hash_tokens)
    cache.kv_cache_groups = cache.kv_cache_groups[:1] * 3
    groups = [smaller, group(AttentionKind.SLIDING_WINDOW, 16, 40), full]
    world = world_of(engine(), cache, groups)["world"]
    assert (world["block_size"], world["hashes_per_block"]) == (48, 6)
    assert [one.get("parts") for one in world["groups"]] == [2, 3, None]
    values = {**world, "silent": [], "groups": [{"parts": 1, **one} for one in world["groups"]]}
    config = WorldConfig.from_json(values)
    assert [config.tokens_of(number) for number in range(3)] == [24, 16, 48]


@pytest.mark.parametrize(
    ("odd", "hash_tokens", "message"),
    [
        (
            group(AttentionKind.STATE_SPACE),
            16,
            "KV cache group 1: its kind is state_space, and a schedule has only full_attention, sliding_window",
        ),
        (
            group(AttentionKind.FULL),
            8,
            "kv_cache_config.hash_block_size: got 8, and a schedule has hashes of 16 tokens, the most that divide "
            "the blocks of all groups (16, 16 tokens)",
        ),
    ],
)
def test_an_engine_that_no_world_can_be_is_refused(odd, hash_tokens, message):
    cache = blocks(8, [160], hash_block_size=hash_tokens)
    for groups in ([group(AttentionKind.FULL), odd], [odd, group(AttentionKind.FULL)]):
        with pytest.raises(ConfigError) as refused:
            world_of(engine(), cache, groups)
        assert str(refused.value) == message.replace("group 1", f"group {groups.index(odd)}")


@pytest.mark.parametrize("extra", [{}, {"blocks_per_chunk": None}])
def test_any_other_connector_is_what_it_is(extra):
    transfer = {"kv_connector": "Some", "kv_connector_module_path": "some.where"}
    assert subject_of({**transfer, "kv_connector_extra_config": extra}) == {
        "kv_connector": "Some",
        "module_path": "some.where",
        "extra_config": extra,
        "traits": ["failures", "groups", "ranks", "repeats", "reset", "unequal", "zeroing"],
        "blocks_per_chunk": 1,
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("FileOffloadingSpec", ("WorldFileOffloadingSpec", "kv_sim.offload")),
        ("ShelfSpec", ("WorldCPUOffloadingSpec", "kv_sim.offload")),
    ],
)
def test_files_are_the_worlds_and_any_other_medium_is_host_memory(name, expected):
    files = {"file_dir": "/mnt", "file_bytes_to_use": 5e9, "file_threads": 2, "store_threshold": 2}
    extra = {"spec_name": name, "spec_module_path": "theirs", **files}
    subject = subject_of({"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra})
    assert subject["extra_config"] == {
        **dict(zip(("spec_name", "spec_module_path"), expected, strict=True)),
        "store_threshold": 2,
    }


def test_what_is_about_bytes_alone_is_left_out_of_a_world():
    of_host = ("cpu_bytes_to_use", "copy_engine", "copy_threads", "copy_submission", "host_memory")
    of_files = ("file_dir", "file_bytes_to_use", "file_tag", "file_staging_bytes", "file_threads", "file_direct")
    extra = dict.fromkeys((*of_host, "shared_memory_dir", *of_files), 1)
    subject = subject_of({"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra})
    assert subject["extra_config"].keys() == {"spec_name", "spec_module_path"}


@pytest.mark.parametrize("more", [{}, {"cpu_bytes_to_use": None}])
def test_slots_of_a_file(more):
    config = engine()
    config.kv_transfer_config.kv_connector_extra_config = {"file_bytes_to_use": 4000, **more}
    groups = [group(AttentionKind.FULL), group(AttentionKind.FULL, page_size_bytes=30)]
    assert world_of(config, blocks(8, []), groups)["world"]["host_slots"] == 4000 // (30 * 2 * 6)


def test_children_of_a_multi_connector_are_of_the_world_too():
    child = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"name": "a"},
    }
    other = {"kv_connector": "P2PConnector"}
    extra = {"connectors": [child, "none", other], "load_policy": "longest"}
    subject = subject_of({"kv_connector": "MultiConnector", "kv_connector_extra_config": extra})
    assert (subject["kv_connector"], subject["module_path"]) == ("MultiConnector", "kv_multi")
    assert subject["extra_config"] == {
        "connectors": [
            {
                "kv_connector": "TimedOffloadingConnector",
                "kv_connector_module_path": "kv_sim.offload",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "name": "a",
                    "spec_name": "WorldCPUOffloadingSpec",
                    "spec_module_path": "kv_sim.offload",
                },
            },
            {**other, "kv_connector_module_path": None, "kv_connector_extra_config": {}},
        ],
        "load_policy": "longest",
    }
    assert extra["connectors"] == [child, "none", other]
