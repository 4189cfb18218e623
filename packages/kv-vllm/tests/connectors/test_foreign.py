"""vLLM's connectors behind ours: what is asked reaches them, and where a child's class is found."""

import sys
from dataclasses import dataclass, fields
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock, call

import pytest

import kv_api
from kv_api import ConfigError

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def foreign():
    pytest.importorskip("vllm")
    from kv_vllm.connectors import foreign

    return foreign


@pytest.fixture
def transfer():
    """The part about transfers, as ours."""
    return kv_api.KVTransferConfig("X", engine_id="e", kv_role="kv_both", kv_connector_extra_config={"a": 1})


def test_the_part_about_transfers_becomes_vllms(foreign, transfer):
    theirs = foreign.transfer_for_vllm(transfer)
    assert type(theirs) is foreign.VllmTransferConfig
    told = (theirs.kv_connector, theirs.engine_id, theirs.kv_role, theirs.kv_connector_extra_config)
    assert told == ("X", "e", "kv_both", {"a": 1})
    assert foreign.transfer_for_vllm(theirs) is theirs
    config = SimpleNamespace(kv_transfer_config=transfer, model_config="m")
    copied = foreign.config_for_vllm(config)
    assert (copied.kv_transfer_config, copied.model_config) == (theirs, "m")
    assert config.kv_transfer_config is transfer
    with pytest.raises(ConfigError) as refused:
        foreign.transfer_for_vllm(None)
    assert str(refused.value) == "kv_transfer_config: not set, so there is no connector to create"


def test_nothing_of_it_is_left_out(foreign):
    values = {
        "kv_connector": "X", "engine_id": "e", "kv_buffer_device": "cpu", "kv_role": "kv_producer", "kv_port": 0,
        "kv_connector_extra_config": {"a": 1}, "kv_connector_module_path": "some.where",
        "enable_permute_local_kv": True, "kv_load_failure_policy": "recompute",
    }  # fmt: skip
    assert {*values} == {field.name for field in fields(kv_api.KVTransferConfig)}
    theirs = foreign.transfer_for_vllm(kv_api.KVTransferConfig(**values))
    assert {name: getattr(theirs, name) for name in values} == values


def test_what_vllm_has_no_word_for_is(foreign):
    @dataclass
    class Newer(kv_api.KVTransferConfig):
        says_more: int = 1

    assert foreign.transfer_for_vllm(Newer("X", engine_id="e", kv_role="kv_both")).engine_id == "e"


def test_what_is_asked_of_the_class(foreign, transfer):
    class One(foreign.ForeignConnector):
        theirs = MagicMock()

    config, theirs = SimpleNamespace(kv_transfer_config=transfer), foreign.transfer_for_vllm(transfer)
    asked = One.theirs
    assert One.get_required_kvcache_layout(config) is asked.get_required_kvcache_layout.return_value
    assert One.build_kv_connector_stats({"a": 1}) is asked.build_kv_connector_stats.return_value
    assert One.build_prom_metrics(config, "types", ["engine"], {}) is asked.build_prom_metrics.return_value
    for answer in (1, 0):
        asked.requires_piecewise_for_cudagraph.return_value = asked.supports_sleep_mode.return_value = answer
        assert One.requires_piecewise_for_cudagraph({"b": 2}) is bool(answer)
        assert One.supports_sleep_mode(transfer) is bool(answer)
    assert asked.get_required_kvcache_layout.call_args.args[0].kv_transfer_config == theirs
    One.build_kv_connector_stats()
    assert asked.build_kv_connector_stats.call_args_list == [call({"a": 1}), call(None)]
    assert asked.build_prom_metrics.call_args.args[0].kv_transfer_config == theirs
    assert asked.build_prom_metrics.call_args.args[1:] == ("types", ["engine"], {})
    assert asked.requires_piecewise_for_cudagraph.call_args == call({"b": 2})
    assert asked.supports_sleep_mode.call_args == call(theirs)
    One.theirs = SimpleNamespace()  # an older one doesn't know the question
    assert One.supports_sleep_mode(transfer) is False


@pytest.mark.parametrize("answer", [True, False])
def test_what_is_asked_of_the_object(foreign, transfer, answer):
    made = foreign.foreign_class(foreign.VllmFactory.get_connector_class_by_name("OffloadingConnector"))
    one = object.__new__(made)
    one.inner = MagicMock(requires_kv_delivery=answer, supports_divergent_local_hybrid_hits=not answer)
    assert (one.requires_kv_delivery, one.supports_divergent_local_hybrid_hits) == (answer, not answer)
    assert one.request_finished_all_groups("request", ([1],)) is one.inner.request_finished_all_groups.return_value
    one.start_load_kv("context", more=1)
    assert one.inner.mock_calls == [
        call.request_finished_all_groups("request", ([1],)),
        call.start_load_kv("context", more=1),
    ]


def test_every_call_reaches_it(foreign):
    from kv_vllm.handing_on import CALLED

    one = object.__new__(
        foreign.foreign_class(foreign.VllmFactory.get_connector_class_by_name("ExampleConnector"))
    )
    one.inner = MagicMock()
    known = [name for name in CALLED if hasattr(foreign.VllmBase, name)]
    for name in known:
        assert getattr(one, name)("given", more=1) is getattr(one.inner, name).return_value
    assert one.inner.mock_calls == [getattr(call, name)("given", more=1) for name in known]
    assert {"shutdown", "register_kv_caches"} <= {*known}


def test_what_an_older_vllm_does_not_know_is_not_asked_of_it(foreign, monkeypatch):
    from kv_vllm.handing_on import CALLED

    theirs = foreign.VllmFactory.get_connector_class_by_name("ExampleConnector")
    older = type("Older", (), {name: None for name in CALLED if name != "unregister_kv_caches"})
    monkeypatch.setattr(foreign, "VllmBase", older)
    made = foreign.foreign_class.__wrapped__(theirs)
    assert made.unregister_kv_caches is kv_api.KVConnectorBase_V1.unregister_kv_caches
    assert made.restore_kv_caches is not kv_api.KVConnectorBase_V1.restore_kv_caches


def test_it_is_made_with_vllms_words(foreign, transfer):
    class One(foreign.ForeignConnector):
        theirs = MagicMock()

    One.__abstractmethods__ = frozenset()
    config = SimpleNamespace(kv_transfer_config=transfer)
    one = One(config, kv_api.KVConnectorRole.WORKER, "caches")
    (given, role, caches), _ = One.theirs.call_args
    assert one.inner is One.theirs.return_value
    assert given.kv_transfer_config == foreign.transfer_for_vllm(transfer)
    assert (type(role).__module__.partition(".")[0], role.name, caches) == ("vllm", "WORKER", "caches")
    assert one.role is kv_api.KVConnectorRole.WORKER, "to kv-multi it is one of ours"
    One(config, kv_api.KVConnectorRole.WORKER)
    assert One.theirs.call_args.args[2] is None


MINE = "kv_vllm.connectors.foreign"


@pytest.mark.parametrize(
    ("child", "changed"),
    [
        ({"kv_connector": "MultiConnector"}, {"kv_connector_module_path": "kv_vllm"}),
        ({"kv_connector": "P2PConnector"}, {"kv_connector_module_path": "kv_vllm"}),
        (
            {"kv_connector": "RecordingConnector"},
            {"kv_connector": "kv_vllm:RecordingConnector", "kv_connector_module_path": MINE},
        ),
        ({"kv_connector": "ExampleConnector", "a": 1}, {"kv_connector_module_path": MINE}),
        ({"kv_connector": "ExampleConnector", "kv_connector_module_path": MINE}, {}),
        ({"kv_connector": "Nobody's", "kv_connector_module_path": "kv_sim.examples.memory"}, {}),
        ({"kv_connector": "OrderedDict", "kv_connector_module_path": "collections"}, {}),
        ({"kv_connector": "Name", "kv_connector_module_path": "kv_vllm.drift.compare"}, {}),
        ({"kv_connector": "OffloadingConnector", "kv_connector_module_path": "kv_vllm"}, {}),
        ({"kv_connector": 3}, {}),
        ({}, {}),
    ],
)
def test_what_is_changed_of_a_child(foreign, child, changed):
    assert foreign.with_found_children({"connectors": (child,), "b": 2}) == {
        "connectors": [{**child, **changed}],
        "b": 2,
    }


def test_every_connector_that_is_exported_may_be_a_child_by_its_name(foreign):
    import kv_vllm

    assert {*foreign.OURS} == {name for name in kv_vllm.__all__ if name.endswith("Connector")}


@pytest.mark.parametrize("extra", [{}, {"connectors": None}, {"connectors": "x"}, {"connectors": ["x", 3]}])
def test_what_is_wrong_is_left_to_others(foreign, extra):
    assert foreign.with_found_children(extra) == extra


def test_a_child_may_be_in_a_module_whose_name_begins_with_an_underscore(foreign, monkeypatch):
    theirs, child = ModuleType("_theirs"), {"kv_connector": "Theirs", "kv_connector_module_path": "_theirs"}
    theirs.Theirs = type("Theirs", (foreign.VllmBase,), {})
    monkeypatch.setitem(sys.modules, "_theirs", theirs)
    [found] = foreign.with_found_children({"connectors": [child]})["connectors"]
    assert found == {"kv_connector": "_theirs:Theirs", "kv_connector_module_path": MINE}
    assert getattr(foreign, found["kv_connector"]).theirs is theirs.Theirs


@pytest.mark.parametrize("name", ["_private", "__path__", "Nobody's"])
def test_an_unknown_name(foreign, name):
    with pytest.raises(AttributeError) as refused:
        getattr(foreign, name)
    assert str(refused.value) == f"module 'kv_vllm.connectors.foreign' has no attribute {name!r}"
