"""Counts of pulls and holds, of each rank and of the scheduler, and their Prometheus metrics.

The payload has the value of each metric by its name: a sum, the latest level, or a list of samples.
"""

from typing import Any, Final, NamedTuple

from kv_api import KVConnectorPromMetrics, VllmConfig
from kv_api.stats import CountedStats, PromMetric

PULL_SECONDS: Final = "vllm:kv_p2p_pull_seconds"
PULLED_BYTES: Final = "vllm:kv_p2p_pulled_bytes"
FAILED_PULLS: Final = "vllm:kv_p2p_failed_pulls"
SERVED_HOLDS: Final = "vllm:kv_p2p_served_holds"
EXPIRED_HOLDS: Final = "vllm:kv_p2p_expired_holds"
REFUSED_TICKETS: Final = "vllm:kv_p2p_refused_tickets"
REFUSED_HOLDS: Final = "vllm:kv_p2p_refused_holds"
HELD_BLOCKS: Final = "vllm:kv_p2p_held_blocks"

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"

SECONDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)


class Metric(NamedTuple):
    """A metric's kind and its description."""

    kind: str
    documentation: str


METRICS: Final = {
    PULL_SECONDS: Metric(
        HISTOGRAM, "Seconds from the step that began a pull of a worker to the one that saw its end."
    ),
    PULLED_BYTES: Metric(COUNTER, "Bytes of blocks that were received, also those of pulls that failed later."),
    FAILED_PULLS: Metric(COUNTER, "Pulls of a worker that failed."),
    SERVED_HOLDS: Metric(COUNTER, "Holds of a worker that were pulled or declined."),
    EXPIRED_HOLDS: Metric(COUNTER, "Holds of a worker whose time was over, or that a reset ended."),
    REFUSED_TICKETS: Metric(
        COUNTER, "Requests whose ticket could not be taken, so that their prompt was computed."
    ),
    REFUSED_HOLDS: Metric(
        COUNTER, "Requests that were not held for another engine, since max_held_blocks were held already."
    ),
    HELD_BLOCKS: Metric(GAUGE, "Blocks that wait to be pulled."),
}


class P2PStats(CountedStats):
    """Counts of one worker, or of the scheduler."""

    levels = (HELD_BLOCKS,)

    def take(self) -> "P2PStats | None":
        """The counts since the last call; None if there are none."""
        if self.is_empty():
            return None
        counted = P2PStats(self.data)
        self.reset()
        return counted


class P2PPromMetrics(KVConnectorPromMetrics):
    """All of ``METRICS``, by engine."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetric]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        registered = {name: self._register(name, metric) for name, metric in METRICS.items()}
        self._children = {
            engine: {name: metric.labels(*values) for name, metric in registered.items()}
            for engine, values in per_engine_labelvalues.items()
        }

    def _register(self, name: str, metric: Metric) -> PromMetric:
        kind: Any = self._counter_cls
        options: dict[str, Any] = {}
        if metric.kind == GAUGE:
            kind, options = self._gauge_cls, {"multiprocess_mode": "mostrecent"}
        elif metric.kind == HISTOGRAM:
            kind, options = self._histogram_cls, {"buckets": SECONDS}
        return kind(name=name, documentation=metric.documentation, labelnames=self._labelnames, **options)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in transfer_stats_data.items():
            child = self._children[engine_idx][name]
            if METRICS[name].kind == COUNTER:
                child.inc(value)
            elif METRICS[name].kind == GAUGE:
                child.set(value)
            else:
                for sample in value:
                    child.observe(sample)
