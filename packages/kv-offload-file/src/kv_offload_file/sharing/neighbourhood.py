"""What a manager needs of an engine's neighbours: to tell them what it has, and to learn what they have."""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from kv_api import OffloadKey
from kv_offload_file.sharing.place import NeighbourSlot


class OwnListing(Protocol):
    """What an engine tells its neighbours, and which of its chunks they read."""

    def begin(self, epoch: int) -> None:
        """Nothing is held, and what will be is of this epoch. It isn't to be read yet."""

    def open(self) -> None:
        """Let it be read, now that it has all that is held."""

    def holds(self, keys: Collection[OffloadKey], slots: Collection[int]) -> None:
        """These chunks are in these slots, to be read by any neighbour."""

    def leaves(self, slots: Iterable[int]) -> None:
        """What is in these slots is no more to be read."""

    def uses(self, borrowed: list[NeighbourSlot]) -> None:
        """What is in these slots is being borrowed, which their owners may like to know."""

    def lent(self) -> list[int]:
        """The slots that neighbours read from now."""
        ...

    def close(self) -> None:
        """The engine ends. What it has stays as it is, and may be read. May be repeated."""


class Neighbours(Protocol):
    """What a manager asks of its engine's neighbours."""

    def look(self, epoch: int) -> None:
        """Notice what they have now, of this epoch. Between two calls nothing changes but what is distrusted."""

    def take_used(self) -> list[int]:
        """The slots of this engine from which they have borrowed since this was asked last."""
        ...

    @property
    def places(self) -> Mapping[OffloadKey, int]:
        """In which place each chunk is looked for that one of them has, as they were looked at last."""
        ...

    def borrow(self, found: NeighbourSlot, key: OffloadKey) -> bool:
        """Have a chunk stay where it is until it is given back. False if it has gone; then nothing is held."""
        ...

    def give_back(self, found: NeighbourSlot) -> None:
        """It is no longer read, by one of those who borrowed it."""

    def distrust(self, found: NeighbourSlot, key: OffloadKey) -> None:
        """It isn't what it is said to be: it isn't found there any more, until that engine stores anew."""

    def close(self) -> None:
        """Nothing is read any more. May be repeated."""
