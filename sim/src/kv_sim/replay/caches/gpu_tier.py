"""``GpuTier``: the GPU's prefix cache in front of host memory, as far as hits depend on it.

Least recently used leaves first, and of a request the tail before the head, as blocks are freed in vLLM. A prompt
longer than the whole tier leaves its head in it.

Invariants: at most ``capacity`` blocks; the last one in the order is the head of the last request.
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
        """The leading run of blocks that are here."""
        order = self._order
        return next((index for index, key in enumerate(keys) if key not in order), len(keys))

    def use(self, keys: list[OffloadKey]) -> None:
        """A request used these; what is not needed any more leaves."""
        self._put_last(keys)
        self._give_away(len(self._order) - self.capacity)

    def check(self) -> None:
        """Recount."""
        assert len(self._order) <= self.capacity, f"{len(self._order)} blocks in a tier of {self.capacity}"

    def _put_last(self, keys: list[OffloadKey]) -> None:
        """The tail before the head."""
        order = self._order
        for key in reversed(keys):
            order.pop(key, None)
            order[key] = None

    def _give_away(self, count: int) -> list[OffloadKey]:
        """The next so many leave, if it is more than none. Returns which."""
        gone = [*islice(self._order, max(0, count))]
        for key in gone:
            del self._order[key]
        return gone
