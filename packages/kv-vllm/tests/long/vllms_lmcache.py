"""vLLM's LMCacheConnectorV1 with LMCache in the engine's process, under the testbed, without a GPU.

Run by the session ``vllm-long``, which installs it. ``kv_vllm_lmcache`` has copies for a CPU, which LMCache lacks,
and a variant without the mistakes that are shown here. ``docs/others/lmcache.md`` tells whose they are.
"""

import json
from dataclasses import replace

import pytest
from kv_vllm_lmcache import OnCpu
from kv_vllm_short_histories import comes
from lmcache.v1 import gpu_connector
from lmcache.v1.rpc import ZmqReqRepClientTransport

from kv_sim.actions import Action, Kind
from kv_sim.checkers import at_rest
from kv_sim.cli.main import main as kv_sim
from kv_sim.config import WorldConfig
from kv_sim.fuzz import run_seed
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant, Violation
from kv_sim.world import World

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CONFIG = WorldConfig(engine="vllm", prefix_caching=False)
SETTINGS = {"lmcache.chunk_size": 8, "lmcache.max_local_cpu_size": 0.001}
LMCACHE = Subject(OnCpu.__name__, OnCpu.__module__, SETTINGS, traits=frozenset())
MENDED = replace(LMCACHE, kv_connector="Mended")
SMALL = {"lmcache.max_local_cpu_size": 0.00002}
"""Gigabytes: of a chunk at a time, which is rounded up to 4 KiB, there are five."""
STEP = Action(Kind.STEP)
PREEMPT = Action(Kind.RESET, {"running": True, "connector": False})


def found_in(actions, config=CONFIG, subject=LMCACHE, **settings):
    """What is wrong when everything has come to rest after these, and what LMCache still knows of requests."""
    extra = {**SETTINGS, **{f"lmcache.{name}": value for name, value in settings.items()}}
    world = World(config, replace(subject, extra_config=extra))
    world.referee.switched_off.add(Invariant.CONSERVATION)
    worker, scheduler = (connector._lmcache_engine for connector in world.engine.connectors)
    found = None
    try:
        for action in actions:
            assert world.apply(action), action
        at_rest.check(world)
    except Violation as violation:
        found = str(violation)
    known = [
        scheduler._requests_priority,
        scheduler.lookup_client.reqs_status,
        getattr(worker.lmcache_engine, "lookup_pins", ()),
    ]
    names = [sorted(one) for one in known]
    world.break_off(None)
    return found, names


def no_copies(*args, **kwargs):
    """What LMCache says on a CPU."""
    raise RuntimeError("No supported cpu connector found.")


NOTHING = [[], [], []]


def test_what_was_stored_is_loaded():
    assert found_in([comes("r1"), STEP, comes("r2"), STEP]) == (None, NOTHING)


@pytest.mark.parametrize("whose", [{"adapter": "s"}, {"salt": "s"}], ids=["adapter", "salt"])
def test_another_ones_kv_is_loaded(whose):
    """Its keys are of tokens alone: of the adapter and of the salt of a request nothing is in them."""
    histories = [comes("r1"), STEP, comes("r2", **whose), STEP]
    found, _ = found_in(histories)
    assert found.startswith("CONTENT  request r2 token 0: rank 0 block "), found
    assert found_in(histories, subject=MENDED)[0] is None


def test_an_answer_that_is_dropped_ends_the_engine_if_the_request_was_preempted():
    """vLLM asks for one that reads no cache (it wants ``prompt_logprobs``), too, and loads nothing."""
    history = [comes("r1", skip_reading_prefix_cache=True), STEP, PREEMPT]
    config = replace(CONFIG, run_ahead=1)
    found, _ = found_in(history, config)
    expected = "Preempted request r1 has num_computed_tokens 0 but expected 8 (full_hit_adj=False)"
    assert found.startswith(f"NO-CRASH  scheduler side, build_connector_meta: AssertionError: {expected}"), found
    assert found_in(history, config, subject=MENDED)[0] is None


RESUMES = [comes("r1", 4, 8), *[STEP] * 5, PREEMPT]
"""When it resumes, more is stored of it than its prompt."""


@pytest.mark.parametrize("runner", [1, 2])
def test_what_was_generated_is_found_and_not_loaded_with_runner_v2(runner):
    """There it comes as a new one, with all its tokens beside its prompt; LMCache loads by the prompt."""
    found, _ = found_in(RESUMES, replace(CONFIG, runner=runner), subject=MENDED, save_decode_cache=True)
    if runner == 1:
        assert found is None
    else:
        assert found.startswith("CONTENT  request r1 token 0: rank 0 block "), found
        assert "holds poison, not written since it was allocated" in found


FULL = replace(CONFIG, num_blocks=8)
WAITS = [comes("r1", 17, 8), STEP, comes("r2", 17), STEP]
"""For the second there are no blocks until the first has ended."""


def test_what_was_looked_up_for_one_that_is_aborted_stays_pinned():
    """For five minutes, in which it can't be evicted; the rest for good."""
    _, known = found_in([*WAITS, Action(Kind.ABORT, {"request": "r2"})], FULL)
    assert known == [["r2"]] * 3
    assert found_in(WAITS, FULL) == (None, NOTHING)


def test_who_was_preempted_is_remembered():
    _, known = found_in([comes("r1", samples=4), STEP, PREEMPT])
    assert known == [["r1"], [], []]


@pytest.mark.parametrize(
    ("settings", "traits"),
    [({}, ()), (SMALL, ()), ({}, (Trait.RANKS, Trait.ZEROING))],
    ids=["plain", "evicting", "ranks"],
)
def test_without_these_it_holds(settings, traits):
    mended = replace(MENDED, extra_config={**SETTINGS, **settings}, traits=frozenset(traits))
    loads = 0
    for seed in range(12):
        made = run_seed(mended, seed, engine="vllm", without=frozenset({Invariant.CONSERVATION}))
        assert made.failure is None, made.failure.violation
        loads += made.coverage.situations["match: load in the step"]
    assert loads > 20


def test_one_whose_workers_have_no_cache_is_asked_all_the_same(monkeypatch):
    """Where LMCache can't begin it does without a cache, says so, and each request waits for an answer in vain."""
    answers, ask = [], ZmqReqRepClientTransport.send_and_recv_all

    def asked(client, message):
        answers.append(ask(client, message))
        return answers[-1]

    monkeypatch.setattr(ZmqReqRepClientTransport, "send_and_recv_all", asked)
    assert found_in([comes("r1"), STEP, comes("r2")])[0] is None
    assert len(answers) == 2 and all(answers)
    answers.clear()
    monkeypatch.setattr(gpu_connector, "CreateGPUConnector", no_copies)
    assert found_in([comes("r1"), STEP, comes("r2")], lookup_timeout_ms=500)[0] is None
    assert answers == [[], []]


def test_the_command(capsys):
    typed = ["--connector", "kv_vllm_lmcache:Mended", "--extra", json.dumps(SETTINGS), "--histories", "3"]
    assert kv_sim(["fuzz", *typed, "--engine", "vllm", "--without", "CONSERVATION"]) == 0
    assert "Mended: 3 histories, " in capsys.readouterr().out
