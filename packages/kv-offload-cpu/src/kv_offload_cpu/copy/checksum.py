"""Checksums of what is in host memory: written when a store landed, compared before a load reaches the GPU.

An engine around another one. Each page of a chunk has a checksum of its own (CRC-32, zlib's), since a load may
take a part of a chunk. A page whose bytes are not those that were stored fails its load, and nothing is copied.
It guards memory, not copies: the sum is taken of what arrived.

The work is done by the thread that submits loads and polls for stores, page by page. That costs speed, and is why
it is off unless asked for.
"""

import zlib
from collections.abc import Collection
from logging import getLogger

import numpy as np
from numpy.typing import NDArray

from kv_api import Direction
from kv_offload_cpu.copy.engine import CopyEngine, CopyResult, PageCopies, Urgency
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan

_log = getLogger("kv_offload_cpu")


class ChecksummingEngine:
    """``inner``, with checksums of ``memory`` (its bytes) kept in ``sums``: one for each chunk and offset."""

    def __init__(
        self, inner: CopyEngine, plan: CopyPlan, memory: NDArray[np.uint8], sums: NDArray[np.uint32]
    ) -> None:
        expected = (plan.layout.num_chunks, plan.layout.blocks_per_chunk)
        assert sums.shape == expected, f"sums of shape {sums.shape} for chunks of shape {expected}"
        self.inner = inner
        self.mismatches = 0
        """Pages that a load found changed, since the start."""
        self._plan = plan
        self._memory = memory
        self._sums = sums
        self._stores: dict[int, PageCopies] = {}
        self._results: list[CopyResult] = []

    def submit(
        self, job_id: int, direction: Direction, copies: PageCopies, *, urgency: Urgency = Urgency.ORDINARY
    ) -> None:
        if direction is Direction.STORE:
            self.inner.submit(job_id, direction, copies, urgency=urgency)
            self._stores[job_id] = copies
            return
        self._plan.check(copies)
        wrong = np.flatnonzero(self._computed(copies) != self._sums[copies.chunks, copies.offsets])
        if len(wrong):
            self.mismatches += len(wrong)
            chunks = np.unique(copies.chunks[wrong]).tolist()
            _log.error(
                "load job %d failed: %d pages changed in host memory (wrong checksum), of chunks %s",
                job_id,
                len(wrong),
                chunks,
            )
            self._results.append(CopyResult(job_id, success=False))
        else:
            self.inner.submit(job_id, direction, copies, urgency=urgency)

    def poll(self) -> list[CopyResult]:
        self._poll_inner()
        results, self._results = self._results, []
        return results

    def wait(self, job_ids: Collection[int]) -> None:
        self.inner.wait(job_ids)
        self._poll_inner()
        for job_id in job_ids:  # one that is lost, and heard of later, must not vouch for what is there then
            self._stores.pop(job_id, None)

    def shutdown(self) -> None:
        self.inner.shutdown()
        self._stores.clear()
        self._memory = np.empty(0, np.uint8)
        self._sums = np.empty((0, 0), np.uint32)

    def check(self) -> None:
        """Recount what waits for its checksum."""
        assert all(self._stores.values()), f"stores without a page: {sorted(self._stores)}"

    def _poll_inner(self) -> None:
        for result in self.inner.poll():
            copies = self._stores.pop(result.job_id, None)
            if copies is not None and result.success:
                self._sums[copies.chunks, copies.offsets] = self._computed(copies)
            self._results.append(result)

    def _computed(self, copies: PageCopies) -> NDArray[np.uint32]:
        """The checksum of each page of a job as it is in memory now."""
        sums = np.zeros(len(copies), np.uint32)
        memory = self._memory.data
        for group in np.unique(copies.groups).tolist():
            chosen = np.flatnonzero(copies.groups == group)
            begins = self._plan.host_begins(group, copies.chunks[chosen], copies.offsets[chosen])
            sizes = self._plan.parts[group].sizes.tolist()
            for index, of_page in zip(chosen.tolist(), begins.tolist(), strict=True):
                total = 0
                for begin, size in zip(of_page, sizes, strict=True):
                    total = zlib.crc32(memory[begin : begin + size], total)
                sums[index] = total
        return sums
