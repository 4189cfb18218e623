"""PegaFlow's connector under the testbed, without a GPU and without its server. Run by the session ``vllm-long``.

``kv_vllm_pegaflow`` has what it needs of both, and a variant without most of the mistakes that are shown here.
``docs/others/pegaflow.md`` tells of them.
"""

import json
from dataclasses import replace

import pytest
from kv_vllm_pegaflow import SERVERS, Mended, OnCpu
from kv_vllm_short_histories import comes, rests, what_is_wrong

from kv_sim.actions import Action, Kind
from kv_sim.cli.main import main as kv_sim
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.history import draws
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CONFIG = WorldConfig(engine="vllm", prefix_caching=False, num_blocks=24, block_size=4, max_step_tokens=64)
PEGAFLOW = Subject(OnCpu.__name__, OnCpu.__module__, {}, traits=frozenset(Trait) - {Trait.EVENTS, Trait.COUNTS})
MENDED = replace(PEGAFLOW, kv_connector=Mended.__name__)
STEP = Action(Kind.STEP)
PREEMPT = Action(Kind.RESET, {"running": True, "connector": False})


def found_in(actions, config=CONFIG, subject=PEGAFLOW, *, without=(), **settings):
    """What is wrong when everything has come to rest after these. A function gets the world."""
    return what_is_wrong(replace(subject, extra_config=settings), config, actions, without=without)


def test_what_was_stored_is_loaded():
    loads = []

    def is_loading(world):
        loads.extend(world.engine.devices[0].copies.running)
        [server] = SERVERS.values()
        assert not server.leases, "it is used"
        return True

    assert found_in([comes("r1", 12), rests, comes("r2", 12), STEP, is_loading]) is None
    assert len(loads) == 1


def test_what_isnt_computed_yet_is_saved_of_who_reads_no_cache():
    """What was found for it counts as computed, and vLLM dropped it."""
    config = replace(CONFIG, block_size=8, max_step_tokens=4)
    asks_for_logprobs = comes("r2", 48, skip_reading_prefix_cache=True)
    history = [comes("r1", 9), rests, asks_for_logprobs, STEP, STEP, STEP, Action(Kind.ABORT, {"request": "r2"})]
    history += [rests, comes("r3", 48)]
    found = found_in(history, config)
    assert found is not None and found.endswith(
        "but no request with the same prefix, salt, adapter and images has computed block 1 of its tokens"
    ), found
    found = found_in(history, config, without=[Invariant.HITS])
    assert found is not None and found.startswith("CONTENT  request r2 token 12: rank 0 block "), found
    assert found_in(history, config, MENDED) is None


def test_who_was_preempted_and_ends_while_it_loads_is_freed_twice():
    """Its saves have ended, and count as pending until it has."""
    settle = Action(Kind.SETTLE)
    history = [comes("r1", 13, 5), STEP, STEP, settle, STEP, PREEMPT, STEP, Action(Kind.ABORT, {"request": "r1"})]
    found = found_in(history)
    assert found is not None and found.startswith(
        "PROTOCOL  request r1: request_finished holds its blocks for a store while its load"
    ), found
    found = found_in(history, without=[Invariant.PROTOCOL])
    assert found.startswith("NO-CRASH  vLLM, update_from_output: AssertionError: "), found
    assert found_in(history, subject=MENDED) is None


def test_a_window_that_ends_with_a_token_that_is_computed_anew_begins_too_late():
    """Of a prompt that is found whole."""
    config = replace(CONFIG, groups=(GroupConfig(), GroupConfig("sliding", 5)))
    history = [comes("r1", 9), rests, comes("r2", 8)]
    found = found_in(history, config)
    assert found is not None and found.startswith("CONTENT  request r2 token 0: rank 0 block "), found
    assert found_in(history, config, MENDED) is None
    wider = replace(config, groups=(GroupConfig(), GroupConfig("sliding", 6)))
    assert found_in(history, wider) is None


def test_a_block_is_zeroed_before_it_was_saved():
    """Runner V2 zeroes new blocks before a connector hears of who was preempted."""
    config = replace(CONFIG, runner=2, zero_new_blocks=True, num_blocks=5)
    history = [comes("r1", 8, 5), STEP, PREEMPT, comes("r2", 12, conversation=1), rests, comes("r3", 9)]
    found = found_in(history, config, MENDED)
    assert found is not None and " holds zeroes, " in found, found
    assert found_in(history, replace(config, runner=1), MENDED) is None


def test_it_does_not_look_which_group_is_a_draft_model_s():
    """vLLM's connector finds a chunk less of that, since what is kept of a token depends on the next one."""
    config = replace(CONFIG, drafter="mtp", spec_tokens=1)
    found = found_in([comes("r1", 5)], config, MENDED)
    told = "but no request has computed this prompt's tokens up to 8: a draft model's KV of a token depends on"
    assert found is not None and told in found, found
    assert found_in([comes("r1", 5)], replace(config, drafter="eagle"), MENDED) is None, "vLLM marks no group"


@pytest.mark.parametrize(
    ("traits", "settings"),
    [
        ("ranks,fine,reset", {}),
        ("ranks,reset,keeps", {"lags": 2, "waits": 1}),
        ("groups", {"lags": 1}),
        ("none", {"room": 6, "fails": 5}),
    ],
    ids=str,
)
def test_nothing_else_is_found(traits, settings, monkeypatch, tmp_path, capsys):
    """In worlds without a draft model."""
    monkeypatch.setattr(draws, "with_drafter", lambda config: config)
    monkeypatch.chdir(tmp_path)
    asked = ["--engine", "vllm", "--connector", "kv_vllm_pegaflow:Mended", "--traits", traits, "--histories", "40"]
    code = kv_sim(["fuzz", *asked, "--extra", json.dumps(settings), "--without", "GEOMETRY"])
    assert code == 0, capsys.readouterr().out
