"""The worker: whole ways of chunks, whose they are, and what is counted."""

import fcntl
import gc
import os
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
from kv_offload_file_rig import PAGE, Rig, config, make_key, make_keys

from kv_api import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
    KVError,
)
from kv_offload_cpu import CPULoadStoreSpec, Direction, Urgency
from kv_offload_file import FileLoadStoreSpec, FileOffloadingSpec


@pytest.mark.parametrize("direct", [False, True])
def test_an_engine_stores_and_loads_and_stops(tmp_path, direct):
    rig = Rig(tmp_path, 40, ranks=2, blocks_per_chunk=1, file_direct=direct)
    for rank in rig.ranks:
        flags = fcntl.fcntl(rank.worker.engine._slots._file._slots, fcntl.F_GETFL)
        assert bool(flags & os.O_DIRECT) == direct
    assert rig.store(range(16)) == make_keys(range(16))
    assert rig.load([3, 0, 15, 7, 8])
    assert rig.load(range(16)), "more than there are bays"
    assert rig.hits(range(20)) == 16
    rig.check()
    rig.stop()


def test_a_group_has_the_blocks_of_its_smallest_tensor(tmp_path):
    layers = [np.zeros((blocks, PAGE), np.uint8) for blocks in (9, 5, 7)]
    made = FileOffloadingSpec(replace(config(tmp_path), groups=2 * config(tmp_path).groups))
    worker = made.get_worker(
        CanonicalKVCaches(
            [CanonicalKVCacheTensor(layer, PAGE) for layer in layers],
            [
                [CanonicalKVCacheRef(0, PAGE), CanonicalKVCacheRef(1, PAGE), CanonicalKVCacheRef(2, PAGE)],
                [],
                [CanonicalKVCacheRef(2, PAGE), CanonicalKVCacheRef(0, PAGE)],
            ],
        )
    )
    places = FileLoadStoreSpec([0], [make_key(0)], 1, 1)
    for sizes, blocks, said in (
        ([1, 0, 0], [5], "0 from 5 to 5, there are 0 to 4"),
        ([0, 0, 1], [7], "2 from 7 to 7"),
    ):
        with pytest.raises(KVError, match=f"store job 1: block ids of group {said}"):
            worker.submit_store(1, GPULoadStoreSpec(blocks, sizes, [0, 0, 0]), places)
    worker.shutdown()


def test_a_load_that_a_step_waits_for_is_told_as_one(engines, monkeypatch):
    rig = engines()
    rig.store([1])
    worker, told = rig.ranks[0].worker, []

    def submit(job_id, direction, copies, *, urgency):
        told.append((job_id, direction, urgency, worker.engine.labels[job_id][0].key))

    monkeypatch.setattr(worker.engine, "submit", submit)
    monkeypatch.setattr(worker.engine, "wait", lambda job_ids: None)
    spec, gpu = rig.manager.prepare_load(make_keys([1]), rig.context), GPULoadStoreSpec([0, 1], [2], [0])
    assert worker.submit_load(1, spec, gpu)
    assert worker.submit_load(2, spec, gpu, expedited=True)
    assert worker.submit_store(3, gpu, spec)
    assert told == [
        (1, Direction.LOAD, Urgency.ORDINARY, make_key(1)),
        (2, Direction.LOAD, Urgency.EXPEDITED, make_key(1)),
        (3, Direction.STORE, Urgency.ORDINARY, make_key(1)),
    ]
    worker.wait({1, 2, 3})
    assert [result.success for result in worker.get_finished()] == [False] * 3
    rig.manager.complete_load(make_keys([1]), rig.context)


def test_blocks_that_a_store_let_go_of_may_be_written_while_it_goes_on(engines, monkeypatch):
    rig, may_write, keys = engines(), Event(), make_keys([1])
    rank, slots = rig.ranks[0], rig.ranks[0].worker.engine._slots
    write = slots.write

    def write_late(*arguments):
        assert may_write.wait(2)
        write(*arguments)

    monkeypatch.setattr(slots, "write", write_late)
    output, blocks = rig.manager.prepare_store(keys, rig.context), rig.blocks_of(keys)
    rank.fill(keys, blocks)
    rank.worker.submit_store(1, GPULoadStoreSpec(blocks, [len(blocks)], [0]), output.store_spec)
    assert rank.worker.let_go({1, 2}) == [1]
    assert rank.worker.get_finished() == []
    for layer in rank.layers:
        layer[:] = 0
    may_write.set()
    rank.worker.wait({1})
    assert [result.success for result in rank.worker.get_finished()] == [True]
    rig.manager.complete_store(keys, rig.context)
    assert rig.load([1])


def test_the_other_mediums_places_are_refused(tmp_path, engines):
    rig = engines()
    worker, gpu = rig.ranks[0].worker, GPULoadStoreSpec([0, 1], [2], [0])
    with pytest.raises(KVError, match=r"^store job 1: expected a FileLoadStoreSpec, got CPULoadStoreSpec$"):
        worker.submit_store(1, gpu, CPULoadStoreSpec([0]))
    with pytest.raises(KVError, match=r"^load job 1: expected a FileLoadStoreSpec, got GPULoadStoreSpec$"):
        worker.submit_load(1, gpu, gpu)
    with pytest.raises(KVError, match=r"^store job 1: chunk ids from 6 to 6, there are 0 to 5$"):
        worker.submit_store(1, gpu, FileLoadStoreSpec([6], [make_key(0)], 1, 1))
    assert worker.engine.labels == {}
    assert worker.get_finished() == []


def test_what_was_damaged_is_counted_once(engines):
    rig = engines()
    rig.store([1, 2])
    with (rig.folder / "rank-0.slots").open("r+b") as file:
        file.write(b"other bytes")
    assert not rig.load([1, 2])
    worker = rig.ranks[0].worker
    assert worker.take_counts() == {"vllm:kv_offload_file_damaged": 1}
    assert worker.take_counts() == {}


def test_what_the_system_can_not_read_is_counted_apart(engines):
    rig = engines()
    rig.store([1])
    os.truncate(rig.folder / "rank-0.slots", 100)
    assert not rig.load([1])
    assert rig.ranks[0].worker.take_counts() == {"vllm:kv_offload_file_errors": 1}


def test_what_went_wrong_keeps_no_staging_memory(tmp_path, caplog):
    rig = Rig(tmp_path)
    rig.store([1, 2])
    with (rig.folder / "rank-0.slots").open("r+b") as file:
        file.write(b"other bytes")
    gc.disable()
    try:
        assert not rig.load([1])
        os.truncate(rig.folder / "rank-0.slots", 100)
        assert not rig.load([2])
        rig.stop()
    finally:
        gc.enable()
    assert [record.name for record in caplog.records] == 2 * ["kv_offload_file"], "no word of memory"


def test_a_part_of_a_chunk_is_loaded_from_its_middle(engines):
    rig = engines()
    rig.store([1, 2])
    rank, keys = rig.ranks[0], make_keys([1, 2])
    for layer in rank.layers:
        layer[:] = 0
    spec = rig.manager.prepare_load(keys, rig.context)
    rank.worker.submit_load(9, spec, GPULoadStoreSpec([20, 21], [2], [1]))
    rank.worker.wait({9})
    assert [result.success for result in rank.worker.get_finished()] == [True]
    rig.manager.complete_load(keys, rig.context)
    for layer, values in enumerate(rank.expected(keys[0])[1]):
        assert (rank.layers[layer][20] == values).all()
    for layer, values in enumerate(rank.expected(keys[1])[0]):
        assert (rank.layers[layer][21] == values).all()
    assert not rank.layers[0][22].any()
