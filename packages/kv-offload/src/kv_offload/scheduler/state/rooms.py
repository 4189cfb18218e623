"""For how many chunks every rank has room.

The stages of a pipeline hold different layers, so a block has another size on each, and the same host memory has
room for more chunks on one than on another. The scheduler's side knows only the first rank's layers. So each rank
says with the report of its first step how much room it has, and nothing is stored before all have said so: until
then the manager might give out a place that some rank doesn't have.
"""

from collections.abc import Sequence

from kv_api import OffloadingManager
from kv_offload.describe import EngineDescription
from kv_offload.log import error
from kv_offload.metadata import RankRoom


class Rooms:
    """The room of each of ``engine``'s ranks. Without stages all have what the scheduler's side knows."""

    def __init__(self, engine: EngineDescription) -> None:
        self._world_size = engine.world_size
        self._bytes_per_block = engine.config.worker_kv_bytes_per_block
        self._told: list[RankRoom] = []
        self.may_store = not engine.has_stages
        """Whether every rank has each place that the manager gives out."""

    @property
    def are_known(self) -> bool:
        """Whether every rank has told its room, or none has to."""
        return self.may_store or len(self._told) >= self._world_size

    def take(self, rooms: Sequence[RankRoom], manager: OffloadingManager) -> None:
        """Some ranks told their room. When the last one has, the manager is limited to what all have."""
        missing = 0 if self.are_known else self._world_size - len(self._told)
        if missing:
            self._told += rooms
            if len(rooms) >= missing:
                self.may_store = self._agree(manager)

    def _agree(self, manager: OffloadingManager) -> bool:
        counts = [room.num_chunks for room in self._told if room.num_chunks is not None]
        limit = getattr(manager, "limit_chunks", None)  # vLLM's managers have none
        if len(counts) == self._world_size and limit is not None and limit(min(counts)):
            return True
        sizes = {room.bytes_per_block for room in self._told}
        if sizes == {self._bytes_per_block}:
            return True
        error(
            "nothing is offloaded: the stages of the pipeline hold KV of different sizes, %s bytes a block, and "
            "%s can't be limited to what all of them have room for; use a medium that can, as CPUOffloadingSpec, "
            "or stages with layers of the same sizes (VLLM_PP_LAYER_PARTITION)",
            ", ".join(map(str, sorted(sizes))),
            type(manager).__name__,
        )
        return False
