"""AIBrix's offloading connectors under the testbed, without a GPU. Run by the session ``vllm-long``.

``kv_vllm_aibrix`` has the copies and what vLLM no longer says, ``kv_vllm_aibrix_runner`` the runner as AIBrix
patches it, and ``kv_vllm_aibrix_mended`` variants without the mistakes that are shown here.
``docs/others/aibrix.md`` tells of them.
"""

import json
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from kv_vllm_aibrix import ByLayer, OnCpu
from kv_vllm_aibrix_mended import Mended
from kv_vllm_aibrix_runner import patched
from kv_vllm_short_histories import comes, rests, what_is_wrong
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from kv_sim.actions import Action, Kind
from kv_sim.cli.main import main as kv_sim
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import Turn
from kv_sim.guard import NotCreated
from kv_sim.history import draws
from kv_sim.subject import Subject
from kv_sim.violation import Invariant

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CONFIG = WorldConfig(engine="vllm", prefix_caching=False, num_blocks=24, block_size=4, max_step_tokens=64)
AIBRIX = Subject(OnCpu.__name__, OnCpu.__module__, {}, traits=frozenset())
BY_LAYER = replace(AIBRIX, kv_connector=ByLayer.__name__)
MENDED = Subject(Mended.__name__, Mended.__module__, {}, traits=frozenset())
STEP = Action(Kind.STEP)
PREEMPT = Action(Kind.RESET, {"running": True, "connector": False})


def found_in(actions, config=CONFIG, subject=AIBRIX, *, without=(), **settings):
    """What is wrong when everything has come to rest after these. A function gets the world."""
    return what_is_wrong(replace(subject, extra_config=settings), config, actions, without=without)


def has_loaded(**tokens):
    """Look what the last step that was asked for loaded."""

    def look(world):
        assert world.engine.workers[0].loaded == tokens
        return True

    return look


@pytest.mark.parametrize("subject", [AIBRIX, BY_LAYER], ids=lambda subject: subject.kv_connector)
def test_what_was_saved_is_loaded(subject):
    """By eight blocks or more, as AIBrix wants it."""
    history = [comes("r1", 33), rests, comes("r2", 33), STEP, has_loaded(r2=32), comes("r3", 31), STEP]
    assert found_in(history, subject=subject, skip=8) is None


@pytest.mark.parametrize("whose", [{"adapter": "s"}, {"salt": "s"}], ids=str)
def test_keys_are_of_tokens_alone(whose):
    """Whatever computed them."""
    history = [comes("r1", 33), rests, comes("r2", 33, **whose)]
    found = found_in(history, skip=8)
    assert found is not None and found.startswith("CONTENT  request r2 token 0: rank 0 block "), found
    assert found_in(history, subject=MENDED, skip=8) is None


def test_the_next_turn_of_a_session_ends_the_worker():
    """Its prompt is longer, and goes where the first turn's went."""
    history = [comes("r1", 5, turns=(Turn(5, 1, 1),)), rests]
    found = found_in(history)
    assert (
        found is not None
        and "ValueError: could not broadcast input array from shape (10,) into shape (5,)" in found
    )
    assert found_in(history, subject=MENDED) is None


def test_runner_v2_is_never_asked_for_loads():
    """AIBrix patches V1 alone, and its connector knows nothing of requests that nobody asked for."""
    found = found_in([comes("r1", 5)], replace(CONFIG, runner=2))
    assert found is not None and found.startswith("NO-CRASH  worker 0 side, wait_for_save: KeyError: 'r1'"), found


def test_the_scheduler_counts_what_was_loaded_as_under_way():
    """In an engine of one process the patch writes into what the scheduler keeps of the step."""
    history = [comes("r1", 9), rests, comes("r2", 9, 3), STEP, has_loaded(r2=8), PREEMPT]
    found = found_in(history)
    assert found is not None and found.startswith("LIVENESS  "), found
    assert found_in(history, subject=MENDED) is None


def test_who_wants_logprobs_of_its_prompt_is_loaded():
    """Who reads no cache has to compute everything. Nobody asks AIBrix's scheduler's side."""
    history = [comes("r1", 9), rests, comes("r2", 9, skip_reading_prefix_cache=True), STEP, has_loaded(r2=8)]
    assert found_in(history, subject=MENDED) is None


def test_blocks_that_are_ahead_of_tokens_are_taken_for_later_ones():
    """vLLM allocates room for what a draft model writes: the next blocks come after that."""

    def drafts_ahead(world):
        world.engine.vllm.num_lookahead_tokens = 2
        return True

    config = replace(CONFIG, max_step_tokens=8)
    history = [drafts_ahead, comes("r1", 33), rests, comes("r2", 33)]
    found = found_in(history, config)
    assert found is not None and found.startswith("OWNERSHIP  rank 0 block "), found
    found = found_in(history, config, without=[Invariant.OWNERSHIP])
    assert found is not None and found.startswith("CONTENT  request r2 token "), found


def test_a_block_of_several_is_loaded_over_what_others_read():
    """It begins before what vLLM has found by itself."""
    config = replace(CONFIG, prefix_caching=True)
    history = [comes("r1", 9), rests, comes("r2", 8)]
    found = found_in(history, config, blocks=2)
    assert found is not None and found.startswith("OWNERSHIP  rank 0 block 1 (of request r2): the connector "), (
        found
    )
    assert found_in(history, config, blocks=2, without=[Invariant.OWNERSHIP]) is None
    assert found_in(history, config) is None


def test_what_is_loaded_is_zeroed():
    """The patch loads before the runner zeroes new blocks, as it does beside states."""
    config = replace(CONFIG, zero_new_blocks=True)
    history = [comes("r1", 9), rests, comes("r2", 9)]
    found = found_in(history, config)
    assert found is not None and " holds zeroes, " in found, found
    assert found_in(history, config, MENDED) is None


def test_the_patch_drops_what_a_step_has_to_do_later():
    """vLLM's runner answers with what corrects its counts once drafts have been judged."""
    runner = type("Runner", (), {"execute_model": None, "_update_states": lambda self, output: "to be done later"})
    assert runner()._update_states(None) == "to be done later"
    assert patched(runner)()._update_states(None) is None


def test_a_child_is_never_asked():
    """The patch asks the one connector that a worker has: vLLM's MultiConnector knows no such method."""
    multi = object.__new__(MultiConnector)
    multi._connectors, multi._extra_async_saves = [], {}
    multi.bind_connector_metadata = lambda metadata: None
    step = SimpleNamespace(kv_connector_metadata=object())
    with (
        patch.object(kv_transfer_state, "_KV_CONNECTOR_AGENT", multi),
        pytest.raises(AttributeError, match="has no attribute 'start_load_kv_before_update'"),
    ):
        patched(type("Runner", (GPUModelRunner,), {})).execute_model(SimpleNamespace(), step)


def test_it_asks_what_vllm_no_longer_says():
    """So in vLLM 0.32 its workers don't begin."""
    said = "has no attribute 'get_kv_cache_shape'"
    with patch.object(OnCpu, "BACKEND", FlashAttentionBackend), pytest.raises(NotCreated, match=said):
        found_in([])


@pytest.mark.parametrize(
    ("name", "traits", "settings"),
    [
        ("Mended", "ranks,fine,reset", {}),
        ("Mended", "sleep", {"room": 6}),
        ("Mended", "none", {"room": 5, "policy": "LRU"}),
        ("MendedByLayer", "ranks,reset", {"room": 12, "policy": "FIFO"}),
    ],
    ids=str,
)
def test_nothing_else_is_found(name, traits, settings, monkeypatch, tmp_path, capsys):
    """In worlds without a draft model. With one a loaded block is written over, and a step ends in a crash."""
    monkeypatch.setattr(draws, "with_drafter", lambda config: config)
    monkeypatch.chdir(tmp_path)
    asked = ["--engine", "vllm", "--connector", f"kv_vllm_aibrix_mended:{name}", "--traits", traits]
    code = kv_sim(["fuzz", *asked, "--histories", "40", "--extra", json.dumps(settings)])
    assert code == 0, capsys.readouterr().out
