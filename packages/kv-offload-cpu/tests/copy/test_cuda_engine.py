"""The CUDA engine over a device that runs what it was given in any order its streams and events allow."""

from logging import ERROR
from weakref import ref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_offload_cpu_ids import looks_at
from kv_offload_cpu_layouts import BytesModel, Job, Shape, Tensor, jobs, shapes
from kv_offload_cpu_machine import NUM_CHUNKS, WAYS, Machine, one_block

from kv_api import KVError
from kv_offload_cpu import CopyResult, Direction, Urgency
from kv_offload_cpu.copy.cuda.engine import EachRange

FEWER = settings(max_examples=max(10, settings().max_examples // 2))
"""One of these takes long."""

STORE, LOAD = Direction.STORE, Direction.LOAD


@pytest.fixture
def machine():
    one = Machine(Shape(6, 1, (Tensor(8),), (((0, 8),),)))
    yield one
    one.engine.check()


@pytest.mark.parametrize("way", WAYS)
@FEWER
@given(st.data())
def test_in_any_order_of_the_device_jobs_see_what_was_submitted_before_them(way, data):
    random = data.draw(st.randoms(use_true_random=False))
    slots = data.draw(st.integers(1, 2))
    machine = Machine(data.draw(shapes()), WAYS[way], random, data.draw(st.integers(0, slots - 1)), slots)
    arrays, expected = machine.arrays, [array.copy() for array in machine.arrays]
    model = BytesModel(machine.shape)
    submitted = []
    blocks_in_use, chunks_in_use = set(), set()
    for job_id in range(data.draw(st.integers(1, 5))):
        job = data.draw(jobs(machine.shape, NUM_CHUNKS))
        # The model computes or zeroes these blocks before; a store has to see that, a load to come after it.
        written = sorted({block for blocks in job.blocks for block in blocks})
        value = job_id + 1
        chunks = {chunk for chunks in job.chunks for chunk in chunks}
        if data.draw(st.booleans()) or not (
            blocks_in_use.isdisjoint(written) and chunks_in_use.isdisjoint(chunks)
        ):
            # Blocks and chunks of jobs under way are nobody else's: those end first.
            machine.engine.wait(submitted) if data.draw(st.booleans()) else machine.device.run(random)
            blocks_in_use, chunks_in_use = set(), set()
        blocks_in_use |= set(written)
        chunks_in_use |= chunks

        def write(target, blocks=written, value=value):
            for array in target:
                array[blocks] = value

        machine.device.compute(lambda write=write: write(arrays))
        write(expected)
        direction = data.draw(st.sampled_from(Direction))
        machine.submit(job_id, direction, job, data.draw(st.sampled_from(Urgency)))
        (model.store if direction is STORE else model.load)(expected, job)
        submitted.append(job_id)
    machine.device.run(random)
    assert sorted(machine.finished()) == [(job_id, True) for job_id in submitted]
    assert all(map(np.array_equal, arrays, expected))
    assert np.array_equal(machine.memory, machine.expected_memory(model))
    assert machine.check() == 0
    machine.engine.shutdown()
    assert machine.device.is_shut_down


def test_a_store_waits_for_what_the_model_was_given_before_and_for_nothing_after(machine):
    machine.device.compute(lambda: machine.arrays[0].fill(1))
    machine.submit(1, STORE, one_block(2))
    machine.device.compute(lambda: machine.arrays[0].fill(2))
    assert machine.device.runnable() == [0]
    machine.device.step(0)  # writes 1
    machine.device.step(0)  # the mark
    store_stream = machine.device.runnable()[1]
    while machine.device.streams[store_stream]:
        machine.device.step(store_stream)
    assert machine.finished() == [(1, True)]
    assert machine.memory[16:24].tolist() == [1] * 8


def test_lanes_run_beside_each_other_and_each_in_order(machine):
    machine.submit(1, LOAD, one_block(1))
    machine.submit(2, LOAD, one_block(2))
    machine.submit(3, LOAD, one_block(3), Urgency.EXPEDITED)
    machine.submit(4, STORE, one_block(4))
    while machine.device.streams[0]:
        machine.device.step(0)
    stores, loads, expedited = (machine.device.streams[index] for index in (1, 2, 3))
    assert [len(stream) for stream in (stores, loads, expedited)] == [4, 8, 4]
    for stream, ended in ((3, [(3, True)]), (1, [(4, True)]), (2, [(1, True), (2, True)])):
        while machine.device.streams[stream]:
            machine.device.step(stream)
        assert machine.finished() == ended


def test_an_expedited_store_stays_behind_the_stores_before_it(machine):
    machine.submit(1, STORE, one_block(1))
    machine.submit(2, STORE, one_block(1), Urgency.EXPEDITED)
    assert [len(stream) for stream in machine.device.streams[1:]] == [8, 0, 0]


def test_a_stream_that_cannot_be_drained_leaves_none_of_the_others_running(monkeypatch):
    machine = Machine(Shape(6, 1, (Tensor(8),), (((0, 8),),)), WAYS["staged"])
    drained, wrong = [], machine.methods[1].streams[0]

    def drain(stream):
        drained.append(stream)
        if stream == wrong:
            raise RuntimeError("it is lost")

    monkeypatch.setattr(machine.device, "drain", drain)
    machine.engine.shutdown()
    assert drained == [stream for method in machine.methods for stream in method.streams]


def test_what_a_job_was_prepared_with_is_kept_until_its_streams_are_idle(monkeypatch):
    left = []

    class Prepared:
        def __init__(self, *given):
            self.given = given
            left.append(ref(self))

    class EachPrepared(EachRange):
        def prepare(self, direction, copies):
            return Prepared(*super().prepare(direction, copies))

        def give(self, prepared):
            super().give(prepared.given)

    machine = Machine(Shape(6, 1, (Tensor(8),), (((0, 8),),)), EachPrepared)
    machine.submit(1, STORE, one_block(1))
    kept = []
    monkeypatch.setattr(machine.device, "drain", lambda stream: kept.append(left[0]() is not None))
    machine.engine.shutdown()
    assert kept[0]


def test_only_the_heads_of_the_queues_are_asked(machine):
    for job_id in range(4):
        machine.submit(job_id, LOAD, one_block(job_id))
    assert machine.finished() == []
    assert len(machine.device.asked) == 1


def test_a_result_has_the_bytes_and_the_time(machine):
    machine.submit(1, STORE, one_block(1))
    machine.device.run()
    assert machine.engine.poll() == [CopyResult(1, True, 8, 2.0)]


def test_a_wait_ends_its_jobs_and_leaves_later_ones(machine):
    for job_id in (1, 2, 3):
        machine.submit(job_id, LOAD, one_block(job_id))
    machine.engine.wait([2, 77])
    assert machine.finished() == [(1, True), (2, True)]
    machine.engine.wait([])
    assert machine.finished() == []
    for job_id in (4, 5):
        machine.submit(job_id, LOAD, one_block(job_id))
    machine.engine.wait([3, 4])
    assert machine.finished() == [(3, True), (4, True)]


def test_a_wait_looks_at_each_job_a_few_times_however_many_there_are(machine):
    def wait(job_ids):
        for number in range(len(job_ids)):
            machine.submit(number, STORE, one_block(0))
            machine.submit(-1 - number, LOAD, one_block(1))  # for which nobody waits
        machine.engine.wait(job_ids)
        machine.device.run()
        assert len(machine.finished()) == 2 * len(job_ids)

    assert looks_at(100, wait) < 11 * looks_at(10, wait)


def errors(*messages):
    return [("kv_offload_cpu", ERROR, message) for message in messages]


@pytest.mark.parametrize("method", ["mark_compute", "hold", "mark_time", "copy", "go"])
def test_a_job_that_cannot_begin_fails_once_its_stream_is_idle(machine, method, caplog):
    machine.submit(1, STORE, one_block(1))
    machine.device.failing = {method}
    machine.submit(2, STORE, one_block(2))
    assert machine.device.streams[1] == []
    machine.device.failing = set()
    machine.submit(3, STORE, one_block(3))
    machine.device.run()
    assert sorted(machine.finished()) == [(1, True), (2, False), (3, True)]
    assert caplog.record_tuples == errors(f"job 2 failed at the begin of its copy: RuntimeError: {method} failed")


@pytest.mark.parametrize("failing", [{"is_reached"}, {"is_reached", "wait_for", "drain"}])
def test_a_device_that_is_lost_fails_its_jobs_and_hangs_nobody(machine, failing, caplog):
    machine.submit(1, STORE, one_block(1))
    machine.submit(2, LOAD, one_block(2))
    machine.device.failing = failing
    machine.engine.wait([1, 2])
    assert machine.finished() == [(1, False), (2, False)]
    undrained = "a stream can't be drained: RuntimeError: drain failed"
    waits = [f"job {job_id} can't be waited for: RuntimeError: wait_for failed" for job_id in (1, 2)]
    ends = [f"job {job_id} failed at the end of its copy: RuntimeError: is_reached failed" for job_id in (1, 2)]
    if "drain" in failing:
        expected = [waits[0], undrained, waits[1], undrained, ends[0], undrained, ends[1], undrained]
    else:
        expected = ends
    assert caplog.record_tuples == errors(*expected)
    machine.engine.shutdown()


def test_a_wait_that_fails_waits_for_the_whole_stream(machine):
    machine.submit(1, LOAD, one_block(1))
    machine.submit(2, LOAD, one_block(2))
    machine.device.failing = {"wait_for"}
    machine.engine.wait([1])
    assert machine.device.streams[2] == []
    assert machine.finished() == [(1, True), (2, True)]


def test_shutdown_finishes_everything(machine):
    machine.submit(1, STORE, one_block(1))
    machine.submit(2, LOAD, one_block(2), Urgency.EXPEDITED)
    machine.engine.shutdown()
    assert machine.device.streams[1:] == [[], [], []]
    assert machine.device.is_shut_down
    assert machine.finished() == []


def test_a_job_that_makes_no_sense_reaches_no_stream(machine):
    with pytest.raises(KVError, match="block 6, expected 0 to 5"):
        machine.submit(1, STORE, Job(((6,),), ((1,),), (0,)))
    assert machine.device.streams == [[], [], [], []]
