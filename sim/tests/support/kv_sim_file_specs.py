"""Files as a server makes them of a configuration."""

from kv_api import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from kv_offload_file import FileOffloadingSpec


def spec_of(extra, block_bytes):
    """The medium that a server makes of a configuration, with one worker and the trace's blocks."""
    return FileOffloadingSpec(
        OffloadingConfig(
            groups=(OffloadingGroupConfig(tokens_per_block=512, layer_names=("a",), group_id=0),),
            worker_kv_bytes_per_block=block_bytes,
            enable_kv_cache_events=False,
            engine_id="engine",
            extra_config=extra,
            model=OffloadingModelConfig("model", "float16"),
            cache=OffloadingCacheConfig(tokens_per_hash=512, blocks_per_chunk=1),
            parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
        )
    )
