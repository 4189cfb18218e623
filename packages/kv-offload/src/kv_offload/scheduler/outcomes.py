"""Outcomes of jobs: chunks become readable or are dropped, pins end, and failed copies are made good.

A failed load drops its chunks, makes them misses for its request, and lets the request offer everything again. It
also spoils the stores of that request that were planned since: they may hold what was computed on it. A reset
makes every job stale, and the medium is told when the last of those has ended.
"""

from collections.abc import Iterable

from kv_api import KVConnectorOutput
from kv_offload.metadata import OffloadingWorkerMetadata
from kv_offload.metrics import LOAD_FAILURE, STORE_FAILURE
from kv_offload.scheduler.state.books import Books
from kv_offload.scheduler.state.jobs import STORE, Job, Report


class Outcomes:
    """Takes in reports. Keeps whether a reset waits for its last job."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._awaits_reset = False

    def take(self, output: KVConnectorOutput) -> None:
        """Take in the joined report of all workers after a step."""
        books = self._books
        if output.invalid_block_ids:
            self._spoil_after(output.invalid_block_ids)
        meta = output.kv_connector_worker_meta
        if isinstance(meta, OffloadingWorkerMetadata):
            books.take_rooms(meta.rooms)
            books.stats.add_transfers(meta.transfer_stats)
            for name, amount in meta.medium_counts.items():
                books.stats.increase(name, amount)
            failed_jobs, unended_jobs = meta.failed_jobs, meta.unended_jobs
            for job_id, ended in meta.completed_jobs.items():
                job = None if failed_jobs else books.jobs.end(job_id, ended)  # what didn't end has failed, too
                if job is not None:
                    self._unpin(job)
                    self._complete(job)
                    continue
                report = books.jobs.report(job_id, ended, failed_jobs.get(job_id, 0), unended_jobs.get(job_id, 0))
                if report is not None:
                    self._take_report(report)
            for job_id, ended in meta.late_jobs.items():
                late = books.jobs.report_late(job_id, ended)
                if late is not None:
                    self._complete(late)
        self._end_reset()

    def _take_report(self, report: Report) -> None:
        job = report.job
        if report.is_first_failure:
            self._books.stats.increase(STORE_FAILURE if job.direction is STORE else LOAD_FAILURE)
            if job.direction is not STORE:
                self._fail_load(job, is_stale=report.is_stale)
        if report.is_done:
            self._unpin(job)
        if not report.is_done or report.is_stale:
            return
        if job.unended:
            self._books.manager.drop(job.keys)
        else:
            self._complete(job)

    def _unpin(self, job: Job) -> None:
        """Every worker has reported its end."""
        if self._books.engine.holds_blocks:
            self._books.pins.unpin(job.job_id)

    def _complete(self, job: Job) -> None:
        """Nobody copies for the job any more."""
        books = self._books
        if job.direction is STORE:
            books.manager.complete_store(job.keys, job.owner.context, success=not job.has_failed)
            if job.has_failed:
                books.events.forget(job.keys)
        elif job.keys:
            books.manager.complete_load(job.keys, job.owner.context)
        books.offer_again()

    def _fail_load(self, job: Job, *, is_stale: bool) -> None:
        """A load failed: its chunks' tokens aren't in the blocks, so nothing may rely on them."""
        books = self._books
        books.rewind(job.owner)
        self._spoil(store for store in books.jobs.stores_of(job.owner) if store.job_id > job.job_id)
        if not is_stale:
            job.owner.refused.update(job.keys)
            books.manager.drop(job.keys)

    def _spoil_after(self, invalid: set[int]) -> None:
        """Blocks weren't filled, by whosever load: what was computed after them is not to be kept.

        Stores that were planned on it are still in flight, since the report of a step comes before that of any
        store that was planned in it or later.
        """
        books = self._books
        owners = {id(job.owner): job.owner for job in books.jobs.live.values() if job.direction is STORE}
        owners |= {id(state): state for state in books.states.values()}
        for owner in owners.values():
            bad = owner.progress.first_token_in(invalid)
            if bad is not None:
                books.rewind(owner)
                self._spoil(job for job in books.jobs.stores_of(owner) if job.end_token > bad)
        if books.evictions is not None:
            left = books.evictions.owners
            books.evictions.forget(state for state in left if state.progress.first_token_in(invalid) is not None)

    def _spoil(self, stores: Iterable[Job]) -> None:
        """Don't keep what these store, and let them end before their blocks are computed again."""
        for job in stores:
            job.has_failed = True
            self._books.meta.jobs_to_flush.add(job.job_id)

    def reset(self) -> None:
        """Forget everything. Jobs in flight go on."""
        books = self._books
        # A medium may use their places again at once, so they end before anything else begins.
        books.meta.jobs_to_end.update(books.jobs.begin_reset())
        books.manager.reset_cache()
        if books.evictions is not None:
            books.evictions.forget()
        for state in books.states.values():
            books.rewind(state)
            state.refused.clear()
            books.accept_store(state)
        self._awaits_reset = True
        self._end_reset()

    def _end_reset(self) -> None:
        if self._awaits_reset and not self._books.jobs.stale:
            self._awaits_reset = False
            self._books.manager.on_reset_flushed()

    def check(self) -> None:
        """See that stale jobs are waited for."""
        stale = self._books.jobs.stale
        assert not stale or self._awaits_reset, f"jobs {sorted(stale)} are stale, and nobody waits for them"
