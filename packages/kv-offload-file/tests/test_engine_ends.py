"""How jobs end that don't go well, what waits for them, and the end of everything."""

import logging

import pytest
from kv_offload_file_by_hand import LOAD, STORE

from kv_api import KVError
from kv_offload_file.slot_file import DamagedError


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


def test_of_what_goes_on_is_said_once_a_minute_how_often(rig, caplog, monkeypatch):
    now = 0.0
    monkeypatch.setattr(rig.engine._telling, "_clock", lambda: now)
    rig.slots.problems = {1: OSError(28, "disk full"), 2: OSError(5, "broken"), 3: DamagedError("other bytes")}
    slots = [
        (1, 0.0),
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
        (3, 4.0),
        (1, 59.0),
        (1, 60.0),
        (1, 61.0),
        (3, 64.0),
        (1, 120.0),
    ]
    for job, (slot, now) in enumerate(slots):  # noqa: B007 - the clock reads it
        rig.submit(job, STORE, [slot])
        rig.inner.end()
        rig.poll()
        rig.stores.run()
        rig.poll()
    assert [record.getMessage() for record in caplog.records] == [
        "store job 0: [Errno 28] disk full",
        "store job 2: [Errno 5] broken",
        "store job 3: other bytes",
        "store job 6: [Errno 28] disk full (and 2 more since that was said last)",
        "store job 8: other bytes (and 1 more since that was said last)",
        "store job 9: [Errno 28] disk full (and 1 more since that was said last)",
    ]
    assert (rig.engine.errors, rig.engine.damaged) == (7, 3)


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
    assert {record.message for record in caplog.records} == {
        f"{direction.value} job 1: a copy can't begin: no such device"
    }
    rig.inner.refuses = False
    rig.submit(2, direction, [0])
    rig.loads.run()
    rig.poll()
    assert len(rig.inner.jobs) == 1, "its bays are free again"
    rig.engine._changed.wait = lambda: rig.stores.run() or rig.loads.run()
    rig.engine.wait({2})
    assert rig.poll() == [(1, False, None), (2, True, 20)]


@pytest.mark.parametrize(("first", "last"), [(0, 20), (-1, 19)])
def test_a_block_that_there_is_not_is_the_submitters_mistake(rig, first, last):
    wrong = range(last - first + 1)
    with pytest.raises(
        KVError, match=rf"^store job 1: block ids of group 0 from {first} to {last}, there are 0 to 19$"
    ):
        rig.submit(1, STORE, wrong, per_chunk=1, block=first)
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


@pytest.mark.parametrize("job", [1, 2])
def test_who_waits_for_stores_waits_for_no_load_and_the_other_way_round(rig, job):
    waiting = rig.engine._changed.wait
    rig.engine._changed.wait = lambda: rig.stores.run() or rig.loads.run()
    rig.submit(1, LOAD, range(2))
    rig.loads.run()
    rig.poll()
    [loading] = rig.inner.jobs
    rig.submit(2, STORE, [3])
    [_, storing] = rig.inner.jobs
    rig.engine.wait({job})
    assert rig.inner.waited == [{{1: loading, 2: storing}[job]}]
    rig.engine._changed.wait = waiting
    assert job in [job_id for job_id, success, _ in rig.poll() if success]


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
