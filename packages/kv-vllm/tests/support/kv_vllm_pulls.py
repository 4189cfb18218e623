"""Prompts that go from one real vLLM to another."""

import socket
import time
from contextlib import contextmanager

import pytest
from kv_vllm_runs import Engine

WANTED = {"do_remote_decode": True}


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


@contextmanager
def engines_apart(**usual):
    """Makes engines that live until the end, each in a process of its own."""
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
        # Or vLLM wants a NUMA node for each worker.
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")

        def make(config=None, **options):
            made.append(Engine(config, **usual, **options))
            return made[-1]

        yield make
        for engine in made:
            engine.close()


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


def hand_over(prefill, decode, prompts, expected, computed=0):
    """All come to the decoding engine whole, and it says the same; a load that fails would fail the request.

    ``computed``: how many of the last tokens it is told to compute itself.
    """
    for prompt, whole in zip(prompts, expected, strict=True):
        first, ticket = ask(prefill, prompt, 1, WANTED)
        assert first == whole[:1]
        assert ticket["do_remote_prefill"] and ticket["remote_num_tokens"] == len(prompt)
        before = loaded(decode)
        assert ask(decode, prompt, 24, ticket)[0] == whole
        assert loaded(decode) - before == len(prompt) - computed
        come_to_rest(decode)


def hand_over_a_beginning(prefill, decode, prompt, longer, computed=0):
    """A prompt goes on where another one ended; then the same again, whose first blocks are there."""
    whole, _ = ask(prefill, longer, 24)
    for told, tokens in ((prompt, 128), (longer, len(longer) - computed - 128)):
        _, ticket = ask(prefill, told, 1, WANTED)
        before = loaded(decode)
        assert ask(decode, longer, 24, ticket)[0] == whole
        assert loaded(decode) - before == tokens
        come_to_rest(decode)
        ask(decode, prompt[:129], 1)


def serve_a_flood(engine, prompts, expected):
    """Flood an engine, which must give each prompt what is expected and serve each hold. How many tickets came."""
    found, tickets = flood(engine, prompts)
    assert found == expected
    for _ in range(9):  # what was counted last comes with later steps
        ask(engine, prompts[0], 1)
    told = {name: engine.metric(f"vllm:kv_p2p_{name}_holds") for name in ("served", "expired", "refused")}
    assert told == {"served": tickets, "expired": 0, "refused": len(prompts) - tickets}
    return tickets


def flood(engine, prompts, stay=lambda place: None):
    """Ask one engine for all prompts at once, to be held, and for each again with its ticket as soon as it comes.

    ``stay``: for how many steps the one who asks again stays; None: to the end. Returns what the prompts get, None
    for those who left, and how many of them came with a ticket.
    """
    from vllm import SamplingParams

    def ask_for(name, prompt, tokens, params):
        extra = {"kv_transfer_params": params} if params else None
        sampling = SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, extra_args=extra
        )
        engine.engine.add_request(name, {"prompt_token_ids": prompt}, sampling)

    for place, prompt in enumerate(prompts):
        ask_for(f"first {place}", prompt, 1, WANTED)
    found, tickets, leaving = {}, 0, {}
    while len(found) < len(prompts):
        for output in engine.engine.step():
            if not output.finished:
                continue
            half, place = output.request_id.split()
            if half == "again":
                found[int(place)] = list(output.outputs[0].token_ids)
                continue
            tickets += bool(output.kv_transfer_params)
            ask_for(f"again {place}", prompts[int(place)], 24, output.kv_transfer_params)
            if (steps := stay(int(place))) is not None:
                leaving[int(place)] = steps
        for place, steps in [*leaving.items()]:
            leaving[place] -= 1
            if steps <= 0:
                del leaving[place]
                if place not in found:
                    engine.engine.abort_request([f"again {place}"])
                    found[place] = None
    return [found[place] for place in range(len(prompts))], tickets
