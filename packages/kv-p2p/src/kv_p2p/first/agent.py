"""``KVTransferAgent``: by which a worker uses the connector of the first family that its configuration names."""

from typing import Any

from kv_api import ConfigError, VllmConfig
from kv_api.engine import Tensor
from kv_factory import KVConnectorFactory


class KVTransferAgent:
    """Makes the connector, and passes every call on to it.

    ``VLLM_USE_V1`` must be 0: otherwise the engine uses the second family, and ``KVConnectorFactory`` refuses to
    make a connector of the first.
    """

    def __init__(self, rank: int, local_rank: int, config: VllmConfig) -> None:
        transfer: Any = getattr(config, "kv_transfer_config", None)
        if transfer is None:
            raise ConfigError("kv_transfer_config: not set, so there is nothing for a KVTransferAgent to do")
        if not transfer.is_kv_transfer_instance:
            raise ConfigError(
                "kv_transfer_config: a KVTransferAgent needs an instance that transfers KV, "
                f"got kv_connector={transfer.kv_connector!r} and kv_role={transfer.kv_role!r}"
            )
        self.connector = KVConnectorFactory.create_connector_v0(rank, local_rank, config)

    def send_kv_caches_and_hidden_states(
        self,
        model_executable: Any,
        model_input: Any,
        kv_caches: list[Tensor],
        hidden_or_intermediate_states: Any,
    ) -> None:
        """Pass a prefill's results to the connector."""
        self.connector.send_kv_caches_and_hidden_states(
            model_executable, model_input, kv_caches, hidden_or_intermediate_states
        )

    def recv_kv_caches_and_hidden_states(
        self, model_executable: Any, model_input: Any, kv_caches: list[Tensor]
    ) -> tuple[Any, bool, Any]:
        """Have the connector fill the caches in place of a prefill."""
        return self.connector.recv_kv_caches_and_hidden_states(model_executable, model_input, kv_caches)

    def close(self) -> None:
        """Close the connector."""
        self.connector.close()
