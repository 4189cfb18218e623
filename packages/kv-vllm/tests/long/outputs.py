"""Greedy outputs of a real vLLM are the same with and without our connectors. Run by the session `vllm-long`."""

import pytest
from kv_vllm_runs import MULTI, OURS, SPEC, Engine, history, with_extra

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("in_process")]

CONFIGURATIONS = {"ours": OURS, "spec": SPEC, "multi": MULTI, "chunks": with_extra(OURS, blocks_per_chunk=2)}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def reference(request):
    """What the history gives without a connector."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        engine = Engine(dtype=request.param)
        told = history(engine)
        assert engine.metric("vllm:num_preemptions") > 0
        engine.close()
    return request.param, told


def put_through(transfer, dtype):
    """What the history gives, tokens that were loaded, preemptions, loads that failed, and the connector."""
    engine = Engine(transfer, dtype=dtype)
    told = history(engine)
    if hasattr(engine.connector, "check"):
        engine.connector.check()
    counted = ("external_prefix_cache_hits", "num_preemptions", "kv_offload_load_failure")
    counts = [engine.metric(f"vllm:{name}") for name in counted]
    loaded = type(engine.connector).__module__, engine.connector
    engine.close()
    return told, counts, loaded


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_outputs_are_identical(reference, name):
    dtype, expected = reference
    told, (hits, preemptions, failures), (module, connector) = put_through(CONFIGURATIONS[name], dtype)
    assert told == expected
    assert hits > 500 and preemptions > 0 and not failures
    if name == "spec":
        assert module == "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector"
        assert type(connector.scheduler.manager).__module__ == "kv_vllm.connectors.host_spec"
    else:
        assert module == ("kv_vllm.connectors.multi" if name == "multi" else "kv_vllm.connectors.offloading")
    if name == "multi":
        assert [type(child).__module__ for child in connector.sub_connectors] == [
            "kv_vllm.connectors.offloading",
            "kv_vllm.connectors.foreign",
        ]


FAILING = with_extra(OURS, spec_name="Failing", spec_module_path="kv_vllm_specs")
CORRUPTING = [
    with_extra(OURS, spec_name="Corrupting", spec_module_path="kv_vllm_specs"),
    with_extra(SPEC, spec_name="CorruptingHost", spec_module_path="kv_vllm_host_specs"),
]


@pytest.mark.parametrize("transfer", CORRUPTING, ids=["ours", "spec"])
def test_one_wrong_byte_in_a_load_changes_them(reference, transfer):
    dtype, expected = reference
    told, (hits, _, _), _ = put_through(transfer, dtype)
    assert hits > 500
    assert told["shared"] == expected["shared"]
    assert told["again"] != expected["again"]


def test_what_a_failed_load_left_out_is_computed(reference):
    dtype, expected = reference
    told, (hits, _, failures), _ = put_through(FAILING, dtype)
    assert told == expected
    assert hits > 500 and failures > 5
