"""``MediumRun``: one offloading medium under a replay. Its manager is a server's, and copies end at once.

A request is served in two calls: `load`, where the medium is the one that loads, and `offer` of everything that it
didn't load itself.
"""

from dataclasses import dataclass
from typing import NamedTuple

from kv_api import OffloadKey, ReqContext
from kv_offload_cpu import AtOnceManager
from kv_offload_cpu.load_store_spec import Stored
from kv_offload_cpu.stats import STORES_SKIPPED


@dataclass
class Traffic:
    """What became of what a medium was offered, in blocks."""

    stored: int = 0
    evicted: int = 0
    skipped: int = 0
    """Not offered often enough yet (``store_threshold``)."""
    refused: int = 0
    """Did not fit."""

    def plus(self, more: "Traffic") -> "Traffic":
        """Both together."""
        return Traffic(
            self.stored + more.stored,
            self.evicted + more.evicted,
            self.skipped + more.skipped,
            self.refused + more.refused,
        )


class Loaded(NamedTuple):
    """What a medium loaded for a request, in blocks."""

    blocks: int
    borrowed: int = 0
    """How many of them came from another server's disk."""
    borrows_last: bool = False
    """Whether the last of them did."""


class MediumRun:
    """A manager and what it was made to do."""

    def __init__(self, manager: AtOnceManager) -> None:
        self.manager = manager
        self.traffic = Traffic()

    def found(self, keys: list[OffloadKey], context: ReqContext) -> int:
        """How long the leading run of blocks is that it has. Changes nothing."""
        return self.manager.lookup_prefix(keys, context).hits

    def load(self, keys: list[OffloadKey], context: ReqContext) -> Loaded:
        """Load the leading run of blocks that it has."""
        return Loaded(self.manager.load_prefix(keys, context))

    def offer(self, keys: list[OffloadKey], context: ReqContext) -> None:
        """Store what is worth it; if that doesn't fit, the first half of it, and so on, as the connector does."""
        count = len(keys)
        while count:
            stored = self._store(keys if count == len(keys) else keys[:count], context)
            if stored is not None:
                self.traffic.stored += len(stored.keys)
                self.traffic.evicted += len(stored.evicted)
                break
            count //= 2
        self.traffic.refused += len(keys) - count

    def count_stats(self) -> None:
        """The manager counts until it is asked; asked never, its lists would grow with the trace."""
        self.traffic.skipped += self.manager.get_stats().data.get(STORES_SKIPPED, 0)

    def _store(self, keys: list[OffloadKey], context: ReqContext) -> Stored | None:
        """One try; None: there is not enough room."""
        return self.manager.store(keys, context)
