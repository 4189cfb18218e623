"""The interface between a manager and its engine's neighbours: its own listing, and theirs."""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from kv_api import OffloadKey
from kv_offload_file.sharing.place import NeighbourSlot


class OwnListing(Protocol):
    """Tells the neighbours an engine's chunks, and the engine which of them they read."""

    def begin(self, epoch: int) -> None:
        """Begin without chunks, in this epoch. Neighbours don't read the listing yet."""

    def open(self) -> None:
        """Let neighbours read the listing, now that it has all chunks."""

    def holds(self, keys: Collection[OffloadKey], slots: Collection[int]) -> None:
        """List these chunks in these slots: any neighbour may read them."""

    def leaves(self, slots: Iterable[int]) -> None:
        """Remove these slots from the listing: they must not be read any more."""

    def uses(self, borrowed: list[NeighbourSlot]) -> None:
        """Tell the owners of these slots that their chunks are being borrowed."""

    def lent(self) -> list[int]:
        """The slots from which neighbours are reading now."""
        ...

    def close(self) -> None:
        """The engine ends. Neighbours may still read its chunks. May be repeated."""


class Neighbours(Protocol):
    """The neighbours of a manager's engine."""

    def look(self, epoch: int) -> None:
        """Read their chunks of this epoch. Between two calls only `distrust` changes anything."""

    def take_used(self) -> list[int]:
        """The slots of this engine from which they have borrowed since the last call."""
        ...

    @property
    def places(self) -> Mapping[OffloadKey, int]:
        """Chunk -> the place where it is borrowed, as of the last look."""
        ...

    def borrow(self, found: NeighbourSlot, key: OffloadKey) -> bool:
        """Keep a chunk in its slot until `give_back`. False: it is gone, and nothing is kept."""
        ...

    def give_back(self, found: NeighbourSlot) -> None:
        """End one loan of a chunk."""

    def distrust(self, found: NeighbourSlot, key: OffloadKey) -> None:
        """A slot doesn't hold the listed chunk: ignore it there until its engine stores to the slot."""

    def close(self) -> None:
        """End all loans. May be repeated."""
