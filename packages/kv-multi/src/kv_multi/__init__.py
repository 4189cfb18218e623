"""Several KV connectors as one: the first that has the tokens loads, all of them store.

Start at ``MultiSchedulerSide`` and ``MultiWorkerSide``, whose methods say by which rule the children answer;
``MultiConnector`` is both under one name.

============================= =============================================================================
``connector``                 both sides; ``questions``: what the class is asked before there is an object
``children``                  from a configuration to named connectors, whose ``names`` travel
``side``                      what both sides have; ``quarantine``: which children are switched off
``scheduler_side``            the scheduler's side; ``requests``: what of it is about one request
``worker_side``               a worker's side
``choice``, ``loads``         who loads, and who may say that a load ended; ``blocks``: what it is to fill
``saves``, ``last_report``    who still stores, and the one report too many that this can bring
``metadata``, ``params``      what children send each other and clients, as one; ``view``: a child's own part again
``events``, ``stats``         what they tell and count, by child; ``prom``: the same as metrics
============================= =============================================================================
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
