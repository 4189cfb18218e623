"""The metrics that vLLM has deprecated and still exports: bytes, seconds and sizes by direction, as a label."""

from typing import Any, Final

from kv_offload.metrics import (
    LOAD_BYTES,
    LOAD_SIZE,
    LOAD_TIME,
    SIZE_BUCKETS,
    STORE_BYTES,
    STORE_SIZE,
    STORE_TIME,
)
from kv_offload.prom import OffloadPromMetrics

TOTAL_BYTES: Final = "vllm:kv_offload_total_bytes"
TOTAL_TIME: Final = "vllm:kv_offload_total_time"
SIZE: Final = "vllm:kv_offload_size"
LABEL: Final = "transfer_type"
LOADED, STORED = "CPU_to_GPU", "GPU_to_CPU"

DEPRECATED: Final = {
    LOAD_BYTES: (TOTAL_BYTES, LOADED),
    LOAD_TIME: (TOTAL_TIME, LOADED),
    LOAD_SIZE: (SIZE, LOADED),
    STORE_BYTES: (TOTAL_BYTES, STORED),
    STORE_TIME: (TOTAL_TIME, STORED),
    STORE_SIZE: (SIZE, STORED),
}
"""A metric -> the deprecated metric that counts the same, and the label there."""


class DeprecatedToo(OffloadPromMetrics):
    """The connector's metrics and the deprecated ones."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        labels = [*self._labelnames, LABEL]
        total: Any = self._counter_cls
        sizes: Any = self._histogram_cls
        self._totals = {
            TOTAL_BYTES: total(name=TOTAL_BYTES, documentation="Bytes moved, by direction.", labelnames=labels),
            TOTAL_TIME: total(
                name=TOTAL_TIME, documentation="Seconds of moving, by direction.", labelnames=labels
            ),
        }
        self._sizes = sizes(
            name=SIZE, documentation="Bytes of one job, by direction.", labelnames=labels, buckets=SIZE_BUCKETS
        )
        for engine in self.per_engine_labelvalues:  # as in vLLM, the metrics exist before anything was moved
            for name, label in DEPRECATED.values():
                self._old(name, label, engine)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        super().observe(transfer_stats_data, engine_idx)
        data = transfer_stats_data.get("data", {})
        for name, (old, label) in DEPRECATED.items():
            value = data.get(name, {}).get(())
            if value is None:
                continue
            metric = self._old(old, label, engine_idx)
            if old != SIZE:
                metric.inc(value)
                continue
            for sample in value:
                metric.observe(sample)

    def _old(self, name: str, label: str, engine_idx: int) -> Any:
        metric = self._totals.get(name, self._sizes)
        return metric.labels(*self.per_engine_labelvalues[engine_idx], label)
