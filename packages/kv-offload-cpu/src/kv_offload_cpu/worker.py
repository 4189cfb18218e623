"""The worker of host memory: turns a connector's jobs into pages, has an engine copy them, reports each job once.

**Theory of operation.** A job is *running* from its submission until the copy engine reports its end. A job for
which the worker waited, but which the engine doesn't report, is lost. Only the first result counts: results of
jobs that are not running (late, repeated, never submitted here) are counted as strays and dropped. An error of
the device is a failed result and never an exception; an invalid job is a ``KVError`` and changes nothing.

**Invariants** (``check``): no job is running and ended. Jobs submitted = running + ended + reported.
"""

from dataclasses import dataclass
from enum import Enum, auto
from logging import getLogger

from kv_api import Direction, GPULoadStoreSpec, KVError, LoadStoreSpec, OffloadingWorker, TransferResult
from kv_offload_cpu.copy.engine import CopyEngine, CopyResult, HostMemory, PageCopies, Urgency
from kv_offload_cpu.copy.ranges.pages import page_copies
from kv_offload_cpu.load_store_spec import CPULoadStoreSpec
from kv_offload_cpu.sizing import HostLayout
from kv_offload_cpu.stats import CHECKSUM_MISMATCHES

_log = getLogger("kv_offload_cpu")


class StoreRole(Enum):
    """What a worker does with stores."""

    WRITES = auto()
    ACKNOWLEDGES = auto()
    """Another worker holds the same bytes and writes them. vLLM's connector needs it, ours submits none."""


@dataclass
class WorkerCounts:
    """What happened since the start."""

    submitted: int = 0
    failed: int = 0
    lost: int = 0
    """Of those that failed: waited for, and never reported by the engine."""
    strays: int = 0
    """Results of jobs that weren't running."""


class CPUOffloadingWorker(OffloadingWorker):
    """Moves bytes between KV caches of ``num_groups`` groups and ``memory``, both of which ``engine`` knows."""

    def __init__(
        self,
        engine: CopyEngine,
        memory: HostMemory,
        layout: HostLayout,
        num_groups: int,
        store_role: StoreRole = StoreRole.WRITES,
    ) -> None:
        self.counts = WorkerCounts()
        self.engine = engine
        self._memory = memory
        self._layout = layout
        self.num_chunks = layout.num_chunks
        self._num_groups = num_groups
        self._store_role = store_role
        self._running: dict[int, Direction] = {}
        self._ended: list[TransferResult] = []
        self._reported = 0
        self._is_shut_down = False
        self._told_mismatches = 0

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        copies = self._pages(job_id, Direction.STORE, src_spec, dst_spec)
        if self._store_role is StoreRole.ACKNOWLEDGES:
            self.counts.submitted += 1
            self._ended.append(TransferResult(job_id, success=True))
        else:
            self._begin(job_id, Direction.STORE, copies, Urgency.ORDINARY)
        return True

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        copies = self._pages(job_id, Direction.LOAD, dst_spec, src_spec)
        self._begin(job_id, Direction.LOAD, copies, Urgency.EXPEDITED if expedited else Urgency.ORDINARY)
        return True

    def get_finished(self) -> list[TransferResult]:
        if not self._is_shut_down:
            self._poll()
        finished, self._ended = self._ended, []
        self._reported += len(finished)
        return finished

    def wait(self, job_ids: set[int]) -> None:
        mine = [job_id for job_id in self._running if job_id in job_ids]
        if not mine:
            return
        self.engine.wait(mine)
        self._poll()
        for job_id in mine:
            if job_id in self._running:
                self.counts.lost += 1
                _log.error(
                    "%s job %d is lost: the copy engine has ended without a result for it",
                    self._running[job_id].value,
                    job_id,
                )
                self._end(CopyResult(job_id, success=False))

    def take_counts(self) -> dict[str, int]:
        """What was counted since the last call, by metric. kv-offload's connector asks; vLLM's doesn't."""
        mismatches = getattr(self.engine, "mismatches", 0)
        new, self._told_mismatches = mismatches - self._told_mismatches, mismatches
        return {CHECKSUM_MISMATCHES: new} if new else {}

    def shutdown(self) -> None:
        if self._is_shut_down:
            return
        self._is_shut_down = True
        try:
            self.engine.shutdown()
        finally:
            self._memory.release()
        for job_id in list(self._running):
            self._end(CopyResult(job_id, success=False))

    def check(self) -> None:
        """Recount the jobs."""
        ended = [result.job_id for result in self._ended]
        assert self._running.keys().isdisjoint(ended), f"jobs {sorted(self._running)} are running, {ended} ended"
        counts = f"running {len(self._running)} + ended {len(ended)} + reported {self._reported}"
        known = len(self._running) + len(ended) + self._reported
        assert known == self.counts.submitted, f"{counts} != submitted {self.counts.submitted}"
        assert not (self._is_shut_down and self._running), f"jobs {sorted(self._running)} outlived the worker"

    # Steps of the above

    def _pages(
        self, job_id: int, direction: Direction, blocks: GPULoadStoreSpec, chunks: LoadStoreSpec
    ) -> PageCopies:
        job = f"{direction.value} job {job_id}"
        if self._is_shut_down:
            raise KVError(f"{job}: submitted after shutdown")
        if job_id in self._running:
            raise KVError(f"{job}: a {self._running[job_id].value} job {job_id} is still running")
        # By what it has, not by its class: vLLM's CPULoadStoreSpec will do, too.
        chunk_ids = getattr(chunks, "block_ids", None)
        if chunk_ids is None or isinstance(chunks, GPULoadStoreSpec):
            raise KVError(f"{job}: expected a {CPULoadStoreSpec.__name__}, got {type(chunks).__name__}")
        return page_copies(job, blocks, chunk_ids, self._layout, self._num_groups)

    def _begin(self, job_id: int, direction: Direction, copies: PageCopies, urgency: Urgency) -> None:
        self.counts.submitted += 1
        if not len(copies):
            self._ended.append(TransferResult(job_id, success=True, transfer_size=0, transfer_time=0.0))
            return
        self._running[job_id] = direction
        try:
            self.engine.submit(job_id, direction, copies, urgency=urgency)
        except KVError:  # the submitter's mistake
            del self._running[job_id]
            self.counts.submitted -= 1
            raise
        except Exception as error:  # noqa: BLE001 - whatever a device raises is the failure of this job
            _log.error("%s job %d can't begin: %s: %s", direction.value, job_id, type(error).__name__, error)
            self._end(CopyResult(job_id, success=False))

    def _poll(self) -> None:
        for result in self.engine.poll():
            if result.job_id in self._running:
                self._end(result)
            else:
                self.counts.strays += 1

    def _end(self, result: CopyResult) -> None:
        del self._running[result.job_id]
        self.counts.failed += not result.success
        self._ended.append(TransferResult(result.job_id, result.success, result.num_bytes, result.seconds))
