"""What is counted, by either side, and what Prometheus gets of it."""

import json
import pickle

import pytest
from kv_p2p_engine import Blocks, Request, scheduler, ticket_of, vllm_config
from kv_p2p_fake_wire import World, hold, pull
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kv_api import KVConnectorOutput, KVConnectorStats
from kv_p2p import P2PConnector
from kv_p2p.pulling.stats import (
    EXPIRED_HOLDS,
    FAILED_PULLS,
    HELD_BLOCKS,
    METRICS,
    PULL_SECONDS,
    PULLED_BYTES,
    REFUSED_HOLDS,
    REFUSED_TICKETS,
    SECONDS,
    SERVED_HOLDS,
    P2PStats,
)

WANTED = {"do_remote_decode": True}
ALL = {
    PULL_SECONDS: [0.5, 2.0],
    PULLED_BYTES: 100,
    FAILED_PULLS: 1,
    SERVED_HOLDS: 2,
    EXPIRED_HOLDS: 3,
    REFUSED_TICKETS: 4,
    REFUSED_HOLDS: 6,
    HELD_BLOCKS: 5,
}


def counted(half):
    stats = half.get_kv_connector_stats()
    return None if stats is None else stats.data


@pytest.fixture
def world():
    world = World()
    world.half.register_kv_caches({"layer": None})
    return world


class TestAWorker:
    def test_tells_nothing_if_nothing_ended(self, world):
        assert counted(world.half) is None
        world.step(holds=[hold("a")], pulls=[pull("b")])
        assert counted(world.half) is None

    def test_tells_once_how_long_pulls_took(self, world):
        world.step(pulls=[pull("a")])
        world.now += 2
        world.step(pulls=[pull("b")])
        world.now += 3
        world.step(ended={"pulled": ["b", "a", "unknown"]})
        assert counted(world.half) == {PULL_SECONDS: [3, 5]}
        assert counted(world.half) is None

    def test_adds_up_what_ends_before_it_is_asked(self, world):
        world.step(pulls=[pull("a"), pull("b")])
        world.step(ended={"pulled": ["a"], "pulled_bytes": 30})
        world.step(ended={"pulled": ["b"], "pulled_bytes": 12})
        assert counted(world.half) == {PULL_SECONDS: [0, 0], PULLED_BYTES: 42}

    def test_tells_of_bytes_before_a_pull_ends(self, world):
        world.step(pulls=[pull("a")], ended={"pulled_bytes": 7})
        assert counted(world.half) == {PULLED_BYTES: 7}

    def test_tells_of_pulls_that_failed_or_were_given_up(self, world):
        world.step(pulls=[pull("a"), pull("b")])
        world.step(ended={"failed": [("a", "no"), ("unknown", "no")]})
        assert counted(world.half) == {FAILED_PULLS: 1}
        world.now += 10
        world.step()
        assert counted(world.half) == {FAILED_PULLS: 1}

    def test_tells_of_holds_that_were_served_or_whose_time_was_over(self, world):
        world.step(holds=[hold("a"), hold("b"), hold("c"), hold("d")])
        world.step(ended={"served": ["a.1", "unknown"]}, revoked=["b"])
        assert counted(world.half) == {SERVED_HOLDS: 1, EXPIRED_HOLDS: 1}
        world.now += 100
        world.wire.busy.add("c.1")
        world.step()
        assert counted(world.half) == {EXPIRED_HOLDS: 1}
        world.step(ended={"served": ["c.1"]})
        assert counted(world.half) == {SERVED_HOLDS: 1}


class TestTheScheduler:
    def test_tells_how_many_blocks_are_held_whenever_that_changes(self):
        half = scheduler()
        assert counted(half) is None
        for name, blocks in (("a", [7, 8, 9]), ("b", [3, 4])):
            request = Request(name, range(4 * len(blocks)), WANTED)
            half.on_new_request(request)
            half.update_state_after_alloc(request, Blocks(*blocks), 0)
            assert half.request_finished(request, blocks)[0]
        assert counted(half) == {HELD_BLOCKS: 5}
        assert counted(half) is None
        half.update_connector_output(KVConnectorOutput(finished_sending={"a", "somebody else's"}))
        assert counted(half) == {HELD_BLOCKS: 2}
        half.update_connector_output(KVConnectorOutput(finished_sending={"a", "somebody else's"}))
        assert counted(half) is None
        half.update_connector_output(KVConnectorOutput(finished_sending={"b"}))
        assert counted(half) == {HELD_BLOCKS: 0}

    @pytest.mark.parametrize("changes", [{"remote_port": "x"}, {"remote_num_tokens": 11}])
    def test_tells_of_tickets_that_it_cannot_take(self, changes):
        half, params = scheduler(), ticket_of(range(10)).to_params("there")
        assert params.keys() >= changes.keys()
        half.on_new_request(Request("a", range(10), params))
        half.on_new_request(Request("d", range(10), params))
        assert counted(half) is None
        half.on_new_request(Request("b", range(10), params | changes))
        half.on_new_request(Request("c", range(10), params | changes))
        assert counted(half) == {REFUSED_TICKETS: 2}
        assert counted(half) is None


class TestThePayload:
    def test_travels(self):
        stats = P2PStats(dict(ALL))
        assert ALL.keys() == METRICS.keys()
        assert pickle.loads(pickle.dumps(stats)).data == ALL
        assert json.loads(json.dumps(stats.to_dict())) == ALL
        assert P2PConnector.build_kv_connector_stats(ALL).data == ALL
        assert P2PConnector.build_kv_connector_stats().data == {}

    def test_adds_up_but_for_levels(self):
        stats, other = P2PStats({PULL_SECONDS: [1.0]}), P2PStats(dict(ALL))
        assert stats.aggregate(other) is stats
        stats.aggregate(P2PStats({**ALL, HELD_BLOCKS: 0}))
        assert stats.data == {
            PULL_SECONDS: [1.0, 0.5, 2.0, 0.5, 2.0],
            PULLED_BYTES: 200,
            FAILED_PULLS: 2,
            SERVED_HOLDS: 4,
            EXPIRED_HOLDS: 6,
            REFUSED_TICKETS: 8,
            REFUSED_HOLDS: 12,
            HELD_BLOCKS: 0,
        }
        assert other.data == ALL

    def test_is_a_line_of_numbers(self):
        others = {name: value for name, value in ALL.items() if name != PULL_SECONDS}
        numbers = {**others, f"{PULL_SECONDS}_count": 2, f"{PULL_SECONDS}_sum": 2.5}
        assert P2PStats(dict(ALL)).reduce() == numbers

    def test_is_forgotten(self):
        stats = P2PStats(dict(ALL))
        assert not stats.is_empty()
        stats.reset()
        assert stats.is_empty()
        assert stats.reduce() == {}

    def test_is_not_mixed_with_others(self):
        with pytest.raises(TypeError, match="expected P2PStats, got KVConnectorStats"):
            P2PStats().aggregate(KVConnectorStats({}))


def test_prometheus_gets_each_metric_by_engine():
    registry = CollectorRegistry()
    types = {
        kind: lambda kind=kind, **named: kind(registry=registry, **named) for kind in (Counter, Gauge, Histogram)
    }
    metrics = P2PConnector.build_prom_metrics(vllm_config(), types, ["engine"], {0: ["0"], 1: ["1"]})
    metrics.observe(ALL, 1)
    metrics.observe({**ALL, HELD_BLOCKS: 1}, 1)
    metrics.observe({})
    metrics.observe({FAILED_PULLS: 9})
    seen = {
        (sample.name, *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket")) and sample.value
    }
    assert seen == {
        (f"{PULL_SECONDS}_count", "1"): 4,
        (f"{PULL_SECONDS}_sum", "1"): 5,
        (f"{PULLED_BYTES}_total", "1"): 200,
        (f"{FAILED_PULLS}_total", "1"): 2,
        (f"{FAILED_PULLS}_total", "0"): 9,
        (f"{SERVED_HOLDS}_total", "1"): 4,
        (f"{EXPIRED_HOLDS}_total", "1"): 6,
        (f"{REFUSED_TICKETS}_total", "1"): 8,
        (f"{REFUSED_HOLDS}_total", "1"): 12,
        (HELD_BLOCKS, "1"): 1,
    }
    assert {family.name: family.documentation for family in registry.collect()} == {
        name: metric.documentation for name, metric in METRICS.items()
    }
    (seconds,) = (family for family in registry.collect() if family.name == PULL_SECONDS)
    buckets = [
        float(sample.labels["le"])
        for sample in seconds.samples
        if sample.name.endswith("_bucket") and sample.labels["engine"] == "0"
    ]
    assert buckets == [*SECONDS, float("inf")]


def test_of_several_processes_the_latest_level_counts():
    made = {}
    types = {
        kind: lambda kind=kind, **given: made.setdefault(given["name"], kind(registry=None, **given))
        for kind in (Counter, Histogram)
    }
    types[Gauge] = lambda **given: made.setdefault("gauge", given) and Gauge(registry=None, **given)
    P2PConnector.build_prom_metrics(vllm_config(), types, ["engine"], {0: ["0"]})
    assert made["gauge"]["multiprocess_mode"] == "mostrecent"
