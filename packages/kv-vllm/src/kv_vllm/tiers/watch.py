"""``TierWatch``: stands between vLLM's manager of tiers and one tier, and lets the world decide when jobs end.

The manager has it in the place of the tier, which is left as it is: its calls of its own methods are its own.

A tier may have threads, so the time at which its job ends differs between runs. The reports to the manager don't:
each job has an errand in the world, and is reported only when that is done. If the tier hasn't finished the job by
then, ``drain_jobs`` makes it finish. What is checked besides:

- A tier writes only rows that it was told to write.
- A tier reads a row only during the job: afterwards the row has other bytes.
- Each job is reported once, under its own number, and only keys of the job are reported as loaded.
- Lookups that a tier answers by a thread are answered by the next step.
- What a tier finds can be loaded (HITS): always, if the subject claims ``keeps`` and no other engine shares the
  store; otherwise a chunk whose loads keep failing is not found for ever, even if the tier is given it again
  in between. A load that was under way when the tier was drained may fail, since a tier may cancel it then.
"""

import threading  # noqa: TID251 - to see whether there is any beside this one
import time  # noqa: TID251 - a thread of the tier's own is waited for
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final
from unittest.mock import patch

from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager, LookupPhase
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.manager import TieringOffloadingManager

from kv_sim.checkers.given_up import MOST_TRIES
from kv_sim.memory.errands import Errand, Errands
from kv_sim.violation import Invariant
from kv_vllm.tiers.rows import Rows

MOST_SECONDS: Final = 5.0
"""Seconds to wait for a thread that answers lookups."""

SECONDS_TO_END: Final = 0.02
"""Seconds that a tier's threads get to end a job before the tier is drained."""


class TierWatch:
    """One tier of an engine, as the manager sees it: all but its jobs is the tier's own."""

    def __init__(self, tier: SecondaryTierManager, rows: Rows, errands: Errands) -> None:
        self.tier = tier
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
        self._drained: set[int] = set()
        """Jobs that were under way when the tier was drained."""
        self._failed_for: dict[Any, list[Any]] = {}
        """Chunk -> the contexts of requests whose loads of it have failed since one has succeeded."""
        self.loads: Counter[bool] = Counter()
        """How many loads succeeded, and how many failed, since this was last cleared."""
        for part in vars(tier).values():
            if isinstance(part, AsyncLookupManager):
                part.flush = _answered(part, part.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tier, name)

    # -- what the manager asks of the tier -----------------------------------------------------

    def begin_store(self, job: TransferJob) -> None:
        """The manager is about to give the tier a job that reads rows."""
        self._rows.lend(job.chunk_ids.tolist())
        self._begin(job)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """The manager gives the tier a job that writes rows."""
        self._rows.open(job_metadata.chunk_ids.tolist())
        self._begin(job_metadata)
        self.tier.submit_load(job_metadata)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """The results of jobs whose errands the world has done."""
        self._hear()
        due, self._due = self._due, []
        return [self._ready.pop(number) for number in due]

    def drain_jobs(self) -> None:
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
        end = time.monotonic() + SECONDS_TO_END
        while number not in self._ready and threading.active_count() > 1 and time.monotonic() < end:
            time.sleep(0)
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
            if number not in self._drained:
                self._judge_load(job, {*done})
        else:
            self._rows.take_back(chunks)
        self._drained.discard(number)
        self._due.append(number)

    def _drain(self) -> None:
        self._drained.update(number for number in self._jobs if number not in self._ready)
        self.tier.drain_jobs()

    def _judge_load(self, job: TransferJob, done: set[Any]) -> None:
        """The tier has loaded these chunks of a job, and found the others in vain."""
        for key in done:
            self._failed_for.pop(key, None)
        failed = [key for key in job.keys if key not in done]
        if failed and self._rows.device.shadow.hits_must_load():
            self._fail(
                f"the load of {len(failed)} of {len(job.keys)} chunks for request {job.req_context.req_id} "
                "failed, although nothing else has failed: the tier found what it can't load",
                Invariant.HITS,
            )
        for key in failed:
            requests = self._failed_for.setdefault(key, [])
            if not any(request is job.req_context for request in requests):
                requests.append(job.req_context)
            if len(requests) >= MOST_TRIES:
                names = ", ".join(request.req_id for request in requests)
                self._fail(
                    f"the same chunk was found for requests {names}, one after the other, and each time its load "
                    "failed: a chunk that can't be loaded must not be found for ever",
                    Invariant.HITS,
                )

    def _hear(self) -> None:
        """Take the tier's results, and check the rows that it wrote."""
        for result in self.tier.get_finished_jobs():
            number = result.job_id
            if number not in self._jobs or number in self._ready:
                self._fail(f"get_finished_jobs reports job {number}, of which nothing is under way")
            unknown = {*(result.successful_keys or ())} - {*self._jobs[number].keys}
            if unknown:
                self._fail(f"of job {number} keys are reported that it doesn't have: {sorted(unknown)}")
            self._ready[number] = result
        if changed := self._rows.changed():
            self._fail(f"rows of chunks {changed} were written, and no load of theirs is under way")

    def _fail(self, what: str, invariant: Invariant = Invariant.PROTOCOL) -> None:
        self._rows.device.shadow.fail(invariant, f"{self._name}: {what}")


def make_watched(make: Callable[[], TieringOffloadingManager], rows: Rows) -> None:
    """Make a manager, with a ``TierWatch`` in the place of each tier."""
    errands, create = Errands(rows.device), SecondaryTierFactory.create_secondary_tier

    def create_secondary_tier(*args: Any) -> TierWatch:
        return TierWatch(create(*args), rows, errands)

    with patch.object(SecondaryTierFactory, "create_secondary_tier", create_secondary_tier):
        manager = make()
    create_job = manager.create_store_job

    def create_store_job(keys: Any, req_context: Any, tier_idx: int = 0) -> TransferJob:
        job = create_job(keys, req_context, tier_idx)
        watches_of(manager)[tier_idx].begin_store(job)
        return job

    vars(manager)["create_store_job"] = create_store_job


def watches_of(manager: TieringOffloadingManager) -> list[TierWatch]:
    """The watches of a manager's tiers."""
    found: list[TierWatch] = manager.secondary_tiers
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
