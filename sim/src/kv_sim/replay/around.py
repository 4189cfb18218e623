"""``Around``: the rest of a server whose host memory is sized, or whose files on a disk."""

from dataclasses import dataclass, replace
from typing import Final

from kv_offload import StoreWhen
from kv_sim.replay.caches.cache import Setup


@dataclass(frozen=True)
class Disk:
    """Files in ``folder`` are sized, behind host memory of ``host_blocks``."""

    folder: str
    host_blocks: int = 0


@dataclass(frozen=True)
class Around:
    """All of a server that stays the same while one of its memories is tried with several policies and sizes."""

    gpu_blocks: int = 0
    """Of the GPU's prefix cache, in front of it."""
    disk: Disk | None = None
    """None: host memory is sized."""
    policy_module: str | None = None
    """Where policies come from that kv-offload-cpu doesn't have."""
    store_when: StoreWhen = StoreWhen.COMPUTED

    @property
    def host_blocks(self) -> int:
        """Of the host memory in front of it."""
        return 0 if self.disk is None else self.disk.host_blocks

    @property
    def medium(self) -> str:
        """What is sized, in words."""
        return "host memory" if self.disk is None else "the disk"

    def setup(self, policy: str, size: int) -> Setup:
        """What a replay runs on with so much of it."""
        if self.disk is None:
            return self._setup(policy, size)
        return replace(self._setup(policy, self.host_blocks), disk=size)

    def setup_in_front(self, policy: str) -> Setup:
        """What one runs on without any of it, where there is host memory in front."""
        return self._setup(policy, self.host_blocks)

    def _setup(self, policy: str, host_blocks: int) -> Setup:
        module, when = self.policy_module, self.store_when
        return Setup(policy, host_blocks, self.gpu_blocks, policy_module=module, store_when=when)


ALONE: Final = Around()
"""Host memory, with nothing in front of it."""
