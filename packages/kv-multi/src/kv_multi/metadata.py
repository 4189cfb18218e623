"""What a MultiConnector's two sides send each other: one slot for each child, and the parent's own data.

Slots are in the order of the configuration, which is the same in every process.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kv_api import KVConnectorHandshakeMetadata, KVConnectorMetadata, KVConnectorWorkerMetadata


class PlannedLoad(NamedTuple):
    """One load of a step: which child does it, and what to report if that child is switched off."""

    child: int
    asynchronous: bool
    block_ids: tuple[int, ...] | None = None
    """The blocks it is to fill. None: unknown, or they can't be reported (``blocks_to_load``)."""


@dataclass
class MultiKVConnectorMetadata(KVConnectorMetadata):
    """Scheduler -> workers. The first two fields are vLLM's, the others make them exact."""

    metadata: tuple[KVConnectorMetadata | None, ...]
    """The metadata of each child's scheduler side. None: the child is switched off."""
    extra_async_saves: dict[str, int] | None = None
    """Request id -> how many children beyond the first still store. For readers of vLLM's format only."""
    async_saves: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Request id -> the children that hold its blocks; sent once, after the request ended."""
    loads: dict[str, PlannedLoad] = field(default_factory=dict)
    """Request id -> its load; sent once. Loads within the step are sent only if a child may be switched off."""
    quarantined: dict[str, str] = field(default_factory=dict)
    """Name of each child that is switched off -> why."""


@dataclass
class MultiKVConnectorWorkerMetadata(KVConnectorWorkerMetadata):
    """Worker -> scheduler, joined over all workers child by child."""

    metadata: tuple[KVConnectorWorkerMetadata | None, ...]
    quarantined: dict[str, str] = field(default_factory=dict)
    """Name of each child that some worker switched off by itself -> why."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "MultiKVConnectorWorkerMetadata":
        if not isinstance(other, MultiKVConnectorWorkerMetadata):
            raise TypeError(
                f"worker metadata: expected MultiKVConnectorWorkerMetadata, got {type(other).__name__}"
            )
        if len(self.metadata) != len(other.metadata):
            raise ValueError(
                f"worker metadata: one worker has {len(self.metadata)} children, another {len(other.metadata)}"
            )
        joined = tuple(_join(mine, theirs) for mine, theirs in zip(self.metadata, other.metadata, strict=True))
        return MultiKVConnectorWorkerMetadata(joined, {**other.quarantined, **self.quarantined})


@dataclass
class MultiKVConnectorHandshakeMetadata(KVConnectorHandshakeMetadata):
    """Worker -> scheduler, once: the handshake metadata of the children that have any, by name."""

    metadata: dict[str, KVConnectorHandshakeMetadata]


def expect_slots(what: str, slots: Sequence[object], names: Sequence[str]) -> None:
    """Refuse metadata that was made for other children than ours."""
    if len(slots) != len(names):
        raise ValueError(
            f"{what}: it has {len(slots)} slots, but the children are {len(names)}: {', '.join(names)}"
        )


def _join(
    mine: KVConnectorWorkerMetadata | None, theirs: KVConnectorWorkerMetadata | None
) -> KVConnectorWorkerMetadata | None:
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    return mine.aggregate(theirs)
