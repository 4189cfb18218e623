"""The copy engine for KV caches on a CUDA device: streams and events, and no thread of its own.

**Theory of operation.** There are three lanes, each with its own stream and queue: stores, loads, and expedited
loads, which overtake other loads in this way. For a job, its lane's stream and every other stream of its method
first wait for all work that the compute stream was given so far: a store must see what the model wrote, and an
earlier write to the block, such as zeroing, must not overwrite what a load brings. Then come an event, the copies,
and another event. The job has ended when the second event is reached. A stream keeps its order, so ``poll`` asks
only for the head of each queue.

A ``Method`` gives the copies of a job to streams, one method for each lane: ``EachRange`` is here, the others are
in ``methods``. Whatever streams and buffers a method uses, a job begins and ends on its lane's stream.

A device may collect calls until ``go``, and then another thread may make them; if one fails there, the engine
learns it at the job's end. A job that fails half way is reported as failed only once its streams are idle, and
only then does the method take back the buffers that it lent to the job: until then, copies that the streams
already have may run and use them.

**Invariants.** A job is in one queue, or it has ended. A buffer that a method lent belongs to one queued job, or
was given back. If the device couldn't say whether a buffer is still in use, nobody gets it any more.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from logging import getLogger
from typing import Any, NamedTuple, Protocol, TypeAlias

from kv_api import Direction
from kv_offload_cpu.copy.engine import CopyResult, PageCopies, Urgency
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan, Ranges, Scratch

_log = getLogger("kv_offload_cpu")

Stream: TypeAlias = Any
Event: TypeAlias = Any


class Streams(Protocol):
    """The part of a device that keeps order, for the engine and its methods. Every method may raise."""

    def new_stream(self, beside: Stream | None = None) -> Stream:
        """A stream that runs beside all others. Calls for it and for ``beside`` are made in one common order."""

    def mark(self, stream: Stream) -> Event:
        """An event after all work that ``stream`` was given so far."""

    def hold(self, stream: Stream, event: Event) -> None:
        """Work that ``stream`` is given from now on waits for ``event``."""

    def go(self, stream: Stream) -> None:
        """Start the work of ``stream`` and of the streams beside it; a device may collect it until this call.

        If it fails, this doesn't raise; asking for a later event of the stream does.
        """


class Driver(Streams, Protocol):
    """The device as the engine uses it. Every method may raise."""

    def mark_compute(self) -> Event:
        """An event after all work that the compute stream was given so far."""

    def mark_time(self, stream: Stream) -> Event:
        """Like ``mark``, but the event records the time when it is reached, which costs more."""

    def is_reached(self, event: Event) -> bool:
        """Whether all work before ``event`` is done."""

    def wait_for(self, event: Event) -> None:
        """Return when all work before ``event`` is done."""

    def drain(self, stream: Stream) -> None:
        """Start all work of ``stream`` and return when it is idle. It works again then, whatever had failed."""

    def seconds_between(self, begin: Event, end: Event) -> float:
        """The time between two reached events that record time."""

    def shutdown(self) -> None:
        """Release the memory. No work runs any more. May be repeated."""


class Method(Protocol):
    """Gives the jobs of one lane to the device. All methods but ``take_back`` may raise."""

    @property
    def streams(self) -> Sequence[Stream]:
        """The lane's stream, and the other streams that this method uses."""

    @property
    def stages(self) -> Sequence[int]:
        """The addresses of this method's own memory on the device."""

    def prepare(self, direction: Direction, copies: PageCopies) -> Any:
        """Work out and borrow what a job needs; no stream is given anything yet. The job was checked before."""

    def give(self, prepared: Any) -> None:
        """Give the copies of a job to the method's streams.

        They run after all that each stream was given before, and end before all that the lane's stream is given
        afterwards.
        """

    def take_back(self, prepared: Any) -> None:
        """The job's copies no longer touch what ``prepare`` borrowed, so another job may get it."""


class RangeDriver(Protocol):
    """The device as ``EachRange`` uses it."""

    def copy(self, stream: Stream, direction: Direction, ranges: Ranges) -> None:
        """Give ``stream`` the copies of a job."""


class EachRange:
    """Copies each range of a job by one copy of its own."""

    stages = ()

    def __init__(self, driver: RangeDriver, stream: Stream, plan: CopyPlan) -> None:
        self.streams = (stream,)
        self._driver = driver
        self._plan = plan
        self._scratch = Scratch()

    def prepare(self, direction: Direction, copies: PageCopies) -> tuple[Direction, Ranges]:
        return direction, self._plan.checked_ranges(copies, self._scratch)

    def give(self, prepared: tuple[Direction, Ranges]) -> None:
        self._driver.copy(self.streams[0], *prepared)

    def take_back(self, prepared: tuple[Direction, Ranges]) -> None:
        """Nothing to do: ``prepare`` borrows nothing."""


class _Job(NamedTuple):
    job_id: int
    num_bytes: int
    begin: Event
    end: Event
    prepared: Any


class _Lane:
    def __init__(self, stream: Stream, method: Method) -> None:
        self.stream = stream
        self.method = method
        self.jobs: deque[_Job] = deque()


class CudaCopyEngine:
    """Copies on the device of ``driver``; ``make_method`` gives the method of each lane, from its stream."""

    def __init__(self, plan: CopyPlan, driver: Driver, make_method: Callable[[Stream], Method]) -> None:
        self._plan = plan
        self._driver = driver
        streams = [driver.new_stream() for _ in range(3)]
        self._lanes = tuple(_Lane(stream, make_method(stream)) for stream in streams)
        self._stores, self._loads, self._expedited = self._lanes
        self._results: list[CopyResult] = []

    def submit(
        self, job_id: int, direction: Direction, copies: PageCopies, *, urgency: Urgency = Urgency.ORDINARY
    ) -> None:
        self._plan.check(copies)
        num_bytes = self._plan.extent(copies).num_bytes
        lane = self._lane(direction, urgency)
        driver, prepared = self._driver, None
        try:
            # In this order: memory that a method allocates anew may still be used by earlier work of the compute
            # stream.
            prepared = lane.method.prepare(direction, copies)
            computed = driver.mark_compute()
            for stream in lane.method.streams:
                driver.hold(stream, computed)
            begin = driver.mark_time(lane.stream)
            lane.method.give(prepared)
            end = driver.mark_time(lane.stream)
            driver.go(lane.stream)
            lane.jobs.append(_Job(job_id, num_bytes, begin, end, prepared))
        except Exception as error:  # noqa: BLE001 - what a device raises is the failure of this job
            self._fail(job_id, "begin", error)
            if self._drain(lane) and prepared is not None:
                lane.method.take_back(prepared)

    def poll(self) -> list[CopyResult]:
        for lane in self._lanes:
            while lane.jobs and self._ended(lane, lane.jobs[0]):
                lane.jobs.popleft()
        results, self._results = self._results, []
        return results

    def wait(self, job_ids: Collection[int]) -> None:
        awaited = {*job_ids}
        for lane in self._lanes:
            last = next((job for job in reversed(lane.jobs) if job.job_id in awaited), None)
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

    def _ended(self, lane: _Lane, job: _Job) -> bool:
        """Whether a job has ended; if so, its result is added."""
        try:
            if not self._driver.is_reached(job.end):
                return False
            seconds = self._driver.seconds_between(job.begin, job.end)
        except Exception as error:  # noqa: BLE001 - what a device raises is the failure of this job
            self._fail(job.job_id, "end", error)
            if not self._drain(lane):
                return True
        else:
            self._results.append(CopyResult(job.job_id, success=True, num_bytes=job.num_bytes, seconds=seconds))
        lane.method.take_back(job.prepared)
        return True

    def _wait_for(self, lane: _Lane, job: _Job) -> None:
        try:
            self._driver.wait_for(job.end)
        except Exception as error:  # noqa: BLE001 - the next poll asks again, and reports it
            _log.error("job %d can't be waited for: %s: %s", job.job_id, type(error).__name__, error)
            self._drain(lane)

    def _drain(self, lane: _Lane) -> bool:
        """Return when no work of a lane runs; False if the device can't be asked."""
        is_idle = True
        for stream in lane.method.streams:
            try:
                self._driver.drain(stream)
            except Exception as error:  # noqa: BLE001 - a device that can't be asked runs nothing any more
                _log.error("a stream can't be drained: %s: %s", type(error).__name__, error)
                is_idle = False
        return is_idle

    def _fail(self, job_id: int, what: str, error: Exception) -> None:
        _log.error("job %d failed at the %s of its copy: %s: %s", job_id, what, type(error).__name__, error)
        self._results.append(CopyResult(job_id, success=False))
