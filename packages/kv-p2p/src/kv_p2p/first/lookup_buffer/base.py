"""``KVLookupBufferBase`` and ``KVStoreBufferBase``: tables of tensors between two engines.

A lookup buffer exists because prefill and decode handle requests in different orders, which a FIFO can't express.
"""

from abc import ABC, abstractmethod

from kv_api.engine import Tensor


class KVLookupBufferBase(ABC):
    """A table keyed by tokens. The producer inserts entries, the consumer selects them, which removes them.

    ``roi`` is a mask over the tokens: the tokens at True count. An entry matches a request if the shorter of the
    two lists of counting tokens is a prefix of the longer one, and is not empty. So an entry may have fewer or
    more tokens than the request; the caller must check what it got.
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
        """Add an entry. It can be selected at once; the call returns when there is room for another one."""

    @abstractmethod
    def drop_select(self, input_tokens: Tensor | None, roi: Tensor | None) -> list[Tensor | None]:
        """Take a matching entry, as it was inserted: tokens, roi, key, value, hidden; or five times None.

        Waits for the answer. Without tokens any entry matches; without a roi all tokens count.
        """

    @abstractmethod
    def close(self) -> None:
        """End the buffer for both sides, and wake every thread that waits. Entries in it are dropped."""


class KVStoreBufferBase(ABC):
    """A table keyed by strings. A value stays until it is replaced, or until the store needs its room."""

    @abstractmethod
    def put(self, key: str, value: Tensor | None) -> None:
        """Store a copy of a tensor, or None, under the key; it replaces an earlier value."""

    @abstractmethod
    def get(self, key: str) -> Tensor | None:
        """A copy of the value under the key; None if there is none."""

    @abstractmethod
    def close(self) -> None:
        """End the store and release all values."""
