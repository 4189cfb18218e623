"""Metrics with the real prometheus_client: children of one class share a metric and have a label each."""

import functools

import pytest
from kv_multi_scripted import Scripted, child, engine_config
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kv_multi import MultiConnector


@pytest.fixture
def registry():
    return CollectorRegistry()


def build(children, registry, engines=(0,)):
    """As an engine does: its metric classes, its labels, the label values of each engine index."""
    metric_types = {kind: functools.partial(kind, registry=registry) for kind in (Gauge, Counter, Histogram)}
    values = {engine: ["model", str(engine)] for engine in engines}
    return MultiConnector.build_prom_metrics(
        engine_config(children), metric_types, ["model_name", "engine"], values
    )


def value(registry, child_name, name="kv_test_n_total", engine="0", **labels):
    return registry.get_sample_value(
        name, {"model_name": "model", "engine": engine, "child": child_name, **labels}
    )


def payload(**counts):
    return {
        name: {"kv_connector": "Scripted", "kv_connector_module_path": None, "data": {"n": n}}
        for name, n in counts.items()
    }


def test_children_of_one_class(registry):
    metrics = build([child(), child(name="far"), child("ScriptedHMA"), child("Mute")], registry, engines=(0, 3))
    metrics.observe(payload(Scripted0=1, far=2, ScriptedHMA2=4, Mute3=5, quarantined=6))
    metrics.observe(payload(far=10), engine_idx=3)
    assert [value(registry, name) for name in ("Scripted0", "far", "ScriptedHMA2")] == [1, 2, 4]
    assert value(registry, "far", engine="3") == 10
    assert value(registry, "Scripted0", engine="3") == 0
    assert value(registry, "far", name="kv_test_last", kind="any") == 2
    assert value(registry, "Scripted0", name="kv_test_last", kind="any") == 1


class Otherwise(Scripted):
    """Its metric ``kv_test_last`` has another label."""

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        kind = metric_types[Gauge]
        metric = kind(name="kv_test_last", documentation="Last.", labelnames=[*labelnames, "colour"])
        metric.labels(*per_engine_labelvalues[0], "red").set(7)
        return super().build_prom_metrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def test_a_metric_that_a_later_child_has_other_labels_for_has_a_name_of_its_own(registry):
    """Its own name is as another child's that asks for the same labels, of whatever kind."""
    others = [child("Otherwise", module_path=__name__, name=name) for name in ("far-off.7", "near")]
    metrics = build([child(), *others, child(name="last")], registry)
    metrics.observe(payload(Scripted0=1, near=3, last=4))
    assert value(registry, "Scripted0", name="kv_test_last", kind="any") == 1
    assert value(registry, "last", name="kv_test_last", kind="any") == 4
    assert value(registry, "near", name="kv_test_last", kind="any") == 3
    assert value(registry, "far-off.7", name="kv_test_last_far_off_7", colour="red") == 7
    assert value(registry, "near", name="kv_test_last_near", colour="red") == 7


class Extends(Scripted):
    """Adds its own label to the names that it was given, and to the values."""

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        labelnames.append("colour")
        for values in per_engine_labelvalues.values():
            values.append("red")


def test_what_a_child_does_to_its_labels_is_nothing_to_others(registry):
    build([child("Extends", module_path=__name__), child()], registry).observe(payload(Scripted1=1))
    assert value(registry, "Scripted1") == 1


class Tuples(Scripted):
    """Names its labels in tuples."""

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return super().build_prom_metrics(vllm_config, metric_types, tuple(labelnames), per_engine_labelvalues)


class Backwards(Scripted):
    """Has the labels of others in another order."""

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        values = {engine: of_engine[::-1] for engine, of_engine in per_engine_labelvalues.items()}
        return super().build_prom_metrics(vllm_config, metric_types, labelnames[::-1], values)


def test_labels_in_another_order_are_others(registry):
    """Values are given by place: under the first child's order they would stand under the wrong labels."""
    metrics = build([child(), child("Backwards", module_path=__name__)], registry)
    metrics.observe(payload(Scripted0=1, Backwards1=2))
    assert value(registry, "Scripted0") == 1
    assert value(registry, "Backwards1", name="kv_test_n_Backwards1_total") == 2


def test_labels_are_the_same_in_a_list_and_in_a_tuple(registry):
    metrics = build([child(), child("Tuples", module_path=__name__)], registry)
    metrics.observe(payload(Scripted0=1, Tuples1=2))
    assert [value(registry, name) for name in ("Scripted0", "Tuples1")] == [1, 2]


def test_the_settings_of_a_metric_are_its_class_s(registry):
    metrics = build([child(), child(name="far")], registry)
    for n in (1, 4, 9):
        metrics.observe(payload(far=n))
    counts = [value(registry, "far", "kv_test_sizes_bucket", le=le) for le in ("2.0", "5.0", "+Inf")]
    assert counts == [1, 2, 3]
    edges = {labels["le"] for metric in registry.collect() for _, labels, *_ in metric.samples if "le" in labels}
    assert edges == {"2.0", "5.0", "+Inf"}


def test_an_only_child_has_the_label_too(registry):
    build([child()], registry).observe(payload(Scripted0=1))
    assert value(registry, "Scripted0") == 1


def test_nested_children_are_named_by_path(registry):
    inner = child("MultiConnector", name="inner", connectors=[child(), child(name="deep")])
    metrics = build([child(), inner], registry)
    envelope = {"kv_connector": "MultiConnector", "kv_connector_module_path": None}
    metrics.observe({**payload(Scripted0=1), "inner": {**envelope, "data": payload(Scripted0=2, deep=4)}})
    assert [value(registry, name) for name in ("Scripted0", "inner/Scripted0", "inner/deep")] == [1, 2, 4]


def test_vllms_own_payload_is_understood(registry):
    build([child()], registry).observe({"Scripted0": {"n": 3}})
    assert value(registry, "Scripted0") == 3


def test_the_stats_of_a_worker_are_observed(registry, worker):
    from kv_multi_scripted import Count

    multi, *_ = worker(child(name="near", answers={"get_kv_connector_stats": Count({"n": 7})}))
    build([child(name="near")], registry).observe(multi.get_kv_connector_stats().to_dict())
    assert value(registry, "near") == 7


def test_two_engines_register_apart():
    """Nothing is remembered between two calls: each engine has its own registry."""
    for _ in range(2):
        registry = CollectorRegistry()
        build([child(), child()], registry)
        assert value(registry, "Scripted1") == 0
