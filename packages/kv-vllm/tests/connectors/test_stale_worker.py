"""That no engine begins with the worker side of another one, which vLLM keeps if that one didn't start."""

import copy
from types import SimpleNamespace

import pytest
from kv_vllm_configs import OFFLOADING, config_of

from kv_api import ConfigError

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

HOST = OFFLOADING["kv_connector_extra_config"]
BEHIND = {**OFFLOADING, "kv_connector_module_path": "kv_vllm"}


def configured(name, extra, instance):
    config = config_of(name, extra)
    config.instance_id = instance
    return config


@pytest.fixture
def kept(monkeypatch):
    """Has vLLM keep a worker side, which is one of ours, made with this configuration."""
    from vllm.distributed.kv_transfer import kv_transfer_state

    def keep(config):
        worker = SimpleNamespace(_vllm_config=config)
        monkeypatch.setattr(kv_transfer_state, "_KV_CONNECTOR_AGENT", worker)

    return keep


def extras(tmp_path):
    return {
        "OffloadingConnector": HOST,
        "MultiConnector": {"connectors": [BEHIND]},
        "TraceConnector": {
            "trace_path": str(tmp_path / "t.jsonl"),
            "connector": {"kv_connector": "ExampleConnector"},
        },
    }


@pytest.mark.parametrize("name", ["OffloadingConnector", "MultiConnector", "TraceConnector"])
def test_a_worker_of_another_engine_is_refused(kept, base, cache, tmp_path, name):
    import kv_vllm

    kept(configured("OffloadingConnector", HOST, "before"))
    with pytest.raises(ConfigError) as refused:
        getattr(kv_vllm, name)(
            configured(name, extras(tmp_path)[name], "now"), base.KVConnectorRole.SCHEDULER, cache
        )
    assert str(refused.value) == (
        f"{name}: the worker-side connector in this process, a SimpleNamespace, belongs to another engine. vLLM "
        "keeps it when that engine fails to start; use a new process, or call "
        "vllm.distributed.kv_transfer.ensure_kv_transfer_shutdown() before the next engine"
    )
    assert not [*tmp_path.iterdir()]


def replaced(config):
    """As vLLM replaces fields: the copy has a number of its own."""
    return SimpleNamespace(**{**vars(config), "instance_id": "another"})


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, replaced])
def test_the_engines_own_is_not(kept, base, cache, copied):
    """Also where a connector between the two, or vLLM, has made a copy; children have engines of other names."""
    from kv_vllm import MultiConnector

    child = {**BEHIND, "engine_id": "another"}
    config = configured("MultiConnector", {"connectors": [child]}, "now")
    kept(copied(config))
    MultiConnector(config, base.KVConnectorRole.SCHEDULER, cache).shutdown()


def test_a_worker_half_is_made_whoever_was_there_before(kept, base, cache):
    """vLLM makes none while it has one."""
    from kv_vllm import OffloadingConnector

    kept(configured("OffloadingConnector", HOST, "before"))
    OffloadingConnector(
        configured("OffloadingConnector", HOST, "now"), base.KVConnectorRole.WORKER, cache
    ).shutdown()
