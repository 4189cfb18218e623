"""S3-FIFO: most chunks are used only once, so a small queue keeps them from the others.

Juncheng Yang, Yazhuo Zhang, Ziyue Qiu, Yao Yue, K. V. Rashmi: "FIFO Queues are All You Need for Cache Eviction",
SOSP 2023.

New chunks enter *small* (a tenth of the capacity). Those used at least twice there move on to *main*; the others
are evicted and their keys remembered in *ghost*, as many as main has places. A chunk that is stored again while
its key is remembered enters main directly. Main is a queue in which a used chunk enters again, for one of its
uses. Uses are counted up to three; none are carried from small to main. There is no shortcut while the cache warms
up.

A batch enters tail first, so that of unused chunks a tail is evicted before its head. A pinned chunk that would be
evicted is parked; it enters the queue that it came from when it is unpinned.

A look takes as many chunks as the queue must evict; if none of them was used or is pinned, all of them are
evicted. Room for one chunk may require sparing all others, some of them three times. So if a look evicts none, the
next ones get larger, as long as all of their chunks are spared.
"""

from collections.abc import Sequence
from typing import Final

from kv_api import OffloadKey
from kv_offload_cpu.policy.base import CachePolicy, Run
from kv_offload_cpu.policy.fifo import Fifo, Ghosts
from kv_offload_cpu.policy.parked import Parked
from kv_offload_cpu.slots.pick import pick
from kv_offload_cpu.slots.pins import Pins

_USES = 3  # in the state of a chunk: its uses, up to three
_MAIN = 4  # in the state of a chunk: it is in main
_USED_ONCE_MORE = (1, 2, 3, 3, 5, 6, 7, 7)  # the next state
_SPARED: Final = {2: _MAIN, 3: _MAIN, 5: 4, 6: 5, 7: 6}
"""State -> the next state of a spared chunk: one of small that was used twice moves to main, and one of main has
one use less."""
_FIRST_LOOK = 8  # chunks of a batch that may be all spared
_UNUSED_IN_SMALL, _UNUSED_IN_MAIN = 1, _MAIN
"""The highest state of a chunk that isn't spared."""


class S3FIFOPolicy(CachePolicy):
    """S3-FIFO with the paper's parameters."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._small_target = max(1, capacity // 10)
        self._ghost_capacity = capacity - self._small_target
        self._small: Fifo[int] = Fifo()
        self._main: Fifo[int] = Fifo()
        self._ghosts = Ghosts()
        self._states = bytearray(capacity)
        self._parked = Parked()

    def make_room(self, keys: Sequence[OffloadKey], count: int, pins: Pins) -> list[int]:
        evicted: list[int] = []
        from_small: list[int] = []
        small, main = self._small, self._main
        while missing := count - len(evicted):
            surplus = len(small) - self._small_target + 1  # as many are evicted before main's turn comes
            if surplus > 0 or not main:
                assert small, "nothing is left that isn't pinned"
                slots = self._sift(small, max(1, min(missing, surplus)), _UNUSED_IN_SMALL, pins)
                from_small += slots
                if not slots:
                    self._spare(small, len(small) - self._small_target + 1, _UNUSED_IN_SMALL)
            else:
                slots = self._sift(main, min(missing, len(main)), _UNUSED_IN_MAIN, pins)
                if not slots:
                    self._spare(main, len(main), _UNUSED_IN_MAIN)
            evicted += slots
        if from_small:
            self._ghosts.add(pick(from_small, self.key_of))
        self._ghosts.forget(max(0, len(self._ghosts) - self._ghost_capacity))
        return evicted

    def insert(self, keys: Sequence[OffloadKey], slots: Sequence[int], run: Run) -> None:
        states, ghosts = self._states, self._ghosts
        if ghosts.keys.isdisjoint(keys):
            for slot in slots:
                states[slot] = 0
            self._small.push(slots[::-1])
            return
        for key, slot in zip(reversed(keys), reversed(slots), strict=True):
            if key in ghosts.keys:
                ghosts.remove(key)
                states[slot] = _MAIN
            else:
                states[slot] = 0
            self._queue_of(slot).push((slot,))

    def access(self, slots: Sequence[int], run: Run) -> None:
        states = self._states
        for slot in slots:
            states[slot] = _USED_ONCE_MORE[states[slot]]

    def unpin(self, slots: Sequence[int], run: Run) -> None:
        for slot in reversed(self._parked.unpark(slots)):
            self._queue_of(slot).push((slot,))

    def awaits_unpin(self) -> bool:
        return bool(self._parked)

    def remove(self, slots: Sequence[int]) -> None:
        for slot in self._parked.forget(slots):
            self._queue_of(slot).remove(slot)

    def clear(self) -> None:
        self._small.clear()
        self._main.clear()
        self._ghosts.clear()
        self._parked.clear()

    def slots(self) -> list[int]:
        return [*self._small, *self._main, *self._parked]

    def check(self, pins: Pins) -> None:
        for queue in (self._small, self._main):
            queue.check()
            wrong = [slot for slot in queue if self._queue_of(slot) is not queue]
            assert not wrong, f"slots {wrong} are in the wrong queue"
        self._ghosts.check()
        held = self.slots()
        assert len(set(held)) == len(held), f"a slot is in two places: {held}"
        assert max(self._states) <= _MAIN + _USES, f"state {max(self._states)} > {_MAIN} + {_USES}"
        both = [slot for slot in held if self.key_of[slot] in self._ghosts]
        assert not both, f"slots {both} are held and remembered as evicted"
        assert len(self._ghosts) <= self._ghost_capacity, f"ghosts {len(self._ghosts)} > {self._ghost_capacity}"
        self._parked.check(pins)

    def _queue_of(self, slot: int) -> Fifo[int]:
        return self._main if self._states[slot] & _MAIN else self._small

    def _sift(self, queue: Fifo[int], count: int, highest_unused: int, pins: Pins) -> list[int]:
        """Look at the oldest of a queue: each is spared and enters main, is parked, or is evicted and returned."""
        states, pinned, evicted = self._states, pins.slots, list[int]()
        slots = queue.take(count)
        if max(pick(slots, states)) <= highest_unused and (not pinned or pinned.isdisjoint(slots)):
            return slots
        spared = []
        for slot in slots:
            state = _SPARED.get(states[slot])
            if state is not None:
                states[slot] = state
                spared.append(slot)
            elif slot in pinned:
                self._parked[slot] = None
            else:
                evicted.append(slot)
        self._main.push(spared)
        return evicted

    def _spare(self, queue: Fifo[int], most: int, highest_unused: int) -> None:
        """Spare up to ``most`` chunks, by batches of which all are to be spared."""
        states, size = self._states, _FIRST_LOOK
        while lead := queue.lead(min(size, max(0, most))):
            found = pick(lead, states)
            if min(found) <= highest_unused:
                break
            for slot, state in zip(queue.take(len(lead)), found, strict=True):
                states[slot] = _SPARED[state]
            self._main.push(lead)
            most -= len(lead)
            size *= 2
