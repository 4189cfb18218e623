"""What vLLM's own tests say of a MultiConnector's stats and end, told with our payloads; each cites the original.

The originals are in vLLM's `tests/v1/kv_connector/unit/test_multi_connector.py`. They can't run on ours: they name
connectors of vLLM's, or reach into private attributes.
"""

import pytest
from kv_multi_scripted import Count, child

from kv_api import UnknownNameError
from kv_multi import MultiConnector, MultiKVConnectorStats


def payload(worker, *children):
    """What a worker with such children sends."""
    return worker(*children)[0].get_kv_connector_stats().to_dict()


def counting(n, **extra):
    return child(answers={"get_kv_connector_stats": Count({"n": n})}, **extra)


def test_an_unknown_connector_is_an_error_and_named():
    """`test_build_kv_connector_stats_raises_error_for_unknown_connector`: of all, when one isn't registered."""
    with pytest.raises(UnknownNameError, match="unknown connector 'Unknown'") as caught:
        MultiConnector.build_kv_connector_stats({"Scripted": {"n": 1}, "Unknown": {"n": 1}})
    assert isinstance(caught.value, ValueError)


def test_objects_and_payloads_may_be_mixed(worker):
    """`test_build_kv_connector_stats_with_mixed_objects_and_dicts`: an object stays, a payload is rebuilt."""
    count = Count({"n": 1})
    mixed = {"near": count, **payload(worker, counting(2, name="far"))}
    stats = MultiConnector.build_kv_connector_stats(mixed)
    assert stats["near"] is count
    assert stats["far"] == Count({"n": 2})
    assert set(stats.data) == {"near", "far"}


def test_a_rebuilt_object_says_what_it_was_built_from(worker):
    """`test_build_kv_connector_stats_with_multiple_connectors`: `to_dict` gives the payload again."""
    sent = payload(worker, counting(1), counting(2, name="far"))
    stats = MultiConnector.build_kv_connector_stats(sent)
    assert isinstance(stats, MultiKVConnectorStats)
    assert {name: type(own) for name, own in stats.data.items()} == {"Scripted0": Count, "far": Count}
    assert stats.to_dict() == sent


def test_one_without_stats_of_its_own_is_left_out_and_the_others_are_not(worker):
    """`test_build_kv_connector_stats_skips_connectors_without_custom_stats`."""
    sent = payload(
        worker, child("Mute", answers={"get_kv_connector_stats": Count({"n": 1})}), counting(2, name="far")
    )
    assert MultiConnector.build_kv_connector_stats(sent).data == {"far": Count({"n": 2})}


def test_nothing_is_empty():
    """`test_build_kv_connector_stats_with_empty_dict`."""
    stats = MultiConnector.build_kv_connector_stats({})
    assert isinstance(stats, MultiKVConnectorStats)
    assert stats.is_empty() and stats.data == {}
