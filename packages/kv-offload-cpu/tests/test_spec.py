"""The spec: found by name, cut as vLLM cuts, and what it makes of a configuration."""

from dataclasses import fields, replace
from importlib.metadata import entry_points

import numpy as np
import pytest
from kv_offload_cpu_layouts import LikeTorchs, Shape, Tensor, make_caches, offloading_config

from kv_api import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    ConfigError,
    GPULoadStoreSpec,
    KVError,
    OffloadingGroupConfig,
    OffloadingSpec,
    ReqContext,
    make_offload_key,
)
from kv_offload_cpu import METRICS, CPULoadStoreSpec, CPUOffloadingSpec, HostLayout, Options, plan_layout

PAGE = CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT
SHAPE = Shape(8, 2, (Tensor(64), Tensor(32)), (((0, 64), (1, 30)), ((1, 32),)))


def make_spec(rank=0, world_size=1, *, replicated=False, **extra):
    extra.setdefault("cpu_bytes_to_use", 40 * PAGE)
    return CPUOffloadingSpec(offloading_config(96, 2, rank, world_size, replicated=replicated, **extra))


def test_it_is_found_by_its_name():
    [found] = entry_points(group="kv_offload_specs", name="CPUOffloadingSpec")
    assert found.load() is CPUOffloadingSpec
    assert issubclass(CPUOffloadingSpec, OffloadingSpec)


def test_a_row_has_a_slot_for_each_copy_and_ends_with_a_page():
    assert plan_layout(10 * 4096 + 4095, 1000, 4, 3, 4096) == HostLayout(3, 3, 3000, 4, 3 * 4096)
    assert plan_layout(4096, 1024, 2, 2, 4096) == HostLayout(1, 2, 2048, 2, 4096)
    assert plan_layout(3 * 4096, 1025, 2, 2, 4096) == HostLayout(1, 2, 2050, 2, 2 * 4096)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (
            (8191, 1025, 2, 2),
            "cpu_bytes_to_use: 8191 bytes are less than one chunk, which takes 8192: "
            "1025 bytes a block × 2 blocks × 2 copies, in pages of 4096",
        ),
        ((8192, 0, 2, 2), "worker_kv_bytes_per_block: expected at least 1, got 0"),
        ((8192, 1, 0, 2), "copies: expected at least 1, got 0"),
        ((8192, 1, 2, 0), "blocks_per_chunk: expected at least 1, got 0"),
    ],
)
def test_what_cannot_be_cut_is_refused(numbers, message):
    with pytest.raises(ConfigError) as caught:
        plan_layout(*numbers, 4096)
    assert str(caught.value) == message


def test_the_scheduler_and_all_workers_agree_on_the_layout():
    for extra in ({}, {"host_memory": "private"}, {"host_memory": "shared"}):
        for replicated in (False, True):
            specs = [make_spec(rank, 3, replicated=replicated, **extra) for rank in range(3)]
            [layout] = {spec.layout for spec in specs}
            told = {(spec.num_chunks, spec.kv_bytes_per_chunk, spec.cpu_page_size_per_worker) for spec in specs}
            assert told == {(layout.num_chunks, layout.row_bytes, layout.slot_bytes)}
            assert {spec.worker_layout().num_chunks for spec in specs} == {specs[0].get_manager()._pool.capacity}


@pytest.mark.parametrize(
    ("memory", "world_size", "shares"),
    [("auto", 1, False), ("auto", 2, True), ("private", 2, False), ("shared", 1, True)],
)
def test_one_copy_is_enough_only_where_memory_is_shared(memory, world_size, shares):
    spec = make_spec(world_size=world_size, replicated=True, host_memory=memory)
    assert (spec.shares_memory, spec.replicated_layout) == (shares, shares)
    assert spec.layout.slots_per_row == (1 if shares else world_size)


def test_the_manager_is_made_once_and_as_configured():
    spec = make_spec(eviction_policy="s3fifo", store_threshold=3, max_tracker_size=7)
    manager = spec.get_manager()
    assert spec.get_manager() is manager
    assert type(manager._policy).__name__ == "S3FIFOPolicy"
    assert (manager._tracker.threshold, manager._tracker.max_size) == (3, 7)
    [labels] = manager.config_info()
    assert tuple(labels) == spec.config_info_keys({})
    assert labels == {
        "cpu_num_chunks": 40,
        "cpu_blocks_per_chunk": 2,
        "cpu_kv_cache_size_bytes": 40 * PAGE,
        "cpu_kv_cache_size_tokens": "None",
    }


def test_its_policy_may_be_somebody_elses():
    spec = make_spec(eviction_policy="MostRecentPolicy", cache_policy_module_path="kv_offload_cpu_plugin")
    assert type(spec.get_manager()._policy).__name__ == "MostRecentPolicy"


@pytest.mark.parametrize("wanted", [True, False])
def test_events_are_told_if_the_engine_wants_them(wanted):
    spec = CPUOffloadingSpec(replace(make_spec().config, enable_kv_cache_events=wanted))
    manager, key, context = spec.get_manager(), make_offload_key(b"hash", 0), ReqContext("a")
    manager.prepare_store([key], context)
    manager.complete_store([key], context)
    assert [event.keys for event in manager.take_events()] == ([[key]] if wanted else [])


@pytest.mark.parametrize(
    ("length", "windows", "tokens"),
    [
        (100, [None, None], 40 * 100 // (4 + 4)),  # chunks of 32 tokens
        (96, [None, None], 40 * 96 // (3 + 3)),
        (100, [None, 3], 40 * 100 // (4 + 3)),
        (100, [9, 1], 40 * 100 // (4 + 1)),
        (1, [None], 40),
        (0, [None], None),
        (100, [], None),
    ],
)
def test_the_tokens_that_fit_are_those_of_the_longest_requests(length, windows, tokens):
    config = offloading_config(96, 2, max_model_len=length, cpu_bytes_to_use=40 * PAGE)
    groups = [OffloadingGroupConfig(16, (f"layer {i}",), i, window) for i, window in enumerate(windows)]
    spec = CPUOffloadingSpec(replace(config, groups=tuple(groups)))
    assert spec.cpu_info.cpu_kv_cache_size_tokens == tokens


def test_the_metrics_are_those_that_will_be_reported():
    assert CPUOffloadingSpec.build_metric_definitions({"store_threshold": 2, "checksum": True}) == METRICS
    for extra in ({}, {"store_threshold": 1}, {"store_threshold": "2"}, {"checksum": False}):
        without = set(METRICS) - set(CPUOffloadingSpec.build_metric_definitions(extra))
        assert without == {"vllm:kv_offload_stores_skipped", "vllm:kv_offload_cpu_checksum_mismatches"}


def test_the_worker_is_made_once():
    spec = make_spec()
    worker = spec.get_worker(make_caches(SHAPE, 0)[1])
    assert spec.get_worker(make_caches(SHAPE, 0)[1]) is worker
    worker.shutdown()


@pytest.mark.parametrize(
    ("memory", "rank", "writes"), [("private", 1, True), ("shared", 0, True), ("shared", 1, False)]
)
def test_whoever_has_bytes_of_its_own_writes_them(memory, rank, writes, tmp_path):
    """Of workers with the same bytes only the first writes, if what it writes is the others', too."""
    folder = {"shared_memory_dir": str(tmp_path)} if memory == "shared" else {}
    worker = make_spec(rank, 2, replicated=True, host_memory=memory, **folder).get_worker(make_caches(SHAPE, 0)[1])
    worker.submit_store(1, GPULoadStoreSpec([3], [1, 0], [0, 0]), CPULoadStoreSpec([0]))
    worker.wait({1})
    [result] = worker.get_finished()
    assert result.success
    assert bool(result.transfer_size) is writes
    worker.shutdown()


class OtherSpec(CPUOffloadingSpec):
    """Memory and engine of one's own."""

    released = 0

    def make_memory(self, layout):
        self.memory_layout = layout
        return self

    def make_copy_engine(self, kv_caches, layout, memory):
        assert memory is self
        assert layout == self.memory_layout
        raise RuntimeError("no engine")

    def release(self):
        self.released += 1


def test_a_subclass_brings_its_own_memory_and_engine():
    spec = OtherSpec(make_spec().config)
    with pytest.raises(RuntimeError, match="no engine"):
        spec.get_worker(CanonicalKVCaches([], []))
    assert spec.released == 1


class CrcSpec(CPUOffloadingSpec):
    """With a setting of its own that resembles one of ours."""

    extra_keys = CPUOffloadingSpec.extra_keys | {"checksums"}


def test_a_subclass_brings_its_own_settings():
    config = replace(make_spec().config, extra_config={"cpu_bytes_to_use": 1 << 20, "checksums": "crc"})
    assert CrcSpec(config).extra_config["checksums"] == "crc"
    with pytest.raises(ConfigError, match=r"unknown key 'checksums'; .* did you mean 'checksum'"):
        CPUOffloadingSpec(config)
    assert CPUOffloadingSpec.extra_keys == {field.name for field in fields(Options)}


def caches_of(tensor, page_bytes=64, *refs, count=1):
    """As many tensors alike, of which one group refers to some, or to the first."""
    of_group = [CanonicalKVCacheRef(*ref) for ref in refs or [(0, 64)]]
    return CanonicalKVCaches([CanonicalKVCacheTensor(tensor, page_bytes)] * count, [of_group])


def read_only():
    array = np.zeros((8, 64), np.int8)
    array.flags.writeable = False
    return array


PLAIN = np.zeros((8, 64), np.int8)
WRONG = [
    (
        ConfigError,
        caches_of(LikeTorchs("xpu")),
        "KV caches are in memory of ['xpu']; there are copy engines for ['cpu', 'cuda']",
    ),
    (KVError, caches_of(read_only()), "KV cache tensor 0: a read-only array, so nothing can be loaded into it"),
    (KVError, caches_of([1]), "KV cache tensor 0: expected an array of numpy or a tensor of torch, got list"),
    (
        KVError,
        caches_of(PLAIN[:, ::2], 32, (0, 32)),
        "KV cache tensor 0: the bytes of a block don't lie together: shape [8, 32], strides [64, 2] bytes",
    ),
    (
        KVError,
        caches_of(PLAIN, 65, (0, 65)),
        "KV cache tensor 0: shape [8, 64] with 1 bytes an element has no pages of 65 bytes",
    ),
    (KVError, caches_of(PLAIN, 64, (1, 64)), "group 0: refers to tensor 1, there are 1"),
    (
        KVError,
        caches_of(PLAIN, 64, (0, 65)),
        "group 0: a page of 65 bytes in tensor 0, whose pages have 64",
    ),
    (
        KVError,
        caches_of(np.zeros((8, 32), np.int8), 32, (2, 0), count=3),
        "group 0: a page of 0 bytes in tensor 2, whose pages have 32",
    ),
    (
        KVError,
        caches_of(PLAIN, 64, (0, 64), (1, 64), count=2),
        "group 0: pages of [64, 64] bytes × 2 blocks don't fit a slot of 192 bytes",
    ),
    (
        KVError,
        caches_of(np.zeros((8, 100), np.int8), 100, (0, 100)),
        "group 0: pages of [100] bytes × 2 blocks don't fit a slot of 192 bytes",
    ),
]


@pytest.mark.parametrize(("kind", "caches", "message"), WRONG, ids=range(len(WRONG)))
def test_caches_that_cannot_be_copied_are_refused(kind, caches, message):
    with pytest.raises(kind) as caught:
        make_spec().get_worker(caches)
    assert str(caught.value) == message


def test_an_engine_that_cannot_copy_these_caches_is_refused():
    with pytest.raises(ConfigError) as caught:
        make_spec(copy_engine="cuda").get_worker(caches_of(PLAIN))
    assert (
        str(caught.value) == "copy_engine: 'cuda' can't copy KV caches in cpu memory; use 'host' or 'host-stream'"
    )
