"""``MultiConnector``: several connectors as one. The first child that has the tokens loads, all of them store.

Every member of the connector interface has a rule by which the children answer it. It is stated where it is
carried out: in the side of the object's role (``scheduler_side`` and ``requests``, ``worker_side``, and ``side``
for both). For what is asked of the class it is below, and in ``questions``. Its role is that of all its children.
"""

from typing import Any, cast

from kv_api import (
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
from kv_multi import questions
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
        """What those that want one want. Different wishes are an error that names who wants what."""
        return questions.required_layout(vllm_config)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Whether any does."""
        return questions.any_requires_piecewise(extra_config)

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: TransferConfig) -> bool:
        """Whether all do."""
        return questions.all_support_sleep_mode(kv_transfer_config)

    @classmethod
    def all_children_support_hma(cls, kv_transfer_config: TransferConfig) -> bool:
        """Whether all do. The factory asks, since being a ``SupportsHMA`` says nothing of the children."""
        return questions.all_support_hma(kv_transfer_config)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        """Each one's class builds its part; the payload says which class that is."""
        return MultiKVConnectorStats() if data is None else rebuild(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetric]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics | None:
        """Each one's class, with the label ``child``; a metric that several want is registered once."""
        children = questions.children_of(vllm_config)
        return build_metrics(vllm_config, children, metric_types, labelnames, per_engine_labelvalues)
