"""``Whereabouts``: the places of all chunks that an engine's neighbours have.

If several neighbours have a chunk, since both stored it before they knew of each other's, it is borrowed from the
one with the lowest number; within its files, from the slot where it was seen last.

**Invariants** (``check``): a chunk with other places has one in ``places``; and no place is there twice.
"""

from collections.abc import Iterable

from kv_api import OffloadKey
from kv_offload_file.sharing.place import MOST_SLOTS


class Whereabouts:
    """``places`` has the place from which each chunk is borrowed."""

    def __init__(self) -> None:
        self.places: dict[OffloadKey, int] = {}
        self._others: dict[OffloadKey, list[int]] = {}
        """Chunk -> its other places, the newest last."""

    def add(self, found: Iterable[tuple[OffloadKey, int]]) -> None:
        """Add places of chunks."""
        places = self.places
        for key, place in found:
            if places.setdefault(key, place) != place:
                self._add_another(key, place)

    def remove(self, key: OffloadKey, place: int) -> None:
        """Remove a place of a chunk."""
        others = self._others.get(key)
        if others is None:
            del self.places[key]
            return
        if self.places[key] == place:
            place = min(reversed(others), key=lambda one: one // MOST_SLOTS)
            self.places[key] = place
        others.remove(place)
        if not others:
            del self._others[key]

    def _add_another(self, key: OffloadKey, place: int) -> None:
        known = self.places[key]
        if known // MOST_SLOTS < place // MOST_SLOTS:
            known, place = place, known
        self._others.setdefault(key, []).append(known)
        self.places[key] = place

    def has(self, key: OffloadKey, place: int) -> bool:
        """Whether this place of a chunk is known."""
        return self.places.get(key) == place or place in self._others.get(key, ())

    def __len__(self) -> int:
        """How many places all chunks have together."""
        return len(self.places) + sum(map(len, self._others.values()))

    def check(self) -> None:
        """Recount."""
        for key, others in self._others.items():
            places = [self.places[key], *others]
            assert len(places) == len({*places}) > 1, f"{key.hex()} is in {places}"
            assert places[0] // MOST_SLOTS == min(places) // MOST_SLOTS, f"{key.hex()} is looked for in {places}"
