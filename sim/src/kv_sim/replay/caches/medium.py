"""``MediumRun``: one offloading medium in a replay. It has a server's manager, and its copies end at once.

A request is served in two calls: `load`, if this medium loads for the request, and `offer` of all blocks that this
medium didn't load.
"""

from dataclasses import dataclass
from typing import NamedTuple

from kv_api import OffloadKey, ReqContext
from kv_offload_cpu import AtOnceManager
from kv_offload_cpu.load_store_spec import Stored
from kv_offload_cpu.stats import STORES_SKIPPED


@dataclass
class Traffic:
    """What happened to the blocks that a medium was offered."""

    stored: int = 0
    evicted: int = 0
    skipped: int = 0
    """Not offered often enough yet (``store_threshold``)."""
    refused: int = 0
    """There was no room."""

    def plus(self, more: "Traffic") -> "Traffic":
        """The sum of both."""
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
    """Whether the last loaded block came from there."""


class MediumRun:
    """A manager, and the traffic that the replay caused."""

    def __init__(self, manager: AtOnceManager) -> None:
        self.manager = manager
        self.traffic = Traffic()

    def found(self, keys: list[OffloadKey], context: ReqContext) -> int:
        """The length of the leading run of blocks that it has. Changes nothing."""
        return self.manager.lookup_prefix(keys, context).hits

    def load(self, keys: list[OffloadKey], context: ReqContext) -> Loaded:
        """Load the leading run of blocks that it has."""
        return Loaded(self.manager.load_prefix(keys, context))

    def offer(self, keys: list[OffloadKey], context: ReqContext) -> None:
        """Store these blocks; if they don't fit, their first half, and so on, as the connector does."""
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
        """Collect the manager's statistics. If they were never collected, its lists would grow with the trace."""
        self.traffic.skipped += self.manager.get_stats().data.get(STORES_SKIPPED, 0)

    def _store(self, keys: list[OffloadKey], context: ReqContext) -> Stored | None:
        """Try to store all of these; None: there is not enough room."""
        return self.manager.store(keys, context)
