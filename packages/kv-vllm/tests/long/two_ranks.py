"""Outputs of two tensor-parallel workers, a process each, that share our host memory or have a file each.

With aborts in several states, more requests than fit, and resets.

Run by the session `vllm-long`.
"""

import pytest
from kv_vllm_runs import OURS, Engine, history, with_extra

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CORRUPTING = with_extra(OURS, spec_name="Corrupting", spec_module_path="kv_vllm_specs")
FILES = {"spec_name": "FileOffloadingSpec", "spec_module_path": "kv_offload_file", "file_bytes_to_use": 64 << 20}
CONFIGURATIONS = {
    "ours": OURS,
    "within the step": with_extra(OURS, sync_load_budget_bytes=1 << 30),
    "files": {**OURS, "kv_connector_extra_config": {**FILES, "file_staging_bytes": 1 << 20}},
}


def put_through(transfer):
    """What the history gives, how many tokens were loaded, and how often a request was preempted."""
    engine = Engine(transfer, tensor_parallel_size=2, distributed_executor_backend="mp")
    try:
        told = history(engine)
        if transfer is not None:
            engine.connector.side.check()
        return told, *(engine.metric(f"vllm:{name}") for name in ("external_prefix_cache_hits", "num_preemptions"))
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


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_outputs_are_identical(expected, name, tmp_path):
    transfer = CONFIGURATIONS[name]
    told, hits, preemptions = put_through(
        with_extra(transfer, file_dir=str(tmp_path)) if name == "files" else transfer
    )
    assert told == expected
    assert hits > 500 and preemptions > 0


def test_one_wrong_byte_in_a_load_changes_them(expected):
    told, hits, _ = put_through(CORRUPTING)
    assert hits > 500
    assert told["shared"] == expected["shared"]
    assert told["again"] != expected["again"]
