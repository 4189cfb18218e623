"""``KVTransferConfig``: every wrong value is an error that names the field and the choices."""

from collections import OrderedDict
from typing import Any

import pytest

from kv_api import ConfigError, KVTransferConfig, RemovedKeyWarning

ROLES = "kv_producer, kv_consumer, kv_both"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"kv_connector": "C"},
            f"kv_role: required because kv_connector is 'C'; choices: {ROLES}",
        ),
        (
            {"kv_connector": "C", "kv_role": "kv_bth"},
            f"kv_role: got 'kv_bth'; choices: {ROLES}; did you mean 'kv_both'?",
        ),
        ({"kv_role": 3}, f"kv_role: got 3; choices: {ROLES}"),
        ({"kv_role": ["kv_both"]}, f"kv_role: got ['kv_both']; choices: {ROLES}"),
        ({"kv_connector": 7, "kv_role": "kv_both"}, "kv_connector: expected str or None, got 7 (int)"),
        (
            {"kv_connector": "", "kv_role": "kv_both"},
            "kv_connector: expected a name or nothing, got an empty string",
        ),
        (
            {"kv_connector_module_path": ""},
            "kv_connector_module_path: expected a name or nothing, got an empty string",
        ),
        ({"kv_connector_module_path": b"m"}, "kv_connector_module_path: expected str or None, got b'm' (bytes)"),
        ({"engine_id": 1}, "engine_id: expected str or None, got 1 (int)"),
        ({"kv_buffer_device": None}, "kv_buffer_device: expected str, got None (NoneType)"),
        ({"kv_port": "80"}, "kv_port: expected int, got '80' (str)"),
        ({"kv_port": True}, "kv_port: expected int, got True (bool)"),
        ({"kv_port": 65536}, "kv_port: expected 0 to 65535, got 65536"),
        ({"kv_port": -1}, "kv_port: expected 0 to 65535, got -1"),
        (
            {"kv_connector_extra_config": [("a", 1)]},
            "kv_connector_extra_config: expected dict, got [('a', 1)] (list)",
        ),
        ({"kv_connector_extra_config": {1: 2}}, "kv_connector_extra_config: keys are strings, got 1 (int)"),
        ({"enable_permute_local_kv": 1}, "enable_permute_local_kv: expected bool, got 1 (int)"),
        (
            {"kv_load_failure_policy": "recompile"},
            "kv_load_failure_policy: got 'recompile'; choices: recompute, fail; did you mean 'recompute'?",
        ),
    ],
)
def test_a_wrong_value_names_the_field(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KVTransferConfig(**values)
    assert str(caught.value) == message
    with pytest.raises(ValueError, match="here"):
        KVTransferConfig.from_mapping(values, where="here")


def test_from_mapping_says_where_and_finds_typos() -> None:
    with pytest.raises(ConfigError) as caught:
        KVTransferConfig.from_mapping({"kv_conector": "C"}, where="connectors[1]")
    text = str(caught.value)
    known = ", ".join(vars(KVTransferConfig()))
    assert text == f"connectors[1]: unknown key 'kv_conector'; known: {known}; did you mean 'kv_connector'?"
    with pytest.raises(ConfigError) as caught:
        KVTransferConfig.from_mapping({"colour": "red"})
    assert str(caught.value) == f"kv_transfer_config: unknown key 'colour'; known: {known}"
    with pytest.raises(ConfigError) as caught:
        KVTransferConfig.from_mapping({"kv_connector": "C"}, where="connectors[1]")
    assert str(caught.value).startswith("connectors[1].kv_role: required because")
    assert str(caught.value.__cause__).startswith("kv_role: required because")
    wrong: Any = 3
    with pytest.raises(ConfigError, match=r"^kv_transfer_config: expected a mapping, got 3 \(int\)$"):
        KVTransferConfig.from_mapping(wrong)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("kv_rank", 0, "a connector takes its rank from the engine's parallel configuration"),
        ("kv_parallel_size", 1, "the number of instances is the router's business, not an instance's"),
        (
            "kv_buffer_size",
            1e9,
            "no transport reads it any more; size a connector's memory in its kv_connector_extra_config",
        ),
        ("kv_ip", "127.0.0.1", "connectors exchange their addresses through handshake metadata or extra config"),
    ],
)
def test_a_removed_key_is_accepted_and_explained(key: str, value: Any, reason: str) -> None:
    values = {"kv_connector": "C", "kv_role": "kv_both", key: value}
    with pytest.warns(RemovedKeyWarning) as warned:
        config = KVTransferConfig(**values)
    [warning] = warned
    assert str(warning.message) == f"{key}={value!r} has no effect since vLLM 0.32: {reason}"
    assert warning.filename == __file__  # where it was written
    with pytest.warns(RemovedKeyWarning):
        assert KVTransferConfig.from_mapping(values).kv_connector == "C"
    assert key not in vars(config)


@pytest.mark.parametrize(
    ("role", "producer", "consumer"),
    [("kv_producer", True, False), ("kv_consumer", False, True), ("kv_both", True, True)],
)
def test_a_role_says_whether_it_stores_and_whether_it_loads(role: Any, producer: bool, consumer: bool) -> None:
    config = KVTransferConfig(kv_connector="C", kv_role=role)
    assert config.is_kv_transfer_instance
    assert (config.is_kv_producer, config.is_kv_consumer) == (producer, consumer)
    nothing = KVTransferConfig(kv_role=role)
    assert not any([nothing.is_kv_transfer_instance, nothing.is_kv_producer, nothing.is_kv_consumer])


def test_defaults_are_those_of_vllm() -> None:
    config = KVTransferConfig()
    assert vars(config) == {
        "kv_connector": None,
        "engine_id": config.engine_id,
        "kv_buffer_device": "cuda",
        "kv_role": None,
        "kv_port": 14579,
        "kv_connector_extra_config": {},
        "kv_connector_module_path": None,
        "enable_permute_local_kv": False,
        "kv_load_failure_policy": "fail",
    }
    assert config.engine_id
    assert isinstance(config.engine_id, str)
    assert config.engine_id != KVTransferConfig().engine_id
    assert KVTransferConfig(engine_id="e").engine_id == "e"
    assert KVTransferConfig(engine_id="").engine_id == "", "only one that is not given is made up"


def test_a_value_may_be_of_a_class_that_derives_from_the_wanted_one() -> None:
    class Name(str):
        pass

    extra = OrderedDict(x=1)
    config = KVTransferConfig(kv_connector=Name("C"), kv_role="kv_both", kv_connector_extra_config=extra)
    assert (config.kv_connector, config.kv_connector_extra_config) == ("C", extra)


@pytest.mark.parametrize("port", [0, 65535])
def test_every_port_is_one(port: int) -> None:
    assert KVTransferConfig(kv_port=port).kv_port == port


def test_extra_config_and_children() -> None:
    children = [{"kv_connector": "A", "kv_role": "kv_both"}, {"kv_connector": "B", "kv_role": "kv_both"}]
    extra = {"connectors": children, "x": 1, "none": 0}
    config = KVTransferConfig(kv_connector="MultiConnector", kv_role="kv_both", kv_connector_extra_config=extra)
    assert config.get_from_extra_config("x", 0) == 1
    assert config.get_from_extra_config("y", 0) == 0
    assert config.get_from_extra_config("none", 7) == 0, "what is set counts, whatever it is"
    assert config.has_connector("A") and config.has_connector("B")
    assert config.has_connector("MultiConnector")
    assert not config.has_connector("C")
    assert not config.has_connector("kv_both"), "a child's role was taken for its name"
    other = KVTransferConfig(kv_connector="Other", kv_role="kv_both", kv_connector_extra_config=extra)
    assert not other.has_connector("B")
