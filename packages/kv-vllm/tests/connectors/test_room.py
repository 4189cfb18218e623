"""What ``OffloadingConnector`` says of host memory that is no larger than the GPU's prefix cache."""

import pytest
from kv_vllm_configs import config_of

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

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
    assert found == [
        f"OffloadingConnector: host memory has room for {blocks} blocks, the GPU's prefix cache for 8. What is "
        "used last is in both, so next to nothing will be found in host memory; twice the GPU's would be "
        f"cpu_bytes_to_use {twice} (now {rows * ROW_BYTES}), and with store_when 'evicted' it would have what the "
        "GPU loses"
    ]
    assert not told({**extra, "cpu_bytes_to_use": twice})


def test_it_is_said_once_an_engine_and_of_nothing_else(told, tmp_path):
    little = {"cpu_bytes_to_use": ROW_BYTES}
    assert told(little)
    assert not told(little, role="WORKER")
    assert not told(little, caches_prefixes=False)
    assert not told(
        {**FILES, "file_bytes_to_use": 1 << 14, "file_dir": str(tmp_path), "file_staging_bytes": 1 << 14}
    )


def test_what_the_gpu_loses_is_of_use_from_the_first_block_on(told, cache):
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    (group,) = cache.kv_cache_groups
    size = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": group.kv_cache_spec.dtype}
    group.kv_cache_spec = FullAttentionSpec(**size)
    little = {"cpu_bytes_to_use": ROW_BYTES, "hold_blocks": "never"}
    assert told(little)
    assert not told({**little, "store_when": "evicted"})
