"""``HostCopySpec``: an offloading spec for vLLM's ``OffloadingConnector`` that copies by the testbed's copies.

Its scheduler's side is vLLM's own ``CPUOffloadingManager``. Its worker copies whole blocks by the copy engine of
the caches' device, so the world decides when a copy runs and how it ends. A chunk is ``blocks_per_chunk``
consecutive host slots of the device. Jobs of one direction run on one stream, except expedited loads, which have a
stream of their own. If a copy is reported twice, the second report is ignored.
"""

from collections.abc import Sequence
from typing import Any, Final

from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from kv_api import Direction
from kv_vllm.driver.surroundings.tensors import device_of

EXPEDITED: Final = "expedited loads"


def pairs_of(
    blocks: Sequence[int],
    group_sizes: Sequence[int],
    first_indices: Sequence[int],
    chunks: Sequence[int],
    factor: int,
) -> list[tuple[int, int]]:
    """The pairs of a GPU block and its host slot; both arguments are listed group after group.

    A group's blocks are consecutive ones of a request, from its ``first_indices`` on, which may be within a chunk.
    """
    pairs: list[tuple[int, int]] = []
    begin = chunk = 0
    for size, first in zip(group_sizes, first_indices, strict=True):
        skipped = first % factor
        for offset, block in enumerate(blocks[begin : begin + size], skipped):
            pairs.append((block, chunks[chunk + offset // factor] * factor + offset % factor))
        begin += size
        chunk += -(-(skipped + size) // factor) if size else 0
    assert (begin, chunk) == (len(blocks), len(chunks)), (
        f"{begin} of {len(blocks)} blocks, {chunk} of {len(chunks)} chunks"
    )
    return pairs


class HostCopyWorker(OffloadingWorker):  # type: ignore[misc]
    """Copies between a device's blocks and its host memory."""

    def __init__(self, caches: CanonicalKVCaches, chunks: int, blocks_per_chunk: int) -> None:
        self.device = device_of(caches.tensors[0].tensor)
        self.first_slot = self.device.allocate_host(chunks * blocks_per_chunk)
        self._factor = blocks_per_chunk
        self._queue = self.device.copies.open()
        self._copy_of: dict[int, int] = {}
        self._job_of: dict[int, int] = {}

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        return self._submit(job_id, Direction.STORE, src_spec, dst_spec, "stores")

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        return self._submit(job_id, Direction.LOAD, dst_spec, src_spec, EXPEDITED if expedited else "loads")

    def _submit(self, job_id: int, direction: Direction, gpu: Any, host: Any, stream: str) -> bool:
        listed = (gpu.block_ids.tolist(), gpu.group_sizes, gpu.block_indices, host.block_ids.tolist())
        pairs = [(block, self.first_slot + slot) for block, slot in pairs_of(*listed, self._factor)]
        copy = self._queue.submit(direction, pairs, stream=stream)
        self._copy_of[job_id], self._job_of[copy] = copy, job_id
        return True

    def get_finished(self) -> list[TransferResult]:
        results = []
        for result in self._queue.poll():
            job_id = self._job_of.pop(result.copy_id, None)
            if job_id is not None:
                del self._copy_of[job_id]
                results.append(TransferResult(job_id=job_id, success=result.success))
        return results

    def wait(self, job_ids: set[int]) -> None:
        lost = self._queue.wait([self._copy_of[job] for job in sorted(job_ids) if job in self._copy_of])
        assert not lost, f"copies {sorted(lost)} never end, and this worker has no timeout"


class HostCopySpec(CPUOffloadingSpec):  # type: ignore[misc]
    """vLLM's manager of host memory, and the testbed's copies."""

    BLOCK_SIZE_ALIGNMENT = 1
    """1: the testbed's pages are smaller than a page of the operating system."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        return HostCopyWorker(kv_caches, self.num_chunks, self.blocks_per_chunk)
