"""``KVLookupBufferBase`` and ``KVStoreBufferBase``: tables of tensors between two engines.

A lookup buffer exists because prefill and decode handle requests in different orders, which a FIFO can't express.
"""

from abc import ABC, abstractmethod

from kv_api.engine import Tensor


class KVLookupBufferBase(ABC):
    """A table keyed by tokens. The producer inserts, the consumer selects; what is selected is gone.

    ``roi`` is a mask over the tokens: those that count. An entry matches when its tokens that count and those
    asked for are the same, in order, up to the length of the shorter, which is not 0. So an entry may hold fewer
    tokens than were asked for, or more: who asks must look at what came.
    """

    @abstractmethod
    def insert(
        self,
        input_tokens: Tensor,
        roi: Tensor | None,
        key: Tensor | None,
        value: Tensor | None,
        hidden: Tensor | None,
    ) -> None:
        """Add an entry. It is there at once; the call returns as soon as there is room for another."""

    @abstractmethod
    def drop_select(self, input_tokens: Tensor | None, roi: Tensor | None) -> list[Tensor | None]:
        """Take an entry that matches, as it was inserted: tokens, roi, key, value, hidden. Or five times None.

        Waits for the answer. Without tokens any entry matches; without a roi all tokens count.
        """

    @abstractmethod
    def close(self) -> None:
        """End the buffer for both, and wake whoever waits. What was not taken is dropped."""


class KVStoreBufferBase(ABC):
    """A table keyed by strings. What is put stays, until it is replaced or the store has no room for it."""

    @abstractmethod
    def put(self, key: str, value: Tensor | None) -> None:
        """Store a copy of a tensor, or None, in place of what was there."""

    @abstractmethod
    def get(self, key: str) -> Tensor | None:
        """What is there under the key; None, if nothing is. Nobody else sees what is written to it."""

    @abstractmethod
    def close(self) -> None:
        """End it and release everything."""
