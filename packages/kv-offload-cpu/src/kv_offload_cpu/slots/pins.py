"""How many jobs use each slot, kept by batch: most slots have no pin, and most others one.

``slots`` are those with a pin, ``in_flight`` those of them that are being stored, and ``_more`` counts the pins of
a slot beyond the first. So a batch is pinned, unpinned or checked in a few operations on sets, and only slots with
several pins cost a step each.

A store pins slots that no other job can pin, and often ends before any pin is looked up. So its slots are kept in
``_arriving``, under the first of them, until a pin is looked up; a store that ends before is removed from there as
a whole.

Invariants: ``_more`` has only counts above zero, of slots in ``slots`` that aren't in flight. Slots in
``_arriving`` are in no other set. No set is iterated.
"""

from collections.abc import Sequence
from typing import overload


class Pins(Sequence[int]):
    """Pins of each slot; ``pins[slot]`` is their number."""

    __slots__ = ("_arriving", "_capacity", "_in_flight", "_more", "_slots")

    def __init__(self, capacity: int) -> None:
        self._slots: set[int] = set()
        self._in_flight: set[int] = set()
        self._arriving: dict[int, list[int]] = {}
        self._more: dict[int, int] = {}
        self._capacity = capacity

    @property
    def slots(self) -> set[int]:
        """Slots that have a pin. Not to be changed."""
        if self._arriving:
            self._note_arriving()
        return self._slots

    @property
    def in_flight(self) -> set[int]:
        """Slots that are being stored. Not to be changed."""
        if self._arriving:
            self._note_arriving()
        return self._in_flight

    def counts(self) -> tuple[int, int]:
        """How many slots are being stored, and how many others have a pin."""
        settled = len(self._in_flight)
        return settled + sum(map(len, self._arriving.values())), len(self._slots) - settled

    def arrive(self, slots: list[int]) -> None:
        """A store of some slots begins: a pin for each, which had none. The list is kept."""
        self._arriving[slots[0]] = slots

    def land(self, slots: list[int]) -> None:
        """The stores of these slots have ended: each loses its pin."""
        if slots and self._arriving.get(slots[0]) is slots:
            del self._arriving[slots[0]]
            return
        before = len(self._in_flight)
        self._in_flight.difference_update(slots)
        if before - len(self._in_flight) < len(slots):  # some of them are still as they came
            self.in_flight.difference_update(slots)
        self.unpin(slots)

    def pin(self, slots: list[int]) -> list[int]:
        """Pin each slot; one that is listed twice gets two pins. Returns the slots, each once."""
        pinned, more = self._slots, self._more  # nobody pins what is in flight
        if not pinned or pinned.isdisjoint(slots):
            before = len(pinned)
            pinned.update(slots)
            if len(pinned) - before == len(slots):
                return slots
            pinned.difference_update(slots)
        for slot in slots:
            if slot in pinned:
                more[slot] = more.get(slot, 0) + 1
            else:
                pinned.add(slot)
        return [*dict.fromkeys(slots)]

    def unpin(self, slots: list[int]) -> list[int]:
        """Remove one pin of each slot, which it must have. Returns the slots that have none left."""
        pinned, more = self._slots, self._more
        if more:
            slots = [slot for slot in slots if not self._take_one(slot)]
        before = len(pinned)
        pinned.difference_update(slots)
        gone = before - len(pinned)
        assert gone == len(slots), f"{len(slots)} slots to unpin, {gone} were pinned"
        return slots

    def unpin_all(self, slot: int) -> int:
        """Remove all pins of a slot; returns how many there were."""
        count = self[slot]
        self._slots.discard(slot)
        self._in_flight.discard(slot)
        self._more.pop(slot, None)
        return count

    def first_missing(self, slots: list[int]) -> int | None:
        """The first slot that has too few pins for ``unpin``."""
        distinct = {*slots}
        if len(distinct) == len(slots) and distinct <= self.slots:
            return None
        left = {slot: self[slot] for slot in slots}
        for slot in slots:
            if not left[slot]:
                return slot
            left[slot] -= 1
        return None

    def check(self) -> None:
        """Recount."""
        assert self._more.keys() <= self.slots, f"{self._more} are pinned once more, {self.slots} once"
        assert all(count > 0 for count in self._more.values()), f"nothing is counted: {self._more}"
        stray = self.in_flight - self.slots
        assert not stray, f"slots {sorted(stray)} are in flight and not pinned"
        assert self._more.keys().isdisjoint(self.in_flight), f"{self._more} are in flight and pinned once more"
        wrong = [slot for slot in sorted(self.slots) if not 0 <= slot < self._capacity]
        assert not wrong, f"slots {wrong} of {self._capacity} are pinned"

    def _note_arriving(self) -> None:
        for slots in self._arriving.values():
            before = len(self._slots)
            self._slots.update(slots)
            assert len(self._slots) - before == len(slots), f"of the slots {slots} some were pinned before a store"
            self._in_flight.update(slots)
        self._arriving.clear()

    def _take_one(self, slot: int) -> bool:
        """Remove one of the pins beyond the first; False: there is none."""
        more = self._more.pop(slot, 0)
        if more > 1:
            self._more[slot] = more - 1
        return more > 0

    @overload
    def __getitem__(self, slot: int) -> int: ...
    @overload
    def __getitem__(self, slot: slice) -> list[int]: ...
    def __getitem__(self, slot: int | slice) -> int | list[int]:
        if isinstance(slot, slice):
            return [self[each] for each in range(self._capacity)[slot]]
        if slot in self.slots:
            return 1 + self._more.get(slot, 0)
        if slot >= self._capacity:
            raise IndexError(f"slot {slot} of {self._capacity}")
        return 0

    def __len__(self) -> int:
        return self._capacity
