"""The interface of eviction policies: their methods, and what they may rely on.

A policy decides the order in which chunks are evicted. It knows a chunk by its slot, a number below ``capacity``,
and keeps its state in a list or a bytearray, which is much faster than a dictionary of keys. It gets the keys of
new chunks, and ``key_of`` has those of all slots, for policies that remember evicted keys.

It holds a chunk from ``insert`` until ``make_room`` returns it or ``remove`` removes it, so also while it is in
flight.

**Pins.** ``pins[slot]`` is the number of jobs that are using a chunk, and ``pins.slots`` has those that any job
uses; a policy looks only at candidates. A candidate that is pinned is *parked*: it is taken out of the order until
``unpin`` returns it, so that a pin costs one look for any number of evictions, and none if no eviction met it.
A `Parked` (``policy/parked.py``) keeps them.

**All or nothing.** ``make_room`` is only called when enough chunks may be evicted. The manager counts them, so no
policy ever has to undo half an eviction.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from kv_api import OffloadKey
from kv_offload_cpu.slots.pins import Pins


def _unknown(slot: int) -> None:
    """The default position of a chunk: unknown."""


class Run:
    """One request, as a policy sees it: an identity, and where in the request the chunk in a slot ends.

    Policies that keep the chunks of a request together use it to evict a request's tail before its head, since a
    prefix cache can't use a tail whose head is gone.
    """

    __slots__ = ("position",)

    def __init__(self, position: Callable[[int], int | None] = _unknown) -> None:
        self.position = position

    def close(self) -> None:
        """The request has ended: drop references to it, since a policy keeps the run as long as its chunks."""
        self.position = _unknown

    def is_before(self, slot: int, other: int) -> bool:
        """Whether the chunk in ``slot`` is known to end before that in ``other``."""
        other_end, end = self.position(other), self.position(slot)  # in token order, most often
        return end is not None and other_end is not None and end < other_end

    def in_token_order(self, slots: list[int]) -> list[int]:
        """The slots, sorted by the places of their chunks in the request; unchanged if a place isn't known."""
        ends = dict(zip(slots, map(self.position, slots), strict=True))
        if None in ends.values():
            return slots
        return sorted(slots, key=ends.__getitem__)  # type: ignore[arg-type]


class CachePolicy(ABC):
    """The order in which chunks are evicted from a pool of ``capacity`` slots.

    The chunks of one call are distinct and in the order of their tokens, head first.
    """

    key_of: Sequence[OffloadKey] = ()
    """The key of each slot: the manager's own list, lent to its policy. The key of an evicted chunk stands there
    until the slot is filled again, just before ``insert``."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    @abstractmethod
    def make_room(self, keys: Sequence[OffloadKey], count: int, pins: Pins) -> list[int]:
        """Evict exactly ``count`` chunks that aren't pinned, and return them; ``keys`` are stored next.

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
        """The last pin of these chunks, all of them held, is gone. Parked ones return as just used."""

    def awaits_unpin(self) -> bool:
        """Whether any chunk is parked. If not, ``unpin`` needn't be called."""
        return True

    @abstractmethod
    def remove(self, slots: Sequence[int]) -> None:
        """Forget these chunks, all of them held. Their copies failed, so don't remember their keys as evicted."""

    def finish(self, run: Run) -> None:
        """The request has ended."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything, as if newly made."""

    @abstractmethod
    def slots(self) -> list[int]:
        """All held chunks, parked ones included, in an order that depends only on the calls."""

    @abstractmethod
    def check(self, pins: Pins) -> None:
        """Recount everything; parked chunks must be pinned."""
