"""SpoolCache's connector under the testbed, without a GPU. Run by the session ``vllm-long``.

``kv_vllm_spoolcache`` has what it needs of one, and variants without the mistakes that are shown here.
``docs/others/spoolcache.md`` tells of them.
"""

import json
from dataclasses import replace

import pytest
from kv_vllm_short_histories import comes, rests, what_is_wrong
from kv_vllm_spoolcache import OnCpu

from kv_sim.actions import Action, Kind
from kv_sim.cli.main import main as kv_sim
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.guard import NotCreated
from kv_sim.subject import Subject
from kv_sim.violation import Invariant

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CONFIG = WorldConfig(engine="vllm", prefix_caching=False)
SETTINGS = {"spoolcache_path": "{folder}", "host_slots": None, "cpu_bytes_to_use": None}
SPOOLCACHE = Subject(OnCpu.__name__, OnCpu.__module__, SETTINGS, frozenset())
COUNTS = [Invariant.ACCOUNTING]
TWICE = [comes("a", 12, samples=3), rests, comes("b", 13), rests]
"""A prompt, and one that begins with it."""


def found_in(history, config=CONFIG, *, name="OnCpu", without=COUNTS):
    """What is wrong with it."""
    return what_is_wrong(replace(SPOOLCACHE, kv_connector=name), config, history, without=without)


def loads_in(history, config=CONFIG, **more):
    """How many requests load, if nothing is wrong."""
    loads = []

    def counts(world):
        loads.append(world.coverage.situations["match: load in the step"])
        return True

    assert found_in([*history, counts], config, **more) is None
    return loads[0]


def test_with_a_model_of_text_it_does_not_begin(capsys):
    """vLLM's ``get_multimodal_config`` raises if there is none."""
    typed = ["conform", "--engine", "vllm", "spoolcache.vllm.connector:SpoolCacheConnector", "--histories", "1"]
    assert kv_sim([*typed, "--extra", json.dumps(SETTINGS)]) == 2
    assert "cannot read the public multimodal configuration" in capsys.readouterr().err


def test_with_a_window_alone_it_does_not_begin():
    """It counts the bytes of layers that read all tokens, and wants more than none."""
    with pytest.raises(NotCreated, match="LayoutError: aligned full-KV file exceeds the transfer metadata bound"):
        found_in([], replace(CONFIG, groups=(GroupConfig("sliding", 5),)))
    assert found_in([], replace(CONFIG, groups=(GroupConfig(), GroupConfig("sliding", 5)))) is None


def test_a_prompt_that_is_computed_in_one_step_is_never_stored():
    """It stores what steps before this one have computed, and once a prompt's end is in a step, nothing later."""
    assert loads_in(TWICE) == 0
    assert loads_in(TWICE, replace(CONFIG, max_step_tokens=8)) == 1
    assert loads_in(TWICE, name="Whole") == 1


PREEMPTED = replace(CONFIG, prefix_caching=True, num_blocks=9, max_step_tokens=16)
THREE = [comes("r1", 7, 8), comes("r2", 13, conversation=1), comes("r3", 15, 6, conversation=2), rests]


def test_a_request_that_comes_again_with_more_than_its_prompt_ends_the_engine():
    found = found_in(THREE, PREEMPTED)
    invalid = "RuntimeError: vLLM reported an invalid computed-token count"
    assert found.startswith(f"NO-CRASH  scheduler side, get_num_new_matched_tokens: {invalid}"), found
    assert found_in(THREE, PREEMPTED, name="Mended") is None


def test_what_the_gpu_has_is_loaded_again():
    """All of a prompt is written, also blocks that other requests may be reading."""
    forgets = Action(Kind.RESET, {"running": False, "connector": False})
    history = [comes("a", 12, samples=3), rests, forgets, comes("b", 9), rests, comes("c", 13), rests]
    found = found_in(history, replace(CONFIG, prefix_caching=True), name="Whole")
    assert found.startswith("OWNERSHIP  rank 0 block "), found
    assert "(of request c): the connector writes it, but no load into it is under way" in found


def test_some_of_its_counts_never_reach_the_log():
    """They are taken from a field beside ``data``, and vLLM hands on ``data`` alone."""
    found = found_in(TWICE, without=())
    assert found.startswith("ACCOUNTING  stats {"), found
    assert "'spoolcache_ranks': 1" in found and "'spoolcache_ranks': 0" in found


@pytest.mark.parametrize("traits", ["none", "fine,ranks,zeroing", "images,reset"])
def test_nothing_else_is_found(traits, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    asked = ["--engine", "vllm", "--connector", "kv_vllm_spoolcache:Mended", "--traits", traits]
    left_out = ["--without", "ACCOUNTING,OWNERSHIP"]
    asked += ["--histories", "6", "--extra", json.dumps(SETTINGS), *left_out]
    assert kv_sim(["fuzz", *asked]) == 0, capsys.readouterr().out
