"""The connector that offloads an LLM engine's KV cache: what to store and load, for any offloading medium.

================= =========================================================
``connector``     ``OffloadingConnector``: both sides under one name
``scheduler/``    the side that decides
``worker/``       the side that acts
``describe``      what both know of the engine
``medium_config`` what a medium is told of it
``shape/``        how requests lie in blocks and in chunks
``metadata``      what the sides tell each other
``options``       what an operator can set
``metrics``       what is counted; ``prom``: the same for Prometheus
``log``           what is logged; ``clock``: the only place that reads time
================= =========================================================
"""

from typing import TYPE_CHECKING, Final

from kv_api.exports import imported_later
from kv_api.groups import GroupDescription, describe_group
from kv_offload.options import HoldBlocks, Options, StoreWhen, look_ahead, parse_options

if TYPE_CHECKING:
    from kv_offload.connector import OffloadingConnector
    from kv_offload.metadata import (
        OffloadingConnectorMetadata,
        OffloadingWorkerMetadata,
        TransferJob,
        TransferStats,
    )
    from kv_offload.metrics import OffloadingConnectorStats
    from kv_offload.prom import OffloadPromMetrics
    from kv_offload.scheduler.side import OffloadingSchedulerSide
    from kv_offload.worker.side import OffloadingWorkerSide

_LATER: Final = {
    "OffloadingConnector": "kv_offload.connector",
    "OffloadingConnectorMetadata": "kv_offload.metadata",
    "OffloadingWorkerMetadata": "kv_offload.metadata",
    "TransferJob": "kv_offload.metadata",
    "TransferStats": "kv_offload.metadata",
    "OffloadingConnectorStats": "kv_offload.metrics",
    "OffloadPromMetrics": "kv_offload.prom",
    "OffloadingSchedulerSide": "kv_offload.scheduler.side",
    "OffloadingWorkerSide": "kv_offload.worker.side",
}
"""A name, and the module that is imported at its first use: who reads options needs no connector."""

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
    "StoreWhen",
    "TransferJob",
    "TransferStats",
    "describe_group",
    "look_ahead",
    "parse_options",
]


if not TYPE_CHECKING:
    __getattr__ = imported_later(globals(), _LATER)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
