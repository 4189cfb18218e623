"""The connector's counts, under vLLM's metric names and in vLLM's payload.

The payload says what it is: ``types`` has the kind of each metric by name, ``data`` its value by label values (a
sum, the latest level, or a list of samples), ``info`` the labels of the info metric, which are sent once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kv_api import (
    ConfigInfoMapping,
    KVConnectorStats,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
)
from kv_offload.metadata import TransferStats

LOAD_BYTES: Final = "vllm:kv_offload_load_bytes"
LOAD_TIME: Final = "vllm:kv_offload_load_time"
LOAD_SIZE: Final = "vllm:kv_offload_load_size"
STORE_BYTES: Final = "vllm:kv_offload_store_bytes"
STORE_TIME: Final = "vllm:kv_offload_store_time"
STORE_SIZE: Final = "vllm:kv_offload_store_size"
LOOKUP_SYNC_DELAY: Final = "vllm:kv_offload_lookup_sync_delay_seconds"
LOOKUP_ASYNC_DELAY: Final = "vllm:kv_offload_lookup_async_delay_seconds"
ALLOCATION_FAILURE: Final = "vllm:kv_offload_allocation_failure"
LOAD_FAILURE: Final = "vllm:kv_offload_load_failure"
STORE_FAILURE: Final = "vllm:kv_offload_store_failure"
CONFIG_INFO: Final = "vllm:kv_offload_config_info"

_OF_LOADS: Final = LOAD_BYTES, LOAD_TIME, LOAD_SIZE
_OF_STORES: Final = STORE_BYTES, STORE_TIME, STORE_SIZE

SIZE_BUCKETS: Final = (1e6, 5e6, 1e7, 2e7, 4e7, 6e7, 8e7, 1e8, 1.5e8, 2e8)
SYNC_BUCKETS: Final = (1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1)
ASYNC_BUCKETS: Final = (1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1, 5, 10)

METRICS: Final[Mapping[str, OffloadingMetricMetadata]] = {
    LOAD_BYTES: OffloadingCounterMetadata("Bytes loaded from the medium to the GPU."),
    LOAD_TIME: OffloadingCounterMetadata("Seconds that loads took, one after the other."),
    LOAD_SIZE: OffloadingHistogramMetadata("Bytes of one load.", buckets=SIZE_BUCKETS),
    STORE_BYTES: OffloadingCounterMetadata("Bytes stored from the GPU to the medium."),
    STORE_TIME: OffloadingCounterMetadata("Seconds that stores took, one after the other."),
    STORE_SIZE: OffloadingHistogramMetadata("Bytes of one store.", buckets=SIZE_BUCKETS),
    LOOKUP_SYNC_DELAY: OffloadingHistogramMetadata("Seconds that one lookup took.", buckets=SYNC_BUCKETS),
    LOOKUP_ASYNC_DELAY: OffloadingHistogramMetadata(
        "Seconds from a request's first lookup that was put off to the one that was not, or to its end.",
        buckets=ASYNC_BUCKETS,
    ),
    ALLOCATION_FAILURE: OffloadingCounterMetadata("Attempts to store for which there was no room."),
    LOAD_FAILURE: OffloadingCounterMetadata("Loads that failed."),
    STORE_FAILURE: OffloadingCounterMetadata("Stores that failed."),
}
"""The connector's own metrics. The last two aren't vLLM's, whose connector has no failed jobs."""

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"


def kind_of(metric: OffloadingMetricMetadata | None, value: object) -> str:
    """The kind of a metric; what is not declared is known by its value."""
    if isinstance(metric, OffloadingGaugeMetadata):
        return GAUGE
    return HISTOGRAM if isinstance(metric, OffloadingHistogramMetadata) or isinstance(value, list) else COUNTER


def kinds_of(declared: Mapping[str, OffloadingMetricMetadata]) -> dict[str, str]:
    """The kinds of declared metrics, by name."""
    return {name: kind_of(metric, None) for name, metric in declared.items()}


class OffloadingConnectorStats(KVConnectorStats):
    """Counts of one side; ``data`` has the payload."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        self.data = data if data and "data" in data else {"types": {}, "data": {}, "info": None}

    def reset(self) -> None:
        self.data = OffloadingConnectorStats().data

    def is_empty(self) -> bool:
        return not self.data["data"] and self.data.get("info") is None

    def increase(self, name: str, amount: float = 1) -> None:
        """Add to a counter."""
        self._add(name, COUNTER, (), amount)

    def observe(self, name: str, sample: float) -> None:
        """Add a sample to a histogram."""
        self._add(name, HISTOGRAM, (), [sample])

    def set_info(self, info: Sequence[ConfigInfoMapping]) -> None:
        """Set the labels of the info metric, which never change."""
        self.data["info"] = [dict(series) for series in info]

    def add_transfers(self, transfers: TransferStats) -> None:
        """Add what workers measured."""
        for (size, seconds, samples), stats in ((_OF_LOADS, transfers.load), (_OF_STORES, transfers.store)):
            if stats.sizes:
                self.increase(size, stats.bytes)
                self.increase(seconds, stats.time)
                self._add(samples, HISTOGRAM, (), stats.sizes)

    def add_medium(self, stats: KVConnectorStats, declared: Mapping[str, OffloadingMetricMetadata]) -> None:
        """Add what a manager counted: in this payload's form, or a plain value by name."""
        self.add_counts(stats, kinds_of(declared))

    def add_counts(self, stats: KVConnectorStats, kinds: Mapping[str, str]) -> None:
        """The same, for who knows the ``kinds_of`` what is declared."""
        if isinstance(stats, OffloadingConnectorStats):
            self.aggregate(stats)
            return
        data, types = self.data["data"], self.data["types"]
        for name, value in stats.to_dict().items():
            kind = kinds.get(name) or kind_of(None, value)
            if name in data:
                self._add(name, kind, (), value)
            else:
                types[name] = kind
                data[name] = {(): [*value] if kind == HISTOGRAM else value}

    def aggregate(self, other: KVConnectorStats) -> "OffloadingConnectorStats":
        if not isinstance(other, OffloadingConnectorStats):
            raise TypeError(f"stats: expected OffloadingConnectorStats, got {type(other).__name__}")
        if other.data.get("info") is not None:
            self.set_info(other.data["info"])
        for name, by_labels in other.data["data"].items():
            for labels, value in by_labels.items():
                self._add(name, other.data["types"][name], labels, value)
        return self

    def reduce(self) -> dict[str, Any]:
        numbers: dict[str, Any] = {}
        for name, by_labels in self.data["data"].items():
            for labels, value in by_labels.items():
                label = f"{name}:{labels}" if labels else name
                if self.data["types"][name] == HISTOGRAM:
                    numbers |= {f"{label}_count": len(value), f"{label}_sum": sum(value)}
                else:
                    numbers[label] = value
        return numbers

    def _add(self, name: str, kind: str, labels: tuple[str, ...], value: Any) -> None:
        by_labels = self.data["data"].get(name)
        if by_labels is None:
            self.data["types"][name] = kind
            by_labels = self.data["data"][name] = {}
        if labels not in by_labels:
            by_labels[labels] = [*value] if kind == HISTOGRAM else value
        elif kind == GAUGE:
            by_labels[labels] = value
        else:
            by_labels[labels] += value
