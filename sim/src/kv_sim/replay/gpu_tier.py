"""``GpuTier``: the GPU's prefix cache in front of host memory, as far as hits depend on it.

Least recently used leaves first, and of a request the tail before the head, as blocks are freed in vLLM. A prompt
longer than the whole tier leaves its head in it.

Invariants: at most ``capacity`` blocks; the last one in the order is the head of the last request.
"""

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
        order = self._order
        for key in reversed(keys):
            order.pop(key, None)
            order[key] = None
        surplus = len(order) - self.capacity
        if surplus > 0:
            oldest = iter(order)
            for key in [next(oldest) for _ in range(surplus)]:
                del order[key]

    def check(self) -> None:
        """Recount."""
        assert len(self._order) <= self.capacity, f"{len(self._order)} blocks in a tier of {self.capacity}"
