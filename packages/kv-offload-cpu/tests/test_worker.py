"""The worker above an engine that does what a script says: late, twice, never, wrong, or not at all."""

from logging import ERROR
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_api import GPULoadStoreSpec, KVError, TransferResult
from kv_offload_cpu import (
    CopyResult,
    CPULoadStoreSpec,
    CPUOffloadingWorker,
    Direction,
    HostLayout,
    StoreRole,
    Urgency,
    WorkerCounts,
)

LAYOUT = HostLayout(num_chunks=4, blocks_per_chunk=2, slot_bytes=128, slots_per_row=1, row_bytes=128)
BLOCKS, CHUNKS = GPULoadStoreSpec([3, 4], [2], [0]), CPULoadStoreSpec([1])


class ScriptedEngine:
    """Notes what it is asked. ``results`` are what the next poll returns; ``at_wait`` become results by a wait."""

    def __init__(self):
        self.calls = []
        self.results = []
        self.at_wait = []
        self.error = None

    def submit(self, job_id, direction, copies, *, urgency=Urgency.ORDINARY):
        if self.error is not None:
            raise self.error
        columns = zip(copies.groups, copies.blocks, copies.chunks, copies.offsets, strict=True)
        self.calls.append((job_id, direction, urgency, [tuple(map(int, page)) for page in columns]))

    def poll(self):
        results, self.results = self.results, []
        return results

    def wait(self, job_ids):
        self.calls.append(("wait", *job_ids))
        self.results += self.at_wait

    def shutdown(self):
        self.calls.append("shutdown")
        if self.error is not None:
            raise self.error


class Memory:
    """Counts how often it was given back."""

    released = 0

    def release(self):
        self.released += 1


@pytest.fixture
def engine():
    return ScriptedEngine()


@pytest.fixture
def memory():
    return Memory()


@pytest.fixture
def worker(engine, memory):
    one = CPUOffloadingWorker(engine, memory, LAYOUT, num_groups=1)
    yield one
    one.check()


def test_an_engine_that_checks_nothing_has_found_nothing(worker):
    assert [worker.take_counts() for _ in range(2)] == [{}, {}]


def test_a_job_reaches_the_engine_as_pages(engine, worker):
    assert worker.submit_store(1, BLOCKS, CHUNKS)
    assert worker.submit_load(2, CPULoadStoreSpec([2, 0]), GPULoadStoreSpec([5, 6, 7], [3], [1]))
    assert worker.submit_load(3, CHUNKS, BLOCKS, expedited=True)
    pages = [(0, 3, 1, 0), (0, 4, 1, 1)]
    assert engine.calls == [
        (1, Direction.STORE, Urgency.ORDINARY, pages),
        (2, Direction.LOAD, Urgency.ORDINARY, [(0, 5, 2, 1), (0, 6, 0, 0), (0, 7, 0, 1)]),
        (3, Direction.LOAD, Urgency.EXPEDITED, pages),
    ]


def test_each_end_is_reported_once(engine, worker):
    worker.submit_store(1, BLOCKS, CHUNKS)
    worker.submit_load(2, CHUNKS, BLOCKS)
    assert worker.get_finished() == []
    engine.results = [CopyResult(2, True, 10, 0.5), CopyResult(2, True), CopyResult(2, False), CopyResult(9, True)]
    assert worker.get_finished() == [TransferResult(2, True, 10, 0.5)]
    engine.results = [CopyResult(2, True), CopyResult(1, False)]
    assert worker.get_finished() == [TransferResult(1, False)]
    assert worker.get_finished() == []
    assert worker.counts == WorkerCounts(submitted=2, failed=1, lost=0, strays=4)


def test_a_wait_asks_only_for_jobs_that_run(engine, worker):
    worker.wait({1, 2})
    worker.submit_store(1, BLOCKS, CHUNKS)
    engine.calls.clear()
    worker.wait({7})
    assert engine.calls == []
    engine.at_wait = [CopyResult(1, True, 3, 4.0)]
    worker.wait({1, 7})
    worker.wait({1})
    assert engine.calls == [("wait", 1)]
    assert worker.get_finished() == [TransferResult(1, True, 3, 4.0)]


def test_a_job_that_was_waited_for_and_never_ends_has_failed(engine, worker, caplog):
    worker.submit_load(1, CHUNKS, BLOCKS)
    worker.submit_load(2, CHUNKS, BLOCKS)
    worker.wait({1})
    assert caplog.record_tuples == [
        ("kv_offload_cpu", ERROR, "load job 1 is lost: the copy engine has ended without a result for it")
    ]
    assert worker.get_finished() == [TransferResult(1, False)]
    engine.results = [CopyResult(1, True)]  # after all
    assert worker.get_finished() == []
    assert worker.counts == WorkerCounts(submitted=2, failed=1, lost=1, strays=1)


def test_lost_jobs_are_reported_in_the_order_of_their_submission(worker):
    for job_id in (3, 1, 2):
        worker.submit_store(job_id, BLOCKS, CHUNKS)
    worker.wait({1, 2, 3})
    assert [result.job_id for result in worker.get_finished()] == [3, 1, 2]


def test_an_id_may_be_used_again_after_its_report(engine, worker):
    worker.submit_store(1, BLOCKS, CHUNKS)
    engine.results = [CopyResult(1, True)]
    assert [result.job_id for result in worker.get_finished()] == [1]
    worker.submit_load(1, CHUNKS, BLOCKS)
    engine.results = [CopyResult(1, True)]
    assert [result.job_id for result in worker.get_finished()] == [1]


def test_an_engine_that_cannot_begin_a_job_fails_it(engine, worker, caplog):
    engine.error = RuntimeError("out of streams")
    assert worker.submit_store(1, BLOCKS, CHUNKS)
    assert caplog.record_tuples == [
        ("kv_offload_cpu", ERROR, "store job 1 can't begin: RuntimeError: out of streams")
    ]
    assert worker.get_finished() == [TransferResult(1, False)]


def test_a_job_of_nothing_ends_at_once(engine, worker):
    assert worker.submit_store(1, GPULoadStoreSpec([], [0], [0]), CPULoadStoreSpec([]))
    assert worker.get_finished() == [TransferResult(1, True, 0, 0.0)]
    assert engine.calls == []


def test_a_worker_that_does_not_write_acknowledges_at_once(engine, memory):
    worker = CPUOffloadingWorker(engine, memory, LAYOUT, 1, StoreRole.ACKNOWLEDGES)
    worker.submit_store(1, BLOCKS, CHUNKS)
    assert worker.get_finished() == [TransferResult(1, True)]
    worker.submit_load(2, CHUNKS, BLOCKS)
    assert [call[0] for call in engine.calls] == [2]
    worker.check()


def test_shutdown_releases_everything_once_and_nothing_is_left(engine, memory, worker):
    worker.submit_store(1, BLOCKS, CHUNKS)
    worker.shutdown()
    worker.shutdown()
    assert engine.calls[1:] == ["shutdown"]
    assert memory.released == 1
    engine.results = [CopyResult(1, True)]  # nobody asks for it any more
    assert worker.get_finished() == [TransferResult(1, False)]
    assert worker.counts == WorkerCounts(submitted=1, failed=1, lost=0, strays=0)


def test_memory_is_released_when_nothing_copies_any_more(engine, memory, worker, monkeypatch):
    """A copy into memory that is mapped no longer would end the process."""
    order = []
    monkeypatch.setattr(engine, "shutdown", lambda: order.append("engine"))
    monkeypatch.setattr(memory, "release", lambda: order.append("memory"))
    worker.shutdown()
    assert order == ["engine", "memory"]


def test_memory_is_released_even_when_the_engine_cannot_shut_down(engine, memory, worker):
    engine.error = RuntimeError("no")
    with pytest.raises(RuntimeError):
        worker.shutdown()
    assert memory.released == 1


def test_mistakes_are_named_and_change_nothing(engine, worker):
    worker.submit_store(1, BLOCKS, CHUNKS)
    wrong = {
        "load job 1: a store job 1 is still running": lambda: worker.submit_load(1, CHUNKS, BLOCKS),
        "store job 2: expected a CPULoadStoreSpec, got GPULoadStoreSpec": lambda: worker.submit_store(
            2, BLOCKS, BLOCKS
        ),
        "store job 2: expected a CPULoadStoreSpec, got list": lambda: worker.submit_store(2, BLOCKS, [1]),
        "store job 2: chunk ids from 4 to 4, there are 0 to 3": lambda: worker.submit_store(
            2, BLOCKS, CPULoadStoreSpec([4])
        ),
    }
    for message, call in wrong.items():
        with pytest.raises(KVError) as caught:
            call()
        assert str(caught.value) == message
    engine.error = KVError("page 0 of the job: block 99, expected 0 to 7")
    with pytest.raises(KVError, match="block 99"):
        worker.submit_store(2, BLOCKS, CHUNKS)
    engine.error = None
    assert len(engine.calls) == worker.counts.submitted == 1
    worker.shutdown()
    with pytest.raises(KVError) as caught:
        worker.submit_store(2, BLOCKS, CHUNKS)
    assert str(caught.value) == "store job 2: submitted after shutdown"


def test_ids_may_be_arrays_of_numpy_as_in_vllm(engine, worker):
    blocks = SimpleNamespace(block_ids=np.array([3, 4]), group_sizes=[2], block_indices=[0])
    worker.submit_load(1, SimpleNamespace(block_ids=np.array([1])), blocks)
    assert engine.calls == [(1, Direction.LOAD, Urgency.ORDINARY, [(0, 3, 1, 0), (0, 4, 1, 1)])]


@given(st.data())
def test_above_a_hostile_engine_each_job_is_reported_once(data):
    """Results come late, twice, for others, or never; waits end with or without them."""
    engine = ScriptedEngine()
    worker = CPUOffloadingWorker(engine, Memory(), LAYOUT, num_groups=1)
    submitted, outcome, reported = [], {}, []

    def results():
        found = data.draw(st.lists(st.builds(CopyResult, st.integers(0, 12), st.booleans()), max_size=4))
        for result in found:
            if result.job_id in submitted:
                outcome.setdefault(result.job_id, result.success)  # the first word counts
        return found

    for job_id in range(data.draw(st.integers(1, 10))):
        engine.error = RuntimeError("refused") if data.draw(st.integers(0, 5)) == 0 else None
        submitted.append(job_id)
        if engine.error is not None:
            outcome[job_id] = False
        worker.submit_store(job_id, BLOCKS, CHUNKS)
        engine.error = None
        if data.draw(st.booleans()):
            engine.results = results()
            reported += worker.get_finished()
        if data.draw(st.booleans()):
            waited = data.draw(st.sets(st.integers(0, 12)))
            running = [job_id for job_id in submitted if job_id in waited and job_id not in outcome]
            if running:
                engine.at_wait = results()
                outcome |= {job_id: False for job_id in running if job_id not in outcome}
            worker.wait(waited)
            engine.at_wait = []
            assert not waited & worker._running.keys()
        worker.check()
    worker.shutdown()
    reported += worker.get_finished()
    worker.check()
    assert sorted(result.job_id for result in reported) == submitted
    assert {result.job_id: result.success for result in reported} == dict.fromkeys(submitted, False) | outcome


def test_check_sees_a_job_that_is_lost_to_the_books(worker):
    worker.submit_store(1, BLOCKS, CHUNKS)
    worker._running.clear()
    with pytest.raises(AssertionError, match="running 0 \\+ ended 0 \\+ reported 0 != submitted 1"):
        worker.check()
    worker._running[1] = Direction.STORE
