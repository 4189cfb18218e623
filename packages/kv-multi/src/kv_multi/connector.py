"""``MultiConnector``: several connectors as one. The first child that has the tokens loads, all of them store.

Every member of the connector interface has a rule by which the children answer it. It is stated where it is
carried out: in the side of the object's role (``scheduler_side`` and ``requests``, ``worker_side``, and ``side``
for both). The rules for class methods are below: an engine calls them before there is an object, so they are
answered from the configuration alone. All children have the role of the MultiConnector.
"""

from typing import Any, cast

from kv_api import (
    ConfigError,
    KVCacheConfig,
    KVConnectorBase_V1,
    KVConnectorPromMetrics,
    KVConnectorRole,
    KVConnectorStats,
    TransferConfig,
    TwoSidedHMAConnector,
    VllmConfig,
)
from kv_api.stats import PromMetric
from kv_factory import KVConnectorFactory
from kv_multi.children import ChildConfig, child_vllm_config, has_children, parse_children, parse_connectors
from kv_multi.prom import build_metrics
from kv_multi.scheduler_side import MultiSchedulerSide
from kv_multi.side import MultiSide
from kv_multi.stats import MultiKVConnectorStats, rebuild
from kv_multi.worker_side import MultiWorkerSide


class MultiConnector(TwoSidedHMAConnector):
    """Hands every call to its children by a stated rule."""

    scheduler_class = MultiSchedulerSide
    worker_class = MultiWorkerSide

    def __init__(
        self,
        vllm_config: VllmConfig,
        role: KVConnectorRole,
        kv_cache_config: KVCacheConfig | None = None,
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        children = self._multi_side.children
        self._connectors: list[KVConnectorBase_V1] = [child.connector for child in children]
        self.child_names: tuple[str, ...] = tuple(child.name for child in children)
        """The children's names, in the order of the configuration."""

    @property
    def sub_connectors(self) -> list[KVConnectorBase_V1]:
        """The children, in the order of the configuration."""
        return list(self._connectors)

    @property
    def _multi_side(self) -> MultiSide:
        return cast(MultiSide, self.side)

    def check(self) -> None:
        """Recount everything that is remembered; for tests."""
        self._multi_side.check()

    # -- the class -----------------------------------------------------------------------------

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """The layout that any child requires. If children require different layouts, the error names each."""
        wanted = {}
        for child in _children_of(vllm_config):
            layout = child.connector_class.get_required_kvcache_layout(child_vllm_config(vllm_config, child))
            if layout is not None:
                wanted[child.name] = layout
        if len(set(wanted.values())) > 1:
            wishes = ", ".join(f"{name!r} {layout}" for name, layout in wanted.items())
            raise ConfigError(f"the connectors want different KV cache layouts: {wishes}")
        return next(iter(wanted.values()), None)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Whether any child does; False without children."""
        return has_children(extra_config) and any(
            child.connector_class.requires_piecewise_for_cudagraph(child.transfer.kv_connector_extra_config)
            for child in parse_connectors(extra_config)
        )

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: TransferConfig) -> bool:
        """Whether all children do; False without children."""
        return has_children(kv_transfer_config.kv_connector_extra_config) and all(
            child.connector_class.supports_sleep_mode(child.transfer)
            for child in parse_children(kv_transfer_config)
        )

    @classmethod
    def all_children_support_hma(cls, kv_transfer_config: TransferConfig) -> bool:
        """Whether all children do, at any depth; False without children.

        The factory asks this, since the class itself always derives from ``SupportsHMA``.
        """
        return has_children(kv_transfer_config.kv_connector_extra_config) and all(
            KVConnectorFactory.supports_hma_config(child.transfer) for child in parse_children(kv_transfer_config)
        )

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        """Each child's class builds its part; the payload names that class."""
        return MultiKVConnectorStats() if data is None else rebuild(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetric]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics | None:
        """Metrics of each child's class, with the label ``child``; a metric of several is registered once."""
        children = _children_of(vllm_config)
        return build_metrics(vllm_config, children, metric_types, labelnames, per_engine_labelvalues)


def _children_of(vllm_config: VllmConfig) -> tuple[ChildConfig, ...]:
    """The children in an engine's configuration."""
    if vllm_config.kv_transfer_config is None:
        raise ConfigError("kv_transfer_config: not set, so there are no children")
    return parse_children(vllm_config.kv_transfer_config)
