"""Several KV connectors as one: the first that has the tokens loads, all of them store.

Start at ``MultiSchedulerSide`` and ``MultiWorkerSide``, whose methods say by which rule the children answer;
``MultiConnector`` is both under one name.
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
from kv_multi.scheduler_side import MultiSchedulerSide
from kv_multi.stats import MultiKVConnectorStats
from kv_multi.worker_side import MultiWorkerSide

__all__ = [
    "LoadLostError",
    "MultiConnector",
    "MultiKVConnectorHandshakeMetadata",
    "MultiKVConnectorKVEvents",
    "MultiKVConnectorMetadata",
    "MultiKVConnectorPromMetrics",
    "MultiKVConnectorStats",
    "MultiKVConnectorWorkerMetadata",
    "MultiSchedulerSide",
    "MultiWorkerSide",
    "ParamsClashError",
    "PlannedLoad",
]
