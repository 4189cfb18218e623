"""``CPUOffloadingSpec``: host memory as an offloading medium; makes its manager and its workers.

Importing this, and making the manager, needs nothing but kv_api. The modules that handle bytes are imported by
``get_worker``.
"""

import mmap
from dataclasses import astuple, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kv_api import (
    CanonicalKVCaches,
    OffloadingConfig,
    OffloadingMetricMetadata,
    OffloadingSpec,
)
from kv_offload_cpu.info import CPUOffloadingInfo, offloading_info
from kv_offload_cpu.manager import CPUOffloadingManager
from kv_offload_cpu.options import OWN_KEYS, MemoryChoice, read_options
from kv_offload_cpu.sizing import HostLayout, plan_layout
from kv_offload_cpu.stats import CHECKSUM_MISMATCHES, METRICS, STORES_SKIPPED

if TYPE_CHECKING:
    from kv_offload_cpu.copy.engine import CopyEngine, HostMemory
    from kv_offload_cpu.worker import CPUOffloadingWorker


class CPUOffloadingSpec(OffloadingSpec):
    """Host memory of ``cpu_bytes_to_use`` bytes over all workers; ``options`` has the settings, with defaults.

    A subclass may bring other memory and another copy engine: ``make_memory`` and ``make_copy_engine``. If it has
    settings of its own, ``extra_keys`` is ours and those.
    """

    BLOCK_SIZE_ALIGNMENT = mmap.PAGESIZE
    extra_keys = frozenset(OWN_KEYS)

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self.options = options = read_options(config.extra_config, type(self).extra_keys)
        are_several_alike = config.parallel.pp_size == 1 < config.parallel.world_size
        self.shares_memory = options.host_memory is MemoryChoice.SHARED or (
            options.host_memory is MemoryChoice.AUTO and are_several_alike
        )
        # With memory of their own, workers that hold the same bytes must all keep them.
        self.replicated_layout = config.replicated_layout and self.shares_memory
        copies = 1 if self.replicated_layout else config.parallel.world_size
        self.layout = plan_layout(
            options.cpu_bytes_to_use,
            config.worker_kv_bytes_per_block,
            copies,
            self.blocks_per_chunk,
            self.BLOCK_SIZE_ALIGNMENT,
        )
        self.num_chunks = self.layout.num_chunks
        self.kv_bytes_per_chunk = self.layout.row_bytes
        self.cpu_page_size_per_worker = self.layout.slot_bytes
        self.eviction_policy = options.eviction_policy
        self.cache_policy_module_path = options.cache_policy_module_path
        self.cpu_info = offloading_info(config, self.layout)
        self._manager: CPUOffloadingManager | None = None
        self._worker: CPUOffloadingWorker | None = None

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        threshold = extra_config.get("store_threshold", 0)
        skips = isinstance(threshold, int) and threshold >= 2
        counted = {STORES_SKIPPED: skips, CHECKSUM_MISMATCHES: bool(extra_config.get("checksum", False))}
        return {name: metric for name, metric in METRICS.items() if counted.get(name, True)}

    @classmethod
    def config_info_keys(cls, extra_config: dict[str, Any]) -> tuple[str, ...]:
        return CPUOffloadingInfo.config_info_keys()

    def get_manager(self) -> CPUOffloadingManager:
        if self._manager is None:
            self._manager = CPUOffloadingManager(
                num_chunks=self.num_chunks,
                cache_policy=self.eviction_policy,
                cache_policy_module_path=self.cache_policy_module_path,
                enable_events=self.kv_events_config.enable_kv_cache_events,
                store_threshold=self.options.store_threshold,
                max_tracker_size=self.options.max_tracker_size,
                info=self.cpu_info,
                info_of=lambda num_chunks: offloading_info(
                    self.config, replace(self.layout, num_chunks=num_chunks)
                ),
            )
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> "CPUOffloadingWorker":
        from kv_offload_cpu.worker import CPUOffloadingWorker, StoreRole

        if self._worker is None:
            layout = self.worker_layout()
            memory = self.make_memory(layout)
            try:
                engine = self.make_copy_engine(kv_caches, layout, memory)
            except BaseException:
                memory.release()
                raise
            acknowledges = self.replicated_layout and self.config.parallel.rank > 0
            role = StoreRole.ACKNOWLEDGES if acknowledges else StoreRole.WRITES
            self._worker = CPUOffloadingWorker(engine, memory, layout, len(kv_caches.group_data_refs), role)
        return self._worker

    def worker_layout(self) -> HostLayout:
        """The layout of this worker's memory: all slots of a row if it is shared, else only the worker's own."""
        whole = self.layout
        if self.shares_memory:
            return whole
        return HostLayout(whole.num_chunks, whole.blocks_per_chunk, whole.slot_bytes, 1, whole.slot_bytes)

    def make_memory(self, layout: HostLayout) -> "HostMemory":
        """The memory that this worker's chunks are in."""
        from kv_offload_cpu.memory import MappedMemory, check_available, memory_bytes
        from kv_offload_cpu.shared_region import SharedRegion

        if not self.shares_memory:
            return MappedMemory(layout)
        needed = memory_bytes(layout)
        folder = Path(self.options.shared_memory_dir)
        parallel = self.config.parallel
        region = SharedRegion(
            folder,
            self.config.engine_id,
            parallel.rank,
            parallel.world_size,
            needed,
            astuple(layout),
            before_create=lambda: check_available(needed, "shared host memory of all workers", folder),
        )
        return MappedMemory(layout, 0 if self.replicated_layout else parallel.rank, region)

    def make_copy_engine(
        self, kv_caches: CanonicalKVCaches, layout: HostLayout, memory: "HostMemory"
    ) -> "CopyEngine":
        """What copies between these KV caches and the memory that ``make_memory`` made."""
        from kv_offload_cpu.copy.choose import make_copy_engine

        return make_copy_engine(kv_caches, memory, self.options)
