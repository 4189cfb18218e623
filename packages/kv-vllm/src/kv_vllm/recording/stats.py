"""The stats of a wrapped connector, in the process that logs them.

That process has only the payload and the wrapping connector's class, and no configuration. So the payload names
the wrapped connector's class, as kv-multi's payload does for each child.
"""

from typing import Any, Final

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

_NAME: Final = "kv_connector"
_MODULE: Final = "kv_connector_module_path"
_DATA: Final = "data"


class StatsBehind(KVConnectorStats):  # type: ignore[misc]
    """The stats of the wrapped connector, with the name of its class."""

    def __init__(self, stats: Any, kv_connector: str, kv_connector_module_path: str | None) -> None:
        super().__init__()
        self.stats = stats
        self._origin = {_NAME: kv_connector, _MODULE: kv_connector_module_path}

    def to_dict(self) -> dict[str, Any]:
        return {**self._origin, _DATA: self.stats.to_dict()}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        if not isinstance(other, StatsBehind):
            raise TypeError(f"stats: expected StatsBehind, got {type(other).__name__}")
        self.stats = self.stats.aggregate(other.stats)
        return self

    def reset(self) -> None:
        self.stats.reset()

    def reduce(self) -> dict[str, Any]:
        reduced: dict[str, Any] = self.stats.reduce()
        return reduced

    def is_empty(self) -> bool:
        return bool(self.stats.is_empty())


class MetricsBehind(KVConnectorPromMetrics):  # type: ignore[misc]
    """Passes the payload of the wrapped connector to that one's metrics."""

    def __init__(self, metrics: KVConnectorPromMetrics) -> None:
        # Not the constructor of vLLM's class: this one registers nothing.
        self.metrics = metrics

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        self.metrics.observe(transfer_stats_data[_DATA], engine_idx)


def rebuild(payload: dict[str, Any]) -> StatsBehind | None:
    """Stats from a payload. None: the class that it names can't build its own."""
    transfer = KVTransferConfig(
        kv_connector=payload[_NAME], kv_connector_module_path=payload[_MODULE], kv_role="kv_both"
    )
    stats = KVConnectorFactory.get_connector_class(transfer).build_kv_connector_stats(payload[_DATA])
    return None if stats is None else StatsBehind(stats, payload[_NAME], payload[_MODULE])
