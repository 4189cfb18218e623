"""``SlotPool``: a worker's slots for a carrier, each with room for any frame. Slots are used again and again."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kv_p2p.pulling.carrier import Carrier, LingeringReadError, Slot


class SlotPool:
    """Makes a slot when all others are in use, so there are as many as pulls and clients need at once.

    A slot is *lost* while a failed read may still write to it; after that it is used again.
    """

    def __init__(self, carrier: Carrier, slot_bytes: int) -> None:
        self.carrier = carrier
        self._slot_bytes = slot_bytes
        self._lock = threading.Lock()
        self._free: list[Slot] = []
        self._lost: list[tuple[Slot, Callable[[], bool]]] = []
        """The lost slots, each with the function that says whether its read has ended."""
        self._made = 0

    @contextmanager
    def take(self, count: int) -> Iterator[list[Slot]]:
        """``count`` slots until the end of the context."""
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
        """Take back the slots whose failed reads have ended."""
        still_lost = []
        for slot, has_ended in self._lost:
            if has_ended():
                self._free.append(slot)
            else:
                still_lost.append((slot, has_ended))
        self._lost[:] = still_lost

    def check(self) -> None:
        """Recount: no slot is listed twice, and there are no more than were made."""
        with self._lock:
            here = [*self._free, *(slot for slot, _ in self._lost)]
            is_each_once = len({slot.address for slot in here}) == len(here) <= self._made
            assert is_each_once, f"{self._made} slots, free: {self._free}, lost: {self._lost}"
