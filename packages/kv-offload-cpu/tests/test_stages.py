"""Workers that are stages of a pipeline: other layers each, so chunks of other sizes, or nothing of a group."""

import os
from itertools import count

import numpy as np
import pytest
from kv_offload_cpu_layouts import Job, Shape, Tensor, make_caches, offloading_config

from kv_api import CanonicalKVCaches, ConfigError, KVError, ReqContext, make_offload_key
from kv_offload_cpu import CPUOffloadingManager, CPUOffloadingSpec
from kv_offload_cpu.memory import memory_bytes
from kv_offload_cpu.policy import POLICIES

PAGE = CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT


def spec_of(rank, bytes_per_block, stages=2, ranks=2, **extra):
    extra.setdefault("cpu_bytes_to_use", 3075 * PAGE)
    return CPUOffloadingSpec(offloading_config(bytes_per_block, 1, rank, ranks, stages=stages, **extra))


def caches_of(bytes_per_block, num_blocks=8):
    shape = Shape(num_blocks, 1, (Tensor(bytes_per_block),), (((0, bytes_per_block),),))
    return make_caches(shape, 0)


def test_each_worker_has_memory_of_its_own_and_says_how_many_chunks_it_holds():
    specs = [spec_of(rank, size) for rank, size in enumerate((PAGE, PAGE * 3 // 2))]
    workers = [spec.get_worker(caches_of(spec.config.worker_kv_bytes_per_block)[1]) for spec in specs]
    assert [spec.shares_memory for spec in specs] == [False, False]
    assert [worker.num_chunks for worker in workers] == [spec.num_chunks for spec in specs] == [1537, 1025]
    assert [spec.worker_layout().row_bytes for spec in specs] == [PAGE, PAGE * 3 // 2]
    for worker in workers:
        worker.shutdown()


@pytest.mark.parametrize(
    ("stages", "memory", "shares"), [(1, "auto", True), (2, "auto", False), (2, "shared", True)]
)
def test_only_workers_with_the_same_layers_share_unless_they_are_told_to(stages, memory, shares):
    assert spec_of(0, PAGE, stages=stages, host_memory=memory).shares_memory is shares


@pytest.mark.parametrize("first", [0, 1])
def test_slots_of_one_file_never_lie_over_each_other(tmp_path, first):
    """Of these two stages each cuts the same bytes into other rows; that they want as many shows nothing."""
    specs = [
        spec_of(rank, size, host_memory="shared", shared_memory_dir=str(tmp_path))
        for rank, size in enumerate((PAGE, PAGE * 3 // 2))
    ]
    assert len({memory_bytes(spec.layout) for spec in specs}) == 1
    assert len({spec.layout.row_bytes for spec in specs}) == 2
    made = specs[first].get_worker(caches_of(specs[first].config.worker_kv_bytes_per_block)[1])
    other = specs[1 - first]
    with pytest.raises(ConfigError, match="pipeline_parallel_size above 1 use host_memory 'private'"):
        other.get_worker(caches_of(other.config.worker_kv_bytes_per_block)[1])
    made.shutdown()
    assert os.listdir(tmp_path) == []


def stored(manager, numbers):
    """The places that chunks get."""
    keys = [make_offload_key(b"%d" % number, 0) for number in numbers]
    output = manager.prepare_store(keys, request := ReqContext(f"of {numbers}"))
    manager.complete_store(keys, request)
    return output.store_spec.block_ids.tolist()


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_limited_manager_gives_out_no_place_beyond(policy):
    manager = CPUOffloadingManager(9, cache_policy=policy)
    request = ReqContext("known before")
    manager.on_new_request(request)
    assert manager.lookup(make_offload_key(b"1", 0), request).name == "MISS"
    assert manager.limit_chunks(4)
    numbers = count()
    places = [place for _ in range(5) for place in stored(manager, [next(numbers), next(numbers)])]
    assert {*places} == {*range(4)}
    assert manager._policy.capacity == 4
    manager.on_request_finished(request)
    manager.check()


def test_more_room_than_there_is_changes_nothing():
    manager = CPUOffloadingManager(3)
    places = stored(manager, [1])
    assert manager.limit_chunks(3)
    assert manager.limit_chunks(8)
    assert stored(manager, [2, 3, 1]) != places
    manager.check()


def test_what_is_fenced_cannot_be_limited_either():
    manager, request = CPUOffloadingManager(3), ReqContext("loads")
    stored(manager, [1])
    manager.prepare_load([make_offload_key(b"1", 0)], request)
    manager.reset_cache()
    with pytest.raises(
        KVError, match=r"limit_chunks: the manager has to be empty, but it has 0 chunks and 1 fenced slots"
    ):
        manager.limit_chunks(2)


def test_what_is_held_already_cannot_be_limited():
    manager = CPUOffloadingManager(3)
    stored(manager, [1, 2])
    with pytest.raises(
        KVError, match=r"limit_chunks: the manager has to be empty, but it has 2 chunks and 0 fenced slots"
    ):
        manager.limit_chunks(2)
    for wrong in (0, True, 1.5):
        with pytest.raises(ConfigError, match="limit_chunks: expected a whole number of at least 1"):
            manager.limit_chunks(wrong)


def test_the_info_is_of_what_is_used():
    spec = spec_of(0, PAGE)
    manager = spec.get_manager()
    assert manager.config_info()[0]["cpu_num_chunks"] == 1537
    manager.limit_chunks(1025)
    found = manager.config_info()[0]
    assert (found["cpu_num_chunks"], found["cpu_kv_cache_size_bytes"]) == (1025, 1025 * 2 * PAGE)


@pytest.mark.parametrize("checksum", [False, True])
def test_a_group_without_layers_here_moves_nothing(checksum):
    """Its pages come in the same jobs, with block ids of the other stage's."""
    shape = Shape(6, 2, (Tensor(64), Tensor(16, 3)), (((0, 64), (1, 15)), ()))
    arrays, caches = make_caches(shape, 3)
    before = [array.copy() for array in arrays]
    config = offloading_config(80, 2, 1, 2, stages=2, groups=2, cpu_bytes_to_use=8 * PAGE, checksum=checksum)
    worker = CPUOffloadingSpec(config).get_worker(caches)
    job = Job(((4, 1), (5, 2)), ((2,), (0,)), (0, 0))
    worker.submit_store(1, job.gpu_spec, job.cpu_spec)
    worker.wait({1})
    for array in arrays:
        array[:] = 0
    worker.submit_load(2, job.cpu_spec, job.gpu_spec)
    worker.wait({2})
    assert [(result.success, result.transfer_size) for result in worker.get_finished()] == [(True, 2 * 79)] * 2
    for array, old in zip(arrays, before, strict=True):
        expected = np.zeros_like(old)
        expected[[4, 1]] = old[[4, 1]]
        width = 64 if array is arrays[0] else 15
        assert (array[:, :width] == expected[:, :width]).all()
    worker.check()
    worker.shutdown()


@pytest.mark.parametrize("engine", ["auto", "host", "cuda-best"])
def test_a_rank_without_any_layer_that_is_offloaded_ends_its_jobs(engine):
    config = offloading_config(80, 1, 1, 2, stages=2, groups=1, cpu_bytes_to_use=8 * PAGE, copy_engine=engine)
    worker = CPUOffloadingSpec(config).get_worker(CanonicalKVCaches([], [[]]))
    job = Job(((4, 1),), ((2, 0),), (0,))
    worker.submit_store(1, job.gpu_spec, job.cpu_spec)
    worker.wait({1})
    assert [(result.success, result.transfer_size) for result in worker.get_finished()] == [(True, 0)]
    worker.shutdown()
