"""``SlotPool``: a worker's slots, each of which has room for any frame. What is given back is used again."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kv_p2p.pulling.carrier import Carrier, LingeringReadError, Slot


class SlotPool:
    """Slots are made when all there are, are in use: as many as pulls and conversations need at once.

    One is *lost* while somebody may still write into it whose read has failed; after that it is used again.
    """

    def __init__(self, carrier: Carrier, slot_bytes: int) -> None:
        self.carrier = carrier
        self._slot_bytes = slot_bytes
        self._lock = threading.Lock()
        self._free: list[Slot] = []
        self._lost: list[tuple[Slot, Callable[[], bool]]] = []
        """Each with whom to ask whether it still is."""
        self._made = 0

    @contextmanager
    def take(self, count: int) -> Iterator[list[Slot]]:
        """So many slots until the end of the context."""
        taken: list[Slot] = []
        try:
            while len(taken) < count:
                taken.append(self._take())
            yield taken
        except LingeringReadError as error:
            with self._lock:
                self._lost += [(slot, error.has_ended) for slot in taken]
            taken = []
            raise
        finally:
            with self._lock:
                self._free += taken

    def _take(self) -> Slot:
        with self._lock:
            if not self._free:
                self._look_for_lost_ones()
            if self._free:
                return self._free.pop()
            self._made += 1
        return self.carrier.make_slot(self._slot_bytes)

    def _look_for_lost_ones(self) -> None:
        """Take back those into which nobody writes any more."""
        still_lost = []
        for slot, has_ended in self._lost:
            if has_ended():
                self._free.append(slot)
            else:
                still_lost.append((slot, has_ended))
        self._lost[:] = still_lost

    def check(self) -> None:
        """Recount: no slot is there twice, and not more than were made."""
        with self._lock:
            here = [*self._free, *(slot for slot, _ in self._lost)]
            is_each_once = len({slot.address for slot in here}) == len(here) <= self._made
            assert is_each_once, f"{self._made} slots, free: {self._free}, lost: {self._lost}"
