"""``ListedNeighbours``: what the other engines of a folder have, and what is borrowed of it.

Each of them has a listing, which is read only as far as it has changed. What is borrowed is locked there while it
is being read (see ``loans``), so that its owner keeps it where it is.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kv_api import OffloadKey
from kv_offload_file.folder import home_of, number_of
from kv_offload_file.sharing import loans
from kv_offload_file.sharing.listing import (
    NAME,
    Opening,
    changed_slots,
    read_entries,
    read_entry,
    read_opening,
    used_slots,
)
from kv_offload_file.sharing.place import MOST_ENGINES, NeighbourSlot

LOOK_SECONDS: Final = 0.001
"""What was looked at so short a time ago isn't looked at anew."""
READ_AT_ONCE: Final = 1 << 13
"""So many entries that were never read are read at a time, of all neighbours: the next step waits for it."""


class Neighbour:
    """Another engine's listing, as far as engine ``own`` has read it."""

    def __init__(self, folder: Path, own: int) -> None:
        self._path = folder / NAME
        self._own = own
        self._fd = -1
        self._seen: Opening | None = None
        self._num_read = 0
        """So many entries, from the first on, have been read at least once."""
        self._key_at: dict[int, OffloadKey] = {}
        self._loans: dict[int, int] = {}
        """Slot -> how often it is borrowed."""
        self.slot_of: dict[OffloadKey, int] = {}
        self.used: list[int] = []
        """The slots of engine ``own`` from which it has borrowed, since this was emptied."""

    def look(self, epoch: int, most: int) -> int:
        """Read what has changed, and ``most`` entries of those that were never read; returns how many these were.

        Nothing is known of a neighbour of another epoch.
        """
        opening = read_opening(self._fd) if self._is_open() else None
        if opening is None or opening.epoch != epoch:
            self._forget()
            return 0
        before, self._seen = self._seen, opening
        changed = None
        if before is not None and before.run == opening.run:
            changed = changed_slots(self._fd, before.changes, opening.changes)
            self.used += used_slots(self._fd, before.uses, opening.uses, self._own)
        if changed is None:
            self._forget()
            self._seen = opening
        for slot in dict.fromkeys(changed or ()):
            self.distrust(slot)
            self._learn(slot, read_entry(self._fd, slot))
        unread = range(self._num_read, opening.num_slots)[:most]
        for slot, key in read_entries(self._fd, unread) if unread else ():
            self._learn(slot, key)
        self._num_read += len(unread)
        return len(unread)

    def borrow(self, slot: int, key: OffloadKey) -> bool:
        """Lock a slot, and see that it has the chunk still."""
        if slot not in self._loans and not loans.lock(self._fd, slot):
            return False
        self._loans[slot] = self._loans.get(slot, 0) + 1
        if read_entry(self._fd, slot) == key:
            return True
        self.give_back(slot)
        return False

    def give_back(self, slot: int) -> None:
        """Once less; of the last time it is unlocked."""
        self._loans[slot] -= 1
        if not self._loans[slot]:
            del self._loans[slot]
            loans.unlock(self._fd, slot)

    def distrust(self, slot: int) -> None:
        """Find nothing in a slot until it changes."""
        key = self._key_at.pop(slot, None)
        if key is not None and self.slot_of.get(key) == slot:
            del self.slot_of[key]

    def close(self) -> None:
        """Give everything back."""
        self._forget()
        self._loans.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def check(self) -> None:
        """Recount."""
        for key, slot in self.slot_of.items():
            assert self._key_at[slot] == key, f"slot {slot} has {self._key_at[slot].hex()}, not {key.hex()}"
        assert all(count > 0 for count in self._loans.values()), f"borrowed {self._loans}"

    def _is_open(self) -> bool:
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                return False
        return True

    def _learn(self, slot: int, key: OffloadKey) -> None:
        if key:
            self._key_at[slot] = key
            self.slot_of[key] = slot

    def _forget(self) -> None:
        self._seen = None
        self._num_read = 0
        self._key_at.clear()
        self.slot_of.clear()


class ListedNeighbours:
    """All other engines with a home in ``folder``, as engine ``own`` sees them."""

    def __init__(self, folder: Path, own: int, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._own = own
        self._clock = clock
        self._looked: tuple[int, float] | None = None
        """Of which epoch, and when."""
        self._known: dict[int, Neighbour] = {}

    def look(self, epoch: int) -> None:
        """Notice who is there, and what they have now. Who asks of many chunks, one by one, looks once."""
        now = self._clock()
        if self._looked is not None and self._looked[0] == epoch and now - self._looked[1] < LOOK_SECONDS:
            return
        self._looked = epoch, now
        self._look_for_more()
        left = READ_AT_ONCE
        for one in self._known.values():
            left -= one.look(epoch, left)

    def take_used(self) -> list[int]:
        """The slots of this engine from which they have borrowed since this was asked last."""
        used = [slot for one in self._known.values() for slot in one.used]
        for one in self._known.values() if used else ():
            one.used = []
        return used

    def find(self, key: OffloadKey) -> NeighbourSlot | None:
        """Where one of them has a chunk; of several the one that was known first."""
        for number, one in self._known.items():
            slot = one.slot_of.get(key)
            if slot is not None:
                return NeighbourSlot(number, slot)
        return None

    def borrow(self, found: NeighbourSlot, key: OffloadKey) -> bool:
        """Have a chunk stay where it is until it is given back."""
        return self._known[found.engine].borrow(found.slot, key)

    def give_back(self, found: NeighbourSlot) -> None:
        """It is no longer read, by one of those who borrowed it."""
        self._known[found.engine].give_back(found.slot)

    def distrust(self, found: NeighbourSlot, key: OffloadKey) -> None:
        """It isn't found there any more, until that engine stores anew."""
        one = self._known[found.engine]
        if one.slot_of.get(key) == found.slot:
            one.distrust(found.slot)

    def close(self) -> None:
        """Nothing is read any more."""
        for one in self._known.values():
            one.close()
        self._known.clear()

    def check(self) -> None:
        """Recount."""
        for one in self._known.values():
            one.check()

    def _look_for_more(self) -> None:
        """Notice the homes that have come. A copy of one, under a number that no engine has, is none."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            return
        numbers = {number for number in map(number_of, names) if number is not None}
        for number in sorted(numbers.intersection(range(MOST_ENGINES)) - self._known.keys() - {self._own}):
            self._known[number] = Neighbour(home_of(self._folder, number), self._own)
