"""From a configuration to both sides: sizes, what each part is told, and what is undone if one can't be."""

import os
import threading
from dataclasses import replace
from sys import maxsize

import numpy as np
import pytest
from kv_offload_file_rig import PAGE, TAKEN, config

from kv_api import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    ConfigError,
)
from kv_offload_cpu import HostLayout, Options
from kv_offload_cpu.copy import choose
from kv_offload_cpu.copy.host.engine import HostCopyEngine
from kv_offload_cpu.options import CopyEngineChoice, CopySubmission
from kv_offload_file import FileOffloadingSpec
from kv_offload_file.manager import Restore
from kv_offload_file.restore import Found


def caches(num_blocks=(8, 8), groups=((0, 1),)):
    layers = [np.zeros((count, PAGE), np.uint8) for count in num_blocks]
    return CanonicalKVCaches(
        [CanonicalKVCacheTensor(layer, PAGE) for layer in layers],
        [[CanonicalKVCacheRef(layer, PAGE) for layer in group] for group in groups],
    )


def test_sizes(tmp_path):
    spec = FileOffloadingSpec(config(tmp_path, 6, ranks=2))
    assert (spec.num_chunks, spec.slot_bytes, spec.num_bays) == (6, 4096, 6)
    assert FileOffloadingSpec(config(tmp_path, file_bytes_to_use=6 * TAKEN - 1)).num_chunks == 5
    larger = replace(config(tmp_path, file_staging_bytes=4 * 8192), worker_kv_bytes_per_block=2049)
    assert FileOffloadingSpec(larger).slot_bytes == 8192
    usual = FileOffloadingSpec(config(tmp_path, file_bytes_to_use=TAKEN))
    assert (usual.num_chunks, usual.layout()) == (1, HostLayout(1, 2, 4096, 1, 4096))


def test_room_for_less_than_a_chunk(tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"^file_bytes_to_use: 8703 bytes are less than one chunk, which takes 8704: 192 bytes a block × 2 "
        r"blocks, in pages of 4096, and a row of 256, × 2 workers$",
    ):
        FileOffloadingSpec(config(tmp_path, ranks=2, file_bytes_to_use=2 * TAKEN - 1))


def test_too_little_staging_memory(tmp_path):
    FileOffloadingSpec(config(tmp_path, file_staging_bytes=4 * 4096))
    with pytest.raises(ConfigError, match=r"^file_staging_bytes: 16383 bytes are less than 4 chunks of 4096$"):
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
    assert options.pop("info_of")(4).file_num_chunks == 4
    assert options == {
        "cache_policy": "arc",
        "cache_policy_module_path": "theirs",
        "enable_events": True,
        "store_threshold": 3,
        "max_tracker_size": 9,
        "most_in_flight": 3,
        "info": told.file_info,
        "when": Restore.AT_ONCE,
    }
    home.close()


def test_the_inner_engine_is_told_what_was_set(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(choose, "make_copy_engine", lambda *args: told.append(args))
    wishes = {"copy_engine": "host", "copy_threads": 3, "copy_submission": "thread", "pin_memory": False}
    made = FileOffloadingSpec(config(tmp_path, file_staging_bytes=2**16, **wishes))
    made.make_copy_engine("caches", made.layout(), "memory")
    choices = {"copy_engine": CopyEngineChoice.HOST, "copy_submission": CopySubmission.THREAD}
    assert told == [("caches", "memory", Options(2**16, **{**wishes, **choices}))]


def test_the_parts_of_a_worker_are_told_how_much_there_is(tmp_path, monkeypatch):
    spec, told = FileOffloadingSpec(config(tmp_path, chunks=9)), []
    make_memory, make_engine = spec.make_memory, spec.make_engine
    monkeypatch.setattr(spec, "make_memory", lambda bays: (told.append(bays), make_memory(bays))[1])
    monkeypatch.setattr(spec, "make_engine", lambda *parts: (told.append(parts[-1]), make_engine(*parts))[1])
    spec.get_worker(caches((8, 7), ((0,), (0, 1), ()))).shutdown()
    assert told == [HostLayout(6, 2, 4096, 1, 4096), [8, 7, maxsize]]


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
        with pytest.raises(
            ConfigError, match=r"^file_threads: 2 for each direction is too much: can't start new thread$"
        ) as caught:
            spec.get_worker(caches())
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()
    assert caught.value.__traceback__, "whose frames keep alive what the garbage collector would end"
    assert len(os.listdir("/proc/self/fd")) == before
    spec.get_worker(caches()).shutdown()


def test_all_threads_are_there_before_there_is_a_job(tmp_path):
    worker = FileOffloadingSpec(config(tmp_path, file_threads=3)).get_worker(caches())
    names = [thread.name for thread in threading.enumerate()]
    for direction in ("store", "load"):
        assert len([name for name in names if name.startswith(f"kv-file-{direction}")]) == 3
    worker.shutdown()


def test_a_manager_that_can_not_be_made_lets_others_in(tmp_path):
    with pytest.raises(ConfigError, match="policy 'best'; known: "):
        FileOffloadingSpec(config(tmp_path, eviction_policy="best")).get_manager()
    FileOffloadingSpec(config(tmp_path)).get_manager().shutdown()
