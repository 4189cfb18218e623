"""MultiConnector as the published API reference describes it, point by point."""

import dataclasses
from types import SimpleNamespace

import pytest
from kv_multi_scripted import Blocks, Meta, child, engine_config, request

from kv_api import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole, KVConnectorTransferResults
from kv_factory import KVConnectorFactory
from kv_multi import MultiConnector, MultiKVConnectorMetadata
from kv_multi.scheduler_side import MultiSchedulerSide
from kv_multi.worker_side import MultiWorkerSide

R = request()
BLOCKS = Blocks([1, 2])
CHILDREN = [child(name="near"), child(name="far")]


def test_it_is_a_connector_that_wraps_several():
    assert issubclass(MultiConnector, KVConnectorBase_V1)


@pytest.mark.parametrize("role", list(KVConnectorRole))
def test_init_takes_a_configuration_and_a_role(role):
    multi = MultiConnector(engine_config(CHILDREN), role)
    assert [one.role for one in multi.sub_connectors] == [role, role]


def test_the_factory_knows_it_by_name(monkeypatch):
    monkeypatch.delenv("VLLM_USE_V1", raising=False)
    multi = KVConnectorFactory.create_connector_v1(engine_config(CHILDREN), KVConnectorRole.WORKER)
    assert type(multi) is MultiConnector


def test_metadata_is_a_dataclass_of_connector_metadata():
    assert dataclasses.is_dataclass(MultiKVConnectorMetadata)
    assert issubclass(MultiKVConnectorMetadata, KVConnectorMetadata)
    metadata = MultiKVConnectorMetadata(metadata=(Meta(), Meta()), extra_async_saves={"r": 1})
    assert (metadata.metadata, metadata.extra_async_saves) == ((Meta(), Meta()), {"r": 1})
    assert MultiKVConnectorMetadata((Meta(),)).extra_async_saves is None


@pytest.mark.parametrize(("near", "far", "loads"), [(4, 8, "near"), (0, 8, "far"), (4, 0, "near"), (0, 0, None)])
def test_loads_from_the_first_that_advertises_tokens(make, near, far, loads):
    multi = make(CHILDREN)
    tokens = {"near": near, "far": far}
    halves = dict(zip(tokens, multi.sub_connectors, strict=True))
    for name, half in halves.items():
        half.answers["get_num_new_matched_tokens"] = (tokens[name], False)
    matched = multi.get_num_new_matched_tokens(R, 0)
    assert matched == (tokens.get(loads, 0), False)
    multi.update_state_after_alloc(R, BLOCKS, matched[0])
    for name, half in halves.items():
        assert half.asked("update_state_after_alloc") == [(R, BLOCKS, tokens[name] if name == loads else 0)]


def test_the_order_is_that_of_the_configuration(make):
    multi = make(CHILDREN[::-1])
    for one in multi.sub_connectors:
        one.answers["get_num_new_matched_tokens"] = lambda r, n, one=one: (len(one.extra["name"]), False)
    assert multi.get_num_new_matched_tokens(R, 0) == (len("far"), False)


def test_saves_to_all(make):
    multi = make(CHILDREN, KVConnectorRole.WORKER)
    multi.save_kv_layer("layer", "tensor", "attention")
    multi.wait_for_save()
    for one in multi.sub_connectors:
        assert one.calls == [("save_kv_layer", "layer", "tensor", "attention"), ("wait_for_save",)]


def test_a_step_from_plan_to_report(make):
    """build_connector_meta, bind, register, start_load_kv, get_finished, clear; request_finished before."""
    scheduler, worker = make(CHILDREN), make(CHILDREN, KVConnectorRole.WORKER)
    for one in scheduler.sub_connectors:
        one.answers["request_finished"] = (True, None)
        one.answers["build_connector_meta"] = Meta(one.extra["name"])
    worker.register_kv_caches({"layer": "tensor"})
    assert scheduler.request_finished(R, [1, 2]) == (True, None)
    metadata = scheduler.build_connector_meta(SimpleNamespace())
    assert type(metadata) is MultiKVConnectorMetadata
    assert metadata.metadata == (Meta("near"), Meta("far"))
    worker.bind_connector_metadata(metadata)
    worker.start_load_kv("context")
    near, far = worker.sub_connectors
    near.answers["get_transfer_results"] = KVConnectorTransferResults({"r"})
    assert worker.get_finished({"r"}) == (None, None)
    far.answers["get_transfer_results"] = KVConnectorTransferResults({"r"})
    assert worker.get_finished(set()) == ({"r"}, None)
    worker.clear_connector_metadata()
    assert [call[0] for call in near.calls] == [
        "register_kv_caches",
        "bind_connector_metadata",
        "start_load_kv",
        "get_transfer_results",
        "get_transfer_results",
        "clear_connector_metadata",
    ]
    assert near.asked("bind_connector_metadata") == [(Meta("near"),)]
    assert far.asked("bind_connector_metadata") == [(Meta("far"),)]


def test_every_listed_member_is_its_own():
    scheduler = "build_connector_meta get_num_new_matched_tokens request_finished update_state_after_alloc"
    worker = "bind_connector_metadata clear_connector_metadata get_finished register_kv_caches save_kv_layer"
    for half, listed in ((MultiSchedulerSide, scheduler), (MultiWorkerSide, f"{worker} start_load_kv")):
        for name in ("__init__", *listed.split()):
            assert getattr(half, name).__module__.startswith("kv_multi."), f"{half.__name__}.{name}"
            assert callable(getattr(MultiConnector, name))
