"""``Account``: what became of the records of a trace. Whatever was left out is counted, and said."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_REASONS_SHOWN: Final = 3


@dataclass
class Account:
    """What became of the records."""

    skipped: int = 0
    reasons: list[str] = field(default_factory=list)
    surplus_ids: int = 0
    surplus_requests: int = 0
    short_requests: int = 0
    dropped_blocks: int = 0
    delayed: int = 0
    moved: int = 0

    def skip(self, reason: str) -> None:
        """A record was left out."""
        self.skipped += 1
        if len(self.reasons) < _REASONS_SHOWN:
            self.reasons.append(reason)

    def notes(self) -> Iterator[str]:
        """For the reader of a report."""
        if self.skipped:
            yield f"{self.skipped} malformed records were skipped, first: {'; '.join(self.reasons)}"
        if self.surplus_ids:
            yield (
                f"{self.surplus_requests} requests have more ids than their length has blocks: {self.surplus_ids} "
                "ids dropped (is the block size right? --block-size)"
            )
        if self.short_requests:
            yield f"{self.short_requests} requests have fewer ids than full blocks: the rest is never a hit"
        if self.dropped_blocks:
            yield f"{self.dropped_blocks} partial last blocks were dropped"
        if self.moved:
            yield f"{self.moved} requests arrive before one above them: sorted (--unsorted sort)"
        if self.delayed:
            yield f"{self.delayed} later turns have a delay: taken from the arrival of the turn before"
