"""What a manager tells the other engines of its folder, and what it asks of them."""

from collections.abc import Collection, Iterable
from typing import Protocol

from kv_api import OffloadKey
from kv_offload_file.sharing.place import Found


class Telling(Protocol):
    """What a manager tells its neighbours, and asks of them."""

    def holds(self, keys: Collection[OffloadKey], slots: Collection[int]) -> None:
        """These chunks are in these slots, to be read by anybody."""

    def leaves(self, slots: Iterable[int]) -> None:
        """What is in these slots is no more to be read."""

    def begin(self, epoch: int) -> None:
        """Nothing is held, and what will be is of this epoch. It isn't to be read yet."""

    def open(self) -> None:
        """Let it be read, now that it has all that is held."""

    def uses(self, founds: list[Found]) -> None:
        """These chunks of others were borrowed, which their owners may like to know."""

    def lent(self) -> list[int]:
        """The slots that neighbours read from now."""
        ...

    def close(self) -> None:
        """The engine ends. What it has stays as it is, and may be read. May be repeated."""


class Others(Protocol):
    """What a manager asks of the other engines of its folder."""

    def look(self, epoch: int) -> None:
        """Notice what they have now, of this epoch. Between two calls nothing changes but what is distrusted."""

    def take_used(self) -> list[int]:
        """The slots of this engine from which they have borrowed since this was asked last."""
        ...

    def find(self, key: OffloadKey) -> Found | None:
        """Where one of them has a chunk, as it was looked at last."""
        ...

    def borrow(self, found: Found, key: OffloadKey) -> bool:
        """Have a chunk stay where it is until it is given back. False if it has gone; then nothing is held."""
        ...

    def give_back(self, found: Found) -> None:
        """It is no longer read, by one of those who borrowed it."""

    def distrust(self, found: Found, key: OffloadKey) -> None:
        """It isn't what it is said to be: it isn't found there any more, until that engine stores anew."""

    def close(self) -> None:
        """Nothing is read any more. May be repeated."""
