"""``GpuTier``: the GPU's prefix cache in front of host memory, as an LRU of block keys.

The least recently used block is evicted first, and a request's tail before its head, as vLLM frees blocks. Of a
prompt that is longer than the tier, the head stays in it.

Invariants: at most ``capacity`` blocks; the last block in the order is the head of the last request.
"""

from itertools import islice

from kv_api import OffloadKey


class GpuTier:
    """An LRU of ``capacity`` blocks."""

    def __init__(self, capacity: int) -> None:
        assert capacity >= 1, f"a tier of {capacity} blocks"
        self.capacity = capacity
        self._order: dict[OffloadKey, None] = {}

    def hits(self, keys: list[OffloadKey]) -> int:
        """How many leading blocks of a prompt the tier has."""
        order = self._order
        return next((index for index, key in enumerate(keys) if key not in order), len(keys))

    def use(self, keys: list[OffloadKey]) -> None:
        """A request used these blocks: they become the most recent, and surplus blocks are evicted."""
        self._put_last(keys)
        self._give_away(len(self._order) - self.capacity)

    def check(self) -> None:
        """Recount."""
        assert len(self._order) <= self.capacity, f"{len(self._order)} blocks in a tier of {self.capacity}"

    def _put_last(self, keys: list[OffloadKey]) -> None:
        """Make these the most recent, the tail before the head."""
        order = self._order
        for key in reversed(keys):
            order.pop(key, None)
            order[key] = None

    def _give_away(self, count: int) -> list[OffloadKey]:
        """Evict the next ``count`` blocks, none if it is below 1. Returns their keys."""
        gone = [*islice(self._order, max(0, count))]
        for key in gone:
            del self._order[key]
        return gone
