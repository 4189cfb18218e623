"""The guard of a medium's worker: what it makes of each answer, and that every worker of a world has one."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kv_sim_notes import Notes
from kv_sim_shelves import Shelves

from kv_api import BlockIDsLoadStoreSpec, Direction, GPULoadStoreSpec, OffloadingWorker, TransferResult
from kv_offload import OffloadingConnector, OffloadingWorkerSide
from kv_sim.checkers.conservation import owners
from kv_sim.checkers.media import guard_media
from kv_sim.checkers.medium_worker import WorkerGuard, guard_workers
from kv_sim.config import WorldConfig
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.memory.copy import Copy
from kv_sim.memory.device import Device
from kv_sim.memory.errands import Errands
from kv_sim.memory.shadow import Shadow
from kv_sim.world import World

GPU, THERE = GPULoadStoreSpec([1], (1,), (0,)), BlockIDsLoadStoreSpec([2])
NO_LIST = "expected a list of TransferResult(job_id, success)"
NO_BOOL = "expected True (it is accepted) or False (it is refused)"
STRANGE = "which isn't under way: it was reported before, refused or never submitted"


class Copies:
    """Of a worker that begins a copy whenever it is given a job."""

    def __init__(self, step: int = 1) -> None:
        self.waited: list[Copy] = []
        self.running: dict[int, Copy] = {}
        self._begun = count(step=step)

    @property
    def begun(self) -> int:
        return next(self._begun)


COPIES: Any = Copies()


class Worker(OffloadingWorker):
    """Answers what it is told to."""

    answer: Any = True
    waited: Any = None

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> Any:
        assert (src_spec, dst_spec) == (GPU, THERE)
        return self.answer

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> Any:
        assert (src_spec, dst_spec, expedited) == (THERE, GPU, job_id == 2)
        return self.answer

    def get_finished(self) -> Any:
        return self.answer

    def wait(self, job_ids: set[int]) -> None:
        self.waited = job_ids


def guarded() -> tuple[Worker, WorkerGuard, Notes]:
    worker, notes = Worker(), Notes()
    guard = WorkerGuard(worker, notes, COPIES)
    assert guard.submit_store(1, GPU, THERE) is True
    assert guard.submit_load(2, THERE, GPU, expedited=True) is True
    return worker, guard, notes


def told(notes: Notes) -> list[str]:
    return [said.removeprefix("PROTOCOL  the medium's Worker.") for said in notes.told]


def test_each_job_is_reported_once() -> None:
    worker, guard, notes = guarded()
    worker.answer = ended = [TransferResult(1, success=True), TransferResult(2, success=False)]
    assert guard.get_finished() == ended
    guard.wait({3})
    assert (worker.waited, notes.told) == ({3}, [])
    assert guard.get_finished() == ended
    assert told(notes) == [f"get_finished reports job {job}, {STRANGE}" for job in (1, 2)]


def at_once(*jobs: int) -> tuple[Worker, WorkerGuard]:
    """A worker that has moved the bytes of these jobs without a copy."""
    worker = Worker()
    guard = WorkerGuard(worker, Notes(), Copies(step=0))  # type: ignore[arg-type]
    for job in jobs:
        assert guard.submit_store(job, GPU, THERE)
    worker.answer = [TransferResult(job, success=True) for job in jobs]
    return worker, guard


def test_what_was_moved_at_once_is_reported_late_each_once_and_in_order() -> None:
    worker, guard = at_once(3, 4, 5, 6)
    reported = []
    for _ in range(4):
        reported.append([result.job_id for result in guard.get_finished()])
        worker.answer = []
    assert reported == [[3, 6], [4], [5], []]


def test_what_is_waited_for_is_not_late() -> None:
    worker, guard = at_once(4, 5)
    assert guard.get_finished() == []
    worker.answer = []
    guard.wait({5, 9})
    assert [result.job_id for result in guard.get_finished()] == [4, 5]
    worker, guard = at_once(4, 5)
    guard.let_go({5})
    assert [result.job_id for result in guard.get_finished()] == [5]


def test_what_was_refused_is_never_reported() -> None:
    worker, guard, notes = guarded()
    worker.answer = False
    assert guard.submit_load(3, THERE, GPU) is False
    worker.answer = [TransferResult(3, success=False)]
    guard.get_finished()
    assert told(notes) == [f"get_finished reports job 3, {STRANGE}"]


@pytest.mark.parametrize(
    "answer", [None, {1: True}, [(1, True)], [TransferResult(1, success=None)], [SimpleNamespace(success=True)]]
)  # type: ignore[arg-type]
def test_what_get_finished_may_not_say(answer: Any) -> None:
    worker, guard, notes = guarded()
    worker.answer = answer
    assert guard.get_finished() is answer
    assert told(notes) == [f"get_finished answered {answer!r}, {NO_LIST}"]


@pytest.mark.parametrize("answer", [None, 1, "yes"])
def test_what_submitting_may_not_say(answer: Any) -> None:
    worker, guard, notes = guarded()
    worker.answer = answer
    assert guard.submit_store(3, GPU, THERE) is answer
    assert guard.submit_load(4, THERE, GPU) is answer
    assert told(notes) == [
        f"{method} answered {answer!r}, {NO_BOOL}" for method in ("submit_store", "submit_load")
    ]


@pytest.mark.parametrize(
    ("room", "is_right"),
    [(None, True), (7, True), (np.int64(7), True), (0, False), (True, False), ("7", False), (7.0, False)],
)
def test_a_room_is_a_number_of_chunks(room: Any, is_right: bool) -> None:
    worker, guard, notes = guarded()
    worker.num_chunks = room
    assert guard.num_chunks is room
    said = f"num_chunks is {room!r}, expected the number of chunks for which this rank has room, or None"
    assert told(notes) == ([] if is_right else [said])


@pytest.mark.parametrize(
    ("name", "count"), [("offload", 1), ("offload+file", 2), ("p2p+offload", 1), ("later", 0)]
)
def test_every_worker_of_a_world_is_guarded(name: str, count: int) -> None:
    world = World(WorldConfig(tp_size=2), SUBJECTS[name])
    workers = [
        side.medium_worker
        for connector in world.engine.connectors
        for side in owners(connector)
        if isinstance(side, OffloadingWorkerSide)
    ]
    assert len(workers) == 2 * count
    assert {type(worker) for worker in workers} <= {WorkerGuard}
    world.break_off(None)


@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_spec_that_makes_none_or_another_thing_is_told(*, is_swapped: bool) -> None:
    world = World(WorldConfig(), SUBJECTS["offload"])
    *workers, scheduler = world.engine.connectors
    assert isinstance(scheduler, OffloadingConnector)
    halves: Any = workers[0].side, scheduler.side  # type: ignore[attr-defined]
    halves[0].medium_worker, halves[1].manager = (Shelves(), Worker()) if is_swapped else (None, None)
    notes = Notes()
    guard_workers(workers[0], notes, COPIES)
    guard_media(scheduler, notes)
    no_worker = "a Shelves, which lacks get_finished, submit_load, submit_store, wait" if is_swapped else "None"
    no_manager = (
        "a Worker, which lacks lookup, on_new_request, prepare_load, prepare_store" if is_swapped else "None"
    )
    medium = "PROTOCOL  the medium's"
    assert notes.told == [
        f"{medium} WorldCPUOffloadingSpec.get_worker answered {no_worker}, expected an OffloadingWorker",
        f"{medium} get_manager answered {no_manager}, expected an OffloadingManager",
    ]


STORES, LOADS = (Copy(number, kind, (), "", 0, owners=("r1",)) for number, kind in enumerate(Direction))
NOBODYS = 99  # begun while no job was submitted
LAST = ": the engine computes nothing meanwhile"


@pytest.mark.parametrize(
    ("method", "job_ids", "waited", "told_to"),
    [
        ("wait", {1}, [STORES], ""),
        ("wait", {2, 9}, [LOADS], ""),
        ("let_go", {1, 2}, [LOADS, STORES], ""),
        ("wait", {1}, [replace(LOADS, copy_id=NOBODYS, errand=print)], ""),
        ("wait", {1}, [STORES, LOADS], "but it was told to wait for stores"),
        ("wait", {2}, [STORES], "but it was told to wait for loads"),
        ("let_go", {1}, [LOADS], "but it was told to wait for stores"),
        ("wait", {9}, [STORES], "but it was told to wait for nothing under way"),
        ("get_finished", None, [LOADS], "but it is only asked which jobs have ended"),
        ("get_finished", None, [], ""),
    ],
)
def test_nobody_waits_for_what_was_not_asked_for(
    method: str, job_ids: set[int] | None, waited: list[Copy], told_to: str
) -> None:
    worker, guard, notes = guarded()
    COPIES.waited[:] = [LOADS, STORES]  # somebody has before

    def wait(*job_ids: set[int]) -> list[TransferResult]:
        COPIES.waited += waited
        return []

    setattr(worker, method, wait)
    assert getattr(guard, method)(*([job_ids] if job_ids else [])) == (None if method == "wait" else [])
    wrong = [
        f"WORK  the medium's Worker.{method} waited for {copy} (of r1), {told_to}{LAST}" for copy in waited[-1:]
    ]
    assert notes.told == (wrong if told_to else [])


class Threads(OffloadingWorker):
    """Has each job done by an errand, and is told how to wait and to report."""

    def __init__(self, device: Device) -> None:
        self.cache, self.copies, self.errands = device.kv_cache(0), device.copies.open(), Errands(device)
        self.ends: list[Any] = []
        self.waits_for: list[Any] = []
        self.uses_copies = False

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        if self.uses_copies:
            self.copies.submit(Direction.STORE, [(1, job_id - 1)])
        else:
            self.waits_for.append(self.errands.submit(self.cache.read, 1))
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        self.waits_for.append(self.errands.submit(self.cache.write, 1, self.cache.read(1)))
        return True

    def get_finished(self) -> list[TransferResult]:
        for errand in self.waits_for:
            errand.exception()
        return self.ends

    def wait(self, job_ids: set[int]) -> None:
        for errand in self.waits_for:
            errand.exception()


def threads() -> tuple[Threads, WorkerGuard, Notes, Device]:
    notes = Notes()
    device = Device(0, WorldConfig(), Shadow(1, notes))
    device.allocate_host(2)
    worker = Threads(device)
    return worker, WorkerGuard(worker, notes, device.copies), notes, device


@pytest.mark.parametrize("uses_copies", [True, False])
@pytest.mark.parametrize("says", ["get_finished reported", "wait returned for"])
def test_nothing_of_a_job_uses_blocks_once_it_is_over(says: str, *, uses_copies: bool) -> None:
    worker, guard, notes, device = threads()
    worker.uses_copies = uses_copies
    assert guard.submit_store(1, GPU, THERE) and guard.submit_store(2, GPU, THERE)
    worker.waits_for = []
    if says.startswith("wait"):
        guard.let_go({1})
    else:
        worker.ends = [TransferResult(1, success=True)]
        guard.get_finished()
    assert notes.told == []
    for copy in [*device.copies.running.values()]:
        device.copies.advance(copy, 1)
    late = "errand 0" if not uses_copies else "store copy 0"
    assert notes.told == [
        f"OWNERSHIP  rank 0 block 1 (of no request): {late} uses it, but Threads.{says} its job 1 before "
        "it was done: whoever gets the block next doesn't wait for it"
    ]


def test_what_is_done_in_time_may_use_blocks() -> None:
    worker, guard, notes, _ = threads()
    assert guard.submit_store(1, GPU, THERE)
    guard.wait({1})
    worker.ends = [TransferResult(1, success=True)]
    guard.get_finished()
    assert notes.told == []


def test_errands_are_of_the_direction_of_their_jobs() -> None:
    worker, guard, notes, _ = threads()
    assert guard.submit_store(1, GPU, THERE) and guard.submit_load(2, THERE, GPU)
    worker.waits_for[0].exception()
    notes.take()
    guard.wait({1})
    told_to = "waited for errand 1, but it was told to wait for stores"
    assert [said for said in notes.take() if "WORK" in said] == [
        f"WORK  the medium's Threads.wait {told_to}{LAST}"
    ]
    assert guard.submit_store(3, GPU, THERE)
    guard.get_finished()
    asked = "waited for errand 2, but it is only asked which jobs have ended"
    assert notes.take() == [f"WORK  the medium's Threads.get_finished {asked}{LAST}"]


def test_what_an_errand_waits_for_is_its_own() -> None:
    worker, guard, notes, _ = threads()
    assert guard.submit_store(1, GPU, THERE)
    first = worker.waits_for.pop()
    worker.waits_for.append(worker.errands.submit(first.exception))
    guard.get_finished()
    assert notes.told == []
