"""``Carrier``: moves bytes from one worker's memory to another one's by something faster than a socket.

The producer's worker gathers blocks into *slots*, memory that is registered with the carrier; the consumer's
worker reads them into slots of its own. A carrier knows nothing of holds: over their connection both workers
agree which slots may be read, and whether their contents are still valid.
"""

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

TCP: Final = "tcp"
"""No carrier: blocks go through the connection itself."""
MOONCAKE: Final = "mooncake"
NIXL: Final = "nixl"
CARRIERS: Final = (TCP, MOONCAKE, NIXL)


@dataclass(frozen=True)
class Slot:
    """Memory that is registered with a carrier."""

    memory: memoryview
    address: int
    owner: Any
    """The object that owns the memory, kept alive here."""

    @classmethod
    def mapped(cls, size: int) -> "Slot":
        """A slot of ``size`` bytes in memory pages of its own, which network devices prefer; at least one page."""
        owner = mmap.mmap(-1, max(1, size))
        return cls(memoryview(owner)[:size], ctypes.addressof(ctypes.c_char.from_buffer(owner)), owner)


class CarrierError(ConnectionError):
    """Bytes could not be carried."""


class LingeringReadError(CarrierError):
    """A read failed, but its bytes may still arrive: the slot can't be used until ``has_ended`` returns True."""

    def __init__(self, *said: object, has_ended: Callable[[], bool] = lambda: False) -> None:
        super().__init__(*said)
        self.has_ended = has_ended
        """Called again and again until it returns True."""


class Carrier(Protocol):
    """Moves bytes for a worker. Several threads may call all methods at once."""

    @property
    def name(self) -> str:
        """Its name in the configuration; both sides must use the same."""
        ...

    @property
    def session(self) -> str:
        """The name by which other workers reach this worker's memory."""
        ...

    def make_slot(self, size: int) -> Slot:
        """Allocate memory that other workers can read from now on."""
        ...

    def read(self, session: str, address: int, into: Slot, size: int) -> None:
        """Read another worker's memory.

        The bytes are there when this returns; otherwise it raises a `CarrierError`.
        """
        ...

    def close(self) -> None:
        """End the carrier. Nobody reads its slots any more."""
        ...
