"""Stands between kv-offload's connector and a worker of its medium: PROTOCOL, of what the worker answers.

A job that it takes is reported once; one that it refuses, or was never given, never. Keeps the jobs that it took
and has not reported.
"""

from numbers import Integral
from typing import Any

from kv_api import GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult
from kv_offload import OffloadingWorkerSide
from kv_sim.checkers.conservation import owners
from kv_sim.violation import Invariant, Referee


def guard_workers(connector: Any, referee: Referee) -> None:
    """Guard the media's workers of a connector and of its children, as far as they are kv-offload's."""
    for side in owners(connector):
        if isinstance(side, OffloadingWorkerSide):
            if side.medium_worker is None:
                spec = type(side.spec).__name__
                referee.fail(
                    Invariant.PROTOCOL, f"the medium's {spec}.get_worker answered None, expected a worker"
                )
            side.medium_worker = WorkerGuard(side.medium_worker, referee)  # type: ignore[assignment, arg-type]


class WorkerGuard:
    """One worker, guarded. Unknown attributes are the worker's."""

    def __init__(self, worker: OffloadingWorker, referee: Referee) -> None:
        self.worker = worker
        self._referee = referee
        self._name = type(worker).__name__
        self._under_way: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)

    @property
    def num_chunks(self) -> int | None:
        """Ask, and check the answer; vLLM's workers have none."""
        answer: Any = getattr(self.worker, "num_chunks", None)
        is_number = isinstance(answer, Integral) and answer is not True
        if answer is not None and not (is_number and answer >= 1):
            self._fail(f"num_chunks is {answer!r}, expected for how many chunks this rank has room, or None")
        return answer  # type: ignore[no-any-return]

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Hand the job on, and check whether it is taken."""
        return self._submitted("submit_store", job_id, self.worker.submit_store(job_id, src_spec, dst_spec))

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        """Hand the job on, and check whether it is taken."""
        taken = self.worker.submit_load(job_id, src_spec, dst_spec, expedited=expedited)
        return self._submitted("submit_load", job_id, taken)

    def get_finished(self) -> list[TransferResult]:
        """Ask, and check that each job comes once."""
        answer: Any = self.worker.get_finished()
        if not isinstance(answer, (list, tuple)) or not all(_is_result(result) for result in answer):
            self._fail(f"get_finished answered {answer!r}, expected a list of TransferResult(job_id, success)")
            return answer  # type: ignore[no-any-return]
        for result in answer:
            if result.job_id not in self._under_way:
                self._fail(
                    f"get_finished reports job {result.job_id}, which it doesn't have: it was reported before, "
                    "refused or never given"
                )
            self._under_way.discard(result.job_id)
        return list(answer)

    def _submitted(self, method: str, job_id: int, taken: Any) -> bool:
        if not isinstance(taken, bool):
            self._fail(
                f"{method} answered {taken!r}, expected True, and get_finished reports it, or False: it is refused"
            )
        elif taken:
            self._under_way.add(job_id)
        return taken  # type: ignore[no-any-return]

    def _fail(self, message: str) -> None:
        self._referee.fail(Invariant.PROTOCOL, f"the medium's {self._name}.{message}")


def _is_result(result: Any) -> bool:
    """By its fields: vLLM's class is another one than kv-api's."""
    return hasattr(result, "job_id") and isinstance(getattr(result, "success", None), bool)
