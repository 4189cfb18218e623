"""Checksums: a changed byte fails the load that would have taken it, before anything is copied."""

from logging import ERROR

import numpy as np
import pytest
from kv_offload_cpu_layouts import Job, Shape, Tensor, make_caches, offloading_config

from kv_api import KVError, TransferResult
from kv_offload_cpu import CPUOffloadingSpec, Direction, Urgency, WorkerCounts
from kv_offload_cpu.copy.checksum import ChecksummingEngine
from kv_offload_cpu.copy.engine import CopyResult
from kv_offload_cpu.copy.ranges.pages import page_copies
from kv_offload_cpu.stats import CHECKSUM_MISMATCHES

SHAPE = Shape(8, 2, (Tensor(64), Tensor(32)), (((0, 64), (1, 30)), ((1, 32),)))
STORED = Job(((3, 4, 5), (6,)), ((2, 1), (0,)), (0, 1))
ROW = 96 * 2


@pytest.fixture
def arrays():
    return make_caches(SHAPE, 0)


@pytest.fixture
def worker(arrays):
    one = CPUOffloadingSpec(offloading_config(96, 2, cpu_bytes_to_use=4 * 4096, checksum=True)).get_worker(
        arrays[1]
    )
    yield one
    one.check()
    one.engine.check()
    one.shutdown()


def run(worker, job_id, job, direction):
    if direction is Direction.STORE:
        worker.submit_store(job_id, job.gpu_spec, job.cpu_spec)
    else:
        worker.submit_load(job_id, job.cpu_spec, job.gpu_spec)
    worker.wait({job_id})
    [result] = worker.get_finished()
    return result.success


LOADED = [
    # Chunk and the byte in it that changes; whether a load of everything and one of the first block notice.
    ((2, 0), True, True),  # of group 0, in tensor 0
    ((2, 63), True, True),
    ((2, 64), True, False),  # of the second block
    ((2, 128), True, True),  # in tensor 1
    ((2, 157), True, True),
    ((2, 158), True, False),
    ((2, 188), False, False),  # behind the pages of this group
    ((1, 131), True, False),
    ((1, 67), False, False),  # a page of the chunk that was never stored
    ((0, 31), False, False),  # another, of group 1
    ((0, 32), True, False),
    ((0, 63), True, False),
    ((0, 64), False, False),  # behind the pages of this group, which is in tensor 1 only
]


@pytest.mark.parametrize(("place", "all_notice", "first_notices"), LOADED, ids=str)
def test_a_changed_byte_fails_the_loads_that_take_it(worker, arrays, place, all_notice, first_notices):
    assert run(worker, 1, STORED, Direction.STORE)
    memory = worker._memory.bytes
    chunk, byte = place
    memory[chunk * ROW + byte] ^= 1
    del memory
    before = [array.copy() for array in arrays[0]]
    assert run(worker, 2, STORED, Direction.LOAD) is not all_notice
    if all_notice:
        assert all(map(np.array_equal, arrays[0], before))
        assert worker.engine.mismatches == 1
    first = Job(((0,), ()), ((2,), ()), (0, 0))
    assert run(worker, 3, first, Direction.LOAD) is not first_notices


def test_what_was_stored_over_is_vouched_for_anew(worker):
    for job_id, begin in enumerate(range(0, 4, 2)):
        job = Job(((begin, begin + 1), ()), ((2,), ()), (0, 0))
        assert run(worker, job_id, job, Direction.STORE)
        assert run(worker, 9, job, Direction.LOAD)


def test_a_failed_load_is_reported_once_beside_others(worker, caplog):
    assert run(worker, 1, STORED, Direction.STORE)
    for chunk in (2, 1):
        worker._memory.bytes[chunk * ROW] ^= 1
    worker.submit_load(2, STORED.cpu_spec, STORED.gpu_spec)
    assert caplog.record_tuples == [
        (
            "kv_offload_cpu",
            ERROR,
            "load job 2 failed: 2 pages changed in host memory (wrong checksum), of chunks [1, 2]",
        )
    ]
    good = Job(((), (1,)), ((), (0,)), (0, 1))
    worker.submit_load(3, good.cpu_spec, good.gpu_spec)
    worker.wait({2, 3})
    results = {result.job_id: result for result in worker.get_finished()}
    assert results[2] == TransferResult(2, False)
    assert results[3].success
    assert worker.get_finished() == []
    assert worker.counts == WorkerCounts(submitted=3, failed=1, lost=0, strays=0)


def test_changed_pages_are_counted_once(worker):
    assert worker.take_counts() == {}
    assert run(worker, 1, STORED, Direction.STORE)
    assert worker.take_counts() == {}
    for chunk in (2, 1):
        worker._memory.bytes[chunk * ROW] ^= 1
    assert not run(worker, 2, STORED, Direction.LOAD)
    assert worker.take_counts() == {CHECKSUM_MISMATCHES: 2}
    assert worker.take_counts() == {}
    assert not run(worker, 3, STORED, Direction.LOAD)
    assert worker.take_counts() == {CHECKSUM_MISMATCHES: 2}


def test_a_load_that_makes_no_sense_is_refused_before_memory_is_read(worker):
    wrong = Job(((99,), ()), ((2,), ()), (0, 0))
    with pytest.raises(KVError, match="block 99, expected 0 to 7"):
        worker.submit_load(1, wrong.cpu_spec, wrong.gpu_spec)


class LateEngine:
    """Notes what it is asked, and reports what it is told to."""

    results = ()

    def __init__(self):
        self.asked = []

    def submit(self, job_id, direction, copies, *, urgency=Urgency.ORDINARY):
        self.asked.append((job_id, direction, copies, urgency))

    def poll(self):
        results, self.results = self.results, ()
        return list(results)

    def wait(self, job_ids):
        self.asked.append(("wait", *job_ids))

    def shutdown(self):
        self.asked.append("shutdown")


@pytest.fixture
def late(worker):
    """An engine over one that is late, over the memory of a worker; and the pages of a job."""
    real, inner = worker.engine, LateEngine()
    real._memory[:] = 7
    engine = ChecksummingEngine(inner, real._plan, real._memory, real._sums)
    yield engine, page_copies("job", STORED.gpu_spec, STORED.cpu_spec.block_ids, real._plan.layout, 2)
    engine.check()


def end(engine, *results):
    engine.inner.results = results
    assert engine.poll() == list(results)


def test_a_store_that_was_lost_vouches_for_nothing_when_it_is_heard_of_later(late):
    engine, copies = late
    engine.submit(1, Direction.STORE, copies)
    engine.wait([1])
    end(engine, CopyResult(1, True))
    assert not engine._sums.any()


def test_a_store_that_could_not_begin_vouches_for_nothing(late, monkeypatch):
    engine, copies = late

    def refuse(*job, **urgency):
        raise OSError("no device")

    monkeypatch.setattr(engine.inner, "submit", refuse)
    with pytest.raises(OSError, match="no device"):
        engine.submit(1, Direction.STORE, copies)
    end(engine, CopyResult(1, True))
    assert not engine._sums.any()


def test_a_store_vouches_once_and_only_if_it_landed(late):
    engine, copies = late
    engine.submit(1, Direction.STORE, copies)
    end(engine, CopyResult(1, False))
    assert not engine._sums.any()
    engine.submit(2, Direction.STORE, copies)
    end(engine, CopyResult(2, True))
    vouched = engine._sums.copy()
    assert np.count_nonzero(vouched) == len(copies)
    engine._memory[:] = 8
    end(engine, CopyResult(2, True), CopyResult(1, True))  # once more
    assert np.array_equal(engine._sums, vouched)


def test_the_engine_below_is_told_everything(late):
    engine, copies = late
    engine.submit(1, Direction.STORE, copies, urgency=Urgency.EXPEDITED)
    end(engine, CopyResult(1, True))
    engine.submit(2, Direction.LOAD, copies, urgency=Urgency.EXPEDITED)
    engine.wait([2])
    engine.shutdown()
    assert engine.inner.asked == [
        (1, Direction.STORE, copies, Urgency.EXPEDITED),
        (2, Direction.LOAD, copies, Urgency.EXPEDITED),
        ("wait", 2),
        "shutdown",
    ]


def test_after_a_shutdown_it_holds_no_memory_and_looks_at_none(late):
    engine, copies = late
    engine.submit(1, Direction.STORE, copies)
    engine.shutdown()
    assert (engine._memory.size, engine._sums.size) == (0, 0)
    end(engine, CopyResult(1, True))
