"""Several KV connectors as one: the first that has the tokens loads, all of them store.

Start at ``MultiSchedulerSide`` and ``MultiWorkerSide``. The docstrings of their methods are the rules by which the
children answer together.

================== ===============================================================================================
``connector``      both sides under one name, and what an engine asks before there is an object
``scheduler_side`` the scheduler's side; ``requests``: its calls about one request
``worker_side``    a worker's side; ``side``: what both sides have
``children``       from a configuration to named connectors; ``options``: the settings beside them
``quarantine``     which children are switched off
``choice``         which child loads for a request
``loads``          loads in flight: who may report the end of one; ``blocks``: the blocks that one fills
``saves``          who still stores; ``last_report``: of an aborted load and a store, the engine hears once
``metadata``       what the sides send each other, with a slot for each child; ``view``: what one child sees of it
``params``         the children's ``kv_transfer_params`` as one dictionary
``events``         the children's events; ``stats``: their numbers; ``prom``: the same for Prometheus
================== ===============================================================================================
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
