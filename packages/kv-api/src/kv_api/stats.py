"""Numbers that a connector reports: stats objects, their Prometheus side, where hits came from."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias

from kv_api.engine import TransferConfig, VllmConfig

PromMetric: TypeAlias = Any
"""A ``prometheus_client`` metric; that package is the engine's, not ours."""


class CacheHitSource(StrEnum):
    """Which memory supplied cached tokens, nearest to the accelerator first."""

    DEVICE = "device"
    HOST = "host"
    P2P = "p2p"
    DISK = "disk"
    EXTERNAL_UNSPECIFIED = "external_unspecified"

    @classmethod
    def outermost(cls, sources: "Iterable[CacheHitSource]") -> "CacheHitSource":
        """The one of ``sources`` that is farthest from the accelerator."""
        order = list(cls)
        return max(sources, key=order.index)


@dataclass
class KVConnectorStats:
    """What one side of a connector counted since it was last asked.

    ``data`` must survive pickling and JSON: it travels from worker to scheduler to logger.
    """

    data: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The payload that travels; ``build_kv_connector_stats`` gets it on the other side."""
        return self.data

    def reset(self) -> None:
        """Forget what was counted."""
        raise NotImplementedError(f"{type(self).__name__} has to implement reset")

    def aggregate(self, other: "KVConnectorStats") -> "KVConnectorStats":
        """Add what ``other`` counted and return the sum; it may change and return ``self``."""
        raise NotImplementedError(f"{type(self).__name__} has to implement aggregate")

    def reduce(self) -> dict[str, Any]:
        """A few representative numbers for a line in the log."""
        raise NotImplementedError(f"{type(self).__name__} has to implement reduce")

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        raise NotImplementedError(f"{type(self).__name__} has to implement is_empty")


class CountedStats(KVConnectorStats):
    """Stats whose ``data`` has a sum, the latest level or a list of samples by the name of each metric."""

    levels: ClassVar[Collection[str]] = ()
    """The names of those that are levels."""

    def add(self, name: str, value: Any) -> None:
        """Add to a sum, add samples, or set a level."""
        if name in self.data and name not in self.levels:
            self.data[name] = self.data[name] + value
        else:
            self.data[name] = value

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> "CountedStats":
        if not isinstance(other, type(self)):
            raise TypeError(f"stats: expected {type(self).__name__}, got {type(other).__name__}")
        for name, value in other.data.items():
            self.add(name, value)
        return self

    def reduce(self) -> dict[str, Any]:
        numbers: dict[str, Any] = {}
        for name, value in self.data.items():
            if isinstance(value, list):
                numbers |= {f"{name}_count": len(value), f"{name}_sum": sum(value)}
            else:
                numbers[name] = value
        return numbers

    def is_empty(self) -> bool:
        return not self.data


class KVConnectorPromMetrics(ABC):
    """Registers a connector's Prometheus metrics and records stats in them.

    ``metric_types`` maps prometheus_client's ``Gauge``, ``Counter`` and ``Histogram`` to the classes that the
    engine wants used in their place; ``per_engine_labelvalues`` has the label values of each engine index.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: Mapping[type[PromMetric], type[PromMetric]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        self._kv_transfer_config: TransferConfig | None = vllm_config.kv_transfer_config
        self._metric_types = {kind.__name__: used for kind, used in metric_types.items()}
        self._labelnames = labelnames
        self.per_engine_labelvalues = per_engine_labelvalues

    @property
    def _gauge_cls(self) -> type[PromMetric]:
        return self._metric_types["Gauge"]

    @property
    def _counter_cls(self) -> type[PromMetric]:
        return self._metric_types["Counter"]

    @property
    def _histogram_cls(self) -> type[PromMetric]:
        return self._metric_types["Histogram"]

    @abstractmethod
    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Record one payload of ``KVConnectorStats.to_dict`` for engine ``engine_idx``."""
