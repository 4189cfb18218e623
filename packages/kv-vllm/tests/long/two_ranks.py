"""Outputs of two tensor-parallel workers, a process each, that share our host memory.

Run by the session `vllm-long`.
"""

import pytest
from kv_vllm_runs import OURS, Engine, prefixes, with_extra

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CORRUPTING = with_extra(OURS, spec_name="Corrupting", spec_module_path="kv_vllm_specs")


def put_through(transfer):
    """What the prompts give, and how many tokens were loaded."""
    engine = Engine(transfer, tensor_parallel_size=2, distributed_executor_backend="mp")
    try:
        told = prefixes(engine)
        if transfer is not None:
            engine.connector.side.check()
        return told, engine.metric("vllm:external_prefix_cache_hits")
    finally:
        engine.close()


@pytest.fixture(scope="module")
def expected():
    """What the prompts give without a connector."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        # Or vLLM wants a NUMA node for each worker.
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        yield put_through(None)[0]


def test_outputs_are_identical(expected):
    told, hits = put_through(OURS)
    assert told == expected
    assert hits > 500


def test_one_wrong_byte_in_a_load_changes_them(expected):
    told, hits = put_through(CORRUPTING)
    assert hits > 500
    assert told["shared"] == expected["shared"]
    assert told["again"] != expected["again"]
