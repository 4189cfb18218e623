"""Chunks in the order of their last use, kept by request so that a request's tail leaves before its head.

A list of *stretches*, one for each request, the least recently active request first. A stretch lists the chunks
that its request was the last to use, in the order of their tokens. Chunks are evicted from the end of the first
stretch: the oldest request's tail. This is LRU by requests instead of chunks; with a run for every single use it
is the textbook's LRU.

If a request first uses exactly the chunks of another one's stretch, as in the next turn of a conversation, it
takes the stretch over. Otherwise the chunks are appended to its own stretch, and ``_places`` says that their
entries count there; the entries in the old stretch are dead, and skipped. So a use is at most one entry and one
list item written, whatever the length of the list. Dead entries are swept out before they outnumber the live ones.

A chunk that comes *late*, after chunks that follow it in its request, is appended, too. The stretch is sorted when
its order is needed: once for all late chunks, and only from the place of the first of them on.

Two lists may divide one pool between them: they share ``places``, and a stretch knows its ``home``.

Invariants: the slots for which ``_places`` names a stretch of this list are those that count in it, each by its
last entry there, and ``_size`` is their number; ``_entries`` is the length of all stretches, with dead entries. No
stretch is empty. One that was taken out with all of its slots has no ``home``, and ``_places`` may still name it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from kv_offload_cpu.policy.base import Run
from kv_offload_cpu.slots.columns import put
from kv_offload_cpu.slots.pick import pick
from kv_offload_cpu.slots.pins import Pins

_SLACK = 64  # dead entries that are not worth a sweep


class Stretch(list[int]):
    """The chunks that one request was the last to use, and dead entries."""

    __slots__ = ("home", "late_end", "run")

    def __init__(self, slots: Iterable[int], run: Run, home: "RecencyList") -> None:
        super().__init__(slots)
        self.run = run
        self.late_end: int | None = None
        """Where the first late chunk ends, until the stretch is sorted."""
        self.home: RecencyList | None = home
        """None once it was taken out with all of its slots."""


class RecencyList:
    """Least recently active request first, and of a request the tail first."""

    __slots__ = ("_entries", "_places", "_size", "_stretches")

    def __init__(self, places: list[Stretch | None]) -> None:
        """``places`` has an item for each slot of the pool."""
        self._stretches: OrderedDict[Run, Stretch] = OrderedDict()
        self._places = places
        self._size = 0
        self._entries = 0

    def use(self, slots: Sequence[int], run: Run, new_count: int = 0) -> None:
        """A request used chunks, of which ``new_count`` are not in the list yet; it becomes the newest.

        What it used before stays where it is.
        """
        if not slots or (not new_count and self.move_whole(slots, run, self)):
            return
        self._size += new_count
        places = self._places
        ours = self._stretches.get(run)
        fresh: Sequence[int]
        if ours is None:
            self._stretches[run] = ours = fresh = Stretch(slots, run, self)
        else:
            self._stretches.move_to_end(run)
            is_all_new = new_count == len(slots)
            fresh = slots if is_all_new else [slot for slot in slots if places[slot] is not ours]
            if not fresh:
                return
            while ours and places[ours[-1]] is not ours:  # dead: its slot may have been filled anew
                ours.pop()
                self._entries -= 1
            if ours and run.is_before(fresh[0], ours[-1]):
                _note_late(ours, fresh[0])
            ours += fresh
        put([ours] * len(fresh), fresh, places)
        self._entries += len(fresh)
        if self._entries > 2 * self._size + _SLACK:
            self._sweep()

    def move_whole(self, slots: Sequence[int], run: Run, to: "RecencyList") -> bool:
        """If these are exactly one stretch of this list, make it a request's newest in ``to``; say whether so.

        Not if the request has one there already.
        """
        stretch = self._places[slots[0]]
        if stretch is None or stretch.home is not self or run in to._stretches:
            return False
        self._put_in_order(stretch)
        if stretch != slots:
            return False
        count = len(stretch)
        if self._entries > self._size and pick(slots, self._places).count(stretch) < count:
            return False  # some are dead
        del self._stretches[stretch.run]
        self._size -= count
        self._entries -= count
        stretch.run, stretch.home = run, to
        to._stretches[run] = stretch
        to._size += count
        to._entries += count
        return True

    def pop(self, count: int, pins: Pins, parked: dict[int, None]) -> list[int]:
        """Take the ``count`` oldest that aren't pinned, or all there are. Pinned ones on the way are parked."""
        taken: list[int] = []
        stretches, places, pinned = self._stretches, self._places, pins.slots
        parked_before = len(parked)
        has_dead = self._entries > self._size
        while (missing := count - len(taken)) > 0 and stretches:
            run = next(iter(stretches))
            slots = stretches[run]
            self._put_in_order(slots)
            if missing < len(slots):
                tail = slots[: -missing - 1 : -1]
                del slots[-missing:]
            else:
                tail = slots[::-1]
                slots.home = None
                del stretches[run]
            self._entries -= len(tail)
            if not has_dead and (not pinned or pinned.isdisjoint(tail)):
                if slots.home is self:
                    for slot in tail:
                        places[slot] = None
                taken += tail
                continue
            for slot in tail:
                if places[slot] is slots:  # else it is dead, or was just taken by its last entry
                    places[slot] = None
                    if slot in pinned:
                        parked[slot] = None
                    else:
                        taken.append(slot)
        self._size -= len(taken) + len(parked) - parked_before
        return taken

    def remove(self, slots: Iterable[int]) -> None:
        """Take out chunks of the list, wherever they are."""
        for slot in slots:
            self._places[slot] = None
            self._size -= 1

    def renew(self, run: Run) -> None:
        """Make a request the newest although it used no chunk, and sort it: later it may not know its order."""
        if run in self._stretches:
            self._stretches.move_to_end(run)
            self._put_in_order(self._stretches[run])

    def among(self, slots: Sequence[int]) -> list[int]:
        """Those of some slots that are in this list."""
        return [slot for slot in slots if slot in self]

    def clear(self) -> None:
        """Take out everything."""
        self.remove([*self])
        self._stretches.clear()
        self._entries = 0

    def check(self) -> None:
        """Recount entries against slots."""
        listed = list(self)
        assert len(set(listed)) == len(listed), f"a slot counts twice: {listed}"
        known = [slot for slot in range(len(self._places)) if slot in self]
        assert sorted(listed) == known, f"{sorted(listed)} in stretches, {known} known"
        assert len(listed) == self._size, f"{len(listed)} slots in stretches, {self._size} counted"
        entries = sum(map(len, self._stretches.values()))
        assert entries == self._entries, f"{entries} entries in stretches, {self._entries} counted"
        assert all(self._stretches.values()), "an empty stretch is listed"
        stray = [run for run, each in self._stretches.items() if each.run is not run or each.home is not self]
        assert not stray, f"stretches of {stray} say that they are elsewhere"

    def _live(self, stretch: Stretch) -> list[int]:
        """The slots of a stretch that count there, each at its last entry."""
        live = dict.fromkeys(slot for slot in reversed(stretch) if self._places[slot] is stretch)
        return [*reversed(live)]

    def _put_in_order(self, stretch: Stretch) -> None:
        """Sort late chunks, if there are any."""
        if stretch.late_end is not None:
            start, live = self._behind_late(stretch, stretch.late_end)
            stretch.late_end = None
            if live:
                self._rewrite(stretch, start, live)

    def _behind_late(self, stretch: Stretch, late_end: int) -> tuple[int, list[int]]:
        """The place of the first late chunk, and the sorted slots that count from there on."""
        position, live = stretch.run.position, dict[int, None]()
        start = len(stretch)
        for slot in reversed(stretch):
            if self._places[slot] is stretch:
                end = position(slot)
                if end is not None and end < late_end:
                    break
                live[slot] = None
            start -= 1
        return start, stretch.run.in_token_order([*reversed(live)])

    def _rewrite(self, stretch: Stretch, start: int, live: list[int]) -> None:
        self._entries -= len(stretch) - start - len(live)
        stretch[start:] = live

    def _sweep(self) -> None:
        """Drop dead entries, and stretches that have nothing else."""
        for run, stretch in list(self._stretches.items()):
            self._rewrite(stretch, 0, self._live(stretch))
            if not stretch:
                del self._stretches[run]

    def __len__(self) -> int:
        return self._size

    def __contains__(self, slot: int) -> bool:
        stretch = self._places[slot]
        return stretch is not None and stretch.home is self

    def __iter__(self) -> Iterator[int]:
        """The slots in the order in which they would be evicted."""
        for stretch in self._stretches.values():
            live = self._live(stretch)
            if stretch.late_end is not None:
                _, behind = self._behind_late(stretch, stretch.late_end)
                live[len(live) - len(behind) :] = behind
            yield from reversed(live)


def _note_late(stretch: Stretch, slot: int) -> None:
    """A chunk is about to be appended that lies before the last one."""
    end = stretch.run.position(slot)
    if end is not None and (stretch.late_end is None or end < stretch.late_end):
        stretch.late_end = end
