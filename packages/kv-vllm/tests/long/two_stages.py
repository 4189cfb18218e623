"""Outputs of two stages of a pipeline, a process each, that hold different layers: more, or none of a group.

Run by the session `vllm-long`.
"""

from typing import NamedTuple

import pytest
from kv_vllm_runs import (
    OURS,
    Engine,
    make_room_between_stages,
    model_of_three_layers,
    model_of_two_groups,
    prefixes,
    with_extra,
)

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

LAYER_BLOCK = 16384
"""Bytes of a block of one layer."""


class Case(NamedTuple):
    """A model, how it is cut, how many layers of each group a stage has then, and the chunks that all can hold."""

    options: dict
    partition: str
    layers: list
    chunks: int

    @property
    def transfer(self):
        """A block takes two layers of the second stage and one of the first, which has room for twice as many."""
        return with_extra(OURS, cpu_bytes_to_use=self.chunks * 2 * LAYER_BLOCK * 2)


CASES = {
    "more layers": Case({"model": str(model_of_three_layers())}, "1,2", [[1], [2]], 12),
    "none of a group": Case(
        {
            "model": str(model_of_two_groups()),
            "num_gpu_blocks_override": 36,
            "disable_hybrid_kv_cache_manager": False,
        },
        "1,3",
        [[1, 0], [1, 2]],
        24,
    ),
}


def put_through(case, transfer):
    """What the prompts give, how many tokens were loaded, and for how many chunks there was room at last."""
    parallel = {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}
    engine = Engine(transfer, **parallel, **case.options)
    try:
        assert engine.llm.collective_rpc(make_room_between_stages) == case.layers
        told, chunks = prefixes(engine), None
        if transfer is not None:
            engine.connector.side.check()
            chunks = engine.connector.side.manager.config_info()[0]["cpu_num_chunks"]
        return told, engine.metric("vllm:external_prefix_cache_hits"), chunks
    finally:
        engine.close()


@pytest.fixture(scope="module", params=CASES)
def reference(request):
    """A case, and what the prompts give without a connector."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        # Or vLLM wants a NUMA node for each worker.
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        case = CASES[request.param]
        patch.setenv("VLLM_PP_LAYER_PARTITION", case.partition)
        yield case, put_through(case, None)[0]


def test_outputs_are_identical(reference):
    case, expected = reference
    told, hits, chunks = put_through(case, case.transfer)
    assert told == expected
    assert hits > 100
    assert chunks == case.chunks


def test_one_wrong_byte_in_a_load_changes_them(reference):
    case, expected = reference
    corrupting = with_extra(case.transfer, spec_name="Corrupting", spec_module_path="kv_vllm_specs")
    told, hits, _ = put_through(case, corrupting)
    assert hits > 100
    assert told["shared"] == expected["shared"]
    assert told["again"] != expected["again"]
