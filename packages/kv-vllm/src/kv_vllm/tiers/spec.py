"""``HostTieringSpec``: vLLM's ``TieringOffloadingSpec`` on the testbed's copies, with watched tiers.

Its scheduler's side is vLLM's own ``TieringOffloadingManager`` with the tiers that ``secondary_tiers`` lists, as
in a server. Only the region of memory that processes share is replaced, since a world is one process.
"""

from functools import partial
from typing import Any
from unittest.mock import patch

from vllm.utils.math_utils import round_up
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingWorker
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering import spec as vllms_spec

from kv_vllm.host_copy import HostCopyWorker
from kv_vllm.tiers.rows import Area, Rows, add_area, rows_of
from kv_vllm.tiers.watch import make_watched


class Region:
    """Replaces vLLM's ``SharedOffloadRegion``; it has the rows of an engine."""

    def __init__(self, rows: Rows, *, num_chunks: int, kv_bytes_per_chunk: int, **others: Any) -> None:
        self._view = rows.make(num_chunks, kv_bytes_per_chunk)

    def create_kv_memoryview(self) -> memoryview:
        """All rows."""
        return self._view

    def cleanup(self) -> None:
        """Nothing to do: the rows are freed with the engine."""


class TieredWorker(HostCopyWorker):
    """A ``HostCopyWorker`` whose host memory the rows are filled from."""

    def __init__(self, caches: CanonicalKVCaches, spec: "HostTieringSpec") -> None:
        super().__init__(caches, spec.num_chunks, spec.blocks_per_chunk)
        config, area = spec.config, Area(self.device, self.first_slot)
        self._rows = add_area(config.engine_id, config.parallel.rank, area, spec.blocks_per_chunk)


class HostTieringSpec(vllms_spec.TieringOffloadingSpec):  # type: ignore[misc]
    """vLLM's manager of host memory and tiers, and the testbed's copies."""

    BLOCK_SIZE_ALIGNMENT = 1
    """The room that a world gives is counted in its own small pages."""

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self.kv_bytes_per_chunk: int = round_up(self.kv_bytes_per_chunk, SharedOffloadRegion.BLOCK_SIZE_ALIGNMENT)

    def get_manager(self) -> OffloadingManager:
        """The manager is vLLM's, with a ``TierWatch`` in the place of each tier."""
        if self._manager is None:
            rows = rows_of(self.config.engine_id)
            with patch.object(vllms_spec, "SharedOffloadRegion", partial(Region, rows)):
                make_watched(super().get_manager, rows)
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """A worker that copies when the world says."""
        return TieredWorker(kv_caches, self)
