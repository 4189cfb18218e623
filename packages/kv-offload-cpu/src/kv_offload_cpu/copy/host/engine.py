"""The copy engine for KV caches in host memory: for LLM engines without an accelerator, and for tests.

**Theory of operation.** One thread copies stores and one loads, so that neither waits for the other. Each takes
the next job of its queue, expedited loads first. A mover moves the bytes, with helper threads if they are many.
``submit`` works out the ranges of a job in the caller's thread, so a wrong job raises there. A failure of a copy
is a failed result.

On such an engine a step has written its blocks before a store of them is submitted, so a store needs to wait for
nothing.

**Invariants.** A job is in one queue, or running, or it has ended; ``_pending`` has exactly those that have not.
"""

import os
import time
from collections import deque
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from logging import getLogger
from threading import Condition
from typing import NamedTuple

from kv_api import Direction
from kv_offload_cpu.copy.engine import CopyResult, PageCopies, Urgency
from kv_offload_cpu.copy.host.moves import Mover, move
from kv_offload_cpu.copy.ranges.addresses import moves
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan, Ranges
from kv_offload_cpu.copy.ranges.tensors import DeviceTensor

_log = getLogger("kv_offload_cpu")

_MOST_THREADS = 4
"""Threads, at most: more of them don't copy any faster."""


class _Job(NamedTuple):
    job_id: int
    direction: Direction
    ranges: Ranges


class HostCopyEngine:
    """Copies between ``tensors`` and host memory; ``threads`` is 0 for as many threads as pay."""

    def __init__(
        self,
        plan: CopyPlan,
        tensors: list[DeviceTensor],
        threads: int,
        mover: Mover,
    ) -> None:
        self._plan = plan
        self._tensors = tensors  # keeps them alive
        self._threads = threads or min(_MOST_THREADS, _num_cores())
        self._mover = mover
        self._changed = Condition()
        self._queues: dict[tuple[Direction, Urgency], deque[_Job]] = {
            (direction, urgency): deque() for direction in Direction for urgency in Urgency
        }
        self._running: list[int] = []
        self._pending: set[int] = set()
        self._results: list[CopyResult] = []
        self._lanes = {direction: ThreadPoolExecutor(1, f"kv-{direction.value}") for direction in Direction}
        helpers = self._threads - 1
        self._helpers = ThreadPoolExecutor(2 * helpers, "kv-copy") if helpers else None

    def submit(
        self, job_id: int, direction: Direction, copies: PageCopies, *, urgency: Urgency = Urgency.ORDINARY
    ) -> None:
        job = _Job(job_id, direction, self._plan.ranges(copies))
        with self._changed:
            self._lanes[direction].submit(self._run_next, direction)
            self._queues[direction, urgency].append(job)
            self._pending.add(job_id)

    def poll(self) -> list[CopyResult]:
        with self._changed:
            results, self._results = self._results, []
        return results

    def wait(self, job_ids: Collection[int]) -> None:
        with self._changed:
            for job_id in job_ids:  # one after the other: the end of any job wakes this thread
                while job_id in self._pending:
                    self._changed.wait()

    def shutdown(self) -> None:
        """Cancel what is queued, let what runs end."""
        with self._changed:
            for queue in self._queues.values():
                self._pending.difference_update(job.job_id for job in queue)
                queue.clear()
            self._changed.notify_all()
        for lane in self._lanes.values():
            lane.shutdown()
        if self._helpers is not None:
            self._helpers.shutdown()

    def check(self) -> None:
        """Recount the jobs."""
        with self._changed:
            queued = [job.job_id for queue in self._queues.values() for job in queue]
            known = sorted([*queued, *self._running])
            assert known == sorted(self._pending), f"queued {queued} + running {self._running} != {self._pending}"
            ended = [result.job_id for result in self._results]
            assert self._pending.isdisjoint(ended), f"pending {self._pending} and ended {ended}"

    def _run_next(self, direction: Direction) -> None:
        with self._changed:
            queue = self._queues[direction, Urgency.EXPEDITED] or self._queues[direction, Urgency.ORDINARY]
            if not queue:  # cancelled
                return
            job = queue.popleft()
            self._running.append(job.job_id)
        try:
            result = self._copy(job)
        except Exception as error:  # noqa: BLE001 - a lane must outlive any job; the job is reported as failed
            _log.error("%s job %d failed: %s: %s", direction.value, job.job_id, type(error).__name__, error)
            result = CopyResult(job.job_id, success=False)
        with self._changed:
            self._running.remove(job.job_id)
            self._pending.discard(job.job_id)
            self._results.append(result)
            self._changed.notify_all()

    def _copy(self, job: _Job) -> CopyResult:
        begin = time.perf_counter()
        found = moves(job.ranges, job.direction)
        move(*found, self._mover, self._helpers, self._threads)
        seconds = time.perf_counter() - begin
        return CopyResult(job.job_id, success=True, num_bytes=job.ranges.num_bytes, seconds=seconds)


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
