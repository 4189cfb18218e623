"""Facts about the host memory of an engine, published once as labels of the info metric."""

from dataclasses import dataclass

from kv_api import ConfigInfo, OffloadingConfig
from kv_offload_cpu.sizing import HostLayout


@dataclass(frozen=True)
class CPUOffloadingInfo(ConfigInfo):
    """How many chunks there are and what they hold; tokens None when the longest request is not known."""

    cpu_num_chunks: int
    cpu_blocks_per_chunk: int
    cpu_kv_cache_size_bytes: int
    cpu_kv_cache_size_tokens: int | None


def offloading_info(config: OffloadingConfig, layout: HostLayout) -> CPUOffloadingInfo:
    """The facts about ``layout``."""
    return CPUOffloadingInfo(
        layout.num_chunks, layout.blocks_per_chunk, layout.total_bytes, _size_tokens(config, layout)
    )


def _size_tokens(config: OffloadingConfig, layout: HostLayout) -> int | None:
    """Tokens of requests of the greatest length that all chunks together hold."""
    length = config.model.max_model_len
    if length <= 0 or not config.groups:
        return None
    chunks_per_request = 0
    for group in config.groups:
        chunks = -(-length // (group.tokens_per_block * layout.blocks_per_chunk))
        window = group.sliding_window_size_in_chunks
        chunks_per_request += chunks if window is None else min(chunks, window)
    return layout.num_chunks * length // chunks_per_request
