"""SIEVE: one queue, one bit, and a hand that evicts chunks that weren't used since it last passed them.

Yazhuo Zhang, Juncheng Yang, Yao Yue, Ymir Vigfusson, K. V. Rashmi: "SIEVE is Simpler than LRU: an Efficient
Turn-Key Eviction Algorithm for Web Caches", NSDI 2024.

New chunks enter at the head and never move. The hand goes from tail to head; a visited chunk loses its mark and
stays where it is, any other is evicted; past the head the hand begins again at the tail. Here the hand is the seam
between two queues: one from the tail up to the hand, and one from the hand to the head, of number ``_ahead``.
When the hand is past the head, the two change parts. ``_states`` has the number of a chunk's queue, and its mark.
Chunks are sifted by batches, at once if all of a batch are marked, or none is. Room for one chunk may require
passing all others; so if a batch evicts none, the next ones get larger, as long as all of their chunks are marked.

A batch enters tail first, so that of unused chunks a tail is evicted before its head. A pinned chunk that the hand
meets is parked; it enters at the head when it is unpinned, without a mark.
"""

from collections.abc import Sequence

from kv_api import OffloadKey
from kv_offload_cpu.policy.base import CachePolicy, Run
from kv_offload_cpu.policy.fifo import Fifo
from kv_offload_cpu.policy.parked import Parked
from kv_offload_cpu.slots.pick import pick
from kv_offload_cpu.slots.pins import Pins

_VISITED = 2  # in the state of a chunk, next to the number of its queue
_FIRST_LOOK = 8  # chunks of a batch that may be all marked


class SievePolicy(CachePolicy):
    """SIEVE."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._queues: tuple[Fifo[int], Fifo[int]] = (Fifo(), Fifo())
        self._ahead = 0
        self._states = bytearray(capacity)
        self._parked = Parked()

    def make_room(self, keys: Sequence[OffloadKey], count: int, pins: Pins) -> list[int]:
        """Move the hand until ``count`` chunks have proved to be neither visited nor pinned, and take them."""
        evicted: list[int] = []
        while missing := count - len(evicted):
            ahead = self._queues[self._ahead]
            if ahead:
                self._sift(ahead.take(min(missing, len(ahead))), pins, evicted)
                if count - len(evicted) == missing:
                    self._pass_marked(ahead, pins)
            else:
                self._wrap()
                assert self._queues[self._ahead], "nothing is left that isn't pinned"
        return evicted

    def insert(self, keys: Sequence[OffloadKey], slots: Sequence[int], run: Run) -> None:
        self._enter(slots)

    def access(self, slots: Sequence[int], run: Run) -> None:
        states = self._states
        for slot in slots:
            states[slot] |= _VISITED

    def unpin(self, slots: Sequence[int], run: Run) -> None:
        back = self._parked.unpark(slots)
        if back:
            self._enter(back)

    def awaits_unpin(self) -> bool:
        return bool(self._parked)

    def remove(self, slots: Sequence[int]) -> None:
        for slot in self._parked.forget(slots):
            self._queues[self._states[slot] & 1].remove(slot)

    def clear(self) -> None:
        for queue in self._queues:
            queue.clear()
        self._parked.clear()

    def slots(self) -> list[int]:
        return [*self._queues[1 - self._ahead], *self._queues[self._ahead], *self._parked]

    def check(self, pins: Pins) -> None:
        held = self.slots()
        assert len(set(held)) == len(held), f"a slot is in two places: {held}"
        for number, queue in enumerate(self._queues):
            queue.check()
            wrong = [slot for slot in queue if self._states[slot] & 1 != number]
            assert not wrong, f"slots {wrong} are on the wrong side of the hand"
        self._parked.check(pins)

    def _sift(self, slots: list[int], pins: Pins, evicted: list[int]) -> None:
        """Pass these chunks with the hand: each is evicted, parked, or loses its mark."""
        states, pinned, behind = self._states, pins.slots, 1 - self._ahead
        passed = self._queues[behind]
        is_any_pinned = bool(pinned) and not pinned.isdisjoint(slots)
        marks = pick(slots, states)
        if max(marks) < _VISITED and not is_any_pinned:
            evicted += slots
        elif min(marks) >= _VISITED and not is_any_pinned:
            self._pass(slots)
        else:
            for slot, mark in zip(slots, marks, strict=True):
                if slot in pinned:
                    self._parked[slot] = None
                elif mark >= _VISITED:
                    states[slot] = behind
                    passed.push((slot,))
                else:
                    evicted.append(slot)

    def _pass_marked(self, ahead: Fifo[int], pins: Pins) -> None:
        """Pass batches with the hand, as long as all of their chunks are marked and none is pinned."""
        size = _FIRST_LOOK
        while lead := ahead.lead(size):
            if min(pick(lead, self._states)) < _VISITED or not pins.slots.isdisjoint(lead):
                break
            self._pass(ahead.take(len(lead)))
            size *= 2

    def _pass(self, slots: Sequence[int]) -> None:
        """Pass these chunks with the hand: they lose their marks."""
        states, behind = self._states, 1 - self._ahead
        for slot in slots:
            states[slot] = behind
        self._queues[behind].push(slots)

    def _enter(self, slots: Sequence[int]) -> None:
        """Enter chunks at the head. A hand past the head goes to the tail first, or it would meet them next."""
        if not self._queues[self._ahead]:
            self._wrap()
        states, ahead = self._states, self._ahead
        for slot in slots:
            states[slot] = ahead
        self._queues[ahead].push(slots[::-1])

    def _wrap(self) -> None:
        """Move the hand from past the head to the tail."""
        self._ahead = 1 - self._ahead
