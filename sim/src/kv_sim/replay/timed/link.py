"""A link, of a GPU to host memory or from there to a disk: a queue of jobs a direction, full bandwidth in each.

Jobs of a direction run one after the other in the order of submission. A job may not begin before the device has
finished what it was given earlier (``ready``). An expedited job overtakes those that have not begun. Jobs end in
the order of time, so whoever moves real bytes at their end moves them in that order.

**Invariants** (``check``): what was submitted has ended or stands in one queue; a queue's first job alone is
running; nothing that ended was later than the time up to which the link was advanced.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kv_api import Direction
from kv_sim.replay.timed.timing import LinkCosts


@dataclass(slots=True)
class Job:
    """One copy. Moments are nanoseconds."""

    port: "Port"
    job_id: int
    direction: Direction
    blocks: int
    ready: int
    duration: int
    expedited: bool
    at_end: Callable[[], bool] | None
    """Moves the bytes; False: it failed."""


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


@dataclass
class Traffic:
    """What went over the link in one direction."""

    jobs: int = 0
    blocks: int = 0
    busy_ns: int = 0


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

    def end_first(self) -> Ended:
        """The first job ends."""
        begin, end = self.begin(), self.end()
        job = self.jobs.popleft()
        self.free_at, self.begun = end, 0
        success = job.at_end is None or job.at_end()
        return Ended(
            port=job.port.number,
            job_id=job.job_id,
            direction=job.direction,
            blocks=job.blocks,
            begin=begin,
            end=end,
            success=success,
        )


class Port:
    """One worker's door to the link: its job ids are its own, and it hears of its own jobs only."""

    def __init__(self, link: "Link", number: int) -> None:
        self._link = link
        self.number = number
        self.unpolled: list[Ended] = []
        """Ended, and not reported yet."""

    def submit(
        self,
        job_id: int,
        direction: Direction,
        blocks: int,
        *,
        now: int,
        ready: int,
        expedited: bool = False,
        at_end: Callable[[], bool] | None = None,
    ) -> None:
        """Give a job to the link at ``now``; it may begin when it is ``ready``."""
        duration = self._link.costs[direction].job_ns(blocks)
        self._link.enqueue(
            Job(
                port=self,
                job_id=job_id,
                direction=direction,
                blocks=blocks,
                ready=max(ready, now),
                duration=duration,
                expedited=expedited,
                at_end=at_end,
            ),
            now,
        )

    def poll(self, now: int) -> list[Ended]:
        """The jobs that ended since the last call, in the order of time."""
        self._link.advance(now)
        ended, self.unpolled = self.unpolled, []
        self._link.note_report(ended, now)
        return ended

    def wait(self, job_ids: Collection[int]) -> int:
        """Let these jobs end; returns when the last of them did, or 0. Unknown and ended ones are no matter."""
        return self._link.end_all(self, job_ids)

    def wait_any(self) -> int:
        """Let a job end, unless one has that was not reported yet; returns when that was."""
        while not self.unpolled:
            self._link.end_next()
        return self.unpolled[0].end


class Link:
    """Both directions; they cost the same, unless loads have ``load_costs`` of their own."""

    def __init__(self, costs: LinkCosts, load_costs: LinkCosts | None = None) -> None:
        self.costs = {Direction.STORE: costs, Direction.LOAD: load_costs or costs}
        self._queues = {direction: _Queue() for direction in Direction}
        self._now = 0
        self._submitted = self._polled = 0
        self.traffic = {direction: Traffic() for direction in Direction}
        self._ports: list[Port] = []
        self.log: Callable[[Ended, int], None] = lambda job, now: None
        """Hears of every job whose end is reported, and when."""

    def open(self) -> Port:
        """A port for one worker."""
        self._ports.append(Port(self, len(self._ports)))
        return self._ports[-1]

    def enqueue(self, job: Job, now: int) -> None:
        """A port was given a job."""
        self.advance(now)
        self._queues[job.direction].submit(job, now)
        self._submitted += 1

    def note_report(self, ended: Sequence[Ended], now: int) -> None:
        """A port reported these."""
        self._polled += len(ended)
        for job in ended:
            self.log(job, now)

    @property
    def activity(self) -> int:
        """A number that grows whenever a job is submitted or its end is reported."""
        return self._submitted + self._polled

    @property
    def has_news(self) -> bool:
        """Whether a job ended and was not reported yet."""
        return any(port.unpolled for port in self._ports)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way or unreported."""
        return not self.has_news and not any(queue.jobs for queue in self._queues.values())

    def next_end(self) -> int | None:
        """When the next job ends, if none is submitted meanwhile."""
        ends = [queue.end() for queue in self._queues.values() if queue.jobs]
        return min(ends, default=None)

    def advance(self, now: int) -> None:
        """Let everything end that ends up to ``now``."""
        while (moment := self.next_end()) is not None and moment <= now:
            self._end_first(moment)
        self._now = max(self._now, now)

    def end_all(self, port: Port, job_ids: Collection[int]) -> int:
        """Let jobs of a port end, and whatever ends before them; returns when the last did, or 0."""
        waited = [job for queue in self._queues.values() for job in queue.jobs if job.port is port]
        wanted, last = {job.job_id for job in waited if job.job_id in job_ids}, 0
        while wanted:
            ended = self.end_next()
            last = self._now
            if ended.port == port.number:
                wanted.discard(ended.job_id)
        return last

    def end_next(self) -> Ended:
        """Let whatever ends next end."""
        moment = self.next_end()
        assert moment is not None, "somebody waits for a job, and none is in any queue"
        ended = self._end_first(moment)
        self._now = max(self._now, moment)
        return ended

    def _end_first(self, moment: int) -> Ended:
        queue = next(queue for queue in self._queues.values() if queue.jobs and queue.end() == moment)
        ended = queue.end_first()
        traffic = self.traffic[ended.direction]
        traffic.jobs += 1
        traffic.blocks += ended.blocks
        traffic.busy_ns += ended.end - ended.begin
        self._ports[ended.port].unpolled.append(ended)
        return ended

    def check(self) -> None:
        """Recount."""
        queued = sum(len(queue.jobs) for queue in self._queues.values())
        done = sum(traffic.jobs for traffic in self.traffic.values())
        assert queued + done == self._submitted, f"queued {queued} + ended {done} != submitted {self._submitted}"
        for direction, queue in self._queues.items():
            assert all(job.direction is direction for job in queue.jobs), (
                f"not only {direction.value}s in their queue"
            )
            assert queue.begun <= min(1, len(queue.jobs)), f"{queue.begun} of {len(queue.jobs)} jobs have begun"
            assert queue.free_at <= self._now, f"a {direction.value} ended at {queue.free_at}, it is {self._now}"
