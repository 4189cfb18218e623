"""A prompt that one real vLLM computes and another one goes on from, of a model with two KV cache groups.

Two of its layers have a sliding window, and vLLM's hybrid manager lets their blocks go. Run by the session
`vllm-long`.
"""

import pytest
from kv_vllm_pulls import (
    WANTED,
    ask,
    come_to_rest,
    engines_apart,
    hand_over,
    hand_over_a_beginning,
    loaded,
    transfer,
)
from kv_vllm_runs import BLOCK, FIRST, WINDOW, made_up, model_of_two_groups

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

PROMPTS = [*FIRST, made_up(9, 64), made_up(10, 31), made_up(12, 300)]
"""Some are within the window of their last token, and of some the first blocks have slid out of it."""


@pytest.fixture(scope="module")
def engines():
    usual = {"model": str(model_of_two_groups()), "num_gpu_blocks_override": 64}
    with engines_apart(disable_hybrid_kv_cache_manager=False, **usual) as make:
        yield make


@pytest.fixture(scope="module")
def prefill(engines):
    return engines(transfer("kv_producer"))


@pytest.fixture(scope="module")
def expected(prefill):
    """What each prompt gets from one engine alone."""
    return [ask(prefill, prompt, 24)[0] for prompt in PROMPTS]


def test_outputs_are_those_of_one_engine_alone(engines, prefill, expected):
    decode = engines(transfer("kv_consumer"))
    hand_over(prefill, decode, PROMPTS, expected, computed=1)
    come_to_rest(prefill)
    hand_over_a_beginning(prefill, decode, PROMPTS[1], PROMPTS[1] + made_up(11, 50), computed=1)
    decode.close()


def test_a_ticket_says_what_slid_out_of_the_window(prefill):
    for prompt in PROMPTS:
        _, ticket = ask(prefill, prompt, 1, WANTED)
        slid = max(0, len(prompt) - WINDOW + 1) // BLOCK
        told = sorted(
            (group["window"], group["block_size"], group["first_block"]) for group in ticket["remote_groups"]
        )
        assert told == [(0, BLOCK, 0), (WINDOW, BLOCK, slid)]


@pytest.mark.parametrize(
    ("tokens", "output", "is_held"), [(94, 1, True), (95, 1, False), (96, 1, True), (94, 2, False)]
)
def test_of_what_the_last_token_reads_nothing_may_be_gone(prefill, tokens, output, is_held):
    """Of 95 tokens the last one reads the token before a block that the next one begins to read with."""
    _, ticket = ask(prefill, made_up(20, tokens), output, WANTED)
    assert (ticket is not None) is is_held


@pytest.mark.parametrize("name", ["ZeroesFirstGroup", "ZeroesSecondGroup"])
def test_zeroes_for_a_group_change_the_output(engines, prefill, expected, name):
    zeroing = {**transfer("kv_consumer"), "kv_connector": name, "kv_connector_module_path": "kv_vllm_zeroing"}
    decode = engines(zeroing)
    differ = []
    for prompt, whole in zip(PROMPTS, expected, strict=True):
        _, ticket = ask(prefill, prompt, 1, WANTED)
        before = loaded(decode)
        differ.append(ask(decode, prompt, 24, ticket)[0] != whole)
        assert loaded(decode) - before == len(prompt) - 1
        come_to_rest(decode)
    assert sum(differ) > len(PROMPTS) / 2
    decode.close()
