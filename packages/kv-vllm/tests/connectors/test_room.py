"""What ``OffloadingConnector`` says of host memory that is no larger than the GPU's prefix cache."""

from types import SimpleNamespace

import pytest
from kv_vllm_configs import config_of

from kv_vllm.connectors.room import warn_of_little_room

pytestmark = pytest.mark.filterwarnings("ignore")

GPU_BLOCKS, BLOCK_BYTES, ROW_BYTES = 8, 2 * 16 * 8 * 4, 4096
"""Those of the fixture ``cache``; a chunk takes whole pages of memory."""
FILES = {"spec_name": "FileOffloadingSpec", "spec_module_path": "kv_offload_file", "file_bytes_to_use": 1 << 20}


@pytest.fixture
def told(base, cache, caplog):
    """What a connector says of it, with this extra config."""
    from kv_vllm import OffloadingConnector

    def say(extra, role="SCHEDULER", caches_prefixes=True):
        config = config_of("OffloadingConnector", extra)
        config.cache_config.enable_prefix_caching = caches_prefixes
        caplog.clear()
        OffloadingConnector(config, base.KVConnectorRole[role], cache).shutdown()
        return [one for one in caplog.messages if "has room for" in one]

    return say


@pytest.fixture
def said(caplog):
    """What is said of a medium with these facts beside a GPU."""

    def say(facts, *, gpu_blocks=GPU_BLOCKS, caches_prefixes=True, **extra):
        config = SimpleNamespace(
            kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra),
            cache_config=SimpleNamespace(enable_prefix_caching=caches_prefixes),
        )
        gpu = None if gpu_blocks is None else SimpleNamespace(num_blocks=gpu_blocks)
        caplog.clear()
        warn_of_little_room(SimpleNamespace(config_info=lambda: facts), config, gpu)
        return caplog.messages

    return say


def host(chunks=1, per_chunk=1, size=7):
    return {"cpu_num_chunks": chunks, "cpu_blocks_per_chunk": per_chunk, "cpu_kv_cache_size_bytes": size}


def warned(blocks, twice, now):
    return [
        f"OffloadingConnector: host memory has room for {blocks} blocks, and the GPU's prefix cache for 8. Both "
        "keep the most recently used blocks, so host memory will have almost no hits. Set cpu_bytes_to_use to "
        f"{twice} (twice the GPU's; now {now}), or store_when to 'evicted', which stores what the GPU evicts"
    ]


@pytest.mark.parametrize(
    ("chunks", "per_chunk", "size", "said_of_it"),
    [
        (1, 1, 7, warned(1, 112, 7)),
        (1, 3, 100, warned(3, 534, 100)),  # a third of a byte is a whole one
        (4, 2, 800, warned(8, 1600, 800)),
        (8, 1, 800, warned(8, 1600, 800)),
        (9, 1, 900, []),
        (3, 3, 900, []),
    ],
)
def test_what_is_no_larger_is_told_how_large_twice_is(said, chunks, per_chunk, size, said_of_it):
    assert said([host(chunks, per_chunk, size)]) == said_of_it


@pytest.mark.parametrize(
    ("facts", "changes", "times"),
    [
        ([host()], {}, 1),
        ([host()], {"store_when": "computed"}, 1),
        ([host()], {"store_when": "evicted"}, 0),
        ([host()], {"caches_prefixes": False}, 0),
        ([host()], {"gpu_blocks": None}, 0),
        ([{"file_num_chunks": 1}], {}, 0),
        ([], {}, 0),
    ],
)
def test_who_has_nothing_in_both_is_told_nothing(said, facts, changes, times):
    """Nor another medium, and an engine that doesn't say how large its cache is."""
    assert len(said(facts, **changes)) == times


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("rows", "per_chunk", "blocks"), [(1, 1, 1), (8, 1, 8), (4, 2, 8), (9, 1, None), (3, 3, None)]
)
def test_no_more_than_the_gpu_has(told, rows, per_chunk, blocks):
    """Counted in blocks, of which a chunk may have several; what is twice as large is no longer warned of."""
    extra = {"cpu_bytes_to_use": rows * ROW_BYTES + 7, "blocks_per_chunk": per_chunk}
    found = told(extra)
    if blocks is None:
        assert not found
        return
    twice = -(-2 * GPU_BLOCKS * rows * ROW_BYTES // blocks)
    assert found == warned(blocks, twice, rows * ROW_BYTES)
    assert not told({**extra, "cpu_bytes_to_use": twice})


@pytest.mark.vllm
def test_it_is_said_once_an_engine_and_of_nothing_else(told, tmp_path):
    little = {"cpu_bytes_to_use": ROW_BYTES}
    assert told(little)
    assert not told(little, role="WORKER")
    assert not told(little, caches_prefixes=False)
    assert not told(
        {**FILES, "file_bytes_to_use": 1 << 14, "file_dir": str(tmp_path), "file_staging_bytes": 1 << 14}
    )


@pytest.mark.vllm
def test_what_the_gpu_loses_is_of_use_from_the_first_block_on(told, cache):
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    (group,) = cache.kv_cache_groups
    size = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": group.kv_cache_spec.dtype}
    group.kv_cache_spec = FullAttentionSpec(**size)
    little = {"cpu_bytes_to_use": ROW_BYTES, "hold_blocks": "never"}
    assert told(little)
    assert not told({**little, "store_when": "evicted"})
