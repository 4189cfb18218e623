"""The copy engine for KV caches on a CUDA device: streams and events, and no thread of its own.

**Theory of operation.** There are three lanes, each a stream of its own and a queue: stores, loads, and expedited
loads, which so overtake the others. For a job, its lane's stream and every other stream of its method first wait
for what the compute stream was given so far. A store must see what the model wrote. A load must not be overtaken
by an earlier write to the block, such as zeroing. Then come an event, the copies, and another event. A job has
ended when that is reached; since a stream keeps its order, only the head of each queue is ever asked.

How the copies of a job are given to a stream is a ``Method``, one for each lane: ``EachRange`` here, and the
others are in ``methods``. Whatever streams and buffers a method uses, a job begins and ends on its lane's stream.

A device may leave what it is given until it is told to go, and who gives it then may be another thread: what fails
there is heard of at the job's end. A job that fails half way, at its begin or later, is reported as failed once
its streams are known to be idle; only then is what it was lent given back. Until then copies that were already
given to them may run, and read buffers of the method.

**Invariants.** A job is in one queue, or it has ended. What a method lent is with one queued job, or given back;
unless the device couldn't be asked whether it is still in use, then it goes to nobody.
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
    """What engine and methods ask of a device to keep order. Everything may raise."""

    def new_stream(self, beside: Stream | None = None) -> Stream:
        """A stream that runs beside all others. It and ``beside`` are given what they are given in one order."""

    def mark(self, stream: Stream) -> Event:
        """An event after all that ``stream`` was given so far."""

    def hold(self, stream: Stream, event: Event) -> None:
        """Let nothing that ``stream`` is given from now on begin before ``event``."""

    def go(self, stream: Stream) -> None:
        """What ``stream`` and the streams beside it were given may begin; a device may wait until this is called.

        A failure of it isn't raised here, but when somebody asks for an event after it.
        """


class Driver(Streams, Protocol):
    """What the engine asks of a device. Everything may raise."""

    def mark_compute(self) -> Event:
        """An event after all that the compute stream was given so far."""

    def mark_time(self, stream: Stream) -> Event:
        """An event after all that ``stream`` was given so far, which knows its time; it costs more."""

    def is_reached(self, event: Event) -> bool:
        """Whether all before ``event`` has been done."""

    def wait_for(self, event: Event) -> None:
        """Return when all before ``event`` has been done."""

    def drain(self, stream: Stream) -> None:
        """Have all go that ``stream`` was given, and return when it is idle. What failed is over by then."""

    def seconds_between(self, begin: Event, end: Event) -> float:
        """The time from one reached event to another, of those that know theirs."""

    def shutdown(self) -> None:
        """Let go of the memory. Nothing runs any more. May be repeated."""


class Method(Protocol):
    """How the jobs of one lane are given to the device. All but ``take_back`` may raise."""

    @property
    def streams(self) -> Sequence[Stream]:
        """The lane's stream, and those that this method uses besides."""

    @property
    def stages(self) -> Sequence[int]:
        """The addresses of memory on the device that is this method's alone."""

    def prepare(self, direction: Direction, copies: PageCopies) -> Any:
        """Work out what a checked job needs, and borrow it; nothing is given to a stream yet."""

    def give(self, prepared: Any) -> None:
        """Give its streams the copies of a job, which end before whatever the lane's stream is given after.

        What a stream was given before comes first.
        """

    def take_back(self, prepared: Any) -> None:
        """Nothing touches what a job was prepared with any more, so it may serve another one."""


class RangeDriver(Protocol):
    """What copying range by range asks of a device."""

    def copy(self, stream: Stream, direction: Direction, ranges: Ranges) -> None:
        """Give ``stream`` the copies of a job."""


class EachRange:
    """One copy of the device for each range."""

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
        """There is nothing to take."""


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
            # In this order: memory that a method takes anew may still be used by compute that was given before.
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
        """Whether a job has ended; if so its result is noted."""
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
        """Return when nothing of a lane runs; False if the device can't be asked."""
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
