"""The manager: host memory's, with what a file adds. What it shares with that one is tested there."""

import pickle

import pytest
from kv_offload_file_rig import config, make_key, make_keys

from kv_api import (
    CacheHitSource,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    ReqContext,
)
from kv_offload_cpu import CPUOffloadingManager
from kv_offload_file import (
    METRICS,
    FileLoadStoreSpec,
    FileOffloadingManager,
    FileOffloadingSpec,
    FileOffloadingStats,
)
from kv_offload_file.label import Label
from kv_offload_file.load_store_spec import labels_of
from kv_offload_file.manager import Restore
from kv_offload_file.restore import Found
from kv_offload_file.stats import BORROWED, DAMAGED, ERRORS, GONE


class Home:
    def __init__(self):
        self.epoch, self.is_closed = 5, False

    def renew(self):
        self.epoch += 1

    def close(self):
        self.is_closed = True


NOTHING = Found([], 1)
REQUEST = ReqContext("request")


def manager(found=NOTHING, chunks=4, **options):
    return FileOffloadingManager(chunks, Home(), found, **options)


def store(made, numbers, success=True):
    output = made.prepare_store(make_keys(numbers), REQUEST)
    made.complete_store(output.keys_to_store, REQUEST, success)
    made.check()
    return output


def test_an_offer_is_refused_only_if_free_slots_and_chunks_that_may_leave_do_not_suffice():
    made = manager()
    store(made, [1, 2])
    made.prepare_load(make_keys([1]), REQUEST)
    assert made.prepare_store(make_keys([5, 6, 7, 8]), REQUEST) is None
    assert made.prepare_store(make_keys([5, 6, 7]), REQUEST).keys_to_store == make_keys([5, 6, 7])


def test_a_worker_is_told_whose_chunks_are_where_and_since_when():
    made = manager()
    stored = store(made, [1, 2]).store_spec
    assert isinstance(stored, FileLoadStoreSpec)
    assert (stored.keys, list(stored.block_ids), stored.epoch, stored.number) == (
        tuple(make_keys([1, 2])), [0, 1], 5, 1
    )  # fmt: skip
    assert store(made, [3]).store_spec.number == 2
    loaded = made.prepare_load(make_keys([2, 1]), REQUEST)
    assert (loaded.keys, list(loaded.block_ids), loaded.epoch) == (tuple(make_keys([2, 1])), [1, 0], 5)
    assert pickle.loads(pickle.dumps(loaded)) == loaded
    several = made.prepare_stores([(make_keys([7]), REQUEST), (make_keys([1]), REQUEST)])
    assert [output.store_spec.keys for output in several] == [tuple(make_keys([7])), ()]


def test_keys_and_slots_are_as_many():
    with pytest.raises(ValueError, match=r"^1 keys for 2 slots$"):
        FileLoadStoreSpec([1, 2], make_keys([1]), 5, 1)


def test_a_slot_is_told_its_store_and_its_place_in_it():
    made = manager(Found([], 9))
    places = store(made, [1, 2]).store_spec
    assert labels_of("job", places) == [Label(make_key(1), 5, 9, 0), Label(make_key(2), 5, 9, 1)]


def test_what_was_found_is_there_and_leaves_in_the_order_of_its_stores():
    made = manager(Found([(make_keys([9]), [2]), (make_keys([4, 5]), [3, 0])], 8))
    made.check()
    assert [made.lookup(make_key(number), REQUEST) for number in (9, 4, 5, 1)] == [
        *[LookupResult.HIT] * 3,
        LookupResult.MISS,
    ]
    assert list(made.prepare_load(make_keys([4, 9, 5]), REQUEST).block_ids) == [3, 2, 0]
    made.complete_load(make_keys([4, 9, 5]), REQUEST)


@pytest.mark.parametrize("policy", ["lru", "arc", "s3fifo", "sieve"])
def test_room_is_made_among_what_was_found(policy):
    made = manager(Found([(make_keys([9]), [2]), (make_keys([4]), [3])], 8), cache_policy=policy)
    first = store(made, [1, 2])
    assert (first.evicted_keys, first.store_spec.number) == ([], 8)
    assert sorted(first.store_spec.block_ids) == [0, 1]
    if policy == "lru":
        assert [store(made, [number]).evicted_keys for number in (10, 11)] == [make_keys([9]), make_keys([4])]
    assert store(made, range(20, 24)).evicted_keys != []
    made.check()


def test_what_was_found_is_told_to_a_mirror():
    made = manager(Found([(make_keys([9]), [2]), (make_keys([4, 5]), [3, 0])], 8), enable_events=True)
    store(made, [1])
    store(made, [2])
    events = [(event.keys, event.removed, event.medium) for event in made.take_events()]
    assert events == [
        (make_keys([9]), False, Medium.STORAGE),
        (make_keys([4, 5]), False, Medium.STORAGE),
        (make_keys([1]), False, Medium.STORAGE),
        (make_keys([9]), True, Medium.STORAGE),
        (make_keys([2]), False, Medium.STORAGE),
    ]


def test_what_is_forgotten_is_so_for_whoever_comes_next_too():
    made = manager()
    store(made, [1])
    made.reset_cache()
    assert made.lookup(make_key(1), REQUEST) is LookupResult.MISS
    assert store(made, [1]).store_spec.epoch == 6


def test_hits_come_from_a_disk():
    assert manager().get_load_source(make_key(1), REQUEST) is CacheHitSource.DISK


def test_the_end_lets_others_in():
    made = manager()
    made.shutdown()
    assert made._home.is_closed


def test_what_is_counted_has_names_of_its_own():
    made = manager()
    made.prepare_store(make_keys([1, 2]), REQUEST)
    assert made.get_stats().reduce() == {
        "vllm:kv_offload_file_cache_usage_perc": 0.5,
        "vllm:kv_offload_file_cache_write_usage_perc": 0.5,
        "vllm:kv_offload_file_cache_read_usage_perc": 0.0,
        "vllm:kv_offload_file_allocation_size_count": 1,
        "vllm:kv_offload_file_allocation_size_sum": 2,
    }
    assert made.get_stats().is_empty()
    host = CPUOffloadingManager(4)
    host.prepare_store(make_keys([1, 2]), REQUEST)
    assert {*host.get_stats().data}.isdisjoint(METRICS)


def test_a_reset_begins_another_epoch_before_it_forgets():
    """If the engine is killed in between, what it left is of an epoch that is over, and is not found again."""

    class Watching(Home):
        def renew(self):
            super().renew()
            self.seen = made.lookup(make_key(1), REQUEST)

    made = FileOffloadingManager(4, Watching(), NOTHING)
    store(made, [1])
    made.reset_cache()
    assert (made._home.seen, made.lookup(make_key(1), REQUEST)) == (LookupResult.HIT, LookupResult.MISS)


def test_what_was_found_is_restored_once():
    """A manager may be limited again, when its chunks are others already."""
    made = manager(Found([(make_keys([1]), [0])], 2), when=Restore.WHEN_LIMITED)
    assert made.lookup(make_key(1), REQUEST) is LookupResult.MISS
    for _ in range(2):
        assert made.limit_chunks(4)
        assert made.lookup(make_key(1), REQUEST) is LookupResult.HIT
        made.check()


def test_levels_are_not_added_up():
    gauges = {name for name, metric in METRICS.items() if isinstance(metric, OffloadingGaugeMetadata)}
    assert gauges == {*FileOffloadingStats.levels}
    made = manager()
    made.prepare_store(make_keys([1, 2]), REQUEST)
    first = made.get_stats()
    made.prepare_store(make_keys([3]), REQUEST)
    both = first.aggregate(made.get_stats())
    assert both.data["vllm:kv_offload_file_cache_usage_perc"] == 0.75
    assert both.data["vllm:kv_offload_file_allocation_size"] == [2, 1]


def test_what_is_declared_is_of_the_kind_that_is_counted():
    gauge, counter, histogram = OffloadingGaugeMetadata, OffloadingCounterMetadata, OffloadingHistogramMetadata
    assert {name: type(metric) for name, metric in METRICS.items()} == {
        "vllm:kv_offload_file_cache_usage_perc": gauge,
        "vllm:kv_offload_file_cache_write_usage_perc": gauge,
        "vllm:kv_offload_file_cache_read_usage_perc": gauge,
        "vllm:kv_offload_file_allocation_size": histogram,
        "vllm:kv_offload_file_allocation_failure": counter,
        "vllm:kv_offload_stores_skipped": counter,
        "vllm:kv_offload_file_damaged": counter,
        "vllm:kv_offload_file_errors": counter,
        "vllm:kv_offload_file_borrowed": counter,
        "vllm:kv_offload_file_gone": counter,
    }
    gauges = [name for name, metric in METRICS.items() if isinstance(metric, gauge)]
    assert sorted(FileOffloadingStats.levels) == sorted(gauges)


@pytest.mark.parametrize(("threshold", "skips"), [(0, False), (1, False), (2, True), ("2", False)])
def test_what_is_counted_is_declared(tmp_path, threshold, skips):
    declared = FileOffloadingSpec.build_metric_definitions({"store_threshold": threshold, "file_shared": False})
    assert declared == FileOffloadingSpec.build_metric_definitions({"store_threshold": threshold})
    assert ("vllm:kv_offload_stores_skipped" in declared) == skips
    assert {DAMAGED, ERRORS} <= declared.keys()
    unsaid = set() if skips else {"vllm:kv_offload_stores_skipped"}
    assert METRICS.keys() - declared.keys() == unsaid | {BORROWED, GONE}
    shared = FileOffloadingSpec.build_metric_definitions({"store_threshold": threshold, "file_shared": True})
    assert METRICS.keys() - shared.keys() == unsaid
    assert all("CPU" not in metric.documentation for metric in METRICS.values())
    assert all("_cpu_" not in name for name in METRICS)


def test_what_there_is_is_published(tmp_path):
    made = FileOffloadingSpec(config(tmp_path, 6, ranks=2)).get_manager()
    [labels] = made.config_info()
    assert labels == {
        "file_num_chunks": 6,
        "file_blocks_per_chunk": 2,
        "file_kv_cache_size_bytes": 6 * 2 * 4096,
        "file_kv_cache_size_tokens": 6 * 32,
    }
    assert FileOffloadingSpec.config_info_keys({}) == (*labels,)
    made.shutdown()
