"""LRU: the least recently used chunk is evicted first; of one request, the tail before the head.

The order is `RecencyList`'s. A request counts as active when it stores or loads a chunk, and when it finishes:
that is when its conversation is most likely to go on.
"""

from collections.abc import Sequence

from kv_api import OffloadKey
from kv_offload_cpu.policy.base import CachePolicy, Run
from kv_offload_cpu.policy.parked import Parked
from kv_offload_cpu.policy.recency import RecencyList
from kv_offload_cpu.slots.pins import Pins


class LRUPolicy(CachePolicy):
    """Least recently used."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._order = RecencyList([None] * capacity)
        self._parked = Parked()

    def make_room(self, keys: Sequence[OffloadKey], count: int, pins: Pins) -> list[int]:
        return self._order.pop(count, pins, self._parked) if count else []

    def insert(self, keys: Sequence[OffloadKey], slots: Sequence[int], run: Run) -> None:
        self._order.use(slots, run, len(slots))

    def access(self, slots: Sequence[int], run: Run) -> None:
        self._order.use(slots, run, len(self._parked.unpark(slots)))

    def unpin(self, slots: Sequence[int], run: Run) -> None:
        back = self._parked.unpark(slots)
        self._order.use(back, run, len(back))

    def awaits_unpin(self) -> bool:
        return bool(self._parked)

    def remove(self, slots: Sequence[int]) -> None:
        self._order.remove(self._parked.forget(slots))

    def finish(self, run: Run) -> None:
        self._order.renew(run)

    def clear(self) -> None:
        self._order.clear()
        self._parked.clear()

    def slots(self) -> list[int]:
        return [*self._order, *self._parked]

    def check(self, pins: Pins) -> None:
        self._order.check()
        self._parked.check(pins)
        for slot in self._parked:
            assert slot not in self._order, f"slot {slot} is parked and in the order"
