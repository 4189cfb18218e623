"""The scripted connector: each call of vLLM's scheduler reaches the script, and its answer goes back."""

from types import SimpleNamespace
from unittest.mock import MagicMock, call

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CALLS = {
    "on_new_request": ("request",),
    "get_num_new_matched_tokens": ("request", 4),
    "get_loaded_kv_cache_group_ids": ("request",),
    "update_state_after_alloc": ("request", "blocks", 4),
    "has_pending_block_frees": (),
    "build_connector_meta": ("output",),
    "request_finished": ("request", [1, 2]),
    "request_finished_all_groups": ("request", ([1, 2],)),
    "update_connector_output": ("output",),
    "reset_cache": (),
}
UNANSWERED = ("on_new_request", "update_state_after_alloc", "update_connector_output")


@pytest.fixture
def bridge():
    pytest.importorskip("vllm")
    from kv_vllm.differential import bridge

    return bridge


@pytest.fixture
def make(bridge):
    def make_one(name="ScriptedHMAConnector", delivers=False):
        script = MagicMock()
        extra = {bridge.SCRIPT_KEY: script, bridge.DELIVERY_KEY: delivers}
        config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra))
        return getattr(bridge, name)(config, "scheduler", "caches"), script

    return make_one


@pytest.mark.parametrize("name", CALLS)
def test_a_call_reaches_the_script(name, make, bridge):
    connector, script = make()
    answer = getattr(connector, name)(*CALLS[name])
    assert script.mock_calls == [call.call(name, *CALLS[name])]
    if name == "build_connector_meta":
        assert type(answer) is bridge.ScriptedMetadata
    else:
        assert answer is (None if name in UNANSWERED else script.call.return_value)


@pytest.mark.parametrize("delivers", [True, False])
def test_what_vllm_asks_of_the_connector_itself(make, delivers):
    connector, script = make("ScriptedConnector", delivers)
    assert (connector.role, connector.requires_kv_delivery) == ("scheduler", delivers)
    assert connector._kv_cache_config == "caches"
    assert not script.mock_calls


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("start_load_kv", ("context",)),
        ("wait_for_layer_load", ("layer",)),
        ("save_kv_layer", ("layer", "cache", "attention")),
        ("wait_for_save", ()),
    ],
)
def test_there_is_no_worker(make, name, arguments):
    connector, _ = make()
    with pytest.raises(RuntimeError) as refused:
        getattr(connector, name)(*arguments)
    assert str(refused.value) == f"{name} belongs to a worker, and a scripted connector has none"
