"""S3-FIFO: most chunks are used only once, so a small queue keeps them from the others.

Juncheng Yang, Yazhuo Zhang, Ziyue Qiu, Yao Yue, K. V. Rashmi: "FIFO Queues are All You Need for Cache Eviction",
SOSP 2023.

New chunks enter *small* (a tenth of the capacity). Those used at least twice there move on to *main*; the others
are evicted and their keys remembered in *ghost*, as many as main has places. A chunk that is stored again while
it is remembered enters main directly. Main is a queue in which what was used enters again, for one of its uses.
Uses are counted up to three; none are carried from small to main. There is no shortcut while the cache warms up.

A batch enters tail first, so that of chunks nobody used again a tail leaves before its head. A pinned chunk that
would be evicted is parked; it enters the queue that it came from when it is unpinned.
"""

from collections.abc import Sequence

from kv_api import OffloadKey
from kv_offload_cpu.policy.base import CachePolicy, Run
from kv_offload_cpu.policy.fifo import Fifo, Ghosts

_MAX_USES = 3
_USES_TO_PROMOTE = 2


class S3FIFOPolicy(CachePolicy):
    """S3-FIFO with the paper's parameters."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._small_target = max(1, capacity // 10)
        self._ghost_capacity = capacity - self._small_target
        self._small: Fifo[int] = Fifo()
        self._main: Fifo[int] = Fifo()
        self._ghosts = Ghosts()
        self._is_main = bytearray(capacity)
        self._uses = bytearray(capacity)
        self._key_of: list[OffloadKey] = [OffloadKey(b"")] * capacity
        self._parked: dict[int, None] = {}

    def make_room(self, keys: Sequence[OffloadKey], count: int, pins: Sequence[int]) -> list[int]:
        evicted: list[int] = []
        from_small: list[OffloadKey] = []
        while len(evicted) < count:
            if len(self._small) >= self._small_target or not self._main:
                slot = self._evict_from_small(pins)
                if slot is not None:
                    evicted.append(slot)
                    from_small.append(self._key_of[slot])
            else:
                slot = self._evict_from_main(pins)
                if slot is not None:
                    evicted.append(slot)
        self._ghosts.add(from_small)
        while len(self._ghosts) > self._ghost_capacity:
            self._ghosts.forget_oldest()
        return evicted

    def insert(self, keys: Sequence[OffloadKey], slots: Sequence[int], run: Run) -> None:
        key_of, uses, is_main, ghosts = self._key_of, self._uses, self._is_main, self._ghosts
        small, main = [], []
        for key, slot in zip(reversed(keys), reversed(slots), strict=True):
            key_of[slot] = key
            uses[slot] = 0
            if key in ghosts.keys:
                ghosts.remove(key)
                is_main[slot] = True
                main.append(slot)
            else:
                is_main[slot] = False
                small.append(slot)
        self._small.push(small)
        self._main.push(main)

    def access(self, slots: Sequence[int], run: Run) -> None:
        uses = self._uses
        for slot in slots:
            if uses[slot] < _MAX_USES:
                uses[slot] += 1

    def unpin(self, slots: Sequence[int], run: Run) -> None:
        if self._parked:
            for slot in reversed(slots):
                if slot in self._parked:
                    del self._parked[slot]
                    self._queue_of(slot).push((slot,))

    def remove(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if slot in self._parked:
                del self._parked[slot]
            else:
                self._queue_of(slot).remove(slot)

    def clear(self) -> None:
        self._small.clear()
        self._main.clear()
        self._ghosts.clear()
        self._parked.clear()

    def slots(self) -> list[int]:
        return [*self._small, *self._main, *self._parked]

    def check(self, pins: Sequence[int]) -> None:
        for queue in (self._small, self._main):
            queue.check()
            wrong = [slot for slot in queue if self._queue_of(slot) is not queue]
            assert not wrong, f"slots {wrong} are in the wrong queue"
        self._ghosts.check()
        held = self.slots()
        assert len(set(held)) == len(held), f"a slot is in two places: {held}"
        assert max(self._uses) <= _MAX_USES, f"{max(self._uses)} uses counted > {_MAX_USES}"
        both = [slot for slot in held if self._key_of[slot] in self._ghosts.keys]
        assert not both, f"slots {both} are held and remembered as evicted"
        assert len(self._ghosts) <= self._ghost_capacity, f"ghosts {len(self._ghosts)} > {self._ghost_capacity}"
        assert all(pins[slot] for slot in self._parked), f"parked but not pinned: {list(self._parked)}"

    def _queue_of(self, slot: int) -> Fifo[int]:
        return self._main if self._is_main[slot] else self._small

    def _evict_from_small(self, pins: Sequence[int]) -> int | None:
        """Look at the oldest of small: it moves on to main, is parked, or is evicted."""
        assert self._small, "nothing is left that isn't pinned"
        slot = self._small.pop()
        if self._uses[slot] >= _USES_TO_PROMOTE:
            self._uses[slot] = 0
            self._is_main[slot] = True
            self._main.push((slot,))
        elif pins[slot]:
            self._parked[slot] = None
        else:
            return slot
        return None

    def _evict_from_main(self, pins: Sequence[int]) -> int | None:
        """Look at the oldest of main: it enters again for one of its uses, is parked, or is evicted."""
        slot = self._main.pop()
        if self._uses[slot]:
            self._uses[slot] -= 1
            self._main.push((slot,))
        elif pins[slot]:
            self._parked[slot] = None
        else:
            return slot
        return None
