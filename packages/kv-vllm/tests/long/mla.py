"""Latents (MLA), which two tensor-parallel workers both hold: one copy is kept, the first one's, and both load it.

vLLM on CPUs computes no prompt from a loaded prefix with MLA, so our connectors refuse to run there. Here they are
let in, and what is compared are the bytes of blocks, not outputs. Run by the session `vllm-long`.
"""

import pytest
from kv_vllm_runs import KEPT, OURS, Engine, made_up, model_of_mla, with_extra
from kv_vllm_specs import block_sums

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

BLOCK = 16
FULL = 6
BLOCK_BYTES = BLOCK * 2 * (512 + 64) * 4
"""Of two layers of latents, in float32."""


@pytest.fixture
def started(monkeypatch):
    """Makes an engine of two workers with a connector."""
    from kv_vllm.connectors import inside

    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # or vLLM wants a NUMA node for each worker
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # of `block_sums`, for the workers
    monkeypatch.setattr(inside, "refuse_loads_that_nothing_reads", lambda config: None)
    engines = []

    def start(transfer):
        engines.append(
            Engine(
                transfer,
                model=str(model_of_mla()),
                block_size=BLOCK,
                num_gpu_blocks_override=48,
                tensor_parallel_size=2,
                distributed_executor_backend="mp",
            )
        )
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def brought_back(engine):
    """Of a prompt's full blocks, how many are on each worker after a load as they were computed."""
    prompt = made_up(5, BLOCK * FULL + 5)
    empty = engine.llm.collective_rpc(block_sums)
    engine.run([prompt], tokens=1)
    computed = [now - before for now, before in zip(engine.llm.collective_rpc(block_sums), empty, strict=True)]
    assert computed[0] == computed[1], "both hold the same"
    assert len(computed[0]) == FULL + 1
    for seed in range(100, 112):
        engine.run([made_up(seed, BLOCK * 8)], tokens=1)
    assert not any(now & own for now, own in zip(engine.llm.collective_rpc(block_sums), computed, strict=True))
    engine.run([prompt], tokens=1)
    assert engine.metric("vllm:external_prefix_cache_hits") == BLOCK * FULL
    return [len(now & own) for now, own in zip(engine.llm.collective_rpc(block_sums), computed, strict=True)]


def test_host_memory_has_one_copy_which_both_load(started):
    engine = started(OURS)
    assert engine.connector.side._books.manager._pool.capacity == KEPT // BLOCK_BYTES, "all of it is for one copy"
    assert min(brought_back(engine)) >= FULL
    engine.connector.side.check()


def test_one_wrong_byte_in_a_load_is_seen(started):
    assert (
        max(brought_back(started(with_extra(OURS, spec_name="Corrupting", spec_module_path="kv_vllm_specs"))))
        < FULL
    )


def test_a_disk_has_one_file_which_both_read(started, tmp_path):
    own = {"file_dir": str(tmp_path), "file_bytes_to_use": 64 << 20, "file_staging_bytes": 1 << 22}
    spec = {"spec_name": "FileOffloadingSpec", "spec_module_path": "kv_offload_file"}
    assert min(brought_back(started({**OURS, "kv_connector_extra_config": {**spec, **own}}))) >= FULL
    assert {file.name for file in tmp_path.glob("*/rank-*")} == {"rank-0.slots", "rank-0.rows"}
