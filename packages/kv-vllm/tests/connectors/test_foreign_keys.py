"""What ``OffloadingConnector`` says of keys that it doesn't read."""

from dataclasses import fields
from types import SimpleNamespace

import pytest
from kv_vllm_configs import config_of

from kv_api import ConfigError

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

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


@pytest.fixture
def make(base, cache):
    """A half of a connector with this extra config."""
    from kv_vllm import OffloadingConnector

    made = []

    def half(extra, size=None, role="SCHEDULER"):
        config = config_of("OffloadingConnector", extra)
        config.cache_config.kv_offloading_size = size
        made.append(OffloadingConnector(config, base.KVConnectorRole[role], cache))

    yield half
    for one in made:
        one.shutdown()


@pytest.mark.parametrize("role", ["SCHEDULER", "WORKER"])
@pytest.mark.parametrize(("key", "whose"), OTHERS)
def test_what_another_connector_was_to_have_is_refused(make, key, whose, role):
    with pytest.raises(ConfigError) as refused:
        make({**OWN, key: "x"}, role=role)
    assert str(refused.value) == f"{IN}.{key}: this key belongs to {whose}, not to OffloadingConnector"


def test_a_connector_that_vllm_has_replaced_is_said_to_be(make):
    with pytest.raises(ConfigError) as refused:
        make({**OWN, "trace_path": "t.jsonl"}, size=0.5)
    assert str(refused.value) == (
        f"{IN}.trace_path: this key belongs to TraceConnector, not to OffloadingConnector; --kv-offloading-size "
        "(0.5) makes vLLM replace the configured connector by OffloadingConnector: leave that option out, and "
        "set cpu_bytes_to_use instead"
    )


def test_no_key_of_p2p_is_missing(make):
    """`name` and `save` are everybody's; the rest a connector may have that vLLM has replaced."""
    from kv_p2p.pulling.options import Options
    from kv_vllm.connectors.keys import ALSO_OF_MEDIA, OF_OTHERS

    of_p2p = {key for key, whose in {**OF_OTHERS, **ALSO_OF_MEDIA}.items() if whose == "P2PConnector"}
    assert of_p2p == {field.name for field in fields(Options)}


@pytest.mark.parametrize("key", ["host", "port"])
def test_what_a_medium_could_have_is_refused_where_vllm_has_replaced_the_connector(make, key):
    with pytest.raises(
        ConfigError, match=rf"{key}: this key belongs to P2PConnector, .*; --kv-offloading-size \(0.5\)"
    ):
        make({**OWN, key: "x"}, size=0.5)
    make({**OWN, key: "x"})
    make({**OWN, "spec_name": "NamesNoKeys", "spec_module_path": "kv_vllm_specs", key: "x"}, size=0.5)


@pytest.mark.parametrize("size", [None, 0.5])
def test_a_medium_may_have_it_if_it_says_so(make, size):
    make({**OWN, "spec_name": "Connected", "spec_module_path": "kv_vllm_specs", "connector": "x"}, size=size)


@pytest.mark.parametrize(
    ("size", "role", "count"), [(0.5, "SCHEDULER", 1), (0.5, "WORKER", 0), (None, "SCHEDULER", 0)]
)
def test_what_vllms_option_does_is_said_once_an_engine(make, caplog, size, role, count):
    """A P2PConnector without a key of its own leaves no trace."""
    make(OWN, size=size, role=role)
    told = [one for one in caplog.messages if one.startswith("--kv-offloading-size (0.5): vLLM replaces ")]
    assert len(told) == count
    assert not told or "such as P2PConnector" in told[0]


def with_vllms_option(size, **transfer):
    """What vLLM makes of a configuration where its own option is given, too."""
    from vllm.config import KVTransferConfig, VllmConfig

    asked = SimpleNamespace(kv_offloading_size=size, kv_offloading_backend="native")
    config = SimpleNamespace(cache_config=asked, kv_transfer_config=KVTransferConfig(**transfer))
    VllmConfig._post_init_kv_transfer_config(config)
    return config.kv_transfer_config


def test_vllm_still_replaces_it(make):
    """Or else what is said above is wrong."""
    found = with_vllms_option(0.5, kv_connector="TraceConnector", kv_role="kv_producer")
    assert (found.kv_connector, found.kv_role) == ("OffloadingConnector", "kv_both")
    assert found.kv_connector_extra_config == {"cpu_bytes_to_use": 1 << 29}


def test_with_vllms_own_option_ours_needs_the_module_alone(make):
    found = with_vllms_option(0.5, kv_connector_module_path="kv_vllm")
    assert (found.kv_connector, found.kv_connector_module_path) == ("OffloadingConnector", "kv_vllm")
    make({**found.kv_connector_extra_config}, size=0.5)


@pytest.mark.parametrize(
    ("extra", "unread"),
    [
        (OWN, None),
        ({**OWN, "lazy_offload": True, "cpu_bytes_to_use_per_rank": 7}, "cpu_bytes_to_use_per_rank, lazy_offload"),
        ({**FILES, "cpu_bytes_to_use": 1 << 20}, "cpu_bytes_to_use"),
        ({**OWN, "spec_name": "NamesNoKeys", "spec_module_path": "kv_vllm_specs", "own": 1}, None),
    ],
)
def test_what_nobody_reads_is_a_warning_of_the_scheduler(make, caplog, tmp_path, extra, unread):
    if "file_bytes_to_use" in extra:
        extra = {**extra, "file_dir": str(tmp_path), "file_staging_bytes": 1 << 20}
    medium = extra.get("spec_name", "CPUOffloadingSpec")
    make(extra, role="WORKER")
    assert not [one for one in caplog.messages if "have no effect" in one]
    make(extra)
    told = f"OffloadingConnector: these keys of {IN} have no effect: {unread}; neither it nor {medium} reads them"
    assert [one for one in caplog.messages if "have no effect" in one] == ([told] if unread else [])
