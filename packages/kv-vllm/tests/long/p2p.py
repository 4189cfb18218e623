"""A prompt that one real vLLM computes and another one goes on from. Run by the session `vllm-long`.

Each engine has a process of its own: in one process all would share the one connector that vLLM keeps there.
"""

import pytest
from kv_vllm_pulls import (
    WANTED,
    ask,
    come_to_rest,
    engines_apart,
    flood,
    free_port,
    hand_over,
    hand_over_a_beginning,
    loaded,
    serve_a_flood,
    transfer,
)
from kv_vllm_runs import FIRST, OURS, made_up, model, model_of_other_weights

from kv_sim.replay.sizing.transfer_config import PULLS, decode_config, host_config, prefill_config

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

PROMPTS = [*FIRST, made_up(9, 64), made_up(10, 31)]
"""Some end with a block, some within one, one within the first."""
HOLD_SECONDS = 10
EXTRA = "kv_connector_extra_config"
TWO = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}


@pytest.fixture(scope="module")
def engines():
    with engines_apart() as make:
        yield make


@pytest.fixture(scope="module")
def prefill(engines):
    return engines(transfer("kv_producer", hold_seconds=HOLD_SECONDS))


@pytest.fixture(scope="module")
def expected(prefill):
    """What each prompt gets from one engine alone."""
    return [ask(prefill, prompt, 24)[0] for prompt in PROMPTS]


def test_outputs_are_those_of_one_engine_alone(engines, prefill, expected):
    decode = engines(transfer("kv_consumer"))
    hand_over(prefill, decode, PROMPTS, expected)
    come_to_rest(prefill)
    hand_over_a_beginning(prefill, decode, PROMPTS[1], PROMPTS[1] + made_up(11, 50))
    decode.close()


def test_what_does_not_come_is_computed(engines, prefill, expected):
    """Nobody is there, the blocks have gone, they are another prompt's or another model's: nothing is lost."""
    prompt, whole = PROMPTS[3], expected[3]
    decode = engines(transfer("kv_consumer", "recompute"))
    _, late = ask(prefill, prompt, 1, WANTED)
    assert come_to_rest(prefill) > HOLD_SECONDS / 2
    _, mistaken = ask(prefill, PROMPTS[1], 1, WANTED)
    nobody = {**late, "remote_port": free_port()}
    nonsense = {**late, "remote_num_tokens": "all"}
    for ticket in (late, mistaken, nobody, nonsense):
        assert ask(decode, prompt, 24, ticket)[0] == whole
        come_to_rest(decode)
    for options in ({"dtype": "bfloat16"}, {"model": str(model_of_other_weights())}):
        other = engines(transfer("kv_producer"), **options)
        _, foreign = ask(other, prompt, 1, WANTED)
        assert ask(decode, prompt, 24, foreign)[0] == whole
        come_to_rest(decode)
        other.close()
    assert loaded(decode) == 0
    decode.close()


def test_one_model_at_two_paths_has_one_name(engines, expected, tmp_path):
    (tmp_path / "there").symlink_to(model())
    prefill = engines(transfer("kv_producer", model_name="tiny"))
    decode = engines(transfer("kv_consumer", model_name="tiny"), model=str(tmp_path / "there"))
    hand_over(prefill, decode, PROMPTS[:1], expected[:1])
    prefill.close()
    decode.close()


def pulled_and_kept(prefill, decode, expected):
    """What was pulled once comes from host memory next time; then both end."""
    for prompt, whole in zip(PROMPTS, expected, strict=True):
        _, ticket = ask(prefill, prompt, 1, WANTED)
        before = loaded(decode)
        assert ask(decode, prompt, 24, ticket)[0] == whole
        assert loaded(decode) > before
        come_to_rest(decode)
        come_to_rest(prefill)
    for prompt, whole in zip(PROMPTS, expected, strict=True):
        before = loaded(decode)
        assert ask(decode, prompt, 24)[0] == whole
        # Whole blocks; of a prompt that ends with one, the last token is computed again.
        assert loaded(decode) - before == min(len(prompt) // 32 * 32, len(prompt) - 1)
        come_to_rest(decode)
    prefill.close()
    decode.close()


def beside_host_memory(puller):
    return {**OURS, "kv_connector": "MultiConnector", EXTRA: {"connectors": [puller, OURS]}}


def test_beside_host_memory(engines, expected):
    """A MultiConnector is pulled from and keeps."""
    prefill, decode = (engines(beside_host_memory(transfer(role))) for role in ("kv_producer", "kv_consumer"))
    pulled_and_kept(prefill, decode, expected)


def test_vllms_nixl_connector_beside_our_host_memory(engines, expected, monkeypatch):
    """As many servers have them, in our MultiConnector."""
    made = []
    for _ in range(2):
        monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(free_port()))
        nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
        made.append(engines(beside_host_memory(nixl)))
    pulled_and_kept(*made, expected)


@pytest.mark.parametrize("memory", [{}, host_config(1 << 24, "lru")])
def test_what_a_replay_prints_for_servers_that_prefill_is_a_configuration(engines, expected, memory):
    """But for addresses, which nobody knows there."""
    config = prefill_config(memory)
    [serves] = [one for one in (config, *config[EXTRA].get("connectors", ())) if one["kv_connector"] == PULLS]
    serves[EXTRA] = {**serves.get(EXTRA, {}), "port": free_port()}
    prefill, decode = engines(config), engines({**decode_config(), "kv_port": free_port()})
    hand_over(prefill, decode, PROMPTS, expected)
    come_to_rest(prefill)
    prefill.close()
    decode.close()


def test_an_engine_that_does_both_has_more_to_do_than_room(engines, prefill):
    """Tickets don't wait behind prompts that are held again, so no hold ends by its time."""
    prompts = [made_up(seed, 60 + seed) for seed in range(100, 160)]
    expected = [ask(prefill, prompt, 24)[0] for prompt in prompts]
    both = engines(transfer("kv_both", hold_seconds=60), enable_prefix_caching=False, num_gpu_blocks_override=64)
    assert serve_a_flood(both, prompts, expected) > len(prompts) / 2
    both.close()


def test_it_has_host_memory_beside_it_and_clients_leave(engines, prefill):
    """While they wait, pull, load or decode. What they leave is freed at once, not when a hold's time is over."""
    prompts = [made_up(1, 64) + made_up(seed, seed) for seed in range(10, 90)]
    expected = [ask(prefill, prompt, 24)[0] for prompt in prompts]
    children = [transfer("kv_both", "recompute", hold_seconds=600), OURS]
    extra = {"connectors": children}
    config = {**OURS, "kv_connector": "MultiConnector", "kv_connector_extra_config": extra}
    both = engines(config, enable_prefix_caching=False, num_gpu_blocks_override=40)
    found, tickets = flood(both, prompts, stay=lambda place: place // 3 % 11 if place % 3 else None)
    assert all(told in (None, whole) for told, whole in zip(found, expected, strict=True))
    left = found.count(None)
    assert len(prompts) / 3 < left <= len(prompts) * 2 / 3 and tickets > len(prompts) / 2
    assert come_to_rest(both) < 60
    assert loaded(both) > 0
    both.close()


@pytest.mark.parametrize("carrier", ["nixl", "mooncake"])
def test_blocks_that_a_library_carries(engines, expected, carrier):
    prefill, decode = (engines(transfer(role, carrier=carrier)) for role in ("kv_producer", "kv_consumer"))
    hand_over(prefill, decode, PROMPTS, expected)
    come_to_rest(prefill)
    prefill.close()
    decode.close()


def test_each_rank_pulls_from_the_same_rank(engines, prefill):
    prefill.close()
    prefill = engines(transfer("kv_producer"), **TWO)
    expected = [ask(prefill, prompt, 24)[0] for prompt in PROMPTS]
    come_to_rest(prefill)
    decode = engines(transfer("kv_consumer"), **TWO)
    hand_over(prefill, decode, PROMPTS, expected)
    come_to_rest(prefill)
