"""Several KV connectors as one: the first that has the tokens loads, all of them store.

Start at ``MultiConnector``, whose methods say by which rule its children answer.
"""

from kv_multi.connector import MultiConnector
from kv_multi.events import MultiKVConnectorKVEvents
from kv_multi.loads import LoadLostError
from kv_multi.metadata import (
    MultiKVConnectorHandshakeMetadata,
    MultiKVConnectorMetadata,
    MultiKVConnectorWorkerMetadata,
    PlannedLoad,
)
from kv_multi.params import ParamsClashError
from kv_multi.prom import MultiKVConnectorPromMetrics
from kv_multi.stats import MultiKVConnectorStats

__all__ = [
    "LoadLostError",
    "MultiConnector",
    "MultiKVConnectorHandshakeMetadata",
    "MultiKVConnectorKVEvents",
    "MultiKVConnectorMetadata",
    "MultiKVConnectorPromMetrics",
    "MultiKVConnectorStats",
    "MultiKVConnectorWorkerMetadata",
    "ParamsClashError",
    "PlannedLoad",
]
