"""The copy engine between KV caches and slots of a file, by way of staging memory.

**Theory of operation.** A chunk goes through a *bay*, a slot of staging memory, in two moves:

    store   GPU ── copied by the inner engine ──▶ bay ── written by a thread ──▶ slot
    load    slot ── read by a thread ──▶ bay ── copied by the inner engine ──▶ GPU

Chunks of a job that find free bays go together, as a *batch*: one job of the inner engine, and some tasks for
threads. A batch takes no more than half of the bays, so that while one is copied the next is read or written.
Stores and loads have bays and threads of their own, so neither waits for the other.

A store *lets go* of its GPU blocks when all of its chunks are in bays. The manager never has more chunks of stores
under way than there are bays for them, so letting go never waits for the disk.

Threads only read and write. Everything else happens in calls of ``submit``, ``poll`` or ``wait``, each of which
advances every batch as far as possible. If a chunk fails, its job fails, and the job's other chunks don't begin.

**Invariants** (``check``): of each direction every bay is free or in one batch. A job has ended when no batch of
it is under way and no chunk is left.
"""

import time
from collections.abc import Callable, Collection, Sequence
from logging import getLogger
from threading import Condition
from typing import Protocol

import numpy as np

from kv_api import Direction, KVError
from kv_offload_cpu.copy.engine import CopyEngine, CopyResult, PageCopies, Urgency
from kv_offload_file.label import Label
from kv_offload_file.lanes import Batch, Job, Lane, Threads, even_parts
from kv_offload_file.slot_file import DamagedError, GoneError
from kv_offload_file.staging import store_bays
from kv_offload_file.telling import Telling

_log = getLogger("kv_offload_file")


_MOST_TASKS = 16
"""Tasks of a batch: enough to keep all threads busy until the end, and few, since each has a cost."""


class Slots(Protocol):
    """The slots of a file, read into bays and written from them. Threads call it, each for another slot."""

    def write(self, slot: int, label: Label, bay: int) -> None:
        """Write a bay's bytes to a slot."""

    def read(self, slot: int, label: Label, bay: int) -> None:
        """Read a slot into a bay; `DamagedError` if it doesn't hold the chunk of the label."""

    def close(self) -> None:
        """Close it; no thread reads or writes any more."""


class FileCopyEngine:
    """Runs jobs between KV caches and ``slots``; ``inner`` copies between KV caches and ``num_bays`` bays.

    ``num_blocks`` has the number of GPU blocks of each group, and ``threads`` makes the threads of a direction.
    The times of jobs are measured by ``clock``.
    """

    def __init__(
        self,
        inner: CopyEngine,
        slots: Slots,
        num_bays: int,
        num_blocks: Sequence[int],
        threads: Callable[[Direction], Threads],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        assert num_bays >= len(Direction), f"{num_bays} bays for two directions"
        self.labels: dict[int, list[Label]] = {}
        """Job that is about to be submitted -> the labels of its chunks."""
        self.damaged = 0
        """Chunks whose bytes were not the stored ones, since the start."""
        self.errors = 0
        """Chunks that could not be read or written."""
        self.gone = 0
        """Chunks of neighbours that were gone when a load read them."""
        self._inner = inner
        self._slots = slots
        self._num_blocks = num_blocks
        self._clock = clock
        self._telling = Telling(clock)
        stores = store_bays(num_bays)
        parts = {Direction.STORE: range(stores), Direction.LOAD: range(stores, num_bays)}
        self._lanes: dict[Direction, Lane] = {}
        try:
            for direction, bays in parts.items():
                self._lanes[direction] = Lane([*bays], threads(direction))
        except BaseException:
            for lane in self._lanes.values():
                lane.threads.shutdown()
            raise
        self._jobs: dict[int, Job] = {}
        self._copying: dict[int, Batch] = {}
        self._next_copy = 0
        self._results: list[CopyResult] = []
        self._changed = Condition()
        self._moved: list[tuple[Batch, Exception | None]] = []
        """Tasks that threads have finished; under ``_changed``."""

    def submit(
        self, job_id: int, direction: Direction, copies: PageCopies, *, urgency: Urgency = Urgency.ORDINARY
    ) -> None:
        job = self._job(job_id, direction, urgency, copies)
        self._jobs[job_id] = job
        self._lanes[direction].enqueue(job)
        self._advance()

    def poll(self) -> list[CopyResult]:
        self._advance()
        results, self._results = self._results, []
        return results

    def wait(self, job_ids: Collection[int]) -> None:
        self._wait_until(job_ids, lambda: self._jobs.keys().isdisjoint(job_ids))

    def let_go(self, job_ids: Collection[int]) -> list[int]:
        """Wait until none of these jobs touches a GPU block any more.

        Returns the jobs that are still under way.
        """
        self._wait_until(job_ids, lambda: not any(job.touches_blocks for job in self._under_way(job_ids)))
        return [job.job_id for job in self._under_way(job_ids)]

    def _under_way(self, job_ids: Collection[int]) -> list[Job]:
        return [self._jobs[job_id] for job_id in job_ids if job_id in self._jobs]

    def _wait_until(self, job_ids: Collection[int], is_done: Callable[[], bool]) -> None:
        """Advance batches until ``is_done``; all of a lane: others may have the bays that these jobs need."""
        while True:
            self._advance()
            if is_done():
                return
            lanes = {job.direction for job in self._under_way(job_ids)}
            if waited := [copy for copy, batch in self._copying.items() if batch.job.direction in lanes]:
                self._inner.wait(waited)
                self._take_copies()
                for copy in waited:  # the remaining ones won't be reported
                    if copy in self._copying:
                        lost = self._copying.pop(copy)
                        lost.job.copying -= 1
                        self._end(lost, success=False)
            else:
                self.wait_for_threads()

    def wait_for_threads(self) -> None:
        """Wait until any thread has finished a task."""
        with self._changed:
            while not self._moved:
                self._changed.wait()

    def shutdown(self) -> None:
        """Cancel tasks that have not begun, and wait for those of the threads and of the inner engine."""
        for lane in self._lanes.values():
            lane.queue.clear()
            lane.threads.shutdown(wait=True, cancel_futures=True)
        try:
            self._inner.shutdown()
        finally:
            self._jobs.clear()
            self._slots.close()

    def check(self) -> None:
        """Recount bays and jobs."""
        for direction, lane in self._lanes.items():
            used = [bay for batch in lane.batches for bay in batch.bays]
            assert sorted([*lane.free, *used]) == lane.bays, (
                f"{direction.value}: free {lane.free} + used {used} are not {lane.bays}"
            )
            waiting = {job.job_id for job in lane.queue if not job.has_ended}
            under_way = {batch.job.job_id for batch in lane.batches}
            known = {job_id for job_id, job in self._jobs.items() if job.direction is direction}
            assert waiting | under_way == known, f"waiting {waiting} + under way {under_way} != {known}"

    # Steps of these methods

    def _job(self, job_id: int, direction: Direction, urgency: Urgency, copies: PageCopies) -> Job:
        labels = self.labels[job_id]
        for group, count in enumerate(self._num_blocks):
            blocks = copies.blocks[copies.groups == group]
            if len(blocks) and not 0 <= blocks.min() <= blocks.max() < count:
                raise KVError(
                    f"{direction.value} job {job_id}: block ids of group {group} from {blocks.min()} to "
                    f"{blocks.max()}, there are 0 to {count - 1}"
                )
        begins = np.flatnonzero(np.diff(copies.chunks, prepend=-1))
        assert len(begins) == len(labels), f"pages of {len(begins)} chunks, labels of {len(labels)}"
        bounds = np.append(begins, len(copies))
        slots = copies.chunks[begins].tolist()
        return Job(
            job_id=job_id,
            direction=direction,
            urgency=urgency,
            copies=copies,
            bounds=bounds,
            slots=slots,
            labels=labels,
            since=self._clock(),
        )

    def _advance(self) -> None:
        """Advance every batch as far as possible."""
        self._take_copies()
        with self._changed:
            moved, self._moved = self._moved, []
        for batch, problem in moved:
            self._task_ended(batch, problem)
        for lane in self._lanes.values():
            while (new := lane.next_batch()) is not None:
                if new.job.direction is Direction.STORE:
                    self._copy(new)
                else:
                    self._move(new)

    def _take_copies(self) -> None:
        for result in self._inner.poll():
            batch = self._copying.pop(result.job_id, None)
            if batch is None:
                continue  # `wait` waited for it, and gave it up
            batch.job.num_bytes += result.num_bytes or 0
            batch.job.copying -= 1
            if result.success and batch.job.direction is Direction.STORE:
                self._move(batch)
            else:
                self._end(batch, success=result.success)

    def _copy(self, batch: Batch) -> None:
        """Have the inner engine copy between GPU and bays."""
        copy, self._next_copy = self._next_copy, self._next_copy + 1
        self._copying[copy] = batch
        batch.job.copying += 1
        try:
            self._inner.submit(copy, batch.job.direction, batch.pages(), urgency=batch.job.urgency)
        except Exception as error:  # noqa: BLE001 - whatever a device raises is the failure of this job
            _log.error("%s job %d: a copy can't begin: %s", batch.job.direction.value, batch.job.job_id, error)
            del self._copying[copy]
            batch.job.copying -= 1
            self._end(batch, success=False)

    def _move(self, batch: Batch) -> None:
        """Have threads read or write a batch's chunks."""
        threads = self._lanes[batch.job.direction].threads
        parts = even_parts(len(batch.bays), _MOST_TASKS)
        batch.tasks = len(parts)
        for part in parts:
            threads.submit(self._do, batch, part)

    def _do(self, batch: Batch, part: range) -> None:
        """In a thread: read or write some of a batch's chunks."""
        job = batch.job
        problem = None
        try:
            move = self._slots.write if job.direction is Direction.STORE else self._slots.read
            for index in part:
                at = batch.first + index
                move(job.slots[at], job.labels[at], batch.bays[index])
        except Exception as error:  # noqa: BLE001 - told to who asked for the job
            problem = error.with_traceback(None)  # whose frames have views of a bay, and it is kept by one of them
        with self._changed:
            self._moved.append((batch, problem))
            self._changed.notify_all()

    def _task_ended(self, batch: Batch, problem: Exception | None) -> None:
        if problem is not None:
            self._count(problem)
            batch.has_failed = True
            untold = self._telling.untold(batch.job.direction, problem)
            if untold is not None:
                more = f" (and {untold} more since that was said last)" if untold else ""
                _log.error("%s job %d: %s%s", batch.job.direction.value, batch.job.job_id, problem, more)
        batch.tasks -= 1
        if batch.tasks:
            return
        if batch.has_failed or batch.job.direction is Direction.STORE:
            self._end(batch, success=not batch.has_failed)
        else:
            self._copy(batch)

    def _count(self, problem: Exception) -> None:
        if isinstance(problem, GoneError):
            self.gone += 1
        elif isinstance(problem, DamagedError):
            self.damaged += 1
        else:
            self.errors += 1

    def _end(self, batch: Batch, *, success: bool) -> None:
        """Free the bays of a batch, and end its job if this was its last batch, or fail it if the batch failed."""
        job, lane = batch.job, self._lanes[batch.job.direction]
        lane.batches.remove(batch)
        lane.free += batch.bays
        job.batches -= 1
        if not success:
            job.has_failed = True
            job.begun = len(job.slots)
        if job.has_ended:
            del self._jobs[job.job_id]
            seconds = self._clock() - job.since
            self._results.append(
                CopyResult(job.job_id, not job.has_failed, None if job.has_failed else job.num_bytes, seconds)
            )
