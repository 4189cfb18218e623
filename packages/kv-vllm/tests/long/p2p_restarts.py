"""Two real vLLMs that prefill for each other, one of which is killed under load and started again.

Whoever asked there asks its successor, with the tickets that he has. Run by the session `vllm-long`.
"""

import pytest
from kv_vllm_pulls import WANTED, ask, come_to_rest, engines_apart, free_port, loaded, transfer
from kv_vllm_runs import made_up

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

PROMPTS = [made_up(0, 64) + made_up(seed, seed) for seed in range(10, 70)]
UNDER_WAY = 20
"""Prompts that are being answered at a time, so that some are still to be begun when an engine is killed."""
HOLD_SECONDS = 600
OPTIONS = {"num_gpu_blocks_override": 64, "enable_prefix_caching": False}


def sampling(tokens, params):
    from vllm import SamplingParams

    extra = {"kv_transfer_params": params} if params else None
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, extra_args=extra)


def kill(engine):
    """All processes of an engine at once: what holds its port, too."""
    import psutil

    for core in engine.engine.engine_core.resources.engine_manager.processes:
        processes = [psutil.Process(core.pid), *psutil.Process(core.pid).children(recursive=True)]
        for process in processes:
            process.kill()
        psutil.wait_procs(processes)
    engine.close()


class Router:
    """Has each prompt prefilled by one of two engines, and by the other one go on from there."""

    def __init__(self, survivor, mortal):
        self.engines = [survivor, mortal]
        self.at = [{}, {}]
        """What each engine was asked: its names, and which prompts, with which ticket."""
        self.found = {}
        self.count = 0
        self.stale = 0
        """Tickets of an engine that was killed."""

    def ask(self, which, place, ticket=None):
        self.count += 1
        name = f"{place}-{self.count}"
        tokens, params = (24, ticket) if ticket else (1, WANTED)
        self.at[which][name] = (place, ticket)
        prompt = {"prompt_token_ids": PROMPTS[place]}
        self.engines[which].engine.add_request(name, prompt, sampling(tokens, params))

    def step(self, which):
        """The tickets that came, by prompt: they are still to be taken to the other engine."""
        came = {}
        for output in self.engines[which].engine.step():
            if not output.finished:
                continue
            place, ticket = self.at[which].pop(output.request_id)
            if ticket is None and output.kv_transfer_params:
                came[place] = output.kv_transfer_params
            elif ticket is None:  # there was no room to hold it
                self.ask(which, place)
            else:
                self.found[place] = list(output.outputs[0].token_ids)
        return came

    def run(self, restart=None):
        """Until all is done; ``restart``: starts a successor of the second engine, which is killed on the way."""
        begun = 0
        while len(self.found) < len(PROMPTS):
            while begun < min(len(self.found) + UNDER_WAY, len(PROMPTS)):
                self.ask(begun % 2, begun)
                begun += 1
            for which in (0, 1):
                if not self.at[which]:
                    continue
                came = self.step(which)
                pulls = any(ticket for _, ticket in self.at[1].values())
                if restart and which and came and pulls and len(self.found) > len(PROMPTS) / 4:
                    kill(self.engines[1])
                    self.stale += len(came)
                    lost, self.at[1] = self.at[1], {}
                    self.engines[1], restart = restart(), None
                    for place, ticket in lost.values():
                        self.ask(1, place, ticket)
                for place, ticket in came.items():
                    self.ask(1 - which, place, ticket)


def test_texts_are_those_of_an_engine_alone_and_nothing_stays_held():
    with engines_apart(**OPTIONS) as engines:
        alone = engines()
        expected = [ask(alone, prompt, 24)[0] for prompt in PROMPTS]
        alone.close()
        first, second = (transfer("kv_both", "recompute", hold_seconds=HOLD_SECONDS) for _ in range(2))
        router = Router(engines(first), engines(second))
        for port in (second["kv_port"], free_port()):
            router.found = {}
            router.stale = 0
            router.run(lambda: engines({**second, "kv_port": port}))  # noqa: B023 -- it is called at once
            assert [router.found[place] for place in range(len(PROMPTS))] == expected
            assert router.stale > 0
            for engine in router.engines:
                assert come_to_rest(engine) < HOLD_SECONDS / 10
        router.found = {}
        router.run()
        assert [router.found[place] for place in range(len(PROMPTS))] == expected
        assert all(loaded(engine) > 500 for engine in router.engines)
