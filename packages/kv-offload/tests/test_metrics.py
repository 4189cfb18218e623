"""The payload of stats, and what Prometheus is told."""

import json

import pytest
from kv_offload_configs import make, vllm_config
from kv_offload_medium import ScriptedSpec, StrictManager
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kv_api import (
    KVConnectorOutput,
    KVConnectorStats,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
)
from kv_offload import (
    OffloadingConnector,
    OffloadingConnectorStats,
    OffloadingWorkerMetadata,
    TransferStats,
)
from kv_offload.metrics import LOAD_BYTES, LOAD_SIZE, LOOKUP_SYNC_DELAY, METRICS, STORE_BYTES, kind_of


def counted():
    stats = OffloadingConnectorStats()
    transfers = TransferStats()
    transfers.load.record(100, 0.5)
    stats.add_transfers(transfers)
    stats.observe(LOOKUP_SYNC_DELAY, 0.25)
    return stats


def test_what_workers_measured_adds_up():
    mine, theirs = TransferStats(), TransferStats()
    mine.load.record(100, 0.5)
    mine.store.record(7, 0.125)
    theirs.store.record(8, 0.25)
    theirs.store.record(9, 1.0)
    both = mine.aggregate(theirs)
    assert (both.load.bytes, both.load.time, both.load.sizes) == (100, 0.5, [100])
    assert (both.store.bytes, both.store.time, both.store.sizes) == (24, 1.375, [7, 8, 9])
    assert (mine.store.sizes, theirs.store.sizes) == ([7], [8, 9])


def test_a_copy_of_nothing_is_one():
    stats, transfers = OffloadingConnectorStats(), TransferStats()
    transfers.load.record(0, 0.5)
    stats.add_transfers(transfers)
    assert stats.reduce() == {
        LOAD_BYTES: 0,
        "vllm:kv_offload_load_time": 0.5,
        f"{LOAD_SIZE}_count": 1,
        f"{LOAD_SIZE}_sum": 0,
    }


def test_the_payload_says_what_it_is():
    assert counted().to_dict() == {
        "types": {
            "vllm:kv_offload_load_bytes": "counter",
            "vllm:kv_offload_load_time": "counter",
            "vllm:kv_offload_load_size": "histogram",
            "vllm:kv_offload_lookup_sync_delay_seconds": "histogram",
        },
        "data": {
            "vllm:kv_offload_load_bytes": {(): 100},
            "vllm:kv_offload_load_time": {(): 0.5},
            "vllm:kv_offload_load_size": {(): [100]},
            "vllm:kv_offload_lookup_sync_delay_seconds": {(): [0.25]},
        },
        "info": None,
    }


def test_what_workers_of_the_medium_counted_is_added():
    connector = make()
    for amount in (2, 3):
        meta = OffloadingWorkerMetadata(medium_counts={"broken": amount})
        connector.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=meta))
    stats = connector.get_kv_connector_stats().to_dict()
    assert (stats["types"]["broken"], stats["data"]["broken"]) == ("counter", {(): 5})


def test_what_workers_measured_is_told():
    connector, measured = make(), TransferStats()
    connector.get_kv_connector_stats()
    measured.load.record(100, 0.5)
    measured.store.record(7, 0.125)
    for _ in range(2):
        meta = OffloadingWorkerMetadata(transfer_stats=measured)
        connector.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=meta))
    assert connector.get_kv_connector_stats().data["data"] == {
        "vllm:kv_offload_load_bytes": {(): 200},
        "vllm:kv_offload_load_time": {(): 1.0},
        "vllm:kv_offload_load_size": {(): [100, 100]},
        "vllm:kv_offload_store_bytes": {(): 14},
        "vllm:kv_offload_store_time": {(): 0.25},
        "vllm:kv_offload_store_size": {(): [7, 7]},
    }


def test_stats_add_up():
    both = counted().aggregate(counted())
    assert both.reduce() == {
        LOAD_BYTES: 200,
        "vllm:kv_offload_load_time": 1.0,
        f"{LOAD_SIZE}_count": 2,
        f"{LOAD_SIZE}_sum": 200,
        f"{LOOKUP_SYNC_DELAY}_count": 2,
        f"{LOOKUP_SYNC_DELAY}_sum": 0.5,
    }
    rebuilt = OffloadingConnector.build_kv_connector_stats(both.to_dict())
    assert rebuilt.reduce() == both.reduce()
    both.reset()
    assert both.is_empty()
    assert OffloadingConnector.build_kv_connector_stats().is_empty()
    with pytest.raises(TypeError, match=r"^stats: expected OffloadingConnectorStats, got KVConnectorStats$"):
        both.aggregate(KVConnectorStats())


def test_what_the_connector_counts_has_the_names_and_buckets_of_vllms():
    sizes = tuple(1e6 * megabytes for megabytes in (1, 5, 10, 20, 40, 60, 80, 100, 150, 200))
    once = (1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1)
    waiting = (1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1, 5, 10)
    kinds = {name.removeprefix("vllm:kv_offload_"): kind_of(metric, None) for name, metric in METRICS.items()}
    assert kinds == {
        "load_bytes": "counter",
        "load_time": "counter",
        "load_size": "histogram",
        "store_bytes": "counter",
        "store_time": "counter",
        "store_size": "histogram",
        "lookup_sync_delay_seconds": "histogram",
        "lookup_async_delay_seconds": "histogram",
        "allocation_failure": "counter",
        "load_failure": "counter",
        "store_failure": "counter",
    }
    histograms = [metric for metric in METRICS.values() if kind_of(metric, None) == "histogram"]
    assert [metric.buckets for metric in histograms] == [sizes, sizes, once, waiting]


class Flat(KVConnectorStats):
    """What a manager of another form counts."""


DECLARED = {"usage": OffloadingGaugeMetadata("."), "count": OffloadingCounterMetadata(".")}


def test_a_mediums_own_counts(monkeypatch):
    manager = StrictManager()
    manager.get_stats = lambda: Flat({"usage": 0.5, "count": 2, "sizes": [1, 2]})
    manager.config_info = lambda: [{"policy": "lru"}]
    monkeypatch.setattr(ScriptedSpec, "build_metric_definitions", classmethod(lambda cls, extra: DECLARED))
    ScriptedSpec.manager = manager
    connector = make()
    first, second = connector.get_kv_connector_stats(), connector.get_kv_connector_stats()
    assert first.data == {
        "types": {"usage": "gauge", "count": "counter", "sizes": "histogram"},
        "data": {"usage": {(): 0.5}, "count": {(): 2}, "sizes": {(): [1, 2]}},
        "info": [{"policy": "lru"}],
    }
    assert second.data["info"] is None
    both = first.aggregate(second)
    assert both.data["data"] == {"usage": {(): 0.5}, "count": {(): 4}, "sizes": {(): [1, 2, 1, 2]}}
    assert both.data["info"] == [{"policy": "lru"}]


def test_what_a_medium_counts_under_the_connectors_name_is_added():
    stats = OffloadingConnectorStats()
    stats.increase("count", 3)
    stats.add_medium(Flat({"usage": 0.5, "count": 2}), DECLARED)
    assert stats.data["data"] == {"count": {(): 5}, "usage": {(): 0.5}}
    assert stats.data["types"] == {"count": "counter", "usage": "gauge"}


def test_what_a_medium_counts_in_the_same_form_is_added_as_it_is():
    stats, counts = counted(), counted()
    counts._add("by_tier", "gauge", ("disk",), 3)
    counts._add("sizes", "histogram", ("disk",), [4, 5])
    counts.set_info([{"policy": "lru"}])
    stats.add_medium(counts, {})
    assert stats.data == counted().aggregate(counts).data
    assert stats.data["info"] == [{"policy": "lru"}]
    assert stats.reduce().items() >= {
        (LOAD_BYTES, 200),
        ("by_tier:('disk',)", 3),
        ("sizes:('disk',)_count", 2),
        ("sizes:('disk',)_sum", 9),
    }


def test_an_info_stays_as_it_was_set():
    stats, series = OffloadingConnectorStats(), {"policy": "lru"}
    stats.set_info([series])
    series["policy"] = "arc"
    assert stats.data["info"] == [{"policy": "lru"}]


def test_an_info_alone_is_something_to_tell():
    stats = OffloadingConnectorStats()
    stats.set_info([])
    assert (OffloadingConnectorStats().is_empty(), stats.is_empty(), counted().is_empty()) == (True, False, False)


def test_what_a_medium_counted_stays_its_own():
    stats, counts = OffloadingConnectorStats(), Flat({"sizes": [1, 2]})
    stats.add_medium(counts, DECLARED)
    stats.observe("sizes", 3)
    assert (stats.data["data"], counts.data) == ({"sizes": {(): [1, 2, 3]}}, {"sizes": [1, 2]})


def test_what_workers_measured_stays_their_own():
    stats, measured = OffloadingConnectorStats(), TransferStats()
    measured.store.record(7, 0.125)
    for _ in range(2):
        stats.add_transfers(measured)
    assert stats.data["data"]["vllm:kv_offload_store_size"] == {(): [7, 7]}
    assert measured.store.sizes == [7]


def test_of_a_level_the_latest_counts():
    stats = OffloadingConnectorStats()
    for usage in (0.5, 0.25):
        later = OffloadingConnectorStats()
        later.add_medium(Flat({"usage": usage}), DECLARED)
        stats.aggregate(later)
    assert stats.data["data"] == {"usage": {(): 0.25}}


def test_what_was_added_stays_its_own():
    stats, other = OffloadingConnectorStats(), counted()
    stats.aggregate(other)
    stats.observe(LOOKUP_SYNC_DELAY, 1.0)
    assert other.data == counted().data


def test_what_is_no_payload_counts_nothing():
    assert OffloadingConnector.build_kv_connector_stats({"count": 2}).is_empty()


def test_prometheus(monkeypatch, caplog):
    monkeypatch.setattr(ScriptedSpec, "build_metric_definitions", classmethod(lambda cls, extra: DECLARED))
    monkeypatch.setattr(ScriptedSpec, "config_info_keys", classmethod(lambda cls, extra: ("policy",)))
    registry = CollectorRegistry()
    types = {
        kind: lambda kind=kind, **named: kind(registry=registry, **named) for kind in (Counter, Gauge, Histogram)
    }
    metrics = OffloadingConnector.build_prom_metrics(vllm_config(), types, ["engine"], {0: ["0"], 1: ["1"]})
    stats = counted()
    stats.add_medium(Flat({"mystery": 1, "usage": 0.5, "count": 2}), DECLARED)
    stats.set_info([{"policy": "lru"}])
    metrics.observe(stats.to_dict(), 1)
    metrics.observe(stats.to_dict(), 1)
    seen = {
        (sample.name, *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket"))
    }
    assert seen == {
        ("vllm:kv_offload_load_bytes_total", "1"): 200,
        ("vllm:kv_offload_load_time_total", "1"): 1.0,
        ("vllm:kv_offload_load_size_count", "1"): 2,
        ("vllm:kv_offload_load_size_sum", "1"): 200,
        ("vllm:kv_offload_lookup_sync_delay_seconds_count", "1"): 2,
        ("vllm:kv_offload_lookup_sync_delay_seconds_sum", "1"): 0.5,
        ("vllm:kv_offload_config_info", "1", "lru"): 1,
        ("usage", "1"): 0.5,
        ("count_total", "1"): 4,
    }
    assert [record.getMessage() for record in caplog.records] == [
        "metric mystery is counted and was not declared; it is not exported"
    ]
    (sizes,) = (family for family in registry.collect() if family.name == LOAD_SIZE)
    buckets = [float(sample.labels["le"]) for sample in sizes.samples if sample.name.endswith("_bucket")]
    assert buckets == [*METRICS[LOAD_SIZE].buckets, float("inf")]


def test_how_metrics_are_registered(monkeypatch):
    declared = {
        "level": OffloadingGaugeMetadata("how full", ("tier",)),
        "sizes": OffloadingHistogramMetadata("how long"),
        "count": OffloadingCounterMetadata("how many"),
    }
    monkeypatch.setattr(ScriptedSpec, "build_metric_definitions", classmethod(lambda cls, extra: declared))
    monkeypatch.setattr(ScriptedSpec, "config_info_keys", classmethod(lambda cls, extra: ("policy",)))
    made = {}
    types = {
        kind: lambda kind=kind, **given: made.update({given.pop("name"): (kind, given)})
        for kind in (Counter, Gauge, Histogram)
    }
    OffloadingConnector.build_prom_metrics(vllm_config(), types, ["engine"], {0: ["0"]})
    _, info = made.pop("vllm:kv_offload_config_info")
    assert (info["labelnames"], info["multiprocess_mode"]) == (["engine", "policy"], "mostrecent")
    assert info["documentation"].startswith("What the offloading medium of this engine is like;")
    for name, metric in METRICS.items():
        assert made.pop(name)[1]["documentation"] == metric.documentation
    assert made == {
        "level": (
            Gauge,
            {"documentation": "how full", "labelnames": ["engine", "tier"], "multiprocess_mode": "mostrecent"},
        ),
        "sizes": (Histogram, {"documentation": "how long", "labelnames": ["engine"]}),
        "count": (Counter, {"documentation": "how many", "labelnames": ["engine"]}),
    }


def test_what_the_connector_counts_is_registered_as_it_says(monkeypatch):
    declared = {LOAD_BYTES: OffloadingGaugeMetadata("a medium's")}
    monkeypatch.setattr(ScriptedSpec, "build_metric_definitions", classmethod(lambda cls, extra: declared))
    made = {}
    kinds = Counter, Gauge, Histogram
    types = {kind: lambda kind=kind, **given: made.update({given["name"]: kind}) for kind in kinds}
    OffloadingConnector.build_prom_metrics(vllm_config(), types, [], {0: []})
    assert made[LOAD_BYTES] is Counter


def test_without_a_number_the_first_engine_is_meant():
    registry = CollectorRegistry()
    types = {
        kind: lambda kind=kind, **named: kind(registry=registry, **named) for kind in (Counter, Gauge, Histogram)
    }
    metrics = OffloadingConnector.build_prom_metrics(vllm_config(), types, ["engine"], {0: ["0"], 1: ["1"]})
    metrics.observe(counted().to_dict())
    metrics.observe({})
    assert registry.get_sample_value(f"{LOAD_BYTES}_total", {"engine": "0"}) == 100


def test_nothing_is_reported_twice():
    connector = make()
    connector.get_kv_connector_stats()
    assert connector.get_kv_connector_stats() is None
    assert json.dumps(counted().data["types"])
    assert STORE_BYTES not in counted().data["data"]
