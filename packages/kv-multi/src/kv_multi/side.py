"""What both sides of a MultiConnector have: the children of their role, and which of them are switched off.

Every child is asked through ``quarantine``; "each" means every child in the order of the configuration, and one
that is switched off is left out.
"""

from abc import abstractmethod
from typing import ClassVar

from kv_api import KVCacheConfig, KVConnectorRole, KVConnectorStats, VllmConfig
from kv_api.side import ConnectorSide
from kv_multi.children import Child, build_children, parse_children, shut_down_all
from kv_multi.options import parse_options
from kv_multi.quarantine import Quarantine
from kv_multi.stats import collect, origins


class MultiSide(ConnectorSide):
    """The children, made for one role."""

    role: ClassVar[KVConnectorRole]

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._options = parse_options(self._kv_transfer_config.kv_connector_extra_config)
        configs = parse_children(self._kv_transfer_config)
        self._origins = origins(configs)
        self._children = build_children(configs, vllm_config, self.role, kv_cache_config)
        self._names = [child.name for child in self._children]
        self._quarantine = Quarantine(self._children, self._options.on_child_error, self._on_switch_off)

    @property
    def children(self) -> tuple[Child, ...]:
        """In the order of the configuration."""
        return self._children

    @abstractmethod
    def _on_switch_off(self, child: Child) -> None:
        """Called after a child raised and was shut down."""

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """Each child's stats under its name, and which children are switched off. None when there is nothing."""
        counted = {
            child.name: self._quarantine.ask(child, child.connector.get_kv_connector_stats, None)
            for child in self._children
        }
        return collect(counted, self._origins, self._quarantine.reasons())

    def shutdown(self) -> None:
        """Shut down every child, whatever others raise; their errors are raised at the end."""
        shut_down_all(list(self._quarantine.live()))

    @abstractmethod
    def check(self) -> None:
        """Recount everything that is remembered; for tests."""
