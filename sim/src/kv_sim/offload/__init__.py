"""kv-offload's connector and our media, with the world's copies instead of their own.

``host_memory`` has kv-offload-cpu's medium, and the connector with a clock that the world moves; ``files`` has
kv-offload-file's medium. They are the ``stand_ins`` of the real media, which copy by themselves, so that no world
can drive them. A configuration finds them by this module's name.
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
