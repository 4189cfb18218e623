"""The book of jobs: the jobs under way, how many workers have yet to report each, and which blocks each uses.

**Theory of operation.** A job gets an id when it is planned; ids only grow. Each worker reports its end once, so
it is *done* after ``world_size`` reports, and has failed if any of them says so. A worker may also give a load up:
that counts as a failed end, but its copy may still be reading the medium. When all others have ended, such a job
is *abandoned*: it stays in the book, and its chunks pinned, until its copies did end.

A reset makes every job *stale*: what it moves is of no use. Stale jobs are counted on, since the medium must not
reuse their places before, but nothing else happens when they end.

``touching`` says which jobs must be waited for before somebody else gets some GPU blocks: these are the fences. It
knows only *watched* jobs. A store begins as *kept*: its request has the blocks, so nobody else gets them. When the
request may lose some of them, ``release`` turns its kept stores into watched ones. A job that was given up is
watched, too; the blocks of other loads are kept by the engine. Most stores end before their request does, and are
never watched.

Nobody has to search all live jobs: a request knows its own, and the keys of the few stores at a boundary
(``boundary_store``), some of which are of tails, are counted.

**Invariants** (``check``): a job is live, abandoned or stale, never two of them. Live jobs wait for somebody. A
store is kept or watched, never both; a load is neither, unless it was given up: then it is watched. A request's
``stores`` are its live ones, and ``_boundary_keys`` has the keys of those at a boundary.
"""

from collections import Counter
from collections.abc import Collection, Set
from dataclasses import dataclass

from kv_api import Direction, OffloadKey
from kv_offload.scheduler.state.request_state import RequestState
from kv_offload.scheduler.state.watched import WatchedBlocks

# Before Python 3.12 an enum looks its members up in a call, and these are asked for often.
LOAD, STORE = Direction.LOAD, Direction.STORE


@dataclass(slots=True, eq=False)
class Job:
    """One copy, as the scheduler's side knows it."""

    job_id: int
    direction: Direction
    owner: RequestState
    keys: Collection[OffloadKey]
    blocks: Collection[int]
    """GPU blocks that it reads or writes."""
    waiting: int
    """Workers that have yet to report its end."""
    is_async_load: bool = False
    end_token: int = 0
    """A store: where its last chunk ends."""
    unended: int = 0
    """Workers that gave it up and have yet to report that its copy ended."""
    has_failed: bool = False
    is_watched: bool = False
    """A request that gets the job's blocks must wait for the job."""
    is_at_boundary: bool = False
    """A store of what one block of some groups holds at a boundary."""


@dataclass(slots=True)
class Report:
    """The effect of a report on its job."""

    job: Job
    is_first_failure: bool
    is_done: bool
    is_stale: bool
    """The job is from before a reset, so its end has no consequences."""


class JobBook:
    """Jobs from when they are planned until every worker's copy has ended."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._next_id = 0
        self.live: dict[int, Job] = {}
        self.abandoned: dict[int, Job] = {}
        self.stale: dict[int, Job] = {}
        self._watched = WatchedBlocks()
        self._kept: dict[RequestState, dict[int, Job]] = {}
        """Only of requests that have any."""
        self._boundary_keys: Counter[OffloadKey] = Counter()

    @property
    def has_work(self) -> bool:
        """Whether a report is still expected."""
        return bool(self.live) or any(job.waiting for job in self.stale.values())

    def begin_load(
        self, owner: RequestState, keys: Collection[OffloadKey], blocks: Collection[int], *, is_async: bool
    ) -> Job:
        """Plan a load."""
        job_id = self._next_id
        self._next_id += 1
        job = self.live[job_id] = Job(job_id, LOAD, owner, keys, blocks, self._world_size, is_async_load=is_async)
        if is_async:
            owner.loads.add(job_id)
        return job

    def begin_store(
        self, owner: RequestState, keys: Collection[OffloadKey], blocks: Collection[int], end_token: int
    ) -> Job:
        """Plan a store of blocks that its request has. If it may lose any of them, `release` comes next."""
        job_id = self._next_id
        self._next_id += 1
        job = self.live[job_id] = Job(job_id, STORE, owner, keys, blocks, self._world_size, end_token=end_token)
        kept = self._kept.get(owner)
        if kept is None:
            self._kept[owner] = {job_id: job}
        else:
            kept[job_id] = job
        owner.stores.add(job_id)
        return job

    def begin_boundary_store(
        self, owner: RequestState, keys: Collection[OffloadKey], blocks: Collection[int], boundary: int
    ) -> Job:
        """The same of what one block of some groups holds at a boundary."""
        job = self.begin_store(owner, keys, blocks, boundary)
        job.is_at_boundary = True
        self._boundary_keys.update(keys)
        return job

    def release(self, owner: RequestState) -> None:
        """From now on others may get the blocks that a request's stores read."""
        for job in self._kept.pop(owner, {}).values():
            self._watch(job)

    def end(self, job_id: int, ended: int) -> Job | None:
        """The last ``ended`` workers say that a live job ended well. None: `report` has to look more closely."""
        job = self.live.get(job_id)
        if job is None or job.waiting != ended or job.unended:
            return None
        job.waiting = 0
        self._end_live(job)
        if job.is_async_load:
            job.owner.loads.discard(job_id)
        self._let_go(job)
        return job

    def report(self, job_id: int, ended: int, failed: int = 0, unended: int = 0) -> Report | None:
        """``ended`` workers report the end of a job. None: no such job is under way."""
        job = self.live.get(job_id)
        is_stale = job is None
        if job is None:
            job = self.stale.get(job_id)
            if job is None or not job.waiting:
                return None
        job.waiting -= min(ended, job.waiting)
        if unended:
            self._unkeep(job)
            self._watch(job)
            job.unended += unended
        is_first_failure = failed > 0 and not job.has_failed
        if is_first_failure:
            job.has_failed = True
        if not job.waiting:
            if job.is_async_load:
                job.owner.loads.discard(job_id)
            if is_stale:
                self._settle_stale(job)
            else:
                self._end_live(job)
                if job.unended:
                    self.abandoned[job_id] = job
                else:
                    self._let_go(job)
        return Report(job, is_first_failure, not job.waiting, is_stale)

    def report_late(self, job_id: int, ended: int) -> Job | None:
        """Copies that were given up ended after all. Returns the abandoned job if it was its last."""
        job = self.live.get(job_id) or self.abandoned.get(job_id) or self.stale.get(job_id)
        if job is None:
            return None
        job.unended -= min(ended, job.unended)
        if job_id in self.stale:
            self._settle_stale(job)
        elif job_id in self.abandoned and not job.unended:
            self._let_go(job)
            return self.abandoned.pop(job_id)
        return None

    @property
    def is_watching(self) -> bool:
        """Whether there is anything to wait for."""
        return bool(self._watched)

    def touching(self, blocks: Set[int]) -> list[int]:
        """Watched jobs that must end before anyone else writes these blocks."""
        return self._watched.touching(blocks)

    def stores_of(self, owner: RequestState) -> list[Job]:
        """Live stores of one request, the oldest first."""
        return [self.live[job_id] for job_id in sorted(owner.stores)]

    def kept(self) -> list[Job]:
        """Stores on blocks that their requests have."""
        return [job for jobs in self._kept.values() for job in jobs.values()]

    def is_being_stored(self, key: OffloadKey) -> bool:
        """Whether a store of a tail, or of a state that was handed over, is under way."""
        return key in self._boundary_keys

    def begin_reset(self) -> list[int]:
        """Every job is stale from now on. Returns those whose end is still to be reported."""
        reported = list(self.live)
        for job in (*self.live.values(), *self.abandoned.values()):
            self.stale[job.job_id] = job
            job.owner.stores.clear()
        self.live.clear()
        self.abandoned.clear()
        self._boundary_keys.clear()
        return reported

    def _end_live(self, job: Job) -> None:
        """Every worker has reported its end."""
        del self.live[job.job_id]
        if job.direction is STORE:
            job.owner.stores.remove(job.job_id)
            if job.is_at_boundary:
                self._count_down(job.keys)

    def _count_down(self, keys: Collection[OffloadKey]) -> None:
        counts = self._boundary_keys
        for key in keys:
            counts[key] -= 1
            if not counts[key]:
                del counts[key]

    def _settle_stale(self, job: Job) -> None:
        if not job.waiting and not job.unended:
            del self.stale[job.job_id]
            self._let_go(job)

    def _let_go(self, job: Job) -> None:
        """All copies of a job have ended: nobody has to wait for it."""
        if job.is_watched:
            job.is_watched = False
            self._watched.remove(job.job_id, job.blocks)
        elif job.direction is STORE:
            self._unkeep(job)

    def _unkeep(self, job: Job) -> None:
        kept = self._kept.get(job.owner)
        if kept is not None and kept.pop(job.job_id, None) is not None and not kept:
            del self._kept[job.owner]

    def _watch(self, job: Job) -> None:
        if not job.is_watched:
            job.is_watched = True
            self._watched.add(job.job_id, job.blocks)

    def check(self) -> None:
        """Recount everything."""
        books = (self.live, self.abandoned, self.stale)
        total = sum(map(len, books))
        ids = {job_id for book in books for job_id in book}
        assert len(ids) == total, f"{total} jobs in the book, {len(ids)} different ones"
        assert all(job_id < self._next_id for job_id in ids), f"{sorted(ids)}: up to {self._next_id} were planned"
        for job in self.live.values():
            assert 0 < job.waiting <= self._world_size, f"job {job.job_id} waits for {job.waiting} workers"
        for job in (*self.live.values(), *self.stale.values()):
            known, loads = job.job_id in job.owner.loads, job.is_async_load and job.waiting > 0
            assert known is loads, f"job {job.job_id}: its request {'knows' if known else 'lacks'} it"
        for job in self.abandoned.values():
            assert job.unended > 0 and not job.waiting, f"job {job.job_id} is abandoned for {job.unended}"
        for job in self.stale.values():
            assert job.waiting or job.unended, f"job {job.job_id} is stale and has ended"
        self._check_stores()
        self._check_fences()

    def _check_stores(self) -> None:
        stores = [job for job in self.live.values() if job.direction is STORE]
        for owner in (job.owner for job in (*stores, *self.stale.values())):
            its = {job.job_id for job in stores if job.owner is owner}
            assert its == owner.stores, f"a request knows of stores {sorted(owner.stores)}, and has {sorted(its)}"
        counts = Counter(key for job in stores if job.is_at_boundary for key in job.keys)
        assert dict(counts) == dict(self._boundary_keys), (
            f"stores at boundaries are of {counts}, known {self._boundary_keys}"
        )

    def _check_fences(self) -> None:
        jobs = (*self.live.values(), *self.abandoned.values(), *self.stale.values())
        kept = {job.job_id: job.owner for job in self.kept()}
        stores = {job.job_id: job.owner for job in jobs if job.direction is STORE and not job.is_watched}
        assert kept == stores, f"stores {sorted(kept)} are kept, {sorted(stores)} are not watched"
        owners = {job_id: owner for owner, jobs in self._kept.items() for job_id in jobs}
        assert owners == kept, f"stores {sorted(kept)} are kept for others than their requests"
        assert all(self._kept.values()), "a request keeps stores, and has none"
        for job in jobs:
            assert job.is_watched or not job.unended, f"{job} is not watched"
        self._watched.check({job.job_id: {*job.blocks} for job in jobs if job.is_watched})
