"""Chunks on their way through bays, with threads and an inner engine that do the next thing when told."""

import logging
import time
from types import SimpleNamespace

import numpy as np
import pytest
from kv_offload_file_rig import ByHand, make_key

from kv_api import KVError
from kv_offload_cpu import CopyResult, Direction, PageCopies, Urgency
from kv_offload_file.engine import FileCopyEngine, even_parts
from kv_offload_file.label import Label
from kv_offload_file.slot_file import DamagedError

STORE, LOAD = Direction.STORE, Direction.LOAD


class Inner:
    """An inner engine whose copies end when told."""

    def __init__(self):
        self.jobs, self.results, self.waited = {}, [], []
        self.refuses = self.is_shut_down = False

    def submit(self, job_id, direction, copies, *, urgency=Urgency.ORDINARY):
        if self.refuses:
            raise RuntimeError("no such device")
        self.jobs[job_id] = (direction, copies, urgency)

    def bays(self):
        return [sorted({*copies.chunks.tolist()}) for _, copies, _ in self.jobs.values()]

    def end(self, success=True):
        """The oldest copy."""
        job_id = next(iter(self.jobs))
        _, copies, _ = self.jobs.pop(job_id)
        self.results.append(CopyResult(job_id, success, 10 * len(copies) if success else None))

    def poll(self):
        results, self.results = self.results, []
        return results

    def wait(self, job_ids):
        self.waited.append({*job_ids})
        while self.jobs.keys() & {*job_ids}:
            self.end()

    def shutdown(self):
        self.is_shut_down = True


class Slots:
    def __init__(self):
        self.calls, self.problems, self.is_closed = [], {}, False

    def write(self, slot, label, bay):
        self._do("write", slot, label, bay)

    def read(self, slot, label, bay):
        self._do("read", slot, label, bay)

    def _do(self, what, slot, label, bay):
        self.calls.append((what, slot, label, bay))
        if slot in self.problems:
            raise self.problems[slot]

    def close(self):
        self.is_closed = True


@pytest.fixture
def rig():
    """An engine with four bays for stores (0 to 3) and four for loads, recounted at the end."""
    inner, slots, threads = Inner(), Slots(), {STORE: ByHand(), LOAD: ByHand()}
    engine = FileCopyEngine(inner, slots, 8, [20], threads.__getitem__)
    made = SimpleNamespace(
        engine=engine, inner=inner, slots=slots, stores=threads[STORE], loads=threads[LOAD], ended=[]
    )

    def submit(job_id, direction, slots, urgency=Urgency.ORDINARY, per_chunk=2, skip=0):
        """So many blocks a chunk, of which the first is entered after ``skip``."""
        pages = [(slot, offset) for slot in slots for offset in range(per_chunk)][skip:]
        columns = [np.array(column, np.int64) for column in zip(*pages, strict=True)]
        blocks = np.arange(len(pages), dtype=np.int64)
        engine.labels[job_id] = [Label(make_key(slot), 1, job_id, place) for place, slot in enumerate(slots)]
        try:
            engine.submit(job_id, direction, PageCopies(0 * blocks, blocks, *columns), urgency=urgency)
        finally:
            del engine.labels[job_id]
        engine.check()

    def poll():
        made.ended += [(result.job_id, result.success, result.num_bytes) for result in engine.poll()]
        engine.check()
        return made.ended

    made.submit, made.poll = submit, poll
    yield made
    engine.check()


def test_a_store_is_copied_and_then_written(rig):
    rig.submit(1, STORE, [7, 5])
    [(direction, copies, _)] = rig.inner.jobs.values()
    assert direction is STORE
    assert copies.blocks.tolist() == [0, 1, 2, 3]
    assert copies.chunks.tolist() == [0, 0, 1, 1]
    assert copies.offsets.tolist() == [0, 1, 0, 1]
    assert rig.poll() == [] and not rig.stores.tasks
    rig.inner.end()
    assert rig.poll() == [] and not rig.slots.calls
    rig.stores.run(1)
    assert rig.poll() == []
    rig.stores.run()
    assert rig.poll() == [(1, True, 40)]
    assert rig.slots.calls == [
        ("write", 7, Label(make_key(7), 1, 1, 0), 0),
        ("write", 5, Label(make_key(5), 1, 1, 1), 1),
    ]
    assert rig.poll() == [(1, True, 40)], "each once"


def test_a_job_says_how_long_it_took(rig):
    before = time.perf_counter()
    rig.submit(1, STORE, [7])
    rig.inner.end()
    rig.engine.poll()
    rig.stores.run()
    [result] = rig.engine.poll()
    assert 0 <= result.seconds <= time.perf_counter() - before


def test_a_load_is_read_and_then_copied(rig):
    rig.submit(1, LOAD, [7, 5], skip=1)
    assert not rig.inner.jobs and not rig.slots.calls
    rig.loads.run()
    assert [(what, slot, bay) for what, slot, _, bay in rig.slots.calls] == [("read", 7, 4), ("read", 5, 5)]
    assert rig.poll() == []
    [(direction, copies, _)] = rig.inner.jobs.values()
    assert direction is LOAD
    assert (copies.blocks.tolist(), copies.chunks.tolist(), copies.offsets.tolist()) == (
        [0, 1, 2], [4, 5, 5], [1, 0, 1]
    )  # fmt: skip
    rig.inner.end()
    assert rig.poll() == [(1, True, 30)]


def test_a_large_job_goes_in_parts_of_which_one_is_copied_while_another_is_written(rig):
    rig.submit(1, STORE, range(7), per_chunk=1)
    assert rig.inner.bays() == [[0, 1], [2, 3]], "half of its bays each"
    rig.inner.end()
    rig.poll()
    rig.stores.run()
    rig.poll()
    assert rig.inner.bays() == [[2, 3], [0, 1]], "bays are used again"
    assert [slot for _, slot, _, _ in rig.slots.calls] == [0, 1]
    for _ in range(3):
        rig.inner.end()
        rig.poll()
        rig.stores.run()
        rig.poll()
    assert rig.ended == [(1, True, 70)]
    written = [(slot, label.key, label.place) for _, slot, label, _ in rig.slots.calls]
    assert written == [(slot, make_key(slot), slot) for slot in range(7)]


def test_many_chunks_are_few_tasks_that_have_all_of_them(rig):
    assert [[*part] for part in even_parts(7, 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert even_parts(2, 16) == [range(1), range(1, 2)]
    assert even_parts(0, 16) == []
    for count in range(1, 200):
        parts = even_parts(count, 16)
        assert [number for part in parts for number in part] == [*range(count)]
        assert len(parts) == min(count, len(parts), 16)


def test_jobs_wait_for_bays_in_their_order_and_directions_not_for_each_other(rig):
    rig.submit(1, STORE, range(4))
    rig.submit(2, STORE, range(4, 6))
    rig.submit(3, STORE, [6])
    rig.submit(4, LOAD, [9])
    assert rig.inner.bays() == [[0, 1], [2, 3]]
    assert len(rig.loads.tasks) == 1
    rig.inner.end()
    rig.poll()
    rig.stores.run(1)
    rig.poll()
    assert rig.inner.bays() == [[2, 3]], "bays of a batch are free when all of it is written"
    rig.stores.run(1)
    rig.poll()
    assert [copies.blocks.tolist() for _, copies, _ in rig.inner.jobs.values()] == [[4, 5, 6, 7], [0, 1, 2, 3]]


@pytest.mark.parametrize(("num_bays", "then"), [(4, [[1], [0]]), (6, [[1], [2], [0]])])
def test_of_few_bays_no_more_than_half_go_at_once(num_bays, then):
    inner, threads = Inner(), ByHand()
    engine = FileCopyEngine(inner, Slots(), num_bays, [20], lambda direction: threads)
    chunks = np.arange(4)
    engine.labels[1] = [Label(make_key(slot), 1, 1, slot) for slot in range(4)]
    engine.submit(1, STORE, PageCopies(0 * chunks, chunks, chunks, 0 * chunks))
    assert inner.bays() == [[bay] for bay in range(num_bays // 2)]
    inner.end()
    engine.poll()
    threads.run()
    engine.poll()
    assert inner.bays() == then
    engine.check()


def test_a_job_that_finds_few_bays_takes_these_and_the_rest_later(rig):
    rig.submit(1, STORE, [0])
    rig.submit(2, STORE, [1, 2])
    rig.submit(3, STORE, [3, 4, 5])
    assert rig.inner.bays() == [[0], [1, 2], [3]]
    for _ in range(6):
        if rig.inner.jobs:
            rig.inner.end()
        rig.poll()
        rig.stores.run()
    assert [slot for _, slot, _, _ in rig.slots.calls] == [0, 1, 2, 3, 4, 5]
    assert rig.poll() == [(1, True, 20), (2, True, 40), (3, True, 60)]


def test_an_expedited_load_overtakes_what_has_not_begun(rig):
    rig.submit(1, LOAD, range(4))
    rig.submit(2, LOAD, [4])
    rig.submit(3, LOAD, [5], Urgency.EXPEDITED)
    rig.submit(4, LOAD, [6], Urgency.EXPEDITED)
    rig.loads.run()
    rig.poll()
    assert [job[2] for job in rig.inner.jobs.values()] == [Urgency.ORDINARY] * 2
    rig.inner.end()
    rig.poll()
    rig.loads.run()
    rig.poll()
    assert [slot for _, slot, _, _ in rig.slots.calls] == [0, 1, 2, 3, 5, 6]
    assert [job[2] for job in rig.inner.jobs.values()] == [Urgency.ORDINARY, Urgency.EXPEDITED, Urgency.EXPEDITED]


def test_a_load_that_was_overtaken_and_then_failed_is_in_nobodys_way(rig):
    rig.slots.problems = {0: OSError("no")}
    rig.submit(1, LOAD, range(6))
    rig.submit(2, LOAD, [8], Urgency.EXPEDITED)
    rig.submit(3, LOAD, [9])
    for _ in range(4):
        rig.loads.run()
        rig.poll()
        rig.inner.wait([*rig.inner.jobs])
        rig.poll()
    assert sorted(slot for _, slot, _, _ in rig.slots.calls) == [0, 1, 2, 3, 8, 9]
    assert sorted(rig.ended) == [(1, False, None), (2, True, 20), (3, True, 20)]


def test_expedited_loads_keep_their_order(rig):
    rig.submit(1, LOAD, range(4))
    for job_id in (2, 3, 4):
        rig.submit(job_id, LOAD, [job_id + 10], Urgency.EXPEDITED)
    for _ in range(3):
        rig.loads.run()
        rig.poll()
        rig.inner.wait([*rig.inner.jobs])
        rig.poll()
    assert [slot for _, slot, _, _ in rig.slots.calls] == [0, 1, 2, 3, 12, 13, 14]


def test_an_expedited_load_overtakes_what_has_begun_in_part(rig):
    rig.submit(1, LOAD, range(6))
    rig.submit(2, LOAD, [8], Urgency.EXPEDITED)
    rig.loads.run()
    rig.poll()
    rig.inner.end()
    rig.poll()
    rig.loads.run()
    assert [slot for _, slot, _, _ in rig.slots.calls] == [0, 1, 2, 3, 8, 4]
    rig.poll()


@pytest.mark.parametrize(
    ("problem", "damaged", "errors"),
    [(DamagedError("slot 1 has other bytes"), 1, 0), (OSError("disk full"), 0, 1)],
)
@pytest.mark.parametrize("direction", [STORE, LOAD])
def test_what_goes_wrong_with_a_chunk_is_the_failure_of_its_job(rig, caplog, direction, problem, damaged, errors):
    rig.slots.problems = {1: problem}
    rig.submit(1, direction, range(6))
    rig.submit(2, direction, [9])
    threads = rig.stores if direction is STORE else rig.loads
    for _ in range(6):
        if rig.inner.jobs:
            rig.inner.end()
        rig.poll()
        threads.run()
    assert rig.poll() == [(1, False, None), (2, True, 20)]
    assert sorted(slot for _, slot, _, _ in rig.slots.calls) == [0, 1, 2, 3, 9], "the rest is let be"
    assert (rig.engine.damaged, rig.engine.errors) == (damaged, errors)
    assert f"{direction.value} job 1: {problem}" in caplog.text
    assert {record.name for record in caplog.records} == {"kv_offload_file"}


@pytest.mark.parametrize("direction", [STORE, LOAD])
def test_a_copy_that_fails_fails_its_job_and_what_was_copied_is_not_written(rig, direction):
    rig.submit(1, direction, range(3))
    if direction is LOAD:
        rig.loads.run()
        rig.poll()
    rig.inner.end(success=False)
    rig.inner.end()
    rig.poll()
    rig.stores.run()
    assert rig.poll() == [(1, False, None)]
    assert 0 not in [slot for what, slot, _, _ in rig.slots.calls if what == "write"]


@pytest.mark.parametrize("direction", [STORE, LOAD])
def test_a_copy_that_can_not_begin(rig, caplog, direction):
    rig.inner.refuses = True
    rig.submit(1, direction, range(3))
    rig.loads.run()
    assert rig.poll() == [(1, False, None)]
    assert f"{direction.value} job 1: a copy can't begin: no such device" in caplog.text
    rig.inner.refuses = False
    rig.submit(2, direction, [0])
    rig.loads.run()
    rig.poll()
    assert len(rig.inner.jobs) == 1, "its bays are free again"
    rig.engine._changed.wait = lambda: rig.stores.run() or rig.loads.run()
    rig.engine.wait({2})
    assert rig.poll() == [(1, False, None), (2, True, 20)]


def test_a_block_that_there_is_not_is_the_submitters_mistake(rig):
    with pytest.raises(KVError, match="store job 1: block ids of group 0 from 0 to 20, there are 0 to 19"):
        rig.submit(1, STORE, range(21), per_chunk=1)
    assert not rig.inner.jobs
    assert rig.poll() == []
    rig.submit(1, STORE, range(20), per_chunk=1)
    rig.submit(2, STORE, [20], per_chunk=1)


def test_who_waits_takes_part(rig):
    """Threads are run from inside the wait, as if they were others."""
    rig.submit(1, STORE, range(4))
    rig.submit(2, LOAD, range(3))
    waiting = rig.engine._changed.wait
    rig.engine._changed.wait = lambda: rig.stores.run() or rig.loads.run()
    rig.engine.wait({1})
    assert {job_id for job_id, success, _ in rig.poll() if success} >= {1}
    rig.engine.wait({1, 2, 77})
    rig.engine._changed.wait = waiting
    assert sorted(rig.poll()) == [(1, True, 80), (2, True, 60)]


def test_a_copy_of_which_nothing_is_heard_is_given_up_by_who_waited_for_it(rig, monkeypatch):
    rig.submit(1, STORE, [0])
    monkeypatch.setattr(rig.inner, "wait", lambda job_ids: None)
    rig.engine.wait({1})
    assert rig.poll() == [(1, False, None)]
    rig.inner.end()
    assert rig.poll() == [(1, False, None)], "what is heard of it later is nothing new"
    assert not rig.stores.tasks


def test_a_wait_for_nobody_touches_nothing(rig):
    rig.submit(1, STORE, [0])
    rig.engine.wait({5})
    rig.engine.wait(set())
    assert rig.inner.waited == []


def test_the_end_cancels_what_has_not_begun_and_closes_the_file(rig, caplog):
    rig.submit(1, STORE, range(9))
    rig.submit(2, LOAD, range(3))
    rig.engine.shutdown()
    assert rig.stores.is_shut_down and rig.loads.is_shut_down
    assert rig.inner.is_shut_down and rig.slots.is_closed
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    for lane in rig.engine._lanes.values():
        lane.batches.clear()
        lane.free = [*lane.bays]


def test_the_file_is_closed_whatever_the_inner_engine_does(rig, monkeypatch):
    def fail():
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(rig.inner, "shutdown", fail)
    with pytest.raises(RuntimeError, match="the device is gone"):
        rig.engine.shutdown()
    assert rig.slots.is_closed
