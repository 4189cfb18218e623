"""When ``OffloadingConnector`` says something of keys that it doesn't read, and why it has to."""

from types import SimpleNamespace

import pytest
from kv_vllm_configs import config_of

from kv_api import ConfigError

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

OWN = {"cpu_bytes_to_use": 1 << 20, "blocks_per_chunk": 2, "name": "host", "canonical_layout": False}
IN = "kv_connector_extra_config"


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
def test_what_another_connector_was_to_have_is_refused(make, role):
    with pytest.raises(ConfigError, match=rf"{IN}.trace_path: this key belongs to TraceConnector"):
        make({**OWN, "trace_path": "t.jsonl"}, role=role)


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


def test_what_nobody_reads_is_a_warning_of_the_scheduler(make, caplog):
    extra = {**OWN, "lazy_offload": True}
    make(extra, role="WORKER")
    assert not [one for one in caplog.messages if "have no effect" in one]
    make(extra)
    [told] = [one for one in caplog.messages if "have no effect" in one]
    assert f"these keys of {IN} have no effect: lazy_offload; " in told
