"""``Link``: the link from a GPU to host memory, or from host memory to a disk, as one server uses it.

Jobs that have not ended are in ``lanes``. Several servers may use one disk: then each server has its own link to
it, and these links have the same lanes. Servers take turns in the order of time, but the clock of a host that
waits for a copy is ahead of the others' clocks. If it lets another server's job end, that server is told when its
own clock gets there.

**Invariants** (``check``): every submitted job has ended or is in one queue.
"""

from bisect import insort
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kv_api import Direction
from kv_sim.replay.timed.durations.lanes import Ended, Job, Lanes
from kv_sim.replay.timed.durations.timing import LinkCosts


@dataclass
class Traffic:
    """Sums over the copies that have ended in one direction."""

    jobs: int = 0
    blocks: int = 0
    busy_ns: int = 0


class Port:
    """One worker's access to the link: it has its own job ids, and is told only of its own jobs."""

    def __init__(self, link: "Link", number: int) -> None:
        self._link = link
        self.number = number
        self.unpolled: list[Ended] = []
        """Jobs that have ended and were not reported yet, in the order of time."""

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
                owner=self._link,
                port=self.number,
                job_id=job_id,
                direction=direction,
                blocks=blocks,
                ready=max(ready, now),
                duration=duration,
                expedited=expedited,
                at_end=at_end,
                hear=self._hear,
            ),
            now,
        )

    def poll(self, now: int) -> list[Ended]:
        """The jobs that ended since the last call, in the order of time."""
        self._link.lanes.advance(now)
        ended = [job for job in self.unpolled if job.end <= now]
        self.unpolled = self.unpolled[len(ended) :]
        self._link.note_report(ended, now)
        return ended

    def wait(self, job_ids: Collection[int]) -> int:
        """Let these jobs end; returns when the last of them did, or 0. Unknown and ended jobs are ignored."""
        return self._link.end_all(self, job_ids)

    def wait_any(self) -> int:
        """Let a job of this port end, unless an ended one is still unreported; returns when it ended."""
        while not self.unpolled:
            self._link.lanes.end_next()
        return self.unpolled[0].end

    def _hear(self, ended: Ended) -> None:
        insort(self.unpolled, ended, key=_end)  # a host ahead of this one may have let a later job end before it
        self._link.count(ended)


class Link:
    """Both directions; they cost the same, unless loads have ``load_costs`` of their own."""

    def __init__(self, costs: LinkCosts, load_costs: LinkCosts | None = None, lanes: Lanes | None = None) -> None:
        self.costs = {Direction.STORE: costs, Direction.LOAD: load_costs or costs}
        self.lanes = lanes or Lanes()
        self._submitted = self._polled = 0
        self.traffic = {direction: Traffic() for direction in Direction}
        self._ports: list[Port] = []
        self.log: Callable[[Ended, int], None] = lambda job, now: None
        """Called with every job whose end is reported, and the time of the report."""

    def open(self) -> Port:
        """A port for one worker."""
        self._ports.append(Port(self, len(self._ports)))
        return self._ports[-1]

    def enqueue(self, job: Job, now: int) -> None:
        """Add a job of one of this link's ports."""
        self.lanes.enqueue(job, now)
        self._submitted += 1

    def count(self, ended: Ended) -> None:
        """Count a job that has ended."""
        traffic = self.traffic[ended.direction]
        traffic.jobs += 1
        traffic.blocks += ended.blocks
        traffic.busy_ns += ended.end - ended.begin

    def note_report(self, ended: Sequence[Ended], now: int) -> None:
        """Note that a port reported these jobs."""
        self._polled += len(ended)
        for job in ended:
            self.log(job, now)

    @property
    def activity(self) -> int:
        """A number that grows whenever a job is submitted or its end is reported."""
        return self._submitted + self._polled

    @property
    def has_news(self) -> bool:
        """Whether an ended job was not reported yet."""
        return any(port.unpolled for port in self._ports)

    @property
    def is_idle(self) -> bool:
        """Whether no job is under way or unreported."""
        return not self.has_news and not self.lanes.jobs_of(self)

    def next_end(self) -> int | None:
        """When the next unreported job ends or has ended, if no job is submitted meanwhile."""
        if self._submitted == self._polled:
            return None
        ends = [port.unpolled[0].end for port in self._ports if port.unpolled]
        end = self.lanes.end_of(self)
        return min(ends if end is None else [*ends, end], default=None)

    def advance(self, now: int) -> None:
        """Let all jobs end that end up to ``now``."""
        self.lanes.advance(now)

    def end_all(self, port: Port, job_ids: Collection[int]) -> int:
        """Let these jobs of a port end, and all jobs that end before them; returns when the last one did, or 0."""
        mine = self.lanes.jobs_of(self)
        wanted, last = [job for job in mine if job.port == port.number and job.job_id in job_ids], 0
        while wanted:
            ended = self.lanes.end_next()
            last = self.lanes.now
            wanted = [job for job in wanted if job is not ended]
        return last

    def check(self) -> None:
        """Recount."""
        self.lanes.check()
        queued, done = len(self.lanes.jobs_of(self)), sum(traffic.jobs for traffic in self.traffic.values())
        assert queued + done == self._submitted, f"queued {queued} + ended {done} != submitted {self._submitted}"


def _end(ended: Ended) -> int:
    return ended.end
