"""What a medium is told of an engine, in small."""

from typing import Any

import kv_api


def offloading_config(**extra: Any) -> kv_api.OffloadingConfig:
    return kv_api.OffloadingConfig(
        groups=(kv_api.OffloadingGroupConfig(16, ("l0",), 0), kv_api.OffloadingGroupConfig(32, ("l1",), 1)),
        worker_kv_bytes_per_block=1024,
        enable_kv_cache_events=True,
        extra_config=extra,
        engine_id="e",
        model=kv_api.OffloadingModelConfig("m", "float16"),
        cache=kv_api.OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=2),
        parallel=kv_api.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
    )
