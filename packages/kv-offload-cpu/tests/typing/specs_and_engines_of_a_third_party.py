"""Checked by mypy and pyright, never run: a configured spec, and one with memory and a copy engine of its own."""

from collections.abc import Collection
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

from kv_api import CanonicalKVCaches, GPULoadStoreSpec, OffloadingConfig, OffloadingSpec, TransferResult
from kv_offload_cpu import (
    CopyEngine,
    CopyResult,
    CPULoadStoreSpec,
    CPUOffloadingManager,
    CPUOffloadingSpec,
    CPUOffloadingWorker,
    Direction,
    HostLayout,
    HostMemory,
    PageCopies,
    Urgency,
    plan_layout,
)


class Pages:
    """Memory of one's own."""

    def release(self) -> None: ...


class Eager:
    """An engine that says at once that all went well."""

    def __init__(self) -> None:
        self.results: list[CopyResult] = []

    def submit(
        self, job_id: int, direction: Direction, copies: PageCopies, *, urgency: Urgency = Urgency.ORDINARY
    ) -> None:
        assert_type(copies.blocks, NDArray[np.int64])
        self.results.append(CopyResult(job_id, True, num_bytes=len(copies)))

    def poll(self) -> list[CopyResult]:
        results, self.results = self.results, []
        return results

    def wait(self, job_ids: Collection[int]) -> None: ...

    def shutdown(self) -> None: ...


class MySpec(CPUOffloadingSpec):
    extra_keys = CPUOffloadingSpec.extra_keys | {"pages"}

    def make_memory(self, layout: HostLayout) -> HostMemory:
        return Pages()

    def make_copy_engine(self, kv_caches: CanonicalKVCaches, layout: HostLayout, memory: HostMemory) -> CopyEngine:
        return Eager()


def use(config: OffloadingConfig, caches: CanonicalKVCaches) -> list[TransferResult]:
    spec: OffloadingSpec = MySpec(config)
    mine = MySpec(config)
    assert_type(mine.layout.num_chunks, int)
    assert_type(mine.get_manager(), CPUOffloadingManager)
    worker = mine.get_worker(caches)
    assert_type(worker, CPUOffloadingWorker)
    assert_type(worker.submit_store(1, GPULoadStoreSpec([1], [1], [0]), CPULoadStoreSpec([0])), bool)
    assert_type(plan_layout(1 << 30, 4096, 2, 1, 4096), HostLayout)
    return [*spec.get_worker(caches).get_finished(), *worker.get_finished()]
