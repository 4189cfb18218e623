"""What both sides of a connector have: how they are made, what they count, how they end."""

from abc import ABC

from kv_api.engine import KVCacheConfig, TransferConfig, VllmConfig
from kv_api.errors import ConfigError
from kv_api.stats import KVConnectorStats


class ConnectorSide(ABC):  # noqa: B024 - the sides below it have the abstract methods
    """Base of ``SchedulerSide`` and ``WorkerSide``."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        transfer: TransferConfig | None = getattr(vllm_config, "kv_transfer_config", None)
        if transfer is None:
            raise ConfigError(f"{type(self).__name__} needs a kv_transfer_config, and there is none")
        self._vllm_config = vllm_config
        self._kv_transfer_config = transfer
        self._kv_cache_config = kv_cache_config

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """What this side counted since the last call. None: nothing. Asked after every step."""
        return None

    def shutdown(self) -> None:
        """Finish or cancel every transfer and release everything. Called once, at the end."""
