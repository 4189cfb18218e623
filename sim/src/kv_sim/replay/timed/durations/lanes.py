"""``Lanes``: the unfinished copies of a medium, a queue of jobs for each direction, each at full bandwidth.

Jobs of a direction run one after the other in the order of submission, whichever engine submits them. A job may
not begin before the device has finished its earlier work (``ready``). An expedited job overtakes jobs that have
not begun. Jobs end in the order of time, and real bytes, if there are any, are moved in that order.

**Invariants** (``check``): only the first job of a queue can have begun; no job has ended later than the time up
to which the lanes were advanced.
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
    """The link that submitted it."""
    port: int
    job_id: int
    direction: Direction
    blocks: int
    ready: int
    duration: int
    expedited: bool
    at_end: Callable[[], bool] | None
    """Moves the bytes at the job's end; returns False if that failed."""
    hear: Callable[[Ended], None]
    """Called when the job ends."""


class _Queue:
    """The jobs of one direction, in the order in which they run."""

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.free_at = 0
        self.begun = 0
        """How many jobs at the front have begun, so that they can't be overtaken: 0 or 1."""

    def begin(self) -> int:
        """When the first job begins."""
        return max(self.free_at, self.jobs[0].ready)

    def end(self) -> int:
        """When the first job ends."""
        return self.begin() + self.jobs[0].duration

    def end_of(self, owner: object) -> int | None:
        """When an owner's first job ends."""
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
        """Let the first job end."""
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
        """The time up to which jobs have ended."""

    def enqueue(self, job: Job, now: int) -> None:
        """Add a job to the queue of its direction."""
        self.advance(now)
        self._queues[job.direction].submit(job, now)

    def jobs_of(self, owner: object) -> list[Job]:
        """An owner's jobs that have not ended."""
        return [job for queue in self._queues.values() for job in queue.jobs if job.owner is owner]

    def end_of(self, owner: object) -> int | None:
        """When an owner's next job ends, if no job is submitted meanwhile."""
        ends = [end for queue in self._queues.values() if (end := queue.end_of(owner)) is not None]
        return min(ends, default=None)

    def advance(self, now: int) -> None:
        """Let all jobs end that end up to ``now``."""
        while (moment := self._next_end()) is not None and moment <= now:
            self._end_first(moment)
        self.now = max(self.now, now)

    def end_next(self) -> Job:
        """Let the job end that is next to end."""
        moment = self._next_end()
        assert moment is not None, "an engine waits for a job, but no queue has one"
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
