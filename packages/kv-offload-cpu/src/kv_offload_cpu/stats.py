"""What the manager counts, under vLLM's metric names."""

from typing import Any, Final

from kv_api import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
)
from kv_api.stats import CountedStats

USAGE: Final = "vllm:kv_offload_cpu_cache_usage_perc"
WRITE_USAGE: Final = "vllm:kv_offload_cpu_cache_write_usage_perc"
READ_USAGE: Final = "vllm:kv_offload_cpu_cache_read_usage_perc"
ALLOCATION_SIZE: Final = "vllm:kv_offload_cpu_allocation_size"
# Not vLLM's kv_offload_allocation_failure: that one is the connector's, who counts refusals of any medium.
ALLOCATION_FAILURE: Final = "vllm:kv_offload_cpu_allocation_failure"
STORES_SKIPPED: Final = "vllm:kv_offload_stores_skipped"
CHECKSUM_MISMATCHES: Final = "vllm:kv_offload_cpu_checksum_mismatches"

METRICS: Final[dict[str, OffloadingMetricMetadata]] = {
    USAGE: OffloadingGaugeMetadata("Share of the CPU cache that jobs are using, so that nothing can evict it."),
    WRITE_USAGE: OffloadingGaugeMetadata("Share of the CPU cache that is being written."),
    READ_USAGE: OffloadingGaugeMetadata("Share of the CPU cache that is being read."),
    ALLOCATION_SIZE: OffloadingHistogramMetadata("Chunks allocated by one store."),
    ALLOCATION_FAILURE: OffloadingCounterMetadata("Stores refused because too much of the CPU cache is in use."),
    STORES_SKIPPED: OffloadingCounterMetadata("Chunks not stored because they weren't offered often enough."),
    CHECKSUM_MISMATCHES: OffloadingCounterMetadata(
        "Pages in the CPU cache that had changed since they were stored."
    ),
}
"""What is counted or measured, by its name, and what a dashboard says of it."""


class CPUOffloadingStats(CountedStats):
    """What is named in ``METRICS``."""

    levels = (USAGE, WRITE_USAGE, READ_USAGE)


class Counters:
    """Sums and samples since they were last taken; of what was skipped only where ``skips`` is declared."""

    def __init__(self, *, skips: bool) -> None:
        self._skips = skips
        self._told: tuple[float, float] | None = None
        """The shares in use that were last taken."""
        self._begin()

    def _begin(self) -> None:
        self.allocation_sizes: list[int] = []
        self.allocation_failures = 0
        self.stores_skipped = 0

    def take(self, written: float, read: float) -> CPUOffloadingStats:
        """What was counted, and these shares of the cache; then everything is counted from zero.

        Of a step in which nothing was counted, and the shares are what they were, there is nothing to tell.
        """
        has_counted = self.allocation_sizes or self.allocation_failures or self.stores_skipped
        if (written, read) == self._told and not has_counted:
            return CPUOffloadingStats()
        self._told = written, read
        data: dict[str, Any] = {USAGE: written + read, WRITE_USAGE: written, READ_USAGE: read}
        if self.allocation_sizes:
            data[ALLOCATION_SIZE] = self.allocation_sizes
        if self.allocation_failures:
            data[ALLOCATION_FAILURE] = self.allocation_failures
        if self._skips:
            data[STORES_SKIPPED] = self.stores_skipped
        self._begin()
        return CPUOffloadingStats(data)
