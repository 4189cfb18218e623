"""Facts about the file of an engine, published once as labels of the info metric."""

from dataclasses import dataclass

from kv_api import ConfigInfo, OffloadingConfig
from kv_offload_cpu import HostLayout
from kv_offload_cpu.info import offloading_info as host_info


@dataclass(frozen=True)
class FileOffloadingInfo(ConfigInfo):
    """How many chunks there are, and how many tokens; None if the longest request isn't known."""

    file_num_chunks: int
    file_blocks_per_chunk: int
    file_kv_cache_size_bytes: int
    file_kv_cache_size_tokens: int | None


def offloading_info(config: OffloadingConfig, layout: HostLayout, copies: int) -> FileOffloadingInfo:
    """The facts about ``copies`` files of ``layout``."""
    host = host_info(config, layout)
    return FileOffloadingInfo(
        host.cpu_num_chunks,
        host.cpu_blocks_per_chunk,
        host.cpu_kv_cache_size_bytes * copies,
        host.cpu_kv_cache_size_tokens,
    )
