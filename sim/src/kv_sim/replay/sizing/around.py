"""``Around``: the rest of a server whose host memory, or disk, is being sized."""

from dataclasses import dataclass, replace
from typing import Final

from kv_offload import StoreWhen
from kv_sim.replay.caches.outcome import Setup


@dataclass(frozen=True)
class Disk:
    """Files in ``folder`` are sized, behind host memory of ``host_blocks``."""

    folder: str
    host_blocks: int = 0


@dataclass(frozen=True)
class Around:
    """The parts of a server that stay the same while host memory or the disk is sized."""

    gpu_blocks: int = 0
    """Blocks of the GPU's prefix cache."""
    disk: Disk | None = None
    """The disk that is sized. None: host memory is sized."""
    policy_module: str | None = None
    """Where policies come from that kv-offload-cpu doesn't have."""
    store_when: StoreWhen = StoreWhen.COMPUTED

    @property
    def host_blocks(self) -> int:
        """Blocks of the host memory in front of the disk."""
        return 0 if self.disk is None else self.disk.host_blocks

    @property
    def medium(self) -> str:
        """What is sized, in words."""
        return "host memory" if self.disk is None else "the disk"

    def setup(self, policy: str, size: int) -> Setup:
        """The setup of a replay with so much of the sized medium."""
        if self.disk is None:
            return self._setup(policy, size)
        return replace(self._setup(policy, self.host_blocks), disk=size)

    def setup_in_front(self, policy: str) -> Setup:
        """The setup of a replay without the sized medium, if there is host memory in front of it."""
        return self._setup(policy, self.host_blocks)

    def _setup(self, policy: str, host_blocks: int) -> Setup:
        module, when = self.policy_module, self.store_when
        return Setup(policy, host_blocks, self.gpu_blocks, policy_module=module, store_when=when)


ALONE: Final = Around()
"""Host memory, with nothing in front of it."""
