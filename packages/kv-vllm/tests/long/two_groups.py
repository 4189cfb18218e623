"""Outputs of a model with two KV cache groups (sliding window, full attention), with and without our connectors.

Run by the session `vllm-long`.
"""

import pytest
from kv_vllm_runs import OURS, WINDOW, Engine, history, model_of_two_groups, with_extra

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CORRUPTING = with_extra(OURS, spec_name="Corrupting", spec_module_path="kv_vllm_specs")


def put_through(transfer, dtype):
    """What the history gives, and how many tokens were loaded."""
    options = {"model": str(model_of_two_groups()), "num_gpu_blocks_override": 36, "dtype": dtype}
    engine = Engine(transfer, disable_hybrid_kv_cache_manager=False, **options)
    told = history(engine)
    if hasattr(engine.connector, "check"):
        engine.connector.check()
    specs = [group.kv_cache_spec for group in engine.scheduler.kv_cache_config.kv_cache_groups]
    assert sorted(getattr(spec, "sliding_window", None) or 0 for spec in specs) == [0, WINDOW]
    assert engine.metric("vllm:num_preemptions") > 0
    hits = engine.metric("vllm:external_prefix_cache_hits")
    engine.close()
    return told, hits


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def reference(request):
    """What the history gives without a connector."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        yield request.param, put_through(None, request.param)[0]


def test_outputs_are_identical(reference):
    dtype, expected = reference
    told, hits = put_through(OURS, dtype)
    assert told == expected
    assert hits > 500


def test_one_wrong_byte_in_a_load_changes_them(reference):
    dtype, expected = reference
    told, hits = put_through(CORRUPTING, dtype)
    assert hits > 500
    assert told["shared"] == expected["shared"]
    assert told["again"] != expected["again"]
