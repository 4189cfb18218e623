"""Outputs of a hybrid model (short convolutions, whose states are kept, and full attention) with our connector.

How a prompt is cut into chunks shows in this model's outputs: vLLM's attention on a CPU differs in the third
digit, and most tokens nearly tie. So what is computed after a load is compared with what is computed after a hit
in vLLM's own prefix cache, which leaves the same to compute. Run by the session `vllm-long`.
"""

import gc

import pytest
from kv_vllm_runs import BLOCK, FIRST, OURS, SHARED, Engine, made_up, model_of_states, with_extra

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("in_process")]

PROMPTS = [*FIRST, *(made_up(seed, 161 + seed) for seed in (6, 7))]
CONFIGURATIONS = {"ours": OURS, "held": with_extra(OURS, hold_blocks="always")}
CORRUPTING = with_extra(OURS, spec_name="CorruptingStates", spec_module_path="kv_vllm_specs")


def put_through(transfer, **options):
    """What prompts get, one after the other: at first, and when vLLM (or else the connector) has begun them."""
    gc.collect()  # else the last engine ends in the middle of the next one's beginning, and takes its groups along
    options |= {"model": str(model_of_states()), "mamba_cache_mode": "align", "num_gpu_blocks_override": 64}
    engine = Engine(transfer, disable_hybrid_kv_cache_manager=False, **options)
    specs = [group.kv_cache_spec for group in engine.scheduler.kv_cache_config.kv_cache_groups]
    assert sorted(type(spec).__name__ for spec in specs) == ["FullAttentionSpec", "MambaSpec"]
    told = []
    for _ in range(2):
        told.append([engine.run([prompt])[0] for prompt in PROMPTS])
        if transfer is not None:
            engine.run([made_up(9, 8)], tokens=4)  # stores of those before end meanwhile
            engine.connector.side.check()
            assert engine.llm.reset_prefix_cache()
    hits = [engine.metric(f"vllm:{kind}prefix_cache_hits") for kind in ("", "external_")]
    engine.close()
    return told, hits


@pytest.fixture(scope="module")
def reference():
    """Without a connector; and how many tokens the second round found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        told, (own, external) = put_through(None)
    assert own > 700 and not external
    return told


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_outputs_are_identical(reference, name):
    told, (_, external) = put_through(CONFIGURATIONS[name])
    assert told == reference
    assert external > 500


def test_one_wrong_byte_in_a_state_changes_them(reference):
    told, (_, external) = put_through(CORRUPTING)
    assert external > 500
    assert told[0] == reference[0]
    assert told[1] != reference[1]


FINE = {"prefix_match_unit": 8}
"""Four hashes a block: vLLM keeps the state at the last of a prompt, and so does the connector."""
ENDS = [(len(prompt) - 1) // 8 * 8 for prompt in PROMPTS]
"""The last hash of each prompt that a request like it can find."""
WITHIN = [place for place, end in enumerate(ENDS) if end % BLOCK]
FOUND = 3 * len(SHARED) + sum(ENDS)
"""What is found in both rounds: what prompts share, and then all of each up to its last hash."""


@pytest.fixture(scope="module")
def fine_reference():
    """Without a connector. Of prompts that it finds up to within a block vLLM itself tells something else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        told, found = put_through(None, **FINE)
    assert found == [FOUND, 0]
    assert WITHIN == [1, 3]
    return told


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_prompts_go_on_within_a_block(fine_reference, name):
    """What is left to compute there is computed in one step, as it was at first."""
    told, (own, external) = put_through(CONFIGURATIONS[name], **FINE)
    assert told[0] == fine_reference[0]
    expected = [told[0][place] if place in WITHIN else fine_reference[1][place] for place in range(len(PROMPTS))]
    assert told[1] == expected
    assert own + external == FOUND
    assert external > 500


def test_another_state_of_a_tail_changes_them():
    told, (_, external) = put_through(with_extra(CORRUPTING, spec_name="CorruptingStatesMore"), **FINE)
    assert external > 500
    assert any(told[1][place] != told[0][place] for place in WITHIN)
