"""``Lanes``: what a medium has under way, a queue of jobs a direction, at full bandwidth in each.

Jobs of a direction run one after the other in the order of submission, whoever submits them. A job may not begin
before the device has finished what it was given earlier (``ready``). An expedited job overtakes those that have
not begun. Jobs end in the order of time, so whoever moves real bytes at their end moves them in that order.

**Invariants** (``check``): a queue's first job alone is running; nothing that ended was later than the time up to
which the lanes were advanced.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kv_api import Direction


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that ended."""

    port: int
    job_id: int
    direction: Direction
    blocks: int
    begin: int
    end: int
    success: bool


@dataclass(slots=True, eq=False)
class Job:
    """One copy. Moments are nanoseconds."""

    owner: object
    """Whose it is."""
    port: int
    job_id: int
    direction: Direction
    blocks: int
    ready: int
    duration: int
    expedited: bool
    at_end: Callable[[], bool] | None
    """Moves the bytes; False: it failed."""
    hear: Callable[[Ended], None]
    """Told of its end."""


class _Queue:
    """The jobs of one direction, in the order in which they run."""

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.free_at = 0
        self.begun = 0
        """How many jobs at the front can't be overtaken any more: 0 or 1."""

    def begin(self) -> int:
        """When the first job begins."""
        return max(self.free_at, self.jobs[0].ready)

    def end(self) -> int:
        """When the first job ends."""
        return self.begin() + self.jobs[0].duration

    def end_of(self, owner: object) -> int | None:
        """When the first job of an owner's ends."""
        moment = self.free_at
        for job in self.jobs:
            moment = max(moment, job.ready) + job.duration
            if job.owner is owner:
                return moment
        return None

    def submit(self, job: Job, now: int) -> None:
        if self.jobs and self.begin() <= now:
            self.begun = 1
        if not job.expedited:
            self.jobs.append(job)
            return
        place = self.begun
        while place < len(self.jobs) and self.jobs[place].expedited:
            place += 1
        self.jobs.insert(place, job)

    def end_first(self) -> Job:
        """The first job ends."""
        begin, end = self.begin(), self.end()
        job = self.jobs.popleft()
        self.free_at, self.begun = end, 0
        success = job.at_end is None or job.at_end()
        job.hear(
            Ended(
                port=job.port,
                job_id=job.job_id,
                direction=job.direction,
                blocks=job.blocks,
                begin=begin,
                end=end,
                success=success,
            )
        )
        return job


class Lanes:
    """Both directions of one medium."""

    def __init__(self) -> None:
        self._queues = {direction: _Queue() for direction in Direction}
        self.now = 0
        """Up to here everything has ended."""

    def enqueue(self, job: Job, now: int) -> None:
        """One more job."""
        self.advance(now)
        self._queues[job.direction].submit(job, now)

    def jobs_of(self, owner: object) -> list[Job]:
        """What hasn't ended of an owner's."""
        return [job for queue in self._queues.values() for job in queue.jobs if job.owner is owner]

    def end_of(self, owner: object) -> int | None:
        """When the next job of an owner's ends, if none is submitted meanwhile."""
        ends = [end for queue in self._queues.values() if (end := queue.end_of(owner)) is not None]
        return min(ends, default=None)

    def advance(self, now: int) -> None:
        """Let everything end that ends up to ``now``."""
        while (moment := self._next_end()) is not None and moment <= now:
            self._end_first(moment)
        self.now = max(self.now, now)

    def end_next(self) -> Job:
        """Let whatever ends next end."""
        moment = self._next_end()
        assert moment is not None, "somebody waits for a job, and none is in any queue"
        job = self._end_first(moment)
        self.now = max(self.now, moment)
        return job

    def _next_end(self) -> int | None:
        ends = [queue.end() for queue in self._queues.values() if queue.jobs]
        return min(ends, default=None)

    def _end_first(self, moment: int) -> Job:
        return next(q for q in self._queues.values() if q.jobs and q.end() == moment).end_first()

    def check(self) -> None:
        """Recount."""
        for direction, queue in self._queues.items():
            assert all(job.direction is direction for job in queue.jobs), (
                f"not only {direction.value}s in their queue"
            )
            assert queue.begun <= min(1, len(queue.jobs)), f"{queue.begun} of {len(queue.jobs)} jobs have begun"
            assert queue.free_at <= self.now, f"a {direction.value} ended at {queue.free_at}, it is {self.now}"
