"""What is said of keys that ``OffloadingConnector`` doesn't read; without a vLLM."""

from dataclasses import fields
from types import SimpleNamespace

import pytest

from kv_api import ConfigError
from kv_p2p.pulling.options import Options as OptionsOfP2P
from kv_vllm.connectors.keys import (
    ALSO_OF_MEDIA,
    OF_OTHERS,
    refuse_keys_of_others,
    warn_of_unread_keys,
    warn_of_vllms_option,
)

OWN = {"cpu_bytes_to_use": 1 << 20, "blocks_per_chunk": 2, "name": "host", "canonical_layout": False}
FILES = {"spec_name": "FileOffloadingSpec", "spec_module_path": "kv_offload_file", "file_bytes_to_use": 1 << 20}
IN = "kv_connector_extra_config"
OTHERS = [
    ("connectors", "MultiConnector"),
    ("connector", "TraceConnector or RecordingConnector"),
    ("trace_path", "TraceConnector"),
    ("record_path", "RecordingConnector"),
    ("listen_host", "P2PConnector"),
    ("hold_seconds", "P2PConnector"),
    ("max_held_blocks", "P2PConnector"),
    ("model_name", "P2PConnector"),
    ("pull_seconds", "P2PConnector"),
    ("carrier", "P2PConnector"),
    ("mooncake_protocol", "P2PConnector"),
    ("mooncake_device", "P2PConnector"),
    ("nixl_backend", "P2PConnector"),
]


def refuse(extra, size=None):
    """Refuse these keys, in an engine with vLLM's option if there is a size."""
    transfer, cache = SimpleNamespace(kv_connector_extra_config=extra), SimpleNamespace(kv_offloading_size=size)
    refuse_keys_of_others(SimpleNamespace(kv_transfer_config=transfer, cache_config=cache))


@pytest.mark.parametrize(("key", "whose"), OTHERS)
def test_what_another_connector_was_to_have_is_refused(key, whose):
    with pytest.raises(ConfigError) as refused:
        refuse({**OWN, key: "x"})
    assert str(refused.value) == f"{IN}.{key}: this key belongs to {whose}, not to OffloadingConnector"


@pytest.mark.parametrize("size", [0, 0.5])
def test_a_connector_that_vllm_has_replaced_is_said_to_be(size):
    with pytest.raises(ConfigError) as refused:
        refuse({**OWN, "trace_path": "t.jsonl"}, size=size)
    assert str(refused.value) == (
        f"{IN}.trace_path: this key belongs to TraceConnector, not to OffloadingConnector; --kv-offloading-size "
        f"({size}) makes vLLM replace the configured connector by OffloadingConnector: leave that option out, and "
        "set cpu_bytes_to_use instead"
    )


def test_no_key_of_p2p_is_missing():
    """`name` and `save` are everybody's; the rest a connector may have that vLLM has replaced."""
    of_p2p = {key for key, whose in {**OF_OTHERS, **ALSO_OF_MEDIA}.items() if whose == "P2PConnector"}
    assert of_p2p == {field.name for field in fields(OptionsOfP2P)}


@pytest.mark.parametrize("size", [0, 0.5])
@pytest.mark.parametrize("key", ["host", "port"])
def test_what_a_medium_could_have_is_refused_where_vllm_has_replaced_the_connector(key, size):
    with pytest.raises(
        ConfigError, match=rf"{key}: this key belongs to P2PConnector, .*; --kv-offloading-size \({size}\)"
    ):
        refuse({**OWN, key: "x"}, size=size)
    refuse({**OWN, key: "x"})
    refuse({**OWN, "spec_name": "NamesNoKeys", "spec_module_path": "kv_vllm_specs", key: "x"}, size=size)


@pytest.mark.parametrize("size", [None, 0.5])
def test_a_medium_may_have_it_if_it_says_so(size):
    refuse({**OWN, "spec_name": "Connected", "spec_module_path": "kv_vllm_specs", "connector": "x"}, size=size)


@pytest.mark.parametrize(
    ("extra", "unread"),
    [
        (OWN, None),
        ({**OWN, "lazy_offload": True, "cpu_bytes_to_use_per_rank": 7}, "cpu_bytes_to_use_per_rank, lazy_offload"),
        ({**FILES, "cpu_bytes_to_use": 1 << 20}, "cpu_bytes_to_use"),
        ({**OWN, "spec_name": "NamesNoKeys", "spec_module_path": "kv_vllm_specs", "own": 1}, None),
    ],
)
def test_what_nobody_reads_is_told_if_the_medium_names_its_keys(caplog, extra, unread):
    medium = extra.get("spec_name", "CPUOffloadingSpec")
    warn_of_unread_keys(extra)
    told = f"OffloadingConnector: these keys of {IN} have no effect: {unread}; neither it nor {medium} reads them"
    assert caplog.messages == ([told] if unread else [])


@pytest.mark.parametrize("size", [None, 0, 0.5])
def test_what_vllms_option_does_is_told(caplog, size):
    """A P2PConnector without a key of its own leaves no trace."""
    warn_of_vllms_option(SimpleNamespace(cache_config=SimpleNamespace(kv_offloading_size=size)))
    told = (
        f"--kv-offloading-size ({size}): vLLM replaces any configured kv_connector and kv_role by "
        "OffloadingConnector and kv_both; to use another connector, such as P2PConnector, leave the option out"
    )
    assert caplog.messages == ([] if size is None else [told])


def test_a_vllm_without_that_option_has_nothing_to_be_told(caplog):
    warn_of_vllms_option(SimpleNamespace(cache_config=SimpleNamespace()))
    assert caplog.messages == []
