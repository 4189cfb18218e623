"""``KVConnectorBase_V1``: what an engine creates, once as its scheduler's side and once in each worker.

One class serves two roles. On the object of role ``SCHEDULER`` the engine calls the methods of ``SchedulerSide``,
on the objects of role ``WORKER`` those of ``WorkerSide``. A connector may override both here, or be written as
two classes and joined with ``kv_api.two_sided``. Below are the class methods, which the engine calls before any
object exists.
"""

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any

from kv_api.engine import BlockIds, KVCacheConfig, Request, TransferConfig, VllmConfig
from kv_api.scheduler_side import SchedulerSide
from kv_api.stats import KVConnectorPromMetrics, KVConnectorStats, PromMetric
from kv_api.worker_side import WorkerSide


class KVConnectorRole(Enum):
    """The role of a connector object: the scheduler's, or a worker's."""

    SCHEDULER = 0
    WORKER = 1


class KVConnectorBase_V1(SchedulerSide, WorkerSide):  # noqa: N801 - vLLM's name
    """Base class of every connector. Seven methods are abstract: every connector has to implement them."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        role: KVConnectorRole,
        kv_cache_config: KVCacheConfig | None = None,
    ) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._role = role

    @property
    def role(self) -> KVConnectorRole:
        """The role that this object was created for."""
        return self._role

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """The layout that the KV caches must have, by vLLM's name for it. None: any."""
        if cls is KVConnectorBase_V1:
            raise TypeError("get_required_kvcache_layout is for connector classes, not for their base")
        return None

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Whether the layer hooks do work that a whole captured graph would skip."""
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: TransferConfig) -> bool:
        """Whether the connector still works after the engine unmapped its KV caches and mapped them again."""
        return True

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        """Make this connector's stats object, empty or from a payload of its ``to_dict``."""
        return None

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetric]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics | None:
        """Register this connector's Prometheus metrics and return what observes stats into them."""
        return None


class SupportsHMA(ABC):
    """A connector that works with several KV cache groups (vLLM's hybrid memory allocator)."""

    @abstractmethod
    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        """Like ``request_finished``, with the blocks of every group.

        The engine calls it instead of ``request_finished``.
        """


def supports_hma(connector: object) -> bool:
    """Whether a connector, or a connector class, works with several KV cache groups."""
    if isinstance(connector, type):
        return issubclass(connector, SupportsHMA)
    return isinstance(connector, SupportsHMA)
