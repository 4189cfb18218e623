"""``KVConnectorBase``: the first family of connectors, which move whole requests between two engines.

The producer's engine sends the KV after a prefill; the consumer's engine receives it instead of doing the
prefill. A pipe and a lookup buffer usually lie underneath, because the two engines handle requests in different
orders.
"""

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

from kv_api.connector import KVConnectorBase_V1
from kv_api.engine import Tensor, VllmConfig


class KVConnectorBase(ABC):
    """Base class of the connectors of the first family. Built as ``(rank, local_rank, config)``."""

    @abstractmethod
    def __init__(self, rank: int, local_rank: int, config: VllmConfig) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Close the connections and release everything."""

    @abstractmethod
    def send_kv_caches_and_hidden_states(
        self,
        model_executable: Any,
        model_input: Any,
        kv_caches: list[Tensor],
        hidden_or_intermediate_states: Any,
    ) -> None:
        """Send what a prefill produced: every layer's KV for each prompt, and the hidden states.

        Called after the forward pass of a prefill. May return before the bytes have left.
        """

    @abstractmethod
    def recv_kv_caches_and_hidden_states(
        self, model_executable: Any, model_input: Any, kv_caches: list[Tensor]
    ) -> tuple[Any, bool, Any]:
        """Fill ``kv_caches`` instead of doing a prefill.

        Returns the hidden states, whether the engine can skip the forward pass, and the model input to use. The
        engine can skip it only if everything arrived; otherwise the model input says what is still to be
        computed.
        """


KVConnectorBaseType: TypeAlias = KVConnectorBase | KVConnectorBase_V1
"""A connector of either family."""
