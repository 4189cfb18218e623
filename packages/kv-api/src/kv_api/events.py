"""KV events: which blocks appeared in and vanished from which memory.

A router mirrors an engine's caches from these. Events are values: equal when all their fields
are, and hashable, so that events of several ranks can be counted against each other.
"""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Any, TypeAlias

BlockHash: TypeAlias = bytes | int
"""A block's hash as it is published."""

MEDIUM_GPU = "GPU"
"""The memory of GPUs, as events call it."""
MEDIUM_CPU = "CPU"
"""Host memory."""
MEDIUM_STORAGE = "STORAGE"
"""Disks, and stores on other machines."""


class KVCacheEvent:
    """Base of every KV event."""


@dataclass
class BlockStored(KVCacheEvent):
    """Blocks became available in ``medium``, in the order of their tokens.

    ``extra_keys`` and ``lookahead_token_ids`` have one entry for each hash. ``group_idx`` and the
    ``kv_cache_spec_*`` fields describe the group; ``session_id`` names the session that caused the event, not the
    owner of the blocks.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None

    def __hash__(self) -> int:
        return hash((tuple(self.block_hashes), self.parent_block_hash, self.medium, self.group_idx))


@dataclass
class BlockRemoved(KVCacheEvent):
    """Blocks left ``medium``."""

    block_hashes: list[BlockHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None

    def __hash__(self) -> int:
        return hash((tuple(self.block_hashes), self.medium, self.group_idx))


@dataclass(frozen=True)
class AllBlocksCleared(KVCacheEvent):
    """Everything that was ever stored is gone."""


class KVEventAggregator:
    """Counts equal events of several workers, to tell which ones all of them saw.

    ``num_workers`` is how many workers have contributed so far.
    """

    def __init__(self, num_workers: int) -> None:
        _check_positive("num_workers", num_workers)
        self._counts: Counter[KVCacheEvent] = Counter()
        self._num_workers = num_workers

    def add_events(self, events: list[KVCacheEvent]) -> None:
        """Count one worker's events."""
        if not isinstance(events, list):
            raise TypeError(f"events: expected a list, got {events!r} ({type(events).__name__})")
        self._counts.update(events)

    def get_common_events(self) -> list[KVCacheEvent]:
        """The events that every worker reported, in the order of their first report."""
        return [event for event, count in self._counts.items() if count == self._num_workers]

    def get_all_events(self) -> list[KVCacheEvent]:
        """Every event, as often as it was reported."""
        return list(self._counts.elements())

    def clear_events(self) -> None:
        """Forget the events; the number of workers stays."""
        self._counts.clear()

    def increment_workers(self, count: int = 1) -> None:
        """``count`` more workers have contributed."""
        _check_positive("count", count)
        self._num_workers += count

    def reset_workers(self) -> None:
        """Count one worker again, as at first."""
        self._num_workers = 1

    def get_number_of_workers(self) -> int:
        """How many workers have contributed."""
        return self._num_workers

    def __repr__(self) -> str:
        return f"<KVEventAggregator workers={self._num_workers} events={len(self._counts)}>"


class KVConnectorKVEvents(ABC):
    """A container in which a connector's workers send their events to the scheduler."""

    @abstractmethod
    def add_events(self, events: list[KVCacheEvent]) -> None:
        """Add one worker's events."""

    @abstractmethod
    def aggregate(self) -> "KVConnectorKVEvents":
        """Keep what every worker reported, and return the container."""

    @abstractmethod
    def increment_workers(self, count: int = 1) -> None:
        """``count`` more workers have contributed."""

    @abstractmethod
    def get_all_events(self) -> list[KVCacheEvent]:
        """Every event, as often as it was reported."""

    @abstractmethod
    def get_number_of_workers(self) -> int:
        """How many workers have contributed."""

    @abstractmethod
    def clear_events(self) -> None:
        """Forget the events."""

    def merge(self, other: "KVConnectorKVEvents") -> "KVConnectorKVEvents":
        """Add the events of ``other`` and return ``self``."""
        self.add_events(other.get_all_events())
        return self


def _check_positive(name: str, value: int) -> None:
    if value <= 0:
        raise ValueError(f"{name}: expected at least 1, got {value}")
