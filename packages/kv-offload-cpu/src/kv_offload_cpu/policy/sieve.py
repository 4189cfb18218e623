"""SIEVE: one queue, one bit, and a hand that sifts out what wasn't used since it last came by.

Yazhuo Zhang, Juncheng Yang, Yao Yue, Ymir Vigfusson, K. V. Rashmi: "SIEVE is Simpler than LRU: an Efficient
Turn-Key Eviction Algorithm for Web Caches", NSDI 2024.

New chunks enter at the head and never move. The hand goes from tail to head; what was visited loses its mark and
stays where it is, what wasn't is evicted; past the head it begins again at the tail. Here the hand is the seam
between two queues: ``_passed``, from the tail up to the hand, and ``_ahead``, from the hand to the head.

A batch enters tail first, so that of chunks nobody used again a tail leaves before its head. A pinned chunk that
the hand meets is parked; it enters at the head when it is unpinned, its mark spent.
"""

from collections.abc import Sequence

from kv_api import OffloadKey
from kv_offload_cpu.policy.base import CachePolicy, Run
from kv_offload_cpu.policy.fifo import Fifo


class SievePolicy(CachePolicy):
    """SIEVE."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._ahead: Fifo[int] = Fifo()
        self._passed: Fifo[int] = Fifo()
        self._visited = bytearray(capacity)
        self._is_passed = bytearray(capacity)
        self._parked: dict[int, None] = {}

    def make_room(self, keys: Sequence[OffloadKey], count: int, pins: Sequence[int]) -> list[int]:
        return [self._evict(pins) for _ in range(count)]

    def insert(self, keys: Sequence[OffloadKey], slots: Sequence[int], run: Run) -> None:
        self._enter(slots)

    def access(self, slots: Sequence[int], run: Run) -> None:
        visited = self._visited
        for slot in slots:
            visited[slot] = True

    def unpin(self, slots: Sequence[int], run: Run) -> None:
        if self._parked:
            back = [slot for slot in slots if slot in self._parked]
            for slot in back:
                del self._parked[slot]
            self._enter(back)

    def remove(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if slot in self._parked:
                del self._parked[slot]
            else:
                (self._passed if self._is_passed[slot] else self._ahead).remove(slot)

    def clear(self) -> None:
        self._ahead.clear()
        self._passed.clear()
        self._parked.clear()

    def slots(self) -> list[int]:
        return [*self._passed, *self._ahead, *self._parked]

    def check(self, pins: Sequence[int]) -> None:
        self._ahead.check()
        self._passed.check()
        held = self.slots()
        assert len(set(held)) == len(held), f"a slot is in two places: {held}"
        for queue, is_passed in ((self._ahead, False), (self._passed, True)):
            wrong = [slot for slot in queue if bool(self._is_passed[slot]) is not is_passed]
            assert not wrong, f"slots {wrong} are on the wrong side of the hand"
        assert all(pins[slot] for slot in self._parked), f"parked but not pinned: {self._parked}"

    def _evict(self, pins: Sequence[int]) -> int:
        """Move the hand to the next chunk that is neither visited nor pinned, and take it."""
        visited = self._visited
        while True:
            try:
                slot = self._ahead.pop()
            except IndexError:
                assert self._passed, "nothing is left that isn't pinned"
                self._wrap()
                continue
            if pins[slot]:
                self._parked[slot] = None
            elif visited[slot]:
                visited[slot] = False
                self._is_passed[slot] = True
                self._passed.push((slot,))
            else:
                return slot

    def _enter(self, slots: Sequence[int]) -> None:
        """At the head. A hand past the head goes to the tail first, or what enters would be next in its way."""
        if not self._ahead:
            self._wrap()
        for slot in slots:
            self._visited[slot] = self._is_passed[slot] = False
        self._ahead.push(reversed(slots))

    def _wrap(self) -> None:
        """The hand goes from past the head to the tail."""
        self._ahead, self._passed = self._passed, self._ahead
        for slot in self._ahead:
            self._is_passed[slot] = False
