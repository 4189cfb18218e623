"""ARC: chunks used once and chunks used again; their shares follow what turned out to have been evicted too early.

Nimrod Megiddo, Dharmendra S. Modha: "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003. The names
are the paper's: T1 holds chunks used once, T2 those used again, B1 and B2 remember keys evicted from T1 and T2,
and p is the size that T1 should have. A batch that comes in is the paper's Figure 4, cases II to IV, for each of
its keys; ``access`` is case I.

T1 and T2 are `RecencyList`s: of one request the tail leaves before the head. A pinned chunk that would be
evicted is parked: it counts for the list that it came from and returns to it when it is unpinned. If the list
that should give a chunk has none that isn't pinned, the other one gives it.

Invariants (the paper's, section III.B): |T1| + |T2| ≤ c, |T1| + |B1| ≤ c, |T1| + |T2| + |B1| + |B2| ≤ 2c,
0 ≤ p ≤ c.
"""

from collections.abc import Sequence

from kv_api import OffloadKey
from kv_offload_cpu.policy.base import CachePolicy, Run
from kv_offload_cpu.policy.fifo import Ghosts
from kv_offload_cpu.policy.recency import RecencyList


class ARCPolicy(CachePolicy):
    """Adaptive replacement."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._t1 = RecencyList(capacity)
        self._t2 = RecencyList(capacity)
        self._b1 = Ghosts()
        self._b2 = Ghosts()
        self._p = 0.0
        self._key_of: list[OffloadKey] = [OffloadKey(b"")] * capacity
        self._parked1: dict[int, None] = {}
        self._parked2: dict[int, None] = {}
        self._coming_back: set[OffloadKey] = set()  # of the batch that is coming in, those that were remembered

    def make_room(self, keys: Sequence[OffloadKey], count: int, pins: Sequence[int]) -> list[int]:
        """Figure 4 in numbers first: how many each list gives. Who that is doesn't depend on the keys."""
        c, b1, b2, back = self.capacity, self._b1, self._b2, self._coming_back
        t1, t2 = len(self._t1) + len(self._parked1), len(self._t2) + len(self._parked2)
        size1, size2 = len(b1), len(b2)  # of B1 and B2 when those evicted here are in it
        give1 = give2 = give_unremembered = 0
        room = len(keys) - count
        for key in keys:
            room -= 1
            if key in b1.keys:
                self._p = min(c, self._p + max(1.0, size2 / size1))
                is_from_t1 = t1 > self._p
                b1.remove(key)
                size1 -= 1
                back.add(key)
            elif key in b2.keys:
                self._p = max(0.0, self._p - max(1.0, size1 / size2))
                is_from_t1 = t1 >= self._p and t1 > 0
                b2.remove(key)
                size2 -= 1
                back.add(key)
            elif t1 == c:  # T1 is the whole cache, and what leaves it not worth remembering
                give_unremembered += 1
                continue
            else:
                if t1 + size1 == c:
                    b1.forget_oldest()
                    size1 -= 1
                elif t1 + t2 + size1 + size2 == 2 * c:
                    b2.forget_oldest()
                    size2 -= 1
                is_from_t1 = t1 > self._p
                t1 += 1
            if key in back:
                t2 += 1
            if room >= 0:
                continue
            if is_from_t1:
                t1, size1, give1 = t1 - 1, size1 + 1, give1 + 1
            else:
                t2, size2, give2 = t2 - 1, size2 + 1, give2 + 1
        return self._give(give1, give2, give_unremembered, pins)

    def insert(self, keys: Sequence[OffloadKey], slots: Sequence[int], run: Run) -> None:
        key_of, back = self._key_of, self._coming_back
        for key, slot in zip(keys, slots, strict=True):
            key_of[slot] = key
        if back:
            to_t2 = [slot for key, slot in zip(keys, slots, strict=True) if key in back]
            slots = [slot for key, slot in zip(keys, slots, strict=True) if key not in back]
            self._t2.use(to_t2, run, len(to_t2))
            back.clear()
        self._t1.use(slots, run, len(slots))

    def access(self, slots: Sequence[int], run: Run) -> None:
        t1 = self._t1
        promoted = [slot for slot in slots if slot in t1]
        t1.remove(promoted)
        new_count = len(promoted) + self._unpark(slots, self._parked1) + self._unpark(slots, self._parked2)
        self._t2.use(slots, run, new_count)

    def unpin(self, slots: Sequence[int], run: Run) -> None:
        for parked, home in ((self._parked1, self._t1), (self._parked2, self._t2)):
            if parked:
                back = [slot for slot in slots if slot in parked]
                home.use(back, run, self._unpark(back, parked))

    def remove(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if slot in self._parked1:
                del self._parked1[slot]
            elif slot in self._parked2:
                del self._parked2[slot]
            else:
                (self._t1 if slot in self._t1 else self._t2).remove((slot,))

    def finish(self, run: Run) -> None:
        self._t1.renew(run)
        self._t2.renew(run)

    def clear(self) -> None:
        for part in (self._t1, self._t2, self._b1, self._b2, self._parked1, self._parked2):
            part.clear()
        self._p = 0.0

    def slots(self) -> list[int]:
        return [*self._t1, *self._t2, *self._parked1, *self._parked2]

    def check(self, pins: Sequence[int]) -> None:
        for part in (self._t1, self._t2, self._b1, self._b2):
            part.check()
        held = self.slots()
        assert len(set(held)) == len(held), f"a slot is in two places: {held}"
        keys = [*(self._key_of[slot] for slot in held), *self._b1, *self._b2]
        assert len(set(keys)) == len(keys), f"a key is in two places: {keys}"
        t1, t2 = len(self._t1) + len(self._parked1), len(self._t2) + len(self._parked2)
        b1, b2, c = len(self._b1), len(self._b2), self.capacity
        assert t1 + t2 <= c, f"T1 {t1} + T2 {t2} > {c}"
        assert t1 + b1 <= c, f"T1 {t1} + B1 {b1} > {c}"
        assert t1 + t2 + b1 + b2 <= 2 * c, f"T1 {t1} + T2 {t2} + B1 {b1} + B2 {b2} > {2 * c}"
        assert 0 <= self._p <= c, f"p {self._p} is not within 0 and {c}"
        parked = [*self._parked1, *self._parked2]
        assert all(pins[slot] for slot in parked), f"parked but not pinned: {parked}"
        assert not self._coming_back, f"a batch was announced and didn't come: {self._coming_back}"

    def _give(self, give1: int, give2: int, give_unremembered: int, pins: Sequence[int]) -> list[int]:
        """Evict from T1, T2 and then, without a ghost, from T1. What a list can't give, the other one gives."""
        from_t1 = self._t1.pop(give1 + give_unremembered, pins, self._parked1)
        missing = give1 + give_unremembered - len(from_t1)
        from_t2 = self._t2.pop(give2 + missing, pins, self._parked2)
        missing = give2 + missing - len(from_t2)
        from_t1 += self._t1.pop(missing, pins, self._parked1)
        key_of = self._key_of
        self._b1.add([key_of[slot] for slot in from_t1[: max(0, len(from_t1) - give_unremembered)]])
        self._b2.add([key_of[slot] for slot in from_t2])
        return from_t1 + from_t2

    @staticmethod
    def _unpark(slots: Sequence[int], parked: dict[int, None]) -> int:
        """Forget that any of these chunks is parked, and say of how many."""
        back = [slot for slot in slots if slot in parked] if parked else []
        for slot in back:
            del parked[slot]
        return len(back)
