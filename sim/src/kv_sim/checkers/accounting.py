"""ACCOUNTING: what a connector counts and announces is what happened.

The sources of a hit add up to the hit. Stats are the same numbers in the process that shows them. KV events
describe a cache that could exist: nothing is removed that was not announced before, and what a mirror holds after
all events is what the connector says is resident.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from kv_api import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
    KVConnectorBase_V1,
    KVConnectorStats,
)
from kv_sim.violation import Invariant, Referee


def check_sources(request_id: str, tokens: int, answer: Any, referee: Referee) -> None:
    """The counts of ``get_external_cache_hit_sources`` are positive and add up."""
    counts = dict(answer)
    if sum(counts.values()) != tokens or any(count <= 0 for count in counts.values()):
        named = {str(getattr(source, "value", source)): count for source, count in counts.items()}
        referee.fail(
            Invariant.ACCOUNTING,
            f"request {request_id}: {tokens} tokens are loaded, but their sources are counted as {named}",
        )


def check_stats(connector: type[KVConnectorBase_V1], stats: KVConnectorStats | None, referee: Referee) -> None:
    """The class can rebuild the stats from what crosses to the process that shows them, if it can at all."""
    if stats is None or stats.is_empty():
        return
    rebuilt = connector.build_kv_connector_stats(stats.to_dict())
    if rebuilt is not None and rebuilt.reduce() != stats.reduce():
        referee.fail(
            Invariant.ACCOUNTING, f"stats {stats.reduce()} arrive as {rebuilt.reduce()} where they are shown"
        )


class Mirror:
    """What a router would believe after the events so far."""

    def __init__(self, referee: Referee) -> None:
        self._referee = referee
        self.blocks: Counter[tuple[Any, ...]] = Counter()

    def take(self, events: Iterable[KVCacheEvent]) -> None:
        """Apply events in order."""
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
            elif isinstance(event, BlockStored):
                for block_hash in event.block_hashes:
                    self.blocks[event.medium, event.group_idx, block_hash] += 1
            elif isinstance(event, BlockRemoved):
                self._remove(event)

    def _remove(self, event: BlockRemoved) -> None:
        for block_hash in event.block_hashes:
            key = (event.medium, event.group_idx, block_hash)
            if not self.blocks[key]:
                self._referee.fail(
                    Invariant.ACCOUNTING,
                    f"an event removes block {block_hash!r} of group {event.group_idx} from {event.medium}, "
                    "which no event had stored",
                )
                continue
            self.blocks[key] -= 1
            if not self.blocks[key]:
                del self.blocks[key]
