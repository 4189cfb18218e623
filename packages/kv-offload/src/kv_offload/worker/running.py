"""The jobs of one worker: what it copies, and what it has yet to tell of those that ended.

A job is *running* from when it is begun until it ends, is refused, or is *given up*. Each of these is told once.
The engine hears of loads between steps and of stores whose blocks are held, by request, and of failed loads, by
block or by request. The scheduler's side hears of every job, by id. A job that was given up counts as failed, but
its copy may still be at work; when that ends after all, only the scheduler's side is told. Reports of unknown
jobs, and second ones, change nothing.

A store is *distrusted* if its blocks may have been written before it had read them: whatever its end, it failed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kv_api import KVConnectorTransferResults, TransferResult
from kv_offload.metadata import OffloadingWorkerMetadata, RankRoom, TransferJob


@dataclass(slots=True)
class Running:
    """A job that has not ended."""

    job: TransferJob
    is_load: bool
    deadline: float | None
    """When it is given up; None: never."""
    is_distrusted: bool = False


class RunningJobs:
    """Jobs of one worker and what is to be told of them."""

    def __init__(self, *, fails_requests: bool) -> None:
        self._fails_requests = fails_requests
        self.running: dict[int, Running] = {}
        self._given_up: dict[int, None] = {}
        self._held: Counter[str] = Counter()
        self._results = KVConnectorTransferResults()
        self._invalid_blocks: set[int] = set()
        self._meta = OffloadingWorkerMetadata()

    def begin_load(self, job_id: int, job: TransferJob, deadline: float | None) -> None:
        """A load is about to be submitted."""
        self.running[job_id] = Running(job, is_load=True, deadline=deadline)

    def begin_store(self, job_id: int, job: TransferJob, deadline: float | None) -> None:
        """A store is about to be submitted."""
        self.running[job_id] = Running(job, is_load=False, deadline=deadline)

    def expect_holds(self, jobs: Iterable[TransferJob]) -> None:
        """Stores whose blocks are held will begin; a request is reported after its last."""
        self._held.update(job.req_id for job in jobs if job.is_held)

    def end(self, result: TransferResult) -> None:
        """A copy ended."""
        running = self.running.pop(result.job_id, None)
        if running is None:
            if result.job_id in self._given_up:
                del self._given_up[result.job_id]
                _count(self._meta.late_jobs, result.job_id)
            return
        success = result.success and not running.is_distrusted
        if success and result.transfer_size is not None and result.transfer_time is not None:
            stats = self._meta.transfer_stats
            (stats.load if running.is_load else stats.store).record(result.transfer_size, result.transfer_time)
        self._tell(result.job_id, running, success=success)

    def fail(self, job_id: int) -> None:
        """A job could not be begun."""
        self._tell(job_id, self.running.pop(job_id), success=False)

    def give_up(self, job_ids: Iterable[int]) -> None:
        """Wait no longer for these."""
        for job_id in [job_id for job_id in job_ids if job_id in self.running]:
            self._given_up[job_id] = None
            _count(self._meta.unended_jobs, job_id)
            self.fail(job_id)

    def all_at_work(self) -> list[int]:
        """The jobs whose copies may still read or write, those that were given up among them."""
        return [*self.running, *self._given_up]

    def is_at_work(self, job_id: int) -> bool:
        """Whether its copy may still read or write."""
        return job_id in self.running or job_id in self._given_up

    def distrust(self, job_ids: Iterable[int]) -> None:
        """The blocks of these may be written now, whether they have been read or not."""
        for job_id in job_ids:
            if job_id in self.running:
                self.running[job_id].is_distrusted = True

    def expired(self, now: float) -> list[int]:
        """Jobs that took too long."""
        return [i for i, job in self.running.items() if job.deadline is not None and job.deadline <= now]

    def _tell(self, job_id: int, running: Running, *, success: bool) -> None:
        job = running.job
        _count(self._meta.completed_jobs, job_id)
        if not success:
            _count(self._meta.failed_jobs, job_id)
        if running.is_load:
            if not job.sync:
                self._results.finished_recving.add(job.req_id)
            if not success and self._fails_requests:
                self._results.failed_recving.add(job.req_id)
            elif not success:
                self._invalid_blocks.update(job.gpu_spec.block_ids)
        elif job.is_held:
            self._held[job.req_id] -= 1
            if not self._held[job.req_id]:
                del self._held[job.req_id]
                self._results.finished_sending.add(job.req_id)

    def take_results(self) -> KVConnectorTransferResults:
        """Requests to report to the engine."""
        results, self._results = self._results, KVConnectorTransferResults()
        return results

    def take_invalid_blocks(self) -> set[int]:
        """Blocks that a load should have filled."""
        blocks, self._invalid_blocks = self._invalid_blocks, set()
        return blocks

    def count(self, medium_counts: Mapping[str, int]) -> None:
        """The medium counted these, by metric."""
        counts = self._meta.medium_counts
        for name, amount in medium_counts.items():
            counts[name] = counts.get(name, 0) + amount

    def tell_room(self, room: RankRoom) -> None:
        """This rank has so much of the medium."""
        self._meta.rooms.append(room)

    def take_meta(self) -> OffloadingWorkerMetadata | None:
        """The report to the scheduler's side."""
        if self._meta == OffloadingWorkerMetadata():
            return None
        meta, self._meta = self._meta, OffloadingWorkerMetadata()
        return meta

    def check(self) -> None:
        """Recount."""
        both = [job_id for job_id in self._given_up if job_id in self.running]
        assert not both, f"jobs {both} are running and given up"
        held = Counter(r.job.req_id for r in self.running.values() if r.job.is_held)
        missing = {name for name in held if held[name] > self._held[name]}
        assert not missing, f"held blocks of {sorted(missing)}: {held} stores, {self._held} expected"
        assert all(self._held.values()), f"blocks are held for no store: {self._held}"


def _count(counts: dict[int, int], job_id: int) -> None:
    counts[job_id] = counts.get(job_id, 0) + 1
