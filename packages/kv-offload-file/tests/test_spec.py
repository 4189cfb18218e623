"""From a configuration to both halves: sizes, settings and what is wrong with them."""

import fcntl
import os
import threading
from dataclasses import asdict, replace

import numpy as np
import pytest
from kv_offload_file_rig import PAGE, TAKEN, Rig, config, make_key, make_keys

from kv_api import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    ConfigError,
    GPULoadStoreSpec,
    KVError,
)
from kv_offload_cpu import CPULoadStoreSpec, Direction, Options, Urgency
from kv_offload_cpu.copy import choose
from kv_offload_cpu.copy.host.engine import HostCopyEngine
from kv_offload_cpu.options import CopyEngineChoice
from kv_offload_file import FileLoadStoreSpec, FileOffloadingSpec, FileOptions
from kv_offload_file.options import read_options
from kv_offload_file.restore import Found

OURS = {"file_dir": "somewhere", "file_bytes_to_use": 1e9}


def caches(num_blocks=8):
    layers = [np.zeros((num_blocks, PAGE), np.uint8) for _ in range(2)]
    return CanonicalKVCaches(
        [CanonicalKVCacheTensor(layer, PAGE) for layer in layers],
        [[CanonicalKVCacheRef(0, PAGE), CanonicalKVCacheRef(1, PAGE)]],
    )


def without(extra, key):
    return {name: value for name, value in extra.items() if name != key}


def test_settings_and_their_defaults():
    assert asdict(read_options(OURS)) == {
        "file_dir": "somewhere",
        "file_bytes_to_use": 10**9,
        "file_tag": "",
        "file_staging_bytes": 512 * 2**20,
        "file_threads": 4,
        "file_direct": False,
        "eviction_policy": "lru",
        "cache_policy_module_path": None,
        "store_threshold": 0,
        "max_tracker_size": 64_000,
        "copy_engine": CopyEngineChoice.AUTO,
        "copy_threads": 0,
        "pin_memory": True,
    }
    given = {
        "file_dir": "/there",
        "file_bytes_to_use": 10**6,
        "file_tag": "tuned",
        "file_staging_bytes": 10**5,
        "file_threads": 7,
        "file_direct": True,
        "eviction_policy": "arc",
        "cache_policy_module_path": "theirs",
        "store_threshold": 3,
        "max_tracker_size": 9,
        "copy_engine": "host",
        "copy_threads": 2,
        "pin_memory": False,
    }
    assert read_options({**given, "block_size": 48}) == FileOptions(
        **{**given, "copy_engine": CopyEngineChoice.HOST}
    )
    assert {*given} == {*FileOptions.__dataclass_fields__} == FileOffloadingSpec.extra_keys


@pytest.mark.parametrize("key", ["file_dir", "file_bytes_to_use"])
@pytest.mark.parametrize("unset", [without, lambda extra, key: {**extra, key: None}])
def test_what_must_be_set(key, unset):
    with pytest.raises(ConfigError, match=f"^{key}: not set; it is the (folder|room)"):
        read_options(unset(OURS, key))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("file_dir", 7, "file_dir: expected str, got 7"),
        ("file_bytes_to_use", 0, "file_bytes_to_use: expected a number of bytes, at least 1, got 0"),
        ("file_bytes_to_use", "1e9", "file_bytes_to_use: expected a number of bytes"),
        ("file_tag", None, "file_tag: expected str, got None"),
        ("file_staging_bytes", -1, "file_staging_bytes: expected a number of bytes"),
        ("file_threads", 0, "file_threads: expected a whole number of at least 1, got 0"),
        ("file_direct", 1, r"file_direct: expected bool, got 1"),
        ("copy_engine", "fast", "copy_engine"),
        ("file_thread", 1, "file_thread"),
        ("file_byte_to_use", 1, "file_bytes_to_use"),
    ],
)
def test_what_is_wrong_is_named(key, value, said):
    with pytest.raises(ConfigError, match=said):
        read_options({**OURS, key: value})


def test_sizes(tmp_path):
    spec = FileOffloadingSpec(config(tmp_path, 6, ranks=2))
    assert (spec.num_chunks, spec.slot_bytes, spec.num_bays) == (6, 4096, 6)
    assert FileOffloadingSpec(config(tmp_path, file_bytes_to_use=6 * TAKEN - 1)).num_chunks == 5
    larger = replace(config(tmp_path, file_staging_bytes=4 * 8192), worker_kv_bytes_per_block=2049)
    assert FileOffloadingSpec(larger).slot_bytes == 8192
    usual = FileOffloadingSpec(config(tmp_path, file_bytes_to_use=TAKEN))
    assert (usual.num_chunks, usual.layout().num_chunks) == (1, 1)


def test_room_for_less_than_a_chunk(tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"file_bytes_to_use: 8703 bytes are less than one chunk, which takes 8704: 192 bytes a block × 2 "
        r"blocks, in pages of 4096, and a row of 256, × 2 workers",
    ):
        FileOffloadingSpec(config(tmp_path, ranks=2, file_bytes_to_use=2 * TAKEN - 1))


def test_too_little_staging_memory(tmp_path):
    FileOffloadingSpec(config(tmp_path, file_staging_bytes=4 * 4096))
    with pytest.raises(ConfigError, match="file_staging_bytes: 16383 bytes are less than 4 chunks of 4096"):
        FileOffloadingSpec(config(tmp_path, file_staging_bytes=4 * 4096 - 1))


def test_more_staging_memory_than_there_is_is_named_by_its_own_setting(tmp_path):
    spec = FileOffloadingSpec(config(tmp_path, file_staging_bytes=2**62))
    with pytest.raises(ConfigError, match=r"^file_staging_bytes: private host memory would take"):
        spec.get_worker(caches())


def test_the_manager_is_told_what_was_set(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(
        "kv_offload_file.spec.FileOffloadingManager", lambda *args, **options: made.append((args, options))
    )
    told = FileOffloadingSpec(
        config(
            tmp_path,
            events=True,
            eviction_policy="arc",
            cache_policy_module_path="theirs",
            store_threshold=3,
            max_tracker_size=9,
        )
    )
    told.get_manager()
    [((num_chunks, home, found), options)] = made
    assert (num_chunks, found) == (6, Found([], 1))
    assert options == {
        "cache_policy": "arc",
        "cache_policy_module_path": "theirs",
        "enable_events": True,
        "store_threshold": 3,
        "max_tracker_size": 9,
        "info": told.file_info,
    }
    home.close()


def test_the_inner_engine_is_told_what_was_set(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(choose, "make_copy_engine", lambda *args: told.append(args))
    made = FileOffloadingSpec(
        config(tmp_path, copy_engine="host", copy_threads=3, pin_memory=False, file_staging_bytes=2**16)
    )
    made.make_copy_engine("caches", made.layout(), "memory")
    wishes = Options(2**16, copy_engine=CopyEngineChoice.HOST, copy_threads=3, pin_memory=False)
    assert told == [("caches", "memory", wishes)]


def test_both_halves_are_made_once(tmp_path):
    spec = FileOffloadingSpec(config(tmp_path))
    assert spec.get_manager() is spec.get_manager()
    worker = spec.get_worker(caches())
    assert spec.get_worker(caches()) is worker
    worker.shutdown()
    spec.get_manager().shutdown()


@pytest.mark.parametrize(
    ("broken", "given_back"), [("make_slots", ["engine", "memory"]), ("make_copy_engine", ["memory"])]
)
def test_a_worker_that_can_not_be_made_leaves_nothing_open(tmp_path, monkeypatch, broken, given_back):
    def fail(*args):
        raise RuntimeError("no")

    spec = FileOffloadingSpec(config(tmp_path))
    released = []
    memory = spec.make_memory(spec.layout())
    release = memory.release
    monkeypatch.setattr(memory, "release", lambda: (released.append("memory"), release()))
    monkeypatch.setattr(spec, "make_memory", lambda layout: memory)
    monkeypatch.setattr(spec, broken, fail)
    monkeypatch.setattr(HostCopyEngine, "shutdown", lambda engine: released.append("engine"))
    before = os.listdir("/proc/self/task")
    with pytest.raises(RuntimeError, match="no"):
        spec.get_worker(caches())
    assert released == given_back
    assert os.listdir("/proc/self/task") == before


@pytest.mark.parametrize("begun", [0, 1, 3])
def test_threads_that_can_not_begin_are_refused_at_the_start(tmp_path, monkeypatch, begun):
    start, started = threading.Thread.start, []

    def refuse(thread):
        if len(started) == begun:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    before = len(os.listdir("/proc/self/fd"))
    spec = FileOffloadingSpec(config(tmp_path, copy_threads=1))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ConfigError, match=r"^file_threads: 2 for each direction is too much: can't start"):
            spec.get_worker(caches())
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()
    assert len(os.listdir("/proc/self/fd")) == before
    spec.get_worker(caches()).shutdown()


def test_all_threads_are_there_before_there_is_a_job(tmp_path):
    worker = FileOffloadingSpec(config(tmp_path, file_threads=3)).get_worker(caches())
    names = [thread.name for thread in threading.enumerate()]
    for direction in ("store", "load"):
        assert len([name for name in names if name.startswith(f"kv-file-{direction}")]) == 3
    worker.shutdown()


def test_a_manager_that_can_not_be_made_lets_others_in(tmp_path):
    with pytest.raises(ConfigError, match="unknown policy 'best'"):
        FileOffloadingSpec(config(tmp_path, eviction_policy="best")).get_manager()
    FileOffloadingSpec(config(tmp_path)).get_manager().shutdown()


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


def test_the_other_mediums_places_are_refused(tmp_path, engines):
    rig = engines()
    worker, gpu = rig.ranks[0].worker, GPULoadStoreSpec([0, 1], [2], [0])
    with pytest.raises(KVError, match="store job 1: expected a FileLoadStoreSpec, got CPULoadStoreSpec"):
        worker.submit_store(1, gpu, CPULoadStoreSpec([0]))
    with pytest.raises(KVError, match="load job 1: expected a FileLoadStoreSpec, got GPULoadStoreSpec"):
        worker.submit_load(1, gpu, gpu)
    with pytest.raises(KVError, match="store job 1: chunk ids from 6 to 6, there are 0 to 5"):
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
