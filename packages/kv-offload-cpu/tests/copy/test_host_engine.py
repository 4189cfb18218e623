"""The host engine: order, overtaking, failures, waiting and shutting down, with copies that wait for the test."""

from logging import ERROR
from threading import Barrier, Event, Thread
from threading import enumerate as enumerate_threads
from time import perf_counter
from weakref import ref

import numpy as np
import pytest
from kv_offload_cpu_ids import looks_at

from kv_api import CanonicalKVCacheRef, KVError
from kv_offload_cpu import CopyResult, Direction, HostLayout, PageCopies, Urgency
from kv_offload_cpu.copy.host.engine import HostCopyEngine
from kv_offload_cpu.copy.host.memmove import BY_C
from kv_offload_cpu.copy.host.moves import Mover
from kv_offload_cpu.copy.host.streaming import find_streaming
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan
from kv_offload_cpu.copy.ranges.tensors import DeviceTensor, TensorPages

STORE, LOAD = Direction.STORE, Direction.LOAD
PAGE_BYTES = 16


class Gate:
    """A mover whose moves wait until the test lets them go on; each is noted by what it writes to."""

    def __init__(self):
        self.begun = []
        self.first_began = Event()
        self.open = Event()
        self.failing = set()

    def __call__(self, targets, sources, sizes):
        self.begun.append(int(targets[0]))
        self.first_began.set()
        assert self.open.wait(30)
        if self.begun[-1] in self.failing:
            raise OSError("torn")


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def engine(gate):
    """An engine over addresses that nothing ever touches: blocks from 0 on, chunks from 1000 on."""
    tensors = [DeviceTensor(TensorPages(8, PAGE_BYTES, PAGE_BYTES), "cpu", None)]
    plan = CopyPlan(
        [tensors[0].pages], [[CanonicalKVCacheRef(0, PAGE_BYTES)]], HostLayout(8, 1, 16, 1, 16), 0, 1000
    )
    engine = HostCopyEngine(plan, tensors, 1, Mover(gate, 1))
    yield engine
    gate.open.set()
    engine.shutdown()
    engine.check()


def page(block):
    """The page of a block, in the chunk of the same number."""
    return PageCopies(*(np.array([number]) for number in (0, block, block, 0)))


def finish(engine, gate, job_ids):
    gate.open.set()
    engine.wait(job_ids)
    engine.check()
    return sorted((result.job_id, result.success) for result in engine.poll())


def test_expedited_loads_overtake_loads_that_have_not_begun(engine, gate):
    for job_id in (1, 2, 3):
        engine.submit(job_id, LOAD, page(job_id))
    gate.first_began.wait(30)
    for job_id in (4, 5):
        engine.submit(job_id, LOAD, page(job_id), urgency=Urgency.EXPEDITED)
    engine.check()
    assert finish(engine, gate, range(6)) == [(job_id, True) for job_id in range(1, 6)]
    assert gate.begun == [16, 64, 80, 32, 48]


def test_a_store_does_not_wait_for_a_load(engine, gate):
    engine.submit(1, LOAD, page(1))
    gate.first_began.wait(30)
    gate.first_began.clear()
    engine.submit(2, STORE, page(2))
    assert gate.first_began.wait(30)
    assert gate.begun == [16, 1032]
    assert engine.poll() == []
    assert finish(engine, gate, [1, 2]) == [(1, True), (2, True)]


@pytest.mark.parametrize(("ending", "staying"), [(LOAD, STORE), (STORE, LOAD)])
def test_a_job_that_ends_leaves_that_of_the_other_lane_running(engine, gate, ending, staying):
    begun, may_end = Event(), Event()

    def move(targets, sources, sizes):
        if (int(targets[0]) >= 1000) == (staying is STORE):
            begun.set()
            assert may_end.wait(30)

    gate.open.set()
    engine._mover = Mover(move, 1)
    engine.submit(1, staying, page(1))
    assert begun.wait(30)
    engine.submit(2, ending, page(2))
    engine.wait([2])
    engine.check()
    assert [result.job_id for result in engine.poll()] == [2]
    may_end.set()
    assert finish(engine, gate, [1]) == [(1, True)]


def test_a_lane_is_one_thread(engine, gate):
    before = {*enumerate_threads()}
    for job_id in range(4):
        engine.submit(job_id, (STORE, LOAD)[job_id % 2], page(job_id))
    names = [thread.name for thread in {*enumerate_threads()} - before]
    assert sorted(names) == ["kv-load_0", "kv-store_0"]
    assert finish(engine, gate, range(4)) == [(job_id, True) for job_id in range(4)]


def sharing_engine(move, threads, tensor=None):
    """An engine of which a page is worth a thread, and a job of twelve pages that touch nothing."""
    tensors = [DeviceTensor(TensorPages(12, PAGE_BYTES, 2 * PAGE_BYTES), "cpu", tensor)]
    layout = HostLayout(12, 1, PAGE_BYTES, 1, PAGE_BYTES)
    plan = CopyPlan([tensors[0].pages], [[CanonicalKVCacheRef(0, PAGE_BYTES)]], layout, 0)
    job = PageCopies(np.zeros(12, np.int64), np.arange(12), np.arange(12), np.zeros(12, np.int64))
    return HostCopyEngine(plan, tensors, threads, Mover(move, PAGE_BYTES)), job


@pytest.mark.parametrize(
    ("asked", "cores", "threads"), [(0, 1, 1), (0, 3, 3), (0, 9, 4), (6, 2, 6), (1, 9, 1), (0, None, 1)]
)
@pytest.mark.parametrize("has_affinity", [True, False])
def test_as_many_threads_share_a_job_as_there_are_cores(monkeypatch, asked, cores, threads, has_affinity):
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    if has_affinity:
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(cores or 1), raising=False)
        monkeypatch.setattr("os.cpu_count", lambda: 99)
    pieces = []
    engine, job = sharing_engine(lambda targets, sources, sizes: pieces.append(len(sizes)), asked)
    engine.submit(1, STORE, job)
    engine.wait([1])
    engine.shutdown()
    assert pieces == [12 // threads] * threads


def test_what_it_copies_lives_as_long_as_it(gate):
    tensor = np.zeros(1)
    seen, (engine, _) = ref(tensor), sharing_engine(gate, 1, tensor)
    del tensor
    assert seen() is not None, "its pages are somebody else's by now"
    engine.shutdown()


def test_both_lanes_have_their_helpers_at_once():
    all_at_work = Barrier(6)
    engine, job = sharing_engine(lambda targets, sources, sizes: all_at_work.wait(30), 3)
    for job_id, direction in enumerate(Direction):
        engine.submit(job_id, direction, job)
    engine.wait([0, 1])
    assert sorted((result.job_id, result.success) for result in engine.poll()) == [(0, True), (1, True)]
    engine.shutdown()


def test_a_failed_copy_is_a_failed_result_and_the_next_one_runs(engine, gate, caplog):
    gate.failing = {16}
    engine.submit(1, LOAD, page(1))
    engine.submit(2, LOAD, page(2))
    assert finish(engine, gate, [1, 2]) == [(1, False), (2, True)]
    assert caplog.record_tuples == [("kv_offload_cpu", ERROR, "load job 1 failed: OSError: torn")]


def test_who_waits_for_a_copy_is_woken_also_if_it_fails(engine, gate, monkeypatch):
    gate.failing = {16}
    engine.submit(1, LOAD, page(1))
    wait = engine._changed.wait

    def wait_a_while():
        gate.open.set()  # not before, or it would have ended by now
        assert wait(10), "nobody was told of the end"

    monkeypatch.setattr(engine._changed, "wait", wait_a_while)
    engine.wait([1])
    assert [(result.job_id, result.success) for result in engine.poll()] == [(1, False)]


def test_a_result_has_the_bytes_and_the_time(engine, gate):
    begin = perf_counter()
    engine.submit(1, STORE, page(1))
    gate.open.set()
    engine.wait([1])
    passed = perf_counter() - begin
    [result] = engine.poll()
    assert result == CopyResult(1, True, PAGE_BYTES, result.seconds)
    assert 0 <= result.seconds <= passed


def test_a_job_that_makes_no_sense_is_refused_and_not_queued(engine):
    with pytest.raises(KVError, match="block 8, expected 0 to 7"):
        engine.submit(1, STORE, page(8))
    engine.wait([1])
    engine.check()


class OneByOne:
    """Stands for the engine's condition: who waits is woken by the end of the next job."""

    def __init__(self, end_next):
        self.wait = end_next

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def wait_for(self, predicate):
        while not predicate():
            self.wait()


def test_waiting_looks_at_each_job_a_few_times_however_many_there_are(engine, monkeypatch):
    def wait(job_ids):
        pending = dict.fromkeys(reversed(range(len(job_ids))))  # the first one ends first
        monkeypatch.setattr(engine, "_pending", pending.keys())
        monkeypatch.setattr(engine, "_changed", OneByOne(pending.popitem))
        engine.wait(job_ids)
        assert not pending
        monkeypatch.undo()

    assert looks_at(100, wait) < 11 * looks_at(10, wait)


def test_waiting_for_unknown_and_ended_jobs_returns(engine, gate):
    engine.wait([5])
    engine.submit(1, STORE, page(1))
    assert finish(engine, gate, [1, 5]) == [(1, True)]
    engine.wait([1])


def test_shutdown_cancels_what_is_queued_and_ends_what_runs(engine, gate, monkeypatch):
    engine.submit(1, LOAD, page(1))
    engine.submit(2, LOAD, page(2))
    gate.first_began.wait(30)
    lane = engine._lanes[LOAD]
    end_of_lane = lane.shutdown

    def let_the_copy_end():
        gate.open.set()
        end_of_lane()

    monkeypatch.setattr(lane, "shutdown", let_the_copy_end)
    engine.shutdown()
    engine.shutdown()
    assert gate.begun == [16]
    engine.wait([1, 2])
    assert (1, True) in [(result.job_id, result.success) for result in engine.poll()]
    with pytest.raises(RuntimeError):
        engine.submit(3, LOAD, page(3))


def test_who_waits_for_what_a_shutdown_cancels_goes_on_at_once(engine, gate, monkeypatch):
    for job_id in (1, 2):
        engine.submit(job_id, LOAD, page(job_id))
    gate.first_began.wait(30)
    waits, wait = Event(), engine._changed.wait
    monkeypatch.setattr(engine._changed, "wait", lambda: waits.set() or wait())
    waiter = Thread(target=engine.wait, args=([2],), daemon=True)
    waiter.start()
    waits.wait(30)
    lane = engine._lanes[LOAD]
    monkeypatch.setattr(lane, "shutdown", lambda: waiter.join(10))
    engine.shutdown()
    assert not waiter.is_alive(), "the copy under way has not ended"


@pytest.mark.parametrize("mover", [BY_C, find_streaming()], ids=["C", "streaming"])
def test_jobs_of_one_direction_run_in_order_and_both_at_once(mover):
    """Many jobs under way, shared by threads: the last store of a chunk and the last load of a block win."""
    pages, page_bytes = 8, 3 << 20
    cache, memory = (np.repeat(np.arange(pages) + first, page_bytes).astype(np.uint8) for first in (0, 100))
    tensors = [DeviceTensor(TensorPages(pages, page_bytes, page_bytes, cache.ctypes.data), "cpu", cache)]
    layout = HostLayout(pages, 1, page_bytes, 1, page_bytes)
    plan = CopyPlan([tensors[0].pages], [[CanonicalKVCacheRef(0, page_bytes)]], layout, 0, memory.ctypes.data)
    engine = HostCopyEngine(plan, tensors, 3, mover._replace(piece_bytes=1 << 20))

    def submit(job_id, direction, block, chunk):
        engine.submit(job_id, direction, PageCopies(*(np.array([n]) for n in (0, block, chunk, 0))))

    for round_ in range(10):  # blocks 0 to 3 go to chunk 0, and chunks 4 to 7 to block 4
        submit(2 * round_, STORE, round_ % 4, 0)
        submit(2 * round_ + 1, LOAD, 4, 4 + round_ % 4)
    engine.wait(range(20))
    assert sorted((result.job_id, result.success) for result in engine.poll()) == [(n, True) for n in range(20)]
    engine.check()
    engine.shutdown()
    wanted_cache, wanted_memory = list(range(pages)), [100 + n for n in range(pages)]
    wanted_memory[0], wanted_cache[4] = 1, 105
    for array, wanted in ((cache, wanted_cache), (memory, wanted_memory)):
        assert [set(np.unique(page)) for page in array.reshape(pages, page_bytes)] == [{n} for n in wanted]


def test_no_thread_outlives_an_engine():
    size = 4 << 20
    cache, memory = np.ones(2 * size, np.uint8), np.zeros(2 * size, np.uint8)
    tensors = [DeviceTensor(TensorPages(2, size, size, cache.ctypes.data), "cpu", cache)]
    plan = CopyPlan(
        [tensors[0].pages],
        [[CanonicalKVCacheRef(0, size)]],
        HostLayout(2, 1, size, 1, size),
        0,
        memory.ctypes.data,
    )
    before = {*enumerate_threads()}
    engine = HostCopyEngine(plan, tensors, 3, BY_C)
    for job_id, direction in enumerate(Direction):
        engine.submit(job_id, direction, PageCopies(*(np.array(ids) for ids in ([0, 0], [0, 1], [0, 1], [0, 0]))))
    engine.wait([0, 1])
    names = {thread.name.partition("_")[0] for thread in {*enumerate_threads()} - before}
    assert names == {"kv-store", "kv-load", "kv-copy"}
    engine.shutdown()
    assert {*enumerate_threads()} == before


def test_check_sees_a_job_that_is_nowhere(engine):
    engine._pending.add(7)
    with pytest.raises(AssertionError, match=r"queued \[\] \+ running \[\] != \{7\}"):
        engine.check()
    engine._pending.clear()
