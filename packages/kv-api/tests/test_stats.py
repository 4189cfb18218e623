"""Stats and their Prometheus side: what must be said of them, and how they add up; where hits came from."""

from types import SimpleNamespace
from typing import Any

import pytest

import kv_api
from kv_api import CacheHitSource
from kv_api.stats import CountedStats


def test_stats_must_say_what_they_do() -> None:
    stats = kv_api.KVConnectorStats()
    assert stats.to_dict() == {}
    for call, what in (
        (stats.reset, "reset"),
        (stats.reduce, "reduce"),
        (stats.is_empty, "is_empty"),
        (lambda: stats.aggregate(stats), "aggregate"),
    ):
        with pytest.raises(NotImplementedError, match=rf"^KVConnectorStats has to implement {what}$"):
            call()


def test_prom_metrics_take_the_classes_of_the_engine() -> None:
    class Gauge: ...

    class Counter: ...

    class Histogram: ...

    class EngineGauge: ...

    class Metrics(kv_api.KVConnectorPromMetrics):
        def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None: ...

    config: Any = SimpleNamespace(kv_transfer_config="transfer")
    types = {Gauge: EngineGauge, Counter: Counter, Histogram: Histogram}
    metrics = Metrics(config, types, ["engine"], {0: ["0"]})
    assert (metrics._gauge_cls, metrics._counter_cls, metrics._histogram_cls) == (EngineGauge, Counter, Histogram)
    assert (metrics._labelnames, metrics.per_engine_labelvalues) == (["engine"], {0: ["0"]})


def test_hit_sources_are_ordered_from_the_accelerator_outwards() -> None:
    assert CacheHitSource.outermost([CacheHitSource.DISK, CacheHitSource.HOST]) is CacheHitSource.DISK
    assert CacheHitSource.outermost(CacheHitSource) is CacheHitSource.EXTERNAL_UNSPECIFIED
    assert CacheHitSource("host") is CacheHitSource.HOST


class Counted(CountedStats):
    levels = ("level",)


def test_counted_stats_add_up() -> None:
    stats, other = Counted(), Counted({"sum": 2, "level": 5, "samples": [3]})
    assert stats.is_empty() and stats.reduce() == {}
    assert stats.aggregate(other) is stats
    stats.aggregate(Counted({"sum": 1, "level": 4, "samples": [1, 2]}))
    stats.add("sum", 4)
    assert stats.data == {"sum": 7, "level": 4, "samples": [3, 1, 2]}
    assert other.data == {"sum": 2, "level": 5, "samples": [3]}
    assert stats.reduce() == {"sum": 7, "level": 4, "samples_count": 3, "samples_sum": 6}
    assert not stats.is_empty()
    sent = stats.to_dict()
    stats.reset()
    assert stats.is_empty() and stats.data == {}
    assert sent["sum"] == 7, "a payload that was sent is emptied"
    assert CountedStats.levels == ()
    with pytest.raises(TypeError, match=r"^stats: expected Counted, got CountedStats$"):
        stats.aggregate(CountedStats())
