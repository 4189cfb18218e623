"""``SharedFolders``: what the servers of one machine know of each other's files, in memory.

It replaces the listings of kv-offload-file. What a server lists of its slots, its neighbours know at once, and a
server keeps a slot while a neighbour borrows it.

**Invariants** (``check``): each server knows exactly the slots that its neighbours have listed, except those that
it distrusts; every lent slot is listed.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from kv_api import OffloadKey
from kv_offload_file.sharing.place import NeighbourSlot, place_of
from kv_offload_file.sharing.whereabouts import Whereabouts
from kv_sim.offload.files import WorldSlots

FOLDERS: Final = "replay_folders"
"""The key of the folders in a connector's settings."""


class SharedFolder:
    """One folder, with the home of each server by its number."""

    def __init__(self) -> None:
        self.homes: dict[int, SharedHome] = {}
        self.slots: dict[int, WorldSlots] = {}
        """The slots of each server by its number, if slots have bytes."""

    def open(self, number: int) -> "SharedHome":
        """Make the home of one more server."""
        assert number not in self.homes, f"there is a server {number} already"
        home = SharedHome(self, number)
        self.homes[number] = home
        return home

    def check(self) -> None:
        """Recount."""
        for home in self.homes.values():
            home.check()


class SharedFolders(defaultdict[Path, SharedFolder]):
    """The shared folders of a machine, by the path that they would have."""

    def __init__(self) -> None:
        super().__init__(SharedFolder)

    def check(self) -> None:
        """Recount."""
        for folder in self.values():
            folder.check()


class SharedHome:
    """One server's listing and its view of its neighbours: both an `OwnListing` and a `Neighbours`."""

    def __init__(self, folder: SharedFolder, number: int) -> None:
        self._folder = folder
        self._number = number
        self._held: dict[int, OffloadKey] = {}
        """The key that is listed for each slot."""
        self._lent: Counter[int] = Counter()
        """For each slot, how many neighbours are reading it."""
        self._used: list[int] = []
        self._known = Whereabouts()
        for theirs in folder.homes.values():
            self._known.add(theirs._places())

    # OwnListing: what this server lists

    def begin(self, epoch: int) -> None:
        self.leaves([*self._held])

    def open(self) -> None:
        """Nothing to do: neighbours see every change at once."""

    def holds(self, keys: Collection[OffloadKey], slots: Collection[int]) -> None:
        self.leaves(slots)
        self._held.update(zip(slots, keys, strict=True))
        found = [(key, self._place(slot)) for key, slot in zip(keys, slots, strict=True)]
        for theirs in self._neighbours():
            theirs._known.add(found)

    def leaves(self, slots: Iterable[int]) -> None:
        for slot in slots:
            if slot in self._held:
                key, place = self._held.pop(slot), self._place(slot)
                for theirs in self._neighbours():
                    theirs._forget(key, place)

    def uses(self, borrowed: list[NeighbourSlot]) -> None:
        for found in borrowed:
            self._folder.homes[found.engine]._used.append(found.slot)

    def lent(self) -> list[int]:
        return [*self._lent]

    def close(self) -> None:
        """Nothing to do: the slots stay listed."""

    # Neighbours: what this server learns

    def look(self, epoch: int) -> None:
        """Nothing to do: this server knows every change already."""

    def take_used(self) -> list[int]:
        used, self._used = self._used, []
        return used

    @property
    def places(self) -> Mapping[OffloadKey, int]:
        return self._known.places

    def borrow(self, found: NeighbourSlot, key: OffloadKey) -> bool:
        theirs = self._folder.homes[found.engine]
        if theirs._held.get(found.slot) != key:
            return False
        theirs._lent[found.slot] += 1
        return True

    def give_back(self, found: NeighbourSlot) -> None:
        lent = self._folder.homes[found.engine]._lent
        lent[found.slot] -= 1
        if not lent[found.slot]:
            del lent[found.slot]

    def distrust(self, found: NeighbourSlot, key: OffloadKey) -> None:
        self._forget(key, place_of(found))

    def check(self) -> None:
        """Recount."""
        self._known.check()
        said = [found for theirs in self._neighbours() for found in theirs._places()]
        assert all(self._known.has(key, place) for key, place in said) and len(said) == len(self._known), (
            f"server {self._number} knows of {len(self._known)} slots, its neighbours spoke of {len(said)}"
        )
        assert self._lent.keys() <= self._held.keys(), f"{self._lent} are lent, and not all of them are there"

    # Helpers of both

    def _forget(self, key: OffloadKey, place: int) -> None:
        if self._known.has(key, place):
            self._known.remove(key, place)

    def _place(self, slot: int) -> int:
        return place_of(NeighbourSlot(self._number, slot))

    def _places(self) -> list[tuple[OffloadKey, int]]:
        return [(key, self._place(slot)) for slot, key in self._held.items()]

    def _neighbours(self) -> list["SharedHome"]:
        return [home for home in self._folder.homes.values() if home is not self]
