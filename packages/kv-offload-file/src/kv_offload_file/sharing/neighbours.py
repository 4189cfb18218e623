"""``ListedNeighbours``: the chunks of the other engines in a folder, and the loans of them.

Each engine has a listing, of which only changes are read. A borrowed chunk is locked there while it is being read
(see ``loans``), so that its owner keeps it in its slot.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from logging import getLogger
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
from kv_offload_file.sharing.place import MOST_ENGINES, NeighbourSlot, place_of
from kv_offload_file.sharing.whereabouts import Whereabouts

_log = getLogger("kv_offload_file")

LOOK_SECONDS: Final = 0.001
"""Within so many seconds after a look there is no other one."""
READ_AT_ONCE: Final = 1 << 13
"""How many unread entries of all neighbours are read in one look, for which the next step waits."""


class Neighbour:
    """The listing of engine ``number``, as far as engine ``own`` has read it into ``whereabouts``."""

    def __init__(self, folder: Path, own: int, number: int, whereabouts: Whereabouts) -> None:
        self._path = folder / NAME
        self._own = own
        self._first_place = place_of(NeighbourSlot(number, 0))
        self._whereabouts = whereabouts
        self._fd = -1
        self._seen: Opening | None = None
        self._is_unreadable = False
        self._num_read = 0
        """How many entries, from the first on, have been read at least once."""
        self._keys: list[OffloadKey | None] = []
        """The chunk of each slot, as of the last look."""
        self._loans: dict[int, int] = {}
        """Slot -> how many loans it has."""
        self.used: list[int] = []
        """The slots of engine ``own`` from which it has borrowed, since the list was emptied."""

    def look(self, epoch: int, most: int) -> int:
        """Read the changes, and up to ``most`` unread entries; returns how many of the latter were read.

        A neighbour of another epoch, or with an unreadable listing, counts as having no chunks.
        """
        try:
            count = self._look(epoch, most)
        except OSError as error:
            if not self._is_unreadable:
                _log.error("%s: what this neighbour has isn't found: %s", self._path, error)
            self._is_unreadable = True
            self._forget()
            return 0
        self._is_unreadable = False
        return count

    def _look(self, epoch: int, most: int) -> int:
        opening = read_opening(self._fd) if self._is_open() and self._is_current() else None
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
            self._seen, self._keys = opening, [None] * opening.num_slots
        for slot in dict.fromkeys(slot for slot in changed or () if slot < opening.num_slots):
            self.distrust(slot)
            if key := read_entry(self._fd, slot):
                self._learn([(slot, key)])
        unread = range(self._num_read, opening.num_slots)[:most]
        if unread:
            self._learn(read_entries(self._fd, unread))
        self._num_read += len(unread)
        return len(unread)

    def borrow(self, slot: int, key: OffloadKey) -> bool:
        """Lock a slot, and check that it still has the chunk."""
        if slot not in self._loans and not loans.lock(self._fd, slot):
            return False
        self._loans[slot] = self._loans.get(slot, 0) + 1
        with suppress(OSError):  # nothing can be borrowed from an unreadable listing
            if read_entry(self._fd, slot) == key:
                return True
        self.give_back(slot)
        return False

    def give_back(self, slot: int) -> None:
        """End one loan of a slot; the last one unlocks it."""
        self._loans[slot] -= 1
        if not self._loans[slot]:
            del self._loans[slot]
            loans.unlock(self._fd, slot)

    def distrust(self, slot: int) -> None:
        """Ignore a slot until it changes."""
        key, self._keys[slot] = self._keys[slot], None
        if key is not None:
            self._whereabouts.remove(key, self._first_place + slot)

    def holds(self, slot: int, key: OffloadKey) -> bool:
        """Whether a slot has a chunk, as of the last look."""
        return slot < len(self._keys) and self._keys[slot] == key

    @property
    def num_known(self) -> int:
        """How many of its slots are known to have a chunk."""
        return sum(key is not None for key in self._keys)

    def close(self) -> None:
        """Forget its chunks, and close its listing, which ends all loans."""
        self._forget()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def check(self) -> None:
        """Recount."""
        for slot, key in enumerate(self._keys):
            place = self._first_place + slot
            assert key is None or self._whereabouts.has(key, place), (
                f"{key.hex()} isn't known to be in slot {slot}"
            )
        assert all(count > 0 for count in self._loans.values()), f"borrowed {self._loans}"

    def _is_open(self) -> bool:
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                return False
        return True

    def _is_current(self) -> bool:
        """Whether the open listing is the one that its engine has now.

        If not, it is closed, and the next look opens the new one; but not before all loans have ended.
        """
        try:
            is_current = os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except OSError:  # its home may be gone
            is_current = False
        if not is_current and not self._loans:
            os.close(self._fd)
            self._fd = -1
        return is_current

    def _learn(self, entries: Iterable[tuple[int, OffloadKey]]) -> None:
        self._whereabouts.add(self._noted(entries))

    def _noted(self, entries: Iterable[tuple[int, OffloadKey]]) -> Iterator[tuple[OffloadKey, int]]:
        keys, first = self._keys, self._first_place
        for slot, key in entries:
            if keys[slot] is not None:  # it has changed again, which a later change says
                self.distrust(slot)
            keys[slot] = key
            yield key, first + slot

    def _forget(self) -> None:
        self._seen = None
        self._num_read = 0
        for slot in range(len(self._keys)):
            self.distrust(slot)
        self._keys = []


class ListedNeighbours:
    """All other engines with a home in ``folder``, as engine ``own`` sees them."""

    def __init__(self, folder: Path, own: int, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._own = own
        self._clock = clock
        self._looked: tuple[int, float] | None = None
        """The epoch and the time of the last look."""
        self._known: dict[int, Neighbour] = {}
        self._whereabouts = Whereabouts()

    @property
    def places(self) -> Mapping[OffloadKey, int]:
        """Chunk -> the place where it is borrowed, as of the last look."""
        return self._whereabouts.places

    def look(self, epoch: int) -> None:
        """Find the neighbours, and read their chunks. Several lookups in a row cause only one look."""
        now = self._clock()
        if self._looked is not None and self._looked[0] == epoch and now - self._looked[1] < LOOK_SECONDS:
            return
        self._looked = epoch, now
        self._look_for_more()
        left = READ_AT_ONCE
        for one in self._known.values():
            left -= one.look(epoch, left)

    def take_used(self) -> list[int]:
        """The slots of this engine from which they have borrowed since the last call."""
        used = [slot for one in self._known.values() for slot in one.used]
        for one in self._known.values() if used else ():
            one.used = []
        return used

    def borrow(self, found: NeighbourSlot, key: OffloadKey) -> bool:
        """Keep a chunk in its slot until `give_back`."""
        return self._known[found.engine].borrow(found.slot, key)

    def give_back(self, found: NeighbourSlot) -> None:
        """End one loan of a chunk."""
        self._known[found.engine].give_back(found.slot)

    def distrust(self, found: NeighbourSlot, key: OffloadKey) -> None:
        """Don't find a chunk there any more, until its engine stores to the slot."""
        one = self._known[found.engine]
        if one.holds(found.slot, key):
            one.distrust(found.slot)

    def close(self) -> None:
        """End all loans, and close the listings."""
        for one in self._known.values():
            one.close()
        self._known.clear()

    def check(self) -> None:
        """Recount."""
        self._whereabouts.check()
        for one in self._known.values():
            one.check()
        counted = sum(one.num_known for one in self._known.values())
        assert counted == len(self._whereabouts), (
            f"{counted} chunks are known, and {len(self._whereabouts)} places"
        )

    def _look_for_more(self) -> None:
        """Find new homes. A copy of a home, under a name that no engine's home has, is ignored."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            return
        numbers = {number for number in map(number_of, names) if number is not None}
        for number in sorted(numbers.intersection(range(MOST_ENGINES)) - self._known.keys() - {self._own}):
            home = home_of(self._folder, number)
            self._known[number] = Neighbour(home, self._own, number, self._whereabouts)
