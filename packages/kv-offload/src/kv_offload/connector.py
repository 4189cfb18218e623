"""``OffloadingConnector``: the two sides under one name, and what an engine asks of the class itself."""

from typing import Any

from kv_api import (
    ConfigError,
    KVCacheConfig,
    KVConnectorPromMetrics,
    KVConnectorStats,
    TwoSidedHMAConnector,
    VllmConfig,
)
from kv_api.blocks import hash_extras
from kv_api.engine import Request
from kv_api.groups import GroupDescription, describe_group
from kv_api.stats import PromMetric
from kv_factory import OffloadingSpecFactory
from kv_offload.describe import describe_engine
from kv_offload.metrics import OffloadingConnectorStats
from kv_offload.prom import OffloadPromMetrics
from kv_offload.scheduler.side import OffloadingSchedulerSide
from kv_offload.worker.side import OffloadingWorkerSide


class OffloadingConnector(TwoSidedHMAConnector):
    """Keeps the KV that an engine computes in a medium, and brings it back; vLLM's connector of that name."""

    scheduler_class = OffloadingSchedulerSide
    worker_class = OffloadingWorkerSide

    def build_side(self, side_class: Any, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None) -> Any:
        """Make a side; it also gets the description of the engine and the medium that the configuration names."""
        engine = describe_engine(vllm_config, kv_cache_config, self.describe_group, self.hash_extras)
        spec = OffloadingSpecFactory.create_spec(engine.config)
        return side_class(vllm_config, kv_cache_config, engine, spec)

    @classmethod
    def describe_group(cls, kv_cache_spec: Any) -> GroupDescription:
        """Describe the layers of a KV cache group. To be overridden for an engine with other specs.

        Called once at start, in each process, with the ``kv_cache_spec`` of each group that is offloaded; raises
        ``ConfigError`` for what it doesn't know. The default reads a spec that names its ``kind``.
        """
        return describe_group(kv_cache_spec)

    @classmethod
    def hash_extras(cls, request: Request, tokens: range) -> tuple[Any, ...] | None:
        """The extra keys, beside tokens, that the hash of a request's ``tokens`` covers: ``extra_keys`` of events.

        Override it for an engine whose hashes cover other things than an adapter, images and a salt. Only called
        with ``self_describing_kv_events``.
        """
        return hash_extras(request, tokens)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        attention = getattr(vllm_config, "attention_config", None)
        return "LBHNC" if getattr(attention, "hisparse_config", None) is None else "BLHNC"

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        return OffloadingConnectorStats(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetric]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics | None:
        transfer = vllm_config.kv_transfer_config
        if transfer is None:
            raise ConfigError("OffloadingConnector needs a kv_transfer_config, and there is none")
        extra = transfer.kv_connector_extra_config
        spec_class = OffloadingSpecFactory.get_spec_cls(extra)
        return OffloadPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues, spec_class, extra)
