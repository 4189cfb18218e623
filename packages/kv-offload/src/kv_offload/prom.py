"""The Prometheus side of the connector's metrics: what is declared is registered, what is counted is recorded."""

from collections.abc import Mapping
from typing import Any

from kv_api import (
    KVConnectorPromMetrics,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
    OffloadingSpec,
    VllmConfig,
)
from kv_api.stats import PromMetric
from kv_offload.log import warn
from kv_offload.metrics import CONFIG_INFO, COUNTER, GAUGE, METRICS

INFO_HELP = "What the offloading medium of this engine is like; a series for each of its configurations."


class OffloadPromMetrics(KVConnectorPromMetrics):
    """Metrics of the connector, of its medium, and the info metric."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: Mapping[type[PromMetric], type[PromMetric]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
        spec_class: type[OffloadingSpec],
        extra_config: dict[str, Any],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._info_keys = spec_class.config_info_keys(extra_config)
        self._declared: dict[str, OffloadingMetricMetadata] = {
            **spec_class.build_metric_definitions(extra_config),
            **METRICS,
            CONFIG_INFO: OffloadingGaugeMetadata(INFO_HELP, self._info_keys),
        }
        self._metrics = {name: self._register(name, metric) for name, metric in self._declared.items()}
        self._unknown: set[str] = set()

    def _register(self, name: str, metric: OffloadingMetricMetadata) -> PromMetric:
        labels = [*self._labelnames, *metric.labelnames]
        kind: Any = self._counter_cls
        options: dict[str, Any] = {}
        if isinstance(metric, OffloadingGaugeMetadata):
            kind = self._gauge_cls
            options["multiprocess_mode"] = metric.multiprocess_mode
        elif isinstance(metric, OffloadingHistogramMetadata):
            kind = self._histogram_cls
            if metric.buckets is not None:
                options["buckets"] = metric.buckets
        else:
            assert isinstance(metric, OffloadingCounterMetadata), f"{name} is a {type(metric).__name__}"
        return kind(name=name, documentation=metric.documentation, labelnames=labels, **options)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for series in transfer_stats_data.get("info") or ():
            labels = [str(series.get(key, "")) for key in self._info_keys]
            self._child(CONFIG_INFO, labels, engine_idx).set(1)
        types = transfer_stats_data.get("types", {})
        for name, by_labels in transfer_stats_data.get("data", {}).items():
            if name not in self._metrics:
                if name not in self._unknown:
                    self._unknown.add(name)
                    warn("metric %s is counted and was not declared; it is not exported", name)
                continue
            for values, value in by_labels.items():
                child = self._child(name, list(values), engine_idx)
                if types[name] == COUNTER:
                    child.inc(value)
                elif types[name] == GAUGE:
                    child.set(value)
                else:
                    for sample in value:
                        child.observe(sample)

    def _child(self, name: str, values: list[Any], engine_idx: int) -> PromMetric:
        return self._metrics[name].labels(*self.per_engine_labelvalues[engine_idx], *values)
