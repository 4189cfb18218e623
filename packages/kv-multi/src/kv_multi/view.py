"""The view of one child of what the workers' MultiConnectors sent: only its own part, as if it were alone.

An exception is ``invalid_block_ids``: each child gets all blocks that weren't filled, whichever child loaded
them, since storing such a block would be wrong for any child.
"""

from collections.abc import Mapping
from copy import copy
from typing import TypeVar

from kv_api import KVConnectorHandshakeMetadata, KVConnectorOutput
from kv_multi.children import Child
from kv_multi.events import MultiKVConnectorKVEvents
from kv_multi.loads import LoadsInFlight
from kv_multi.metadata import MultiKVConnectorHandshakeMetadata, MultiKVConnectorWorkerMetadata
from kv_multi.saves import Holds
from kv_multi.stats import MultiKVConnectorStats

Rank = TypeVar("Rank")


def output_for(child: Child, output: KVConnectorOutput, holds: Holds, loads: LoadsInFlight) -> KVConnectorOutput:
    """A copy of the joined output with the child's payloads, and without reports of another's transfers."""

    def stores(request_id: str) -> bool:
        holders = holds.holders(request_id)
        return not holders or child.place in holders

    def is_loading(request_id: str) -> bool:
        return loads.loader(request_id) in (None, child.place)

    own = copy(output)
    own.finished_sending = set(filter(stores, output.finished_sending or ())) or None
    own.finished_recving = set(filter(is_loading, output.finished_recving or ())) or None
    own.failed_recving = set(filter(is_loading, output.failed_recving))
    meta, stats, events = output.kv_connector_worker_meta, output.kv_connector_stats, output.kv_cache_events
    if isinstance(meta, MultiKVConnectorWorkerMetadata):
        own.kv_connector_worker_meta = meta.metadata[child.place]
    if isinstance(stats, MultiKVConnectorStats):
        own.kv_connector_stats = stats.data.get(child.name)
    if isinstance(events, MultiKVConnectorKVEvents):
        own.kv_cache_events = events.containers.get(child.name)
    return own


def handshakes_for(
    child: Child, metadata: Mapping[Rank, KVConnectorHandshakeMetadata]
) -> dict[Rank, KVConnectorHandshakeMetadata]:
    """The handshake metadata of the child's own worker sides, by rank."""
    own: dict[Rank, KVConnectorHandshakeMetadata] = {}
    for rank, given in metadata.items():
        if not isinstance(given, MultiKVConnectorHandshakeMetadata):
            raise TypeError(
                f"handshake metadata: expected MultiKVConnectorHandshakeMetadata, got {type(given).__name__}"
            )
        if child.name in given.metadata:
            own[rank] = given.metadata[child.name]
    return own
