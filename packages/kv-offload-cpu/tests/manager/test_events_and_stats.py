"""What is told to others."""

import json
import pickle

import pytest

from kv_api import Medium, OffloadingEvent, OffloadingGaugeMetadata, ReqContext
from kv_offload_cpu import METRICS, AtOnceManager, CPUOffloadingSpec, CPUOffloadingStats
from kv_offload_cpu.stats import (
    ALLOCATION_FAILURE,
    ALLOCATION_SIZE,
    READ_USAGE,
    STORES_SKIPPED,
    USAGE,
    WRITE_USAGE,
    Counters,
)

CONTEXT = ReqContext("any")


def stored(keys):
    return OffloadingEvent(keys, Medium.CPU, removed=False)


def removed(keys):
    return OffloadingEvent(keys, Medium.CPU, removed=True)


def given_back(keys):
    return OffloadingEvent(keys, Medium.CPU, removed=True, metadata_only=True)


def test_an_event_keeps_its_keys_whatever_becomes_of_the_lists_they_came_in(keys):
    manager, offer = AtOnceManager(4, enable_events=True), keys(range(2))
    output = manager.store(offer, CONTEXT)
    found = keys([2])
    manager.restore([(found, [3])])
    for its in (offer, output.keys, found):
        its.clear()
    assert manager.take_events() == [stored(keys([0, 1])), stored(keys([2]))]


def test_events(make, keys, store):
    manager = make(3, enable_events=True)
    store(manager, [0, 1])
    store(manager, [2])
    store(manager, [3, 4])
    assert manager.take_events() == [
        stored(keys([0, 1])), stored(keys([2])), removed(keys([1, 0])), stored(keys([3, 4])),
    ]  # fmt: skip
    assert manager.take_events() == []


def test_no_events_unless_asked_for(make, store):
    manager = make(3)
    store(manager, [0, 1])
    manager.reset_cache()
    assert list(manager.take_events()) == []


def test_nothing_is_announced_before_it_landed(make, keys):
    manager = make(3, enable_events=True)
    manager.prepare_store(keys([0]), CONTEXT)
    assert manager.take_events() == []
    manager.complete_store(keys([0]), CONTEXT, success=False)
    assert manager.take_events() == [given_back(keys([0]))]


def test_what_a_retry_holds_is_not_given_back(make, keys):
    manager = make(3, enable_events=True)
    manager.prepare_store(keys([0, 1]), CONTEXT)
    manager.complete_store(keys([0, 1]), CONTEXT, success=False)
    manager.prepare_store(keys([0]), CONTEXT)
    assert manager.take_events() == [given_back(keys([1]))]
    manager.complete_store(keys([0]), CONTEXT, success=False)
    manager.prepare_store(keys([0]), CONTEXT)
    assert manager.take_events() == [], "an event of no chunk says nothing"


def test_what_left_is_told_although_it_is_on_its_way_again(make, keys, store):
    manager = make(1, enable_events=True)
    store(manager, [0])
    store(manager, [1])
    manager.prepare_store(keys([0]), CONTEXT)
    told = [stored(keys([0])), removed(keys([0])), stored(keys([1])), removed(keys([1]))]
    assert manager.take_events() == told


def test_a_reset_and_a_drop_remove_what_was_announced(make, keys, store):
    manager = make(4, enable_events=True)
    store(manager, [0, 1, 2])
    manager.prepare_store(keys([3]), CONTEXT)
    manager.take_events()
    manager.drop(keys([1, 9]))
    assert manager.take_events() == [removed(keys([1]))]
    manager.reset_cache()
    assert manager.take_events() == [removed(keys([0, 2])), given_back(keys([3]))]


def test_names_are_what_dashboards_ask_for():
    """The first four and what is skipped are vLLM's."""
    assert [*METRICS] == [
        "vllm:kv_offload_cpu_cache_usage_perc",
        "vllm:kv_offload_cpu_cache_write_usage_perc",
        "vllm:kv_offload_cpu_cache_read_usage_perc",
        "vllm:kv_offload_cpu_allocation_size",
        "vllm:kv_offload_cpu_allocation_failure",
        "vllm:kv_offload_stores_skipped",
        "vllm:kv_offload_cpu_checksum_mismatches",
    ]
    kinds = [type(metric).__name__.removeprefix("Offloading") for metric in METRICS.values()]
    assert kinds == [*["GaugeMetadata"] * 3, "HistogramMetadata", *["CounterMetadata"] * 3]


def test_stats(make, keys, store):
    manager = make(4, store_threshold=2)
    assert manager.prepare_store(keys(range(3)), CONTEXT).keys_to_store == []
    store(manager, range(3))
    manager.prepare_load(keys([0, 1]), CONTEXT)
    manager.prepare_store(keys([2, 3]), CONTEXT)
    manager.prepare_store(keys([2, 3]), CONTEXT)
    manager.complete_load(keys([1]), CONTEXT)
    assert manager.prepare_store(keys([5, 6, 7, 8]), CONTEXT).keys_to_store == []
    assert [manager.prepare_store(keys([5, 6, 7, 8]), CONTEXT) for _ in range(2)] == [None, None]
    assert manager.get_stats().data == {
        USAGE: 0.5,
        WRITE_USAGE: 0.25,
        READ_USAGE: 0.25,
        ALLOCATION_SIZE: [3, 1],
        ALLOCATION_FAILURE: 2,
        STORES_SKIPPED: 3 + 1 + 4,
    }
    manager.reset_cache()
    assert manager.get_stats().is_empty(), "what is fenced is still in use"
    manager.on_reset_flushed()
    assert manager.get_stats().data == {USAGE: 0, WRITE_USAGE: 0, READ_USAGE: 0, STORES_SKIPPED: 0}


def test_what_is_fenced_is_being_read_or_written(make, keys, store):
    """As it was before a reset: of eight slots two are read and one is written."""
    manager = make(8)
    store(manager, range(3))
    manager.prepare_load(keys([0, 1]), CONTEXT)
    manager.prepare_store(keys([3]), CONTEXT)
    before = manager.get_stats().data
    assert (before[READ_USAGE], before[WRITE_USAGE]) == (0.25, 0.125)
    manager.reset_cache()
    assert manager.get_stats().is_empty()
    manager.complete_load(keys([1]), CONTEXT)
    after = manager.get_stats().data
    assert (after[READ_USAGE], after[WRITE_USAGE]) == (0.125, 0.125)
    manager.complete_load(keys([0]), CONTEXT)
    assert manager.get_stats().data[READ_USAGE] == 0


@pytest.mark.parametrize(
    ("counted", "value", "metric"),
    [
        ("allocation_sizes", [1], ALLOCATION_SIZE),
        ("allocation_failures", 1, ALLOCATION_FAILURE),
        ("stores_skipped", 1, STORES_SKIPPED),
    ],
)
def test_a_step_in_which_nothing_happens_tells_nothing(counted, value, metric):
    """The first tells the levels; then whatever is counted has all of them told, and so has another level."""
    counters = Counters(skips=True)
    levels = {USAGE: 0, WRITE_USAGE: 0, READ_USAGE: 0, STORES_SKIPPED: 0}
    assert counters.take(0, 0).data == levels
    assert counters.take(0, 0).is_empty()
    setattr(counters, counted, value)
    assert counters.take(0, 0).data == levels | {metric: value}
    assert counters.take(0, 0).is_empty()
    assert [counters.take(*shares).data[USAGE] for shares in ((0.5, 0), (0, 0.5), (0.5, 0.5))] == [0.5, 0.5, 1]
    assert counters.take(0.5, 0.5).is_empty()


@pytest.mark.parametrize("threshold", [0, 1, 2])
def test_what_is_counted_is_what_the_spec_declares(make, keys, threshold):
    """All that happened; where only a level changed, no more than levels, and what vLLM tells at any time."""
    declared = CPUOffloadingSpec.build_metric_definitions({"store_threshold": threshold})
    manager = make(4, store_threshold=threshold)
    for offered in (keys(range(3)), keys(range(5, 8))):
        for _ in range(max(1, threshold)):
            manager.prepare_store(offered, CONTEXT)
    assert set(manager.get_stats().data) == set(declared)
    assert manager.get_stats().is_empty()
    manager.reset_cache()
    manager.on_reset_flushed()
    assert set(manager.get_stats().data) == set(declared) - {ALLOCATION_SIZE, ALLOCATION_FAILURE}


def test_what_a_dashboard_shows_as_a_gauge_is_not_added_up():
    gauges = {name for name, metric in METRICS.items() if isinstance(metric, OffloadingGaugeMetadata)}
    assert {*CPUOffloadingStats.levels} == gauges == {USAGE, WRITE_USAGE, READ_USAGE}


def test_stats_add_up():
    total = CPUOffloadingStats()
    assert total.is_empty()
    first = CPUOffloadingStats({USAGE: 0.5, ALLOCATION_SIZE: [3], STORES_SKIPPED: 1})
    assert total.aggregate(first) is total
    total.aggregate(CPUOffloadingStats({USAGE: 0.25, ALLOCATION_SIZE: [4, 5], STORES_SKIPPED: 2}))
    assert total.data == {USAGE: 0.25, ALLOCATION_SIZE: [3, 4, 5], STORES_SKIPPED: 3}
    assert first.data[ALLOCATION_SIZE] == [3]
    assert total.reduce() == {
        USAGE: 0.25,
        f"{ALLOCATION_SIZE}_count": 3,
        f"{ALLOCATION_SIZE}_sum": 12,
        STORES_SKIPPED: 3,
    }
    assert not total.is_empty()
    total.reset()
    assert total.is_empty()


def test_stats_travel(make, store):
    manager = make(4)
    store(manager, [0, 1])
    stats = manager.get_stats()
    assert stats.data.keys() == {USAGE, WRITE_USAGE, READ_USAGE, ALLOCATION_SIZE}
    assert pickle.loads(pickle.dumps(stats)) == stats
    assert json.loads(json.dumps(stats.to_dict())) == stats.data
