"""The interface of eviction policies: what they are asked, and what they may rely on.

A policy decides the order in which chunks are evicted. It knows a chunk by its slot, a number below ``capacity``,
and keeps its state in a list or a bytearray, which is much faster than a dictionary of keys. Keys are given where
a chunk comes in, and ``key_of`` has those of all slots, for policies that remember what they evicted.

It holds a chunk from ``insert`` until ``make_room`` names it or ``remove`` takes it, so also while it is in
flight.

**Pins.** ``pins[slot]`` is the number of jobs that are using a chunk, and ``pins.slots`` has those that any job
uses; a policy asks about candidates only. A candidate that is pinned is *parked*: it leaves the order until
``unpin`` brings it back, so that a pin costs one look however many evictions there are, and nothing at all if no
eviction met it. `Parked` (``policy/parked.py``) is where ours keep them.

**All or nothing.** ``make_room`` is only called when there is enough that may be evicted. The manager counts
that, so no policy ever has to undo half an eviction.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from kv_api import OffloadKey
from kv_offload_cpu.slots.pins import Pins


def _unknown(slot: int) -> None:
    """The default position of a chunk: unknown."""


class Run:
    """One request, as a policy sees it: an identity, and where in the request the chunk in a slot ends.

    Policies that keep the chunks of a request together use it to let a request's tail leave before its head, since
    a prefix cache can't use a tail whose head is gone.
    """

    __slots__ = ("position",)

    def __init__(self, position: Callable[[int], int | None] = _unknown) -> None:
        self.position = position

    def close(self) -> None:
        """The request is over: free what it refers to, since a policy keeps the run as long as its chunks."""
        self.position = _unknown

    def is_before(self, slot: int, other: int) -> bool:
        """Whether the chunk in ``slot`` is known to end before that in ``other``."""
        other_end, end = self.position(other), self.position(slot)  # in token order, most often
        return end is not None and other_end is not None and end < other_end

    def in_token_order(self, slots: list[int]) -> list[int]:
        """The slots by the place of their chunks in the request; as they are if any place isn't known."""
        ends = dict(zip(slots, map(self.position, slots), strict=True))
        if None in ends.values():
            return slots
        return sorted(slots, key=ends.__getitem__)  # type: ignore[arg-type]


class CachePolicy(ABC):
    """The order in which chunks leave a pool of ``capacity`` slots.

    The chunks of one call are distinct and in the order of their tokens, head first.
    """

    key_of: Sequence[OffloadKey] = ()
    """The key of each slot: the manager's own list, lent to its policy. The key of an evicted chunk stands there
    until the slot is filled again, just before ``insert``."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    @abstractmethod
    def make_room(self, keys: Sequence[OffloadKey], count: int, pins: Pins) -> list[int]:
        """Evict exactly ``count`` chunks that aren't pinned, and return them; ``keys`` are about to come in.

        Followed at once by ``insert`` with the same keys. ``count`` is 0 while there is free room.
        """

    @abstractmethod
    def insert(self, keys: Sequence[OffloadKey], slots: Sequence[int], run: Run) -> None:
        """A request stores new chunks."""

    @abstractmethod
    def access(self, slots: Sequence[int], run: Run) -> None:
        """A request used these chunks, all of them held."""

    @abstractmethod
    def unpin(self, slots: Sequence[int], run: Run) -> None:
        """The last pin of these chunks, all of them held, is gone. Parked ones come back as just used."""

    def awaits_unpin(self) -> bool:
        """Whether any chunk is parked. If not, ``unpin`` needn't be called."""
        return True

    @abstractmethod
    def remove(self, slots: Sequence[int]) -> None:
        """Forget these chunks, all of them held. They failed rather than being evicted: don't remember them."""

    def finish(self, run: Run) -> None:
        """The request has ended."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything, as if newly made."""

    @abstractmethod
    def slots(self) -> list[int]:
        """The chunks held, parked ones included, in an order that depends on the calls alone."""

    @abstractmethod
    def check(self, pins: Pins) -> None:
        """Recount everything; what is parked must be pinned."""
