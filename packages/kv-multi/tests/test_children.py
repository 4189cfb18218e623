"""The configuration of the children: names, copies, and an exact message for everything that can be wrong."""

import copy

import pytest
from kv_multi_scripted import Broken, Scripted, TwoArguments, child, engine_config

from kv_api import ConfigError, KVConnectorRole, UnknownNameError
from kv_factory import KVConnectorFactory
from kv_multi import MultiConnector

ROLE = KVConnectorRole.SCHEDULER


def test_default_names_are_class_and_place(make):
    multi = make([child(), child(name="far"), child("TwoArguments")])
    assert multi.child_names == ("Scripted0", "far", "TwoArguments2")
    assert [type(c) for c in multi.sub_connectors] == [Scripted, Scripted, TwoArguments]


def test_a_child_sees_its_own_configuration(make):
    config = engine_config([child(engine_id="own", colour="red"), child()])
    before = copy.deepcopy(config)
    multi = MultiConnector(config, ROLE, "the kv cache config")
    first, second = multi.sub_connectors
    assert first._vllm_config is not config
    assert first._vllm_config.cache_config is config.cache_config
    assert first._kv_transfer_config.engine_id == "own"
    assert second._kv_transfer_config.engine_id == "engine"
    assert first._kv_transfer_config.kv_connector_extra_config == {"colour": "red"}
    assert first._kv_cache_config == "the kv cache config"
    assert first.role is ROLE
    assert config == before


def test_what_an_engine_has_set_to_nothing_is_a_child_s_too():
    config = engine_config([child()])
    config.kv_transfer_config.engine_id = ""
    assert MultiConnector(config, ROLE, None).sub_connectors[0]._kv_transfer_config.engine_id == ""


@pytest.mark.parametrize(
    ("field", "parents", "own"),
    [("kv_load_failure_policy", "recompute", "fail"), ("kv_buffer_device", "cpu", "cuda")],
)
def test_what_holds_for_an_engine_is_inherited(field, parents, own):
    silent, outspoken = child(), {**child(), field: own}
    config = engine_config([silent, outspoken])
    setattr(config.kv_transfer_config, field, parents)
    made = MultiConnector(config, ROLE).sub_connectors
    assert [getattr(c._kv_transfer_config, field) for c in made] == [parents, own]


@pytest.mark.parametrize("role", list(KVConnectorRole))
def test_the_factory_makes_it_with_two_and_with_three_arguments(role):
    config = engine_config([child(), child("TwoArguments")])
    assert len(KVConnectorFactory.create_connector_v1(config, role).sub_connectors) == 2
    assert len(KVConnectorFactory.create_connector(config, role, None).sub_connectors) == 2


def test_the_children_are_read_once(make):
    class Children(list):
        times = 0

        def __iter__(self):
            self.times += 1
            return super().__iter__()

    children = Children([child(), child()])
    make(children)
    assert children.times == 1


def test_a_child_by_module_path(make):
    multi = make([child("Scripted", module_path="kv_multi_scripted")])
    assert type(multi.sub_connectors[0]) is Scripted


def test_a_child_that_must_not_save_is_told_so(make):
    multi = make([child(save=False), child(save=True)])
    assert [c._kv_transfer_config.kv_role for c in multi.sub_connectors] == ["kv_consumer", "kv_both"]
    assert multi.sub_connectors[0]._kv_transfer_config.engine_id == "engine"


def test_what_a_child_does_to_its_settings_stays_its_own(make):
    config = child(colour="red")
    make([config]).sub_connectors[0].extra["colour"] = "green"
    assert config == child(colour="red")


KNOWN = (
    "kv_connector, engine_id, kv_buffer_device, kv_role, kv_port, kv_connector_extra_config, "
    "kv_connector_module_path, enable_permute_local_kv, kv_load_failure_policy"
)
LIST = "connectors: expected a non-empty list of KVTransferConfig mappings, got "


@pytest.mark.parametrize(
    ("children", "extra", "message"),
    [
        (None, {}, LIST + "None (NoneType)"),
        ([], {}, LIST + "[] (list)"),
        ({"kv_connector": "A"}, {}, LIST + "{'kv_connector': 'A'} (dict)"),
        ("Scripted", {}, LIST + "'Scripted' (str)"),
        (["Scripted"], {}, "connectors[0]: expected a mapping, got 'Scripted' (str)"),
        ([child(), {}], {}, "connectors[1].kv_connector: required, a child is a connector"),
        (
            [child(), {"kv_connector": "Scripted"}],
            {},
            "connectors[1].kv_role: required because kv_connector is 'Scripted'; choices: kv_producer, "
            "kv_consumer, kv_both",
        ),
        (
            [child(), {**child(), "kv_rolle": 1}],
            {},
            f"connectors[1]: unknown key 'kv_rolle'; known: {KNOWN}; did you mean 'kv_role'?",
        ),
        ([{**child(), "kv_port": "1"}], {}, "connectors[0].kv_port: expected int, got '1' (str)"),
        (
            [child(name="a"), child(name="b"), child(name="a")],
            {},
            "connectors[2]: the name 'a' is already taken by connectors[0]; give each child its own "
            "kv_connector_extra_config.name",
        ),
        (
            [child(), child(name="Scripted0")],
            {},
            "connectors[1]: the name 'Scripted0' is already taken by connectors[0]; give each child its own "
            "kv_connector_extra_config.name",
        ),
        (
            [child(name="")],
            {},
            "connectors[0].kv_connector_extra_config.name: expected a non-empty str, got '' (str)",
        ),
        (
            [child(name=7)],
            {},
            "connectors[0].kv_connector_extra_config.name: expected a non-empty str, got 7 (int)",
        ),
        (
            [child(name="quarantined")],
            {},
            "connectors[0].kv_connector_extra_config.name: 'quarantined' is reserved: stats list the "
            "switched-off connectors under it",
        ),
        (
            [child(save="no")],
            {},
            "connectors[0].kv_connector_extra_config.save: expected bool, got 'no' (str)",
        ),
        (
            [child(kv_role="kv_producer", save=False)],
            {},
            "connectors[0]: save is false, but its kv_role is 'kv_producer', and a producer only saves; "
            "choices: save true, or kv_role 'kv_both' or 'kv_consumer'",
        ),
        ([child()], {"save": 0}, "kv_connector_extra_config.save: expected bool, got 0 (int)"),
        (
            [child("Old")],
            {},
            "connectors[0].kv_connector: 'Old' is a V0 connector (Old); the children of a MultiConnector are V1 "
            "connectors",
        ),
        (
            [child()],
            {"load_policy": "longst"},
            "kv_connector_extra_config.load_policy: got 'longst'; choices: first, longest; did you mean "
            "'longest'?",
        ),
        (
            [child()],
            {"on_child_error": True},
            "kv_connector_extra_config.on_child_error: got True; choices: raise, quarantine",
        ),
        (
            [child()],
            {"load_polcy": "first"},
            "kv_connector_extra_config: unknown key 'load_polcy'; known: connectors, load_policy, name, "
            "on_child_error, save; did you mean 'load_policy'?",
        ),
        (
            [child(), child("MultiConnector", connectors=[child()], saves=False)],
            {},
            "kv_connector_extra_config: unknown key 'saves'; known: connectors, load_policy, name, "
            "on_child_error, save; did you mean 'save'?",
        ),
    ],
)
def test_bad_configuration(children, extra, message):
    config = engine_config(children, **extra)
    with pytest.raises(ConfigError) as caught:
        MultiConnector(config, ROLE)
    assert str(caught.value) == message


def test_an_engine_without_transfers_has_no_children():
    config = engine_config([child()])
    config.kv_transfer_config = None
    with pytest.raises(ConfigError) as caught:
        MultiConnector.get_required_kvcache_layout(config)
    assert str(caught.value) == "kv_transfer_config: not set, so there are no children"
    with pytest.raises(ConfigError) as caught:
        MultiConnector(config, ROLE)
    assert str(caught.value) == "MultiConnector needs a kv_transfer_config, and there is none"


def test_an_unknown_connector_is_looked_up_in_its_place():
    with pytest.raises(UnknownNameError, match=r"^connectors\[1\]\.kv_connector: .*'Scriptd'.*'Scripted'"):
        MultiConnector(engine_config([child(), child("Scriptd")]), ROLE)


def test_a_module_that_is_missing_is_named_in_its_place():
    with pytest.raises(ConfigError, match=r"^connectors\[0\]\.kv_connector: .*no_such_module") as caught:
        MultiConnector(engine_config([child(module_path="no_such_module")]), ROLE)
    assert caught.type is ConfigError


def test_a_constructor_that_raises_is_never_quarantined():
    with pytest.raises(OSError, match="no device") as caught:
        MultiConnector(engine_config([child(), child("Broken")], on_child_error="quarantine"), ROLE)
    assert caught.value.__notes__ == ["while creating connectors[1] ('Broken1') of a MultiConnector"]


@pytest.mark.parametrize("role", list(KVConnectorRole))
@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_those_made_before_one_that_raises_are_shut_down(monkeypatch, role, kind):
    made = []
    init = Scripted.__init__

    def noted(self, *args):
        init(self, *args)
        made.append(self)
        if len(made) >= 2:
            self.raises["shutdown"] = RuntimeError(f"is stuck, {len(made)}")

    def break_off(*args):
        raise kind("no device")

    monkeypatch.setattr(Scripted, "__init__", noted)
    monkeypatch.setattr(Broken, "__init__", break_off)
    with pytest.raises(kind, match="no device") as caught:
        MultiConnector(engine_config([child(), child(), child(), child("Broken"), child()]), role)
    assert [[call[0] for call in one.calls] for one in made] == [["shutdown"]] * 3
    assert caught.value.__notes__ == [
        "while creating connectors[3] ('Broken3') of a MultiConnector",
        "the shutdown of connector 'Scripted1', made before, raised RuntimeError: is stuck, 2",
        "the shutdown of connector 'Scripted2', made before, raised RuntimeError: is stuck, 3",
    ]


def test_keys_of_others_pass(make):
    make([child()], enforce_handshake_compat=True, eviction_policy="lru", load_policies=1)
