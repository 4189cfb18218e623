"""``P2PConnector``: the two sides under one name."""

from typing import Any

from kv_api import (
    KVCacheConfig,
    KVCaches,
    KVConnectorPromMetrics,
    KVConnectorStats,
    TwoSidedHMAConnector,
    VllmConfig,
)
from kv_api.engine import TransferConfig
from kv_api.groups import GroupDescription, describe_group
from kv_api.stats import PromMetric
from kv_p2p.pulling.groups import groups_of
from kv_p2p.pulling.options import Options, parse_options
from kv_p2p.pulling.scheduler import P2PSchedulerSide
from kv_p2p.pulling.stats import P2PPromMetrics, P2PStats
from kv_p2p.pulling.wire import Wire
from kv_p2p.pulling.worker import P2PWorkerSide


class P2PConnector(TwoSidedHMAConnector):
    """Prefill here, decode there: another engine pulls the blocks of a prompt that this one has computed."""

    scheduler_class = P2PSchedulerSide
    worker_class = P2PWorkerSide

    @classmethod
    def describe_group(cls, kv_cache_spec: Any) -> GroupDescription:
        """Describe the layers of a KV cache group. To be overridden for an engine with other specs.

        Called once at start, in each process, with the ``kv_cache_spec`` of each group; raises ``ConfigError`` for
        a spec that it doesn't know. The default reads a spec that names its ``kind``.
        """
        return describe_group(kv_cache_spec)

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: TransferConfig) -> bool:
        return False  # other engines may be reading the blocks

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        return P2PStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetric]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics | None:
        return P2PPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def build_side(self, side_class: Any, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None) -> Any:
        """Give a side the operator's settings and the groups, too, and a worker's side the maker of its wire."""
        options = parse_options(vllm_config, kv_cache_config)
        groups = groups_of(vllm_config, kv_cache_config, self.describe_group)
        if issubclass(side_class, P2PSchedulerSide):
            return side_class(vllm_config, kv_cache_config, options, groups)

        def make_wire(kv_caches: KVCaches) -> Wire:
            return self.make_wire(kv_caches, options, vllm_config, kv_cache_config)

        return side_class(vllm_config, kv_cache_config, options, groups, make_wire)

    def make_wire(
        self, kv_caches: KVCaches, options: Options, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None
    ) -> Wire:
        """Make the worker's connections. To be overridden for another transport than TCP."""
        from kv_p2p.pulling.tcp.wire import TcpWire

        return TcpWire.of_worker(kv_caches, options, vllm_config, kv_cache_config)
