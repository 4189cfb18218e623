"""kv-offload's connector, and our own media, with a world's copies in the place of their own.

``host_memory`` is kv-offload-cpu's medium, and the connector with a clock that the world moves; ``files`` is
kv-offload-file's. They are the ``stand_ins`` of those that copy by themselves, which no world can drive. A
configuration finds them by this module's name.
"""

from kv_sim.offload.files import WorldFileOffloadingSpec
from kv_sim.offload.host_memory import (
    TimedOffloadingConnector,
    TimedWorkerSide,
    WorldCopyEngine,
    WorldCPUOffloadingSpec,
    WorldMemory,
)

__all__ = [
    "TimedOffloadingConnector",
    "TimedWorkerSide",
    "WorldCPUOffloadingSpec",
    "WorldCopyEngine",
    "WorldFileOffloadingSpec",
    "WorldMemory",
]
