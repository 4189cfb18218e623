"""The counts: those of host memory, under other names, and errors that only files have."""

from typing import Final

from kv_api import OffloadingCounterMetadata, OffloadingMetricMetadata
from kv_api.stats import CountedStats
from kv_offload_cpu import METRICS as CPU_METRICS
from kv_offload_cpu.stats import (
    ALLOCATION_FAILURE,
    ALLOCATION_SIZE,
    READ_USAGE,
    STORES_SKIPPED,
    USAGE,
    WRITE_USAGE,
)

DAMAGED: Final = "vllm:kv_offload_file_damaged"
ERRORS: Final = "vllm:kv_offload_file_errors"
BORROWED: Final = "vllm:kv_offload_file_borrowed"
GONE: Final = "vllm:kv_offload_file_gone"


def own_name(name: str) -> str:
    """The name for files of a metric of host memory."""
    return name.replace("_cpu_", "_file_")


_SHARED: Final = (USAGE, WRITE_USAGE, READ_USAGE, ALLOCATION_SIZE, ALLOCATION_FAILURE, STORES_SKIPPED)

METRICS: Final[dict[str, OffloadingMetricMetadata]] = {
    own_name(name): type(CPU_METRICS[name])(CPU_METRICS[name].documentation.replace("CPU cache", "file cache"))
    for name in _SHARED
} | {
    DAMAGED: OffloadingCounterMetadata("Chunks in the file that were not what had been stored."),
    ERRORS: OffloadingCounterMetadata("Chunks that the system could not read or write."),
    BORROWED: OffloadingCounterMetadata("Chunks that were to be loaded from another engine's files."),
    GONE: OffloadingCounterMetadata("Chunks of another engine's files that had gone before they were read."),
}
"""Name of a metric -> its kind and description."""

OF_SHARING: Final = frozenset({BORROWED, GONE})
"""Metrics of engines that share."""


class FileOffloadingStats(CountedStats):
    """The metrics of ``METRICS``."""

    levels = tuple(map(own_name, (USAGE, WRITE_USAGE, READ_USAGE)))
