"""The connector that offloads an LLM engine's KV cache: what to store and load, for any offloading medium.

Start at ``OffloadingConnector``; ``kv_offload.scheduler`` and ``kv_offload.worker`` are its two halves, and
each says what is where in it. Both know the engine by ``describe`` and its groups by ``shape``, and talk by
``metadata``.
"""

from kv_api.groups import GroupDescription, describe_group
from kv_offload.connector import OffloadingConnector
from kv_offload.metadata import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
    TransferJob,
    TransferStats,
)
from kv_offload.metrics import OffloadingConnectorStats
from kv_offload.options import HoldBlocks, Options, parse_options
from kv_offload.prom import OffloadPromMetrics
from kv_offload.scheduler.side import OffloadingSchedulerSide
from kv_offload.worker.side import OffloadingWorkerSide

__all__ = [
    "GroupDescription",
    "HoldBlocks",
    "OffloadPromMetrics",
    "OffloadingConnector",
    "OffloadingConnectorMetadata",
    "OffloadingConnectorStats",
    "OffloadingSchedulerSide",
    "OffloadingWorkerMetadata",
    "OffloadingWorkerSide",
    "Options",
    "TransferJob",
    "TransferStats",
    "describe_group",
    "parse_options",
]
