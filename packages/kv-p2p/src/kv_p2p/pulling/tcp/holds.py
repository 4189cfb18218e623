"""``HoldTable``: which holds may be read, and how many readers each has.

A hold is first *to come*: an engine with its ticket may ask for it before this worker was told of it. Then it is
open, or closing, or gone. It isn't gone while it has readers. If it was pulled or withdrawn while it has readers,
it is *closing*: it takes no new reader. If it is declined while it has readers, a reader may have given up, which
this worker doesn't know yet: then the hold ends with its last reader, whatever that one received. This module has
no threads and no lock; the caller has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kv_p2p.pulling.metadata import NULL_BLOCK, Hold, number_of


@dataclass
class _Held:
    hold: Hold
    readers: int = 0
    is_pulled: bool = False
    is_declined: bool = False
    is_closing: bool = False


class HoldTable:
    """The holds of one worker."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._served: list[str] = []
        self._newest = 0
        """The number of the hold that was opened last."""

    def serve(self, hold: Hold) -> None:
        """Open a hold."""
        if hold.hold_id in self._held:
            raise ValueError(f"hold {hold.hold_id!r} is served already")
        self._held[hold.hold_id] = _Held(hold)
        self._newest = max(self._newest, number_of(hold.hold_id))

    def is_to_come(self, hold_id: str) -> bool:
        """Whether this worker will still be told of a hold, if it is its engine's: holds come in order."""
        return number_of(hold_id) > self._newest

    def begin_read(
        self, hold_id: str, digest: str, places: Sequence[tuple[int, int]]
    ) -> list[tuple[int, ...]] | str:
        """A reader wants blocks of a hold. Returns the blocks of each KV cache group, or why it can't read them.

        ``places``: for each group the first place, and the number of blocks.
        """
        held = self._held.get(hold_id)
        if held is None or held.is_closing:
            return f"there is no hold {hold_id!r}: it was pulled, it was declined, or its time was over"
        if held.hold.digest != digest:
            return f"hold {hold_id!r} is of another prompt"
        tables = held.hold.tables
        if len(places) != len(tables):
            return f"hold {hold_id!r} has blocks of {len(tables)} KV cache groups, not of {len(places)}"
        found = []
        for group, ((first, count), table) in enumerate(zip(places, tables, strict=True)):
            if not 0 <= first <= first + count <= len(table):
                there = f"hold {hold_id!r} has {len(table)} blocks of group {group}"
                return f"{there}; it has not {count} from place {first} on"
            blocks = table[first : first + count]
            if NULL_BLOCK in blocks:
                place = first + blocks.index(NULL_BLOCK)
                return f"hold {hold_id!r} has no block of group {group} at place {place}: it slid out of a window"
            found.append(blocks)
        held.readers += 1
        return found

    def is_closing(self, hold_id: str) -> bool:
        """Whether a hold has readers and takes no new ones."""
        return self._held[hold_id].is_closing

    def end_read(self, hold_id: str, *, has_all: bool) -> None:
        """A reader has finished. ``has_all``: it received all its blocks, so the hold may end."""
        held = self._held[hold_id]
        held.readers -= 1
        if has_all:
            held.is_pulled = held.is_closing = True
        if (held.is_pulled or held.is_declined) and not held.readers:
            self._end(hold_id)

    def decline(self, hold_id: str, digest: str) -> None:
        """The other engine doesn't want the hold: end it now, or with its last reader."""
        held = self._held.get(hold_id)
        if held is None or held.hold.digest != digest:
            return
        if held.readers:
            held.is_declined = True
        else:
            self._end(hold_id)

    def _end(self, hold_id: str) -> None:
        del self._held[hold_id]
        self._served.append(hold_id)

    def withdraw(self, hold_id: str) -> bool:
        """End a hold, or let it take no new readers. False: it has readers."""
        held = self._held.get(hold_id)
        if held is None:  # it has just ended, which wasn't reported yet
            self._served = [served for served in self._served if served != hold_id]
            return True
        held.is_closing = True
        if held.readers:
            return False
        del self._held[hold_id]
        return True

    def take_served(self) -> list[str]:
        """The holds that ended since the last call, except those that were withdrawn."""
        served, self._served = self._served, []
        return served

    def check(self) -> None:
        """Recount: no hold has fewer than no readers, and holds that have ended are gone."""
        for hold_id, held in self._held.items():
            assert held.readers >= 0, f"hold {hold_id} has {held.readers} readers"
            assert held.readers or not (held.is_pulled or held.is_declined), (
                f"hold {hold_id} was pulled or declined, nobody reads it, and it is there"
            )
        assert not {*self._served} & {*self._held}, f"{self._served} have ended and are held"
