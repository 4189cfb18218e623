"""Checksums of the pages in host memory: computed when a store has ended, compared before a load is copied.

A copy engine around another one. Each page of a chunk has its own checksum (zlib's CRC-32), since a load may take
only a part of a chunk. If a page's bytes changed since the store, its load fails and nothing is copied. The
checksum is computed from host memory after the copy, so it finds changes of memory, but no errors of the copy.

The thread that submits loads and polls for stores computes the checksums, page by page. That costs speed, so it is
off by default.
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
    """The engine ``inner``, with checksums of the bytes in ``memory``; ``sums``: one for each chunk and offset."""

    def __init__(
        self, inner: CopyEngine, plan: CopyPlan, memory: NDArray[np.uint8], sums: NDArray[np.uint32]
    ) -> None:
        expected = (plan.layout.num_chunks, plan.layout.blocks_per_chunk)
        assert sums.shape == expected, f"sums of shape {sums.shape} for chunks of shape {expected}"
        self.inner = inner
        self.mismatches = 0
        """How many pages loads found changed, since the start."""
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
        for job_id in job_ids:  # a lost store that is reported later must not checksum what is there by then
            self._stores.pop(job_id, None)

    def shutdown(self) -> None:
        self.inner.shutdown()
        self._stores.clear()
        self._memory = np.empty(0, np.uint8)
        self._sums = np.empty((0, 0), np.uint32)

    def check(self) -> None:
        """Recount the stores whose checksums are still to be computed."""
        assert all(self._stores.values()), f"stores without a page: {sorted(self._stores)}"

    def _poll_inner(self) -> None:
        for result in self.inner.poll():
            copies = self._stores.pop(result.job_id, None)
            if copies is not None and result.success:
                self._sums[copies.chunks, copies.offsets] = self._computed(copies)
            self._results.append(result)

    def _computed(self, copies: PageCopies) -> NDArray[np.uint32]:
        """The checksums of a job's pages as they are in host memory now."""
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
