"""The children's Prometheus metrics: registered once for each name, told apart by the label ``child``.

Prometheus refuses to register a metric twice, and children of one class (or of related classes) want the same
metrics. So each child builds its metrics as it would alone, but for two things. Every label list has the label
``child`` at its end, with the child's name as the value. And a metric that another child has registered before is
used again, not registered again. All children have the label, also an only one, so that a dashboard doesn't change
when a child is added. Children of a nested MultiConnector are named by their path, ``outer/inner``.

A metric has the same labels for everybody, so children that give one metric different labels can't share it. The
info metric of kv-offload is such a one: its labels say what the child's medium is like. The first child registers
it under its own name; each later one whose labels differ, under that name with the child's name at its end.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from kv_api import KVConnectorPromMetrics, VllmConfig
from kv_api.stats import PromMetric
from kv_multi.children import ChildConfig, child_vllm_config
from kv_multi.stats import open_envelope

CHILD_LABEL: Final = "child"
"""The label that has a child's name."""

MetricTypes = dict[type[PromMetric], type[PromMetric]]
LabelValues = dict[int, list[object]]

_Registered: TypeAlias = tuple[tuple[str, ...], PromMetric]
"""A registered metric, with its labels."""


class MultiKVConnectorPromMetrics(KVConnectorPromMetrics):
    """Hands each child's part of a payload to that child's metrics."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: Mapping[type[PromMetric], type[PromMetric]],
        labelnames: list[str],
        per_engine_labelvalues: LabelValues,
        prom_metrics: Mapping[str, KVConnectorPromMetrics],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._prom_metrics = dict(prom_metrics)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in transfer_stats_data.items():
            metrics = self._prom_metrics.get(name)
            if metrics is not None:
                metrics.observe(open_envelope(name, value)[1], engine_idx)


def build_metrics(
    vllm_config: VllmConfig,
    children: Sequence[ChildConfig],
    metric_types: MetricTypes,
    labelnames: list[str],
    per_engine_labelvalues: LabelValues,
) -> MultiKVConnectorPromMetrics:
    """Build the metrics of all children."""
    registered: dict[str, _Registered] = {}
    nested = labelnames[-1:] == [CHILD_LABEL]
    names = labelnames if nested else [*labelnames, CHILD_LABEL]
    built = {}
    for child in children:
        values = {
            engine: _named(engine_values, child.name, nested=nested)
            for engine, engine_values in per_engine_labelvalues.items()
        }
        shared: Any = {kind: _registered_once(used, registered, child.name) for kind, used in metric_types.items()}
        metrics = child.connector_class.build_prom_metrics(
            child_vllm_config(vllm_config, child), shared, list(names), values
        )
        if metrics is not None:
            built[child.name] = metrics
    return MultiKVConnectorPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues, built)


def _named(values: Sequence[object], name: str, *, nested: bool) -> list[object]:
    if nested:
        return [*values[:-1], f"{values[-1]}/{name}"]
    return [*values, name]


def _registered_once(
    metric_type: Callable[..., PromMetric], registered: dict[str, _Registered], child: str
) -> Callable[..., PromMetric]:
    """Replaces a metric class for ``child``: a metric that an earlier child has registered is returned again."""

    def register(name: str, documentation: str, labelnames: Sequence[str] = (), **kwargs: Any) -> PromMetric:
        labels = tuple(labelnames)
        if name in registered and registered[name][0] != labels:
            name = f"{name}_{re.sub(r'[^a-zA-Z0-9_]', '_', child)}"
        if name not in registered:
            metric = metric_type(name=name, documentation=documentation, labelnames=labelnames, **kwargs)
            registered[name] = labels, metric
        return registered[name][1]

    return register
