"""A guard between kv-offload's connector and a worker of its medium, which judges the worker's answers (PROTOCOL).

A job that the worker accepts is reported exactly once; a job that it refused or never got is never reported.
State: the jobs that are accepted and not reported, and what was begun while each was submitted: copies, and
errands for the worker's threads.

OWNERSHIP: once ``get_finished`` has reported a job, or ``wait`` or ``let_go`` has returned for it, nothing that
was begun for it touches a GPU block.

WORK: ``get_finished`` waits for no job, and waiting for stores doesn't wait for loads, or the other way round. The
engine would compute nothing meanwhile. (A job may have to wait for others of its own direction.)

A worker may move a job's bytes while the job is submitted, with no copy of the testbed. No job of such a medium
would ever be under way, and no mistake that needs one would be seen. So its reports are passed on late: up to two
calls of ``get_finished`` later, unless the job is waited for.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from numbers import Integral
from typing import Any, Final, NamedTuple, TypeVar

from kv_api import Direction, GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult
from kv_offload import OffloadingWorkerSide
from kv_sim.checkers.answers import shown
from kv_sim.checkers.conservation import owners
from kv_sim.checkers.media import must_be_made
from kv_sim.memory.copies import Copies
from kv_sim.memory.copy import Copy
from kv_sim.violation import Invariant, Referee

T = TypeVar("T")

LATENESS: Final = 3
"""A job that is moved at once is reported up to two calls late, by its number."""


def guard_workers(connector: Any, referee: Referee, copies: Copies) -> None:
    """Guard the media's workers of a rank's connector and of its children, if they are kv-offload's."""
    for side in owners(connector):
        if isinstance(side, OffloadingWorkerSide):
            must_be_made(f"{type(side.spec).__name__}.get_worker", side.medium_worker, OffloadingWorker, referee)
            guard: Any = WorkerGuard(side.medium_worker, referee, copies)  # type: ignore[arg-type]
            side.medium_worker = guard


class _Job(NamedTuple):
    """A job that the worker has accepted and not reported."""

    direction: Direction
    begun: range
    """The ids of the copies and errands that were begun while it was submitted."""


class WorkerGuard:
    """One worker, guarded. Unknown attributes are the worker's."""

    def __init__(self, worker: OffloadingWorker, referee: Referee, copies: Copies) -> None:
        self.worker = worker
        self._referee = referee
        self._copies = copies
        self._name = type(worker).__name__
        self._under_way: dict[int, _Job] = {}
        self._kept_back: dict[int, int] = {}
        """For jobs that were moved at once: how many calls of ``get_finished`` go on without their report."""
        self._late: list[TransferResult] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.worker, name)
        if name != "let_go":
            return found
        is_default = getattr(found, "__func__", None) is OffloadingWorker.let_go  # not all media have it
        return partial(self._wait, "wait" if is_default else name, found)

    @property
    def num_chunks(self) -> int | None:
        """Ask, and check the answer; vLLM's workers have none."""
        answer: Any = getattr(self.worker, "num_chunks", None)
        is_number = isinstance(answer, Integral) and answer is not True
        if answer is not None and not (is_number and answer >= 1):
            self._fail(
                f"num_chunks is {shown(answer)}, expected the number of chunks for which this rank has room, or "
                "None"
            )
        return answer  # type: ignore[no-any-return]

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Pass the job on, and note whether it is accepted."""
        before = self._copies.begun
        taken = self.worker.submit_store(job_id, src_spec, dst_spec)
        return self._submitted("submit_store", job_id, Direction.STORE, taken, before)

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        """Pass the job on, and note whether it is accepted."""
        before = self._copies.begun
        taken = self.worker.submit_load(job_id, src_spec, dst_spec, expedited=expedited)
        return self._submitted("submit_load", job_id, Direction.LOAD, taken, before)

    def get_finished(self) -> list[TransferResult]:
        """Ask, and check that each job is reported once."""
        before = len(self._copies.waited)
        answer: Any = self.worker.get_finished()
        self._check_waits("get_finished", before, "it is only asked which jobs have ended")
        if not isinstance(answer, (list, tuple)) or not all(_is_result(result) for result in answer):
            self._fail(
                f"get_finished answered {shown(answer)}, expected a list of TransferResult(job_id, success)"
            )
            return answer  # type: ignore[no-any-return]
        for result in answer:
            if result.job_id not in self._under_way:
                self._fail(
                    f"get_finished reports job {result.job_id}, which isn't under way: it was reported before, "
                    "refused or never submitted"
                )
            self._is_over("get_finished reported", [result.job_id])
            self._under_way.pop(result.job_id, None)
        return self._passed_on(answer)

    def _passed_on(self, results: Iterable[TransferResult]) -> list[TransferResult]:
        """Of these reports and those that were kept back, the ones whose time has come."""
        known = [*self._late, *results]
        self._late = [result for result in known if self._kept_back.get(result.job_id, 0) > 0]
        for result in self._late:
            self._kept_back[result.job_id] -= 1
        passed = [result for result in known if result not in self._late]
        for result in passed:
            self._kept_back.pop(result.job_id, None)
        return passed

    def wait(self, job_ids: set[int]) -> None:
        """Wait for these jobs, and check which copies were waited for."""
        self._wait("wait", self.worker.wait, job_ids)

    def _wait(self, method: str, wait: Callable[[set[int]], T], job_ids: Collection[int]) -> T:
        before, asked = len(self._copies.waited), {*job_ids}
        for job_id in asked.intersection(self._kept_back):
            self._kept_back[job_id] = 0
        directions = {self._under_way[job_id].direction for job_id in asked if job_id in self._under_way}
        answer = wait({*asked})
        self._is_over(f"{method} returned for", asked)
        named = " and ".join(f"{kind.value}s" for kind in Direction if kind in directions) or "nothing under way"
        self._check_waits(method, before, f"it was told to wait for {named}", directions)
        return answer

    def _check_waits(
        self, method: str, before: int, told: str, directions: Collection[Direction] = frozenset()
    ) -> None:
        for copy in self._copies.waited[before:]:
            if self._direction_of(copy) not in {*directions, None}:
                whose = f" (of {', '.join(copy.owners)})" if copy.owners else ""
                said = f"{method} waited for {copy}{whose}, but {told}"
                self._fail(f"{said}: the engine computes nothing meanwhile", Invariant.WORK)

    def _submitted(self, method: str, job_id: int, direction: Direction, taken: Any, before: int) -> bool:
        if not isinstance(taken, bool):
            self._fail(
                f"{method} answered {shown(taken)}, expected True (it is accepted) or False (it is refused)"
            )
        elif taken:
            self._under_way[job_id] = _Job(direction, range(before, self._copies.begun))
            if self._copies.begun == before:
                self._kept_back[job_id] = job_id % LATENESS
        return taken  # type: ignore[no-any-return]

    def _is_over(self, said: str, job_ids: Iterable[int]) -> None:
        """From now on nothing of these jobs may touch a GPU block."""
        for job_id in job_ids:
            for copy_id in self._under_way[job_id].begun if job_id in self._under_way else ():
                if copy_id in self._copies.running:
                    self._copies.running[copy_id].over = f"{self._name}.{said} its job {job_id}"

    def _direction_of(self, copy: Copy) -> Direction | None:
        """Of an errand: that of the job for which it was begun. None: unknown."""
        if copy.errand is None:
            return copy.direction
        return next((job.direction for job in self._under_way.values() if copy.copy_id in job.begun), None)

    def _fail(self, message: str, invariant: Invariant = Invariant.PROTOCOL) -> None:
        self._referee.fail(invariant, f"the medium's {self._name}.{message}")


def _is_result(result: Any) -> bool:
    """Judged by its fields, since vLLM has a class of its own."""
    return hasattr(result, "job_id") and isinstance(getattr(result, "success", None), bool)
