"""A prompt that one real vLLM computes and another one goes on from. Run by the session `vllm-long`.

Each engine has a process of its own: in one process all would share the one connector that vLLM keeps there.
"""

import socket
import time

import pytest
from kv_vllm_runs import FIRST, OURS, Engine, made_up

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

WANTED = {"do_remote_decode": True}
PROMPTS = [*FIRST, made_up(9, 64), made_up(10, 31)]
"""Some end with a block, some within one, one within the first."""
HOLD_SECONDS = 10
TWO = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def transfer(role, failure_policy="fail", **extra):
    return {
        "kv_connector": "P2PConnector",
        "kv_connector_module_path": "kv_vllm",
        "kv_role": role,
        "kv_port": free_port(),
        "kv_load_failure_policy": failure_policy,
        "kv_connector_extra_config": extra,
    }


@pytest.fixture(scope="module")
def engines():
    """Makes engines that live until the end."""
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
        # Or vLLM wants a NUMA node for each worker.
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")

        def make(config=None, **options):
            made.append(Engine(config, **options))
            return made[-1]

        yield make
        for engine in made:
            engine.close()


@pytest.fixture(scope="module")
def prefill(engines):
    return engines(transfer("kv_producer", hold_seconds=HOLD_SECONDS))


@pytest.fixture(scope="module")
def expected(prefill):
    """What each prompt gets from one engine alone."""
    return [ask(prefill, prompt, 24)[0] for prompt in PROMPTS]


def ask(engine, prompt, tokens, params=None):
    """What a prompt gets, and its ticket."""
    from vllm import SamplingParams

    extra = {"kv_transfer_params": params} if params else None
    sampling = SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, extra_args=extra
    )
    engine._count += 1
    engine.engine.add_request(f"q{engine._count}", {"prompt_token_ids": prompt}, sampling)
    while True:
        for output in engine.engine.step():
            if output.finished:
                return list(output.outputs[0].token_ids), output.kv_transfer_params


def come_to_rest(engine):
    """Wait until nothing is held: only then an engine lets its prefix cache be reset. Returns how long it took."""
    begin = time.monotonic()
    while not engine.llm.reset_prefix_cache():
        assert time.monotonic() < begin + 600, "the engine still holds blocks"
        time.sleep(0.02)
    return time.monotonic() - begin


def loaded(engine):
    return engine.metric("vllm:external_prefix_cache_hits")


def hand_over(prefill, decode, prompts, expected):
    """All come to the decoding engine whole, and it says the same; a load that fails would fail the request."""
    for prompt, whole in zip(prompts, expected, strict=True):
        first, ticket = ask(prefill, prompt, 1, WANTED)
        assert first == whole[:1]
        assert ticket["do_remote_prefill"] and ticket["remote_num_tokens"] == len(prompt)
        before = loaded(decode)
        assert ask(decode, prompt, 24, ticket)[0] == whole
        assert loaded(decode) - before == len(prompt)
        come_to_rest(decode)


def test_outputs_are_those_of_one_engine_alone(engines, prefill, expected):
    decode = engines(transfer("kv_consumer"))
    hand_over(prefill, decode, PROMPTS, expected)
    come_to_rest(prefill)
    # A prompt that goes on where another one ended; then the same again, whose first blocks are there.
    longer = PROMPTS[1] + made_up(11, 50)
    whole, _ = ask(prefill, longer, 24)
    for told, tokens in ((PROMPTS[1], 128), (longer, len(longer) - 128)):
        _, ticket = ask(prefill, told, 1, WANTED)
        before = loaded(decode)
        assert ask(decode, longer, 24, ticket)[0] == whole
        assert loaded(decode) - before == tokens
        come_to_rest(decode)
        ask(decode, PROMPTS[1][:129], 1)
    decode.close()


def test_what_does_not_come_is_computed(engines, prefill, expected):
    """Nobody is there, the blocks have gone, they are another prompt's or another model's: nothing is lost."""
    prompt, whole = PROMPTS[3], expected[3]
    decode = engines(transfer("kv_consumer", "recompute"))
    other = engines(transfer("kv_producer"), dtype="bfloat16")
    _, late = ask(prefill, prompt, 1, WANTED)
    assert come_to_rest(prefill) > HOLD_SECONDS / 2
    _, mistaken = ask(other, PROMPTS[1], 1, WANTED)
    _, foreign = ask(other, prompt, 1, WANTED)
    nobody = {**foreign, "remote_port": free_port()}
    nonsense = {**foreign, "remote_num_tokens": "all"}
    for ticket in (late, mistaken, foreign, nobody, nonsense):
        assert ask(decode, prompt, 24, ticket)[0] == whole
        come_to_rest(decode)
    assert loaded(decode) == 0
    other.close()
    decode.close()


def test_beside_host_memory(engines, expected):
    """A MultiConnector is pulled from and keeps: what was pulled once comes from host memory next time."""

    def both(role):
        extra = {"connectors": [transfer(role), OURS]}
        return {**OURS, "kv_connector": "MultiConnector", "kv_connector_extra_config": extra}

    prefill, decode = engines(both("kv_producer")), engines(both("kv_consumer"))
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


def test_each_rank_pulls_from_the_same_rank(engines, prefill):
    prefill.close()
    prefill = engines(transfer("kv_producer"), **TWO)
    expected = [ask(prefill, prompt, 24)[0] for prompt in PROMPTS]
    come_to_rest(prefill)
    decode = engines(transfer("kv_consumer"), **TWO)
    hand_over(prefill, decode, PROMPTS, expected)
    come_to_rest(prefill)
