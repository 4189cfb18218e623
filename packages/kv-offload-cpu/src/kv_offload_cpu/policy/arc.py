"""ARC: chunks used once and chunks used again; whichever were evicted too early get a larger share.

Nimrod Megiddo, Dharmendra S. Modha: "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003. The names
are the paper's: T1 holds chunks used once, T2 those used again, B1 and B2 remember keys evicted from T1 and T2,
and p is the size that T1 should have. A stored batch is the paper's Figure 4, cases II to IV, for each of its
keys; ``access`` is case I. `_Plan` computes first how many chunks each list evicts; which chunks these are doesn't
depend on the keys.

T1 and T2 are `RecencyList`s: of one request the tail leaves before the head. A pinned chunk that would be
evicted is parked: it counts for the list that it came from and returns to it when it is unpinned. If all chunks of
the list that should evict one are pinned, the other list evicts one.

Invariants (the paper's, section III.B): |T1| + |T2| ≤ c, |T1| + |B1| ≤ c, |T1| + |T2| + |B1| + |B2| ≤ 2c,
0 ≤ p ≤ c.
"""

from collections.abc import Sequence

from kv_api import OffloadKey
from kv_offload_cpu.policy.base import CachePolicy, Run
from kv_offload_cpu.policy.fifo import Ghosts
from kv_offload_cpu.policy.parked import Parked
from kv_offload_cpu.policy.recency import RecencyList, Stretch
from kv_offload_cpu.slots.pick import pick
from kv_offload_cpu.slots.pins import Pins


class _Plan:
    """Figure 4 in numbers, for the keys of a batch: how many chunks T1 and T2 evict, and p afterwards.

    B1 and B2 forget keys at once, and remember new ones at the end; until then ``b1`` and ``b2`` count these.
    """

    def __init__(self, c: int, p: float, t1: int, t2: int, ghosts1: Ghosts, ghosts2: Ghosts, room: int) -> None:
        self.c, self.p, self.t1, self.t2 = c, p, t1, t2
        self.ghosts1, self.ghosts2 = ghosts1, ghosts2
        self.b1, self.b2 = len(ghosts1), len(ghosts2)
        self.room = room  # keys for which no chunk need be evicted
        self.give1 = self.give2 = self.give_unremembered = 0

    def admit_remembered(self, key: OffloadKey) -> bool:
        """Cases II and III; False if it is neither in B1 nor in B2."""
        if key in self.ghosts1.keys:
            self.p = min(self.c, self.p + max(1.0, self.b2 / self.b1))
            is_from_t1 = self.t1 > self.p
            self.ghosts1.remove(key)
            self.b1 -= 1
        elif key in self.ghosts2.keys:
            self.p = max(0.0, self.p - max(1.0, self.b1 / self.b2))
            is_from_t1 = self.t1 >= self.p and self.t1 > 0
            self.ghosts2.remove(key)
            self.b2 -= 1
        else:
            return False
        self.t2 += 1
        if self.room > 0:
            self.room -= 1
        else:
            self._replace(1, is_from_t1=is_from_t1)
        return True

    def admit_new(self, count: int) -> None:
        """Case IV, in steps of as many keys as are treated alike."""
        c = self.c
        while count:
            if self.t1 == c:  # T1 is the whole cache, and its evicted keys aren't remembered
                self.give_unremembered += count
                return
            until_l1_full = c - self.t1 - self.b1
            until_full = 2 * c - self.t1 - self.t2 - self.b1 - self.b2
            is_from_t1 = self.t1 > self.p
            step = min(count, self.room) if self.room > 0 else count
            if until_l1_full:
                step = min(step, until_l1_full, until_full or step)
            if self.room <= 0 and not is_from_t1:  # T1 grows in place of T2
                step = min(step, c - self.t1, int(self.p) - self.t1 + 1)
            if not until_l1_full:
                self.ghosts1.forget(step)
                self.b1 -= step
            elif not until_full:
                self.ghosts2.forget(step)
                self.b2 -= step
            self.t1 += step
            if self.room > 0:
                self.room -= step
            else:
                self._replace(step, is_from_t1=is_from_t1)
            count -= step

    def _replace(self, count: int, *, is_from_t1: bool) -> None:
        """The paper's REPLACE, for as many keys."""
        if is_from_t1:
            self.t1, self.b1, self.give1 = self.t1 - count, self.b1 + count, self.give1 + count
        else:
            self.t2, self.b2, self.give2 = self.t2 - count, self.b2 + count, self.give2 + count


class ARCPolicy(CachePolicy):
    """Adaptive replacement."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        places: list[Stretch | None] = [None] * capacity
        self._t1 = RecencyList(places)
        self._t2 = RecencyList(places)
        self._b1 = Ghosts()
        self._b2 = Ghosts()
        self._p = 0.0
        self._parked1 = Parked()
        self._parked2 = Parked()
        self._coming_back: set[OffloadKey] = set()  # of the batch that is coming in, those that were remembered

    def make_room(self, keys: Sequence[OffloadKey], count: int, pins: Pins) -> list[int]:
        b1, b2 = self._b1, self._b2
        t1, t2 = len(self._t1) + len(self._parked1), len(self._t2) + len(self._parked2)
        plan = _Plan(self.capacity, self._p, t1, t2, b1, b2, room=len(keys) - count)
        new = 0
        if b1.keys.isdisjoint(keys) and b2.keys.isdisjoint(keys):
            new = len(keys)
        else:
            for key in keys:
                new += 1
                if key in b1.keys or key in b2.keys:
                    plan.admit_new(new - 1)
                    new = 1
                    if plan.admit_remembered(key):  # else it was forgotten for one before it
                        self._coming_back.add(key)
                        new = 0
        plan.admit_new(new)
        self._p = plan.p
        return self._give(plan, pins)

    def insert(self, keys: Sequence[OffloadKey], slots: Sequence[int], run: Run) -> None:
        back = self._coming_back
        if back:
            to_t2 = [slot for key, slot in zip(keys, slots, strict=True) if key in back]
            slots = [slot for key, slot in zip(keys, slots, strict=True) if key not in back]
            self._t2.use(to_t2, run, len(to_t2))
            back.clear()
        self._t1.use(slots, run, len(slots))

    def access(self, slots: Sequence[int], run: Run) -> None:
        t1 = self._t1
        if not slots or t1.move_whole(slots, run, self._t2):
            return
        promoted = t1.among(slots)
        t1.remove(promoted)
        new_count = len(promoted) + len(self._parked1.unpark(slots)) + len(self._parked2.unpark(slots))
        self._t2.use(slots, run, new_count)

    def unpin(self, slots: Sequence[int], run: Run) -> None:
        for parked, home in ((self._parked1, self._t1), (self._parked2, self._t2)):
            back = parked.unpark(slots)
            home.use(back, run, len(back))

    def awaits_unpin(self) -> bool:
        return bool(self._parked1 or self._parked2)

    def remove(self, slots: Sequence[int]) -> None:
        for slot in self._parked2.forget(self._parked1.forget(slots)):
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

    def check(self, pins: Pins) -> None:
        for part in (self._t1, self._t2, self._b1, self._b2):
            part.check()
        held = self.slots()
        assert len(set(held)) == len(held), f"a slot is in two places: {held}"
        keys = [*(self.key_of[slot] for slot in held), *self._b1, *self._b2]
        assert len(set(keys)) == len(keys), f"a key is in two places: {keys}"
        t1, t2 = len(self._t1) + len(self._parked1), len(self._t2) + len(self._parked2)
        b1, b2, c = len(self._b1), len(self._b2), self.capacity
        assert t1 + t2 <= c, f"T1 {t1} + T2 {t2} > {c}"
        assert t1 + b1 <= c, f"T1 {t1} + B1 {b1} > {c}"
        assert t1 + t2 + b1 + b2 <= 2 * c, f"T1 {t1} + T2 {t2} + B1 {b1} + B2 {b2} > {2 * c}"
        assert 0 <= self._p <= c, f"p {self._p} is not within 0 and {c}"
        self._parked1.check(pins)
        self._parked2.check(pins)
        assert not self._coming_back, f"a batch was announced and didn't come: {self._coming_back}"

    def _give(self, plan: "_Plan", pins: Pins) -> list[int]:
        """Evict from T1, T2, and T1 without a ghost. If one has too few chunks, the other evicts more."""
        wanted1 = plan.give1 + plan.give_unremembered
        from_t1 = self._t1.pop(wanted1, pins, self._parked1)
        missing = wanted1 - len(from_t1)
        from_t2 = self._t2.pop(plan.give2 + missing, pins, self._parked2)
        missing = plan.give2 + missing - len(from_t2)
        from_t1 += self._t1.pop(missing, pins, self._parked1)
        self._b1.add(pick(from_t1[: max(0, len(from_t1) - plan.give_unremembered)], self.key_of))
        self._b2.add(pick(from_t2, self.key_of))
        return from_t1 + from_t2
