"""``Wire``: how one worker gives blocks to workers of other engines, and gets blocks of theirs.

A worker serves holds and pulls at the same time. Nothing here waits but ``wait`` and ``close``.
"""

from dataclasses import dataclass, field
from typing import Protocol

from kv_p2p.pulling.metadata import Hold, Pull, Source


@dataclass
class Ended:
    """What ended since the last call of ``poll``."""

    served: list[str] = field(default_factory=list)
    """Holds, by id, that were pulled or declined. Nobody reads their blocks any more."""
    pulled: list[str] = field(default_factory=list)
    """Pulls, by request, that filled all their blocks."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Pulls, by request, that didn't, and why. Nobody writes their blocks any more."""
    pulled_bytes: int = 0
    """Bytes of blocks that were filled meanwhile."""


class Wire(Protocol):
    """The connections of one worker."""

    def serve(self, hold: Hold) -> None:
        """From now on the blocks of a hold may be pulled."""
        ...

    def withdraw(self, hold_id: str) -> bool:
        """Serve a hold no longer. False: its blocks are being read.

        Then nobody new is let read them, and the end comes with ``poll``, or with another call of this.
        """
        ...

    def pull(self, pull: Pull) -> None:
        """Begin to fill blocks. The end comes with ``poll``, unless it is given up before.

        A ticket is out before its workers are told of the hold, so a pull may come before ``serve``: it waits.
        """
        ...

    def give_up(self, request_id: str) -> bool:
        """Stop a pull, which is never heard of again. False: it is writing blocks now; ask again."""
        ...

    def decline(self, source: Source) -> None:
        """Tell a producer that its blocks aren't wanted, also before its ``serve``. It may never learn of it."""
        ...

    def poll(self) -> Ended:
        """What ended."""
        ...

    def wait(self, seconds: float) -> None:
        """Return when there is something to poll, or after so many seconds."""
        ...

    def close(self) -> None:
        """End everything. Nobody reads or writes a block after that."""
        ...
