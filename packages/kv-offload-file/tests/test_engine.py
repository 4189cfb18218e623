"""Chunks on their way through bays, with threads and an inner engine that do the next thing when told."""

import time

import numpy as np
import pytest
from kv_offload_file_by_hand import LOAD, STORE, ByHand, Inner, Slots, by_hand
from kv_offload_file_rig import make_key

from kv_offload_cpu import PageCopies, Urgency
from kv_offload_file.engine import FileCopyEngine
from kv_offload_file.label import Label
from kv_offload_file.lanes import even_parts


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


@pytest.mark.parametrize(("chunks", "tasks"), [(16, 16), (17, 9), (33, 11)])
def test_a_batch_is_at_most_so_many_tasks_of_threads(chunks, tasks):
    """Of one size, or else a few threads would do most of it: two or three chunks each, where there are many."""
    with by_hand(4 * chunks, chunks) as rig:
        rig.submit(1, LOAD, range(chunks), per_chunk=1)
        assert len(rig.loads.tasks) == tasks
        rig.loads.run()
        rig.poll()
        rig.inner.end()
        assert rig.poll() == [(1, True, 10 * chunks)]


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
    written = [(slot, label.key, label.nth) for _, slot, label, _ in rig.slots.calls]
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


@pytest.mark.parametrize(("num_bays", "then"), [(2, [[0]]), (4, [[1], [0]]), (6, [[1], [2], [0]])])
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


def test_a_store_lets_go_of_its_blocks_when_they_are_in_bays(rig):
    rig.submit(1, STORE, range(3))
    rig.submit(2, LOAD, [9])
    rig.submit(3, STORE, [4])
    rig.loads.run()
    assert (rig.engine.let_go([1, 2, 3, 7]), rig.inner.jobs) == ([1, 3], {}), "the load has ended"
    assert rig.poll() == [(2, True, 20)]
    assert rig.engine.let_go([1]) == [1]
    rig.stores.run()
    assert rig.poll() == [(2, True, 20), (1, True, 60), (3, True, 20)]
    assert rig.engine.let_go([1, 3]) == []


def test_a_load_lets_go_of_its_blocks_when_it_has_ended(rig, monkeypatch):
    """While it is read none is touched, but they will be."""
    rig.submit(1, LOAD, [9])
    waits = []
    monkeypatch.setattr(rig.engine, "wait_for_threads", lambda: (waits.append(1), rig.loads.run()))
    assert (rig.engine.let_go([1]), len(waits)) == ([], 1)
    assert rig.poll() == [(1, True, 20)]


def test_a_store_that_finds_no_bay_lets_go_when_others_are_written(rig, monkeypatch):
    """As after a reset, when the manager doesn't count what is under way."""
    rig.submit(1, STORE, range(4))
    rig.submit(2, STORE, [5])
    waits = []
    monkeypatch.setattr(rig.engine, "wait_for_threads", lambda: (waits.append(1), rig.stores.run(1)))
    assert (rig.engine.let_go([2]), len(waits)) == ([2], 2)
    rig.stores.run()
    assert rig.poll() == [(1, True, 80), (2, True, 20)]


@pytest.mark.parametrize("how", ["fails", "is refused", "is lost"])
def test_a_copy_that_goes_wrong_holds_nobody_up(rig, monkeypatch, how):
    rig.inner.refuses = how == "is refused"
    rig.submit(1, STORE, [0])
    if how == "fails":
        rig.inner.end(success=False)
    elif how == "is lost":
        monkeypatch.setattr(rig.inner, "wait", lambda job_ids: rig.inner.jobs.clear())
    assert rig.engine.let_go([1]) == []
    assert rig.poll() == [(1, False, None)]


def test_a_copy_that_was_given_up_and_ends_after_all_hides_no_other(rig, monkeypatch):
    rig.submit(1, STORE, [0])
    monkeypatch.setattr(rig.inner, "wait", lambda job_ids: None)
    assert rig.engine.let_go([1]) == []
    rig.submit(2, STORE, [1])
    rig.inner.end()
    rig.inner.end()
    rig.poll()
    rig.stores.run()
    assert rig.poll() == [(1, False, None), (2, True, 20)]


@pytest.mark.parametrize("how", ["fails", "is refused", "is lost"])
def test_what_is_written_still_of_a_job_whose_copy_went_wrong_holds_nobody_up(rig, monkeypatch, how):
    monkeypatch.setattr(rig.engine, "wait_for_threads", lambda: pytest.fail("no block is touched any more"))
    rig.submit(1, STORE, range(6 if how == "is refused" else 4))
    rig.inner.end()
    rig.poll()
    if how == "fails":
        rig.inner.end(success=False)
    elif how == "is lost":
        monkeypatch.setattr(rig.inner, "wait", lambda job_ids: rig.inner.jobs.clear())
    else:
        rig.inner.end()
        rig.inner.refuses = True
        rig.stores.run(2)  # the bays of the first two chunks are free for the last two
    assert rig.engine.let_go([1]) == [1]
    rig.stores.run()
    assert rig.poll() == [(1, False, None)]


def test_only_who_has_the_lock_touches_what_threads_are_done_with(rig):
    class Moved(list):
        def append(self, task):
            touched.append(rig.engine._changed._is_owned())
            super().append(task)

    class Engine(FileCopyEngine):
        def __setattr__(self, name, value):
            if name == "_moved":
                touched.append(self._changed._is_owned())
                value = Moved(value)
            super().__setattr__(name, value)

    touched = []
    rig.engine.__class__ = Engine
    rig.submit(1, LOAD, [7])
    rig.loads.run()
    rig.poll()
    assert touched == [True] * 3


def test_a_job_that_failed_may_be_behind_one_that_is_expedited(rig):
    rig.slots.problems[1] = rig.slots.problems[3] = OSError("broken")
    rig.submit(1, LOAD, range(1, 7))
    rig.submit(2, LOAD, range(11, 17), Urgency.EXPEDITED)
    rig.loads.run()
    assert rig.poll() == [(1, False, None)]
    assert [job.job_id for job in rig.engine._lanes[LOAD].queue] == [2, 1]
    while rig.loads.tasks or rig.inner.jobs:
        rig.loads.run()
        rig.poll()
        rig.inner.end()
        rig.poll()
    assert rig.ended == [(1, False, None), (2, True, 120)]
