"""``TierWatch``: stands between vLLM's manager of tiers and one tier, and lets the world decide when jobs end.

A tier may have threads, so the time at which its job ends differs between runs. The reports to the manager don't:
each job has an errand in the world, and is reported only when that is done. If the tier hasn't finished the job by
then, ``drain_jobs`` makes it finish. What is checked besides:

- A tier writes only rows that it was told to write.
- A tier reads a row only during the job: afterwards the row has other bytes.
- Each job is reported once, under its own number, and only keys of the job are reported as loaded.
- Lookups that a tier answers by a thread are answered by the next step.
"""

import time  # noqa: TID251 - a thread of the tier's own is waited for
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager, LookupPhase
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.kv_offload.tiering.manager import TieringOffloadingManager

from kv_sim.memory.errands import Errand, Errands
from kv_sim.violation import Invariant
from kv_vllm.tiers.rows import Rows

MOST_SECONDS: Final = 5.0
"""Seconds to wait for a thread that answers lookups."""
_WATCHES: Final = "watches_of_the_testbed"


class TierWatch:
    """One tier of an engine. It replaces some of the tier's methods."""

    def __init__(self, tier: SecondaryTierManager, rows: Rows, errands: Errands) -> None:
        self._rows = rows
        self._errands = errands
        self._name = f"tier {tier.tier_type!r}"
        self._jobs: dict[int, TransferJob] = {}
        """Jobs of the tier whose end the manager doesn't know yet."""
        self._errand_of: dict[int, Errand[None]] = {}
        self._ready: dict[int, JobResult] = {}
        """Results of the tier that the manager didn't get yet."""
        self._due: list[int] = []
        """Jobs whose results the manager may get now."""
        self.loads: Counter[bool] = Counter()
        """How many loads succeeded, and how many failed, since this was last cleared."""
        self._drain, self._finished, self._load = tier.drain_jobs, tier.get_finished_jobs, tier.submit_load
        vars(tier).update(drain_jobs=self.drain, get_finished_jobs=self.finished, submit_load=self.load)
        for part in vars(tier).values():
            if isinstance(part, AsyncLookupManager):
                part.flush = _answered(part, part.flush)

    # -- what the manager asks of the tier -----------------------------------------------------

    def begin_store(self, job: TransferJob) -> None:
        """The manager is about to give the tier a job that reads rows."""
        self._rows.lend(job.chunk_ids.tolist())
        self._begin(job)

    def load(self, job: TransferJob) -> None:
        """The manager gives the tier a job that writes rows."""
        self._rows.open(job.chunk_ids.tolist())
        self._begin(job)
        self._load(job)

    def finished(self) -> Iterable[JobResult]:
        """The results of jobs whose errands the world has done."""
        self._hear()
        due, self._due = self._due, []
        return [self._ready.pop(number) for number in due]

    def drain(self) -> None:
        """Finish all jobs now."""
        self._drain()
        self._errands.wait_for(*self._errand_of.values())

    # -- what happens in between ---------------------------------------------------------------

    def _begin(self, job: TransferJob) -> None:
        self._jobs[job.job_id] = job
        self._errand_of[job.job_id] = self._errands.submit(self._end, job.job_id)

    def _end(self, number: int) -> None:
        """The world has done a job's errand."""
        self._hear()
        if number not in self._ready:
            self._drain()
            self._hear()
        if number not in self._ready:
            self._fail(f"drain_jobs has returned, and job {number} has no result in get_finished_jobs")
        del self._errand_of[number]
        job, result = self._jobs.pop(number), self._ready[number]
        chunks = job.chunk_ids.tolist()
        if job.is_promotion:
            self.loads[result.success] += 1
            done = job.keys if result.success else result.successful_keys or ()
            self._rows.close(chunks, [chunk for key, chunk in zip(job.keys, chunks, strict=True) if key in done])
        else:
            self._rows.take_back(chunks)
        self._due.append(number)

    def _hear(self) -> None:
        """Take the tier's results, and check the rows that it wrote."""
        for result in self._finished():
            number = result.job_id
            if number not in self._jobs or number in self._ready:
                self._fail(f"get_finished_jobs reports job {number}, of which nothing is under way")
            unknown = {*(result.successful_keys or ())} - {*self._jobs[number].keys}
            if unknown:
                self._fail(f"of job {number} keys are reported that it doesn't have: {sorted(unknown)}")
            self._ready[number] = result
        if changed := self._rows.changed():
            self._fail(f"rows of chunks {changed} were written, and no load of theirs is under way")

    def _fail(self, what: str) -> None:
        self._rows.device.shadow.fail(Invariant.PROTOCOL, f"{self._name}: {what}")


def watch_all(manager: TieringOffloadingManager, rows: Rows) -> None:
    """Let the world decide when the jobs of a manager's tiers end."""
    errands, create = Errands(rows.device), manager.create_store_job
    watches = [TierWatch(tier, rows, errands) for tier in manager.secondary_tiers]

    def create_store_job(keys: Any, req_context: Any, tier_idx: int = 0) -> TransferJob:
        job = create(keys, req_context, tier_idx)
        watches[tier_idx].begin_store(job)
        return job

    vars(manager).update({"create_store_job": create_store_job, _WATCHES: watches})


def watches_of(manager: TieringOffloadingManager) -> list[TierWatch]:
    """The watches of a manager's tiers."""
    found: list[TierWatch] = vars(manager)[_WATCHES]
    return found


def _answered(lookups: AsyncLookupManager, flush: Callable[[], None]) -> Callable[[], None]:
    """``flush``, which then waits until the thread has answered."""

    def flush_and_wait() -> None:
        flush()
        end = time.monotonic() + MOST_SECONDS
        while lookups._pending_results.empty() and time.monotonic() < end:
            if not any(state.phase is LookupPhase.IN_FLIGHT for state in lookups._lookup_state.values()):
                return
            time.sleep(0)

    return flush_and_wait
