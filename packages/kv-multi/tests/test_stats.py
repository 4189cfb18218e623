"""Stats by name: children of one class stay apart, and another process can rebuild them."""

import json
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from kv_multi_scripted import Count, Text, child

import kv_factory
from kv_multi import MultiConnector, MultiKVConnectorStats
from kv_multi.stats import Origin, QuarantineStats


def multi_stats(**counts):
    return MultiKVConnectorStats({name: Count({"n": n}) for name, n in counts.items()})


def test_children_of_one_class_stay_apart(worker):
    multi, *_ = worker(
        child(answers={"get_kv_connector_stats": Count({"n": 1})}),
        child(name="far", answers={"get_kv_connector_stats": Count({"n": 2})}),
        child(),
    )
    stats = multi.get_kv_connector_stats()
    assert stats.data == {"Scripted0": Count({"n": 1}), "far": Count({"n": 2})}
    assert stats["far"] == Count({"n": 2})
    assert stats.reduce() == {"Scripted0": {"n": 1}, "far": {"n": 2}}


def test_nothing_to_tell(worker, scheduler):
    assert worker()[0].get_kv_connector_stats() is None
    assert scheduler()[0].get_kv_connector_stats() is None


def test_aggregate_reset_and_empty():
    stats = multi_stats(a=1).aggregate(multi_stats(a=2, b=3))
    assert {name: own.data["n"] for name, own in stats.data.items()} == {"a": 3, "b": 3}
    assert not stats.is_empty()
    stats.reset()
    assert stats.is_empty()
    stats["c"] = Count({"n": 1})
    assert not stats.is_empty()
    assert multi_stats().is_empty()


def test_a_sum_knows_the_class_of_every_child():
    here, there = Origin("Here"), Origin("There", "a.module")
    stats = MultiKVConnectorStats({"a": Count({"n": 1})}, {"a": here})
    stats.aggregate(MultiKVConnectorStats({"a": Count({"n": 1}), "b": Count({"n": 1})}, {"a": there, "b": there}))
    assert stats.origins == {"a": here, "b": there}


def test_who_is_switched_off_on_any_side_is_told():
    ours, theirs = QuarantineStats({"a": "here", "b": "both"}), QuarantineStats({"c": "there", "b": "later"})
    stats = MultiKVConnectorStats({"quarantined": ours}).aggregate(MultiKVConnectorStats({"quarantined": theirs}))
    assert stats.reduce() == {"quarantined": {"a": "here", "b": "both", "c": "there"}}
    stats.reset()
    stats.reduce()["quarantined"].clear()
    assert stats.reduce() == {"quarantined": {"a": "here", "b": "both", "c": "there"}}
    assert (QuarantineStats({}).is_empty(), stats.is_empty()) == (True, False)


def test_who_is_switched_off_is_rebuilt_as_what_was_counted_is():
    stats = MultiKVConnectorStats({"quarantined": QuarantineStats({"a": "here"}), "Scripted": Count({"n": 4})})
    assert MultiConnector.build_kv_connector_stats(stats.to_dict()).data == stats.data


def test_aggregate_refuses_what_does_not_fit():
    with pytest.raises(TypeError) as caught:
        MultiKVConnectorStats({"a": Text()}).aggregate(multi_stats(a=1))
    assert str(caught.value) == "stats of connector 'a': can't add Count to Text"
    with pytest.raises(TypeError) as caught:
        multi_stats(a=1).aggregate(Count())
    assert str(caught.value) == "stats: expected MultiKVConnectorStats, got Count"


def test_a_sum_can_be_rebuilt(worker):
    """The sum knows each child's class, whichever of the two objects had the child."""
    counts = {"get_kv_connector_stats": Count({"n": 1})}
    multi, *_ = worker(child("Scripted", module_path="kv_multi_scripted", name="far", answers=counts), child())
    total = MultiKVConnectorStats().aggregate(multi.get_kv_connector_stats())
    with kv_factory.isolated(connectors=[]):
        assert MultiConnector.build_kv_connector_stats(total.to_dict()) == total


def test_objects_pass_through():
    count = Count({"n": 1})
    assert MultiConnector.build_kv_connector_stats({"a": count})["a"] is count
    assert MultiConnector.build_kv_connector_stats() == MultiKVConnectorStats()


def test_vllms_own_payload_is_understood():
    """There the key is the name of a registered connector, and the value its payload."""
    stats = MultiConnector.build_kv_connector_stats({"Scripted": {"n": 4}})
    assert stats.data == {"Scripted": Count({"n": 4})}
    assert MultiConnector.build_kv_connector_stats({"Scripted": {}}).data == {"Scripted": Count({})}


def test_of_whom_only_the_name_is_known_is_rebuilt_by_it():
    stats = MultiKVConnectorStats()
    stats["Scripted"] = Count({"n": 4})
    assert MultiConnector.build_kv_connector_stats(stats.to_dict()).data == {"Scripted": Count({"n": 4})}


def test_a_class_that_cannot_rebuild_is_left_out_and_that_is_logged(worker, caplog):
    multi, *_ = worker(child("Mute", answers={"get_kv_connector_stats": Count({"n": 1})}), child())
    payload = multi.get_kv_connector_stats().to_dict()
    with caplog.at_level(logging.DEBUG, "kv_multi"):
        assert MultiConnector.build_kv_connector_stats(payload).data == {}
    assert [(record.name, record.message) for record in caplog.records] == [
        ("kv_multi", "connector 'Mute0' sent stats, but its class can't rebuild them")
    ]


def test_a_class_of_the_old_interface_counts_nothing():
    with pytest.raises(TypeError) as caught:
        MultiConnector.build_kv_connector_stats({"Old": {"n": 4}})
    assert str(caught.value) == "stats of connector 'Old': Old is no V1 connector"


def test_what_is_no_payload_is_refused():
    with pytest.raises(TypeError) as caught:
        MultiConnector.build_kv_connector_stats({"a": 3})
    assert str(caught.value) == "stats of connector 'a': expected a payload or an object, got 3"


def nested_worker(worker):
    counts = {"get_kv_connector_stats": Count({"n": 1})}
    inner = child("MultiConnector", name="inner", connectors=[child("Outside", module_path="kv_multi_outside")])
    return worker(
        child("Outside", module_path="kv_multi_outside", answers=counts),
        child(
            "Outside",
            module_path="kv_multi_outside",
            name="far",
            answers={"get_kv_connector_stats": Count({"n": 2})},
        ),
        inner,
    )


OUTSIDE = """
from kv_multi_scripted import Scripted

class Outside(Scripted):
    pass
"""

READER = """
import json, sys
from kv_multi import MultiConnector

payload = sys.stdin.read()
stats = MultiConnector.build_kv_connector_stats(json.loads(payload))
print(json.dumps(stats.reduce()))
stats.aggregate(MultiConnector.build_kv_connector_stats(json.loads(payload)))
print(json.dumps(stats.reduce()))
print(json.dumps(type(stats["far"]).__name__))
"""


def test_another_process_rebuilds_them(worker, tmp_path, monkeypatch):
    """It has only the payload: classes by module path, two of one class, one of them nested."""
    (tmp_path / "kv_multi_outside.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    multi, *children = nested_worker(worker)
    children[2].sub_connectors[0].answers["get_kv_connector_stats"] = Count({"n": 3})
    stats = pickle.loads(pickle.dumps(multi.get_kv_connector_stats()))
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent / "support")])
    done = subprocess.run(
        [sys.executable, "-c", READER],
        input=json.dumps(stats.to_dict()),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"Outside0": {"n": 1}, "far": {"n": 2}, "inner": {"Outside0": {"n": 3}}},
        {"Outside0": {"n": 2}, "far": {"n": 4}, "inner": {"Outside0": {"n": 6}}},
        "Count",
    ]
