"""The copy engine for KV caches on a CUDA device: streams and events, and no thread.

**Theory of operation.** There are three lanes, each a stream of its own and a queue: stores, loads, and expedited
loads, which so overtake the others. For a job its lane's stream first waits for what the compute stream was given
so far: a store must see what the model wrote; a load must not be overtaken by a write to the block from before,
such as zeroing. Then come an event, the copies, and another event. A job has ended when that is reached; since a
stream keeps its order, only the head of each queue is ever asked.

A job whose begin fails half way is reported as failed, once its stream is known to be idle: until then copies that
were already given to it may run.

**Invariants.** A job is in one queue, or it has ended.
"""

from collections import deque
from collections.abc import Collection
from logging import getLogger
from typing import Any, NamedTuple, Protocol, TypeAlias

from kv_offload_cpu.copy.descriptors import CopyPlan, Ranges
from kv_offload_cpu.copy.engine import CopyResult, Direction, PageCopies, Urgency

_log = getLogger("kv_offload_cpu")

Stream: TypeAlias = Any
Event: TypeAlias = Any


class Driver(Protocol):
    """What the engine asks of a device. Everything may raise."""

    def new_stream(self) -> Stream:
        """A stream that runs beside all others."""

    def mark_compute(self) -> Event:
        """An event after all that the compute stream was given so far."""

    def mark(self, stream: Stream) -> Event:
        """An event after all that ``stream`` was given so far; it knows its time."""

    def hold(self, stream: Stream, event: Event) -> None:
        """Let nothing that ``stream`` is given from now on begin before ``event``."""

    def copy(self, stream: Stream, direction: Direction, ranges: Ranges) -> None:
        """Give ``stream`` the copies of a job."""

    def is_reached(self, event: Event) -> bool:
        """Whether all before ``event`` has been done."""

    def wait_for(self, event: Event) -> None:
        """Return when all before ``event`` has been done."""

    def drain(self, stream: Stream) -> None:
        """Return when ``stream`` is idle."""

    def seconds_between(self, begin: Event, end: Event) -> float:
        """The time from one reached event to another."""

    def shutdown(self) -> None:
        """Let go of the memory. Nothing runs any more. May be repeated."""


class _Job(NamedTuple):
    job_id: int
    num_bytes: int
    begin: Event
    end: Event


class _Lane:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.jobs: deque[_Job] = deque()


class CudaCopyEngine:
    """Copies with what ``driver`` offers."""

    def __init__(self, plan: CopyPlan, driver: Driver) -> None:
        self._plan = plan
        self._driver = driver
        self._stores = _Lane(driver.new_stream())
        self._loads = _Lane(driver.new_stream())
        self._expedited = _Lane(driver.new_stream())
        self._lanes = (self._stores, self._loads, self._expedited)
        self._results: list[CopyResult] = []

    def submit(
        self, job_id: int, direction: Direction, copies: PageCopies, *, urgency: Urgency = Urgency.ORDINARY
    ) -> None:
        ranges = self._plan.ranges(copies)
        lane = self._lane(direction, urgency)
        driver = self._driver
        try:
            driver.hold(lane.stream, driver.mark_compute())
            begin = driver.mark(lane.stream)
            driver.copy(lane.stream, direction, ranges)
            lane.jobs.append(_Job(job_id, ranges.num_bytes, begin, driver.mark(lane.stream)))
        except Exception as error:  # noqa: BLE001 - what a device raises is the failure of this job
            self._fail(job_id, "begin", error)
            self._drain(lane)

    def poll(self) -> list[CopyResult]:
        for lane in self._lanes:
            while lane.jobs and self._ended(lane.jobs[0]):
                lane.jobs.popleft()
        results, self._results = self._results, []
        return results

    def wait(self, job_ids: Collection[int]) -> None:
        for lane in self._lanes:
            last = next((job for job in reversed(lane.jobs) if job.job_id in job_ids), None)
            if last is not None:
                self._wait_for(lane, last)

    def shutdown(self) -> None:
        """Finish every job."""
        for lane in self._lanes:
            self._drain(lane)
            lane.jobs.clear()
        self._driver.shutdown()

    def check(self) -> None:
        """Recount the jobs."""
        queued = [job.job_id for lane in self._lanes for job in lane.jobs]
        ended = [result.job_id for result in self._results]
        assert len({*queued}) == len(queued), f"a job is queued twice: {queued}"
        assert {*queued}.isdisjoint(ended), f"queued {queued} and ended {ended}"

    def _lane(self, direction: Direction, urgency: Urgency) -> _Lane:
        if direction is Direction.STORE:
            return self._stores
        return self._expedited if urgency is Urgency.EXPEDITED else self._loads

    def _ended(self, job: _Job) -> bool:
        """Whether a job has ended; if so its result is noted."""
        try:
            if not self._driver.is_reached(job.end):
                return False
            seconds = self._driver.seconds_between(job.begin, job.end)
        except Exception as error:  # noqa: BLE001 - a device that can't be asked runs nothing any more
            self._fail(job.job_id, "end", error)
        else:
            self._results.append(CopyResult(job.job_id, True, job.num_bytes, seconds))
        return True

    def _wait_for(self, lane: _Lane, job: _Job) -> None:
        try:
            self._driver.wait_for(job.end)
        except Exception as error:  # noqa: BLE001 - the next poll asks again, and reports it
            _log.error("job %d can't be waited for: %s: %s", job.job_id, type(error).__name__, error)
            self._drain(lane)

    def _drain(self, lane: _Lane) -> None:
        try:
            self._driver.drain(lane.stream)
        except Exception as error:  # noqa: BLE001 - a device that can't be asked runs nothing any more
            _log.error("a stream can't be drained: %s: %s", type(error).__name__, error)

    def _fail(self, job_id: int, what: str, error: Exception) -> None:
        _log.error("job %d failed at its %s: %s: %s", job_id, what, type(error).__name__, error)
        self._results.append(CopyResult(job_id, success=False))
