"""``Wire``: the interface by which a worker sends blocks to workers of other engines, and receives theirs.

A worker serves holds and pulls at the same time. Only ``wait`` and ``close`` block.
"""

from dataclasses import dataclass, field
from typing import Protocol

from kv_p2p.pulling.metadata import Hold, Pull, Source


@dataclass
class Ended:
    """The holds and pulls that ended since the last ``poll``."""

    served: list[str] = field(default_factory=list)
    """Holds, by id, that were pulled or declined. Nobody reads their blocks any more."""
    pulled: list[str] = field(default_factory=list)
    """Pulls, by request, that filled all their blocks."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Pulls, by request, that failed, and why. Nobody writes their blocks any more."""
    pulled_bytes: int = 0
    """Bytes of blocks that were filled since the last ``poll``."""


class Wire(Protocol):
    """The connections of one worker."""

    def serve(self, hold: Hold) -> None:
        """From now on the blocks of a hold may be pulled."""
        ...

    def withdraw(self, hold_id: str) -> bool:
        """Stop serving a hold. False: its blocks are being read.

        Then it takes no new readers; its end is reported by ``poll``, or another call of this returns True.
        """
        ...

    def pull(self, pull: Pull) -> None:
        """Begin to fill blocks. ``poll`` reports the end, unless the pull is given up before.

        A client gets a ticket before the producer's workers are told of the hold, so a pull may arrive there
        before ``serve``: then it waits.
        """
        ...

    def give_up(self, request_id: str) -> bool:
        """Stop a pull; ``poll`` won't report it. False: it is writing blocks now, so call this again."""
        ...

    def decline(self, source: Source) -> None:
        """Tell a producer that its blocks aren't wanted, also before its ``serve``. It may never learn of it."""
        ...

    def poll(self) -> Ended:
        """The holds and pulls that ended since the last call."""
        ...

    def wait(self, seconds: float) -> None:
        """Return when ``poll`` has something to report, or after ``seconds``."""
        ...

    def close(self) -> None:
        """End everything. Nobody reads or writes a block after that."""
        ...
