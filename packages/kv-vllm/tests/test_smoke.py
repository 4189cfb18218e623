"""The comparison that the smoke test makes."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from kv_vllm import smoke as module
from kv_vllm.installed import MissingError
from kv_vllm.smoke import CONNECTOR, READY_SECONDS, SHARED_TOKENS, Told, compare, prompts, smoke


def test_prompts_share_their_beginning():
    made = prompts(1000)
    assert {tuple(prompt[:SHARED_TOKENS]) for prompt in made} == {tuple(made[0][:SHARED_TOKENS])}
    assert len({len(prompt) for prompt in made}) == len(made)
    assert max(map(max, made)) < 1000


def test_the_same_is_fine():
    told = Told([[1, 2]], [[1, 2]], SHARED_TOKENS, "0.33")
    assert compare(Told([[1, 2]], [[1, 2]], 0, "0.33"), told) == []


def test_each_difference_is_a_line():
    without = Told([[1, 2], [3, 4]], [[1, 2], [3, 4]], 0, "0.33")
    assert compare(without, Told([[1, 2], [3, 4]], [[1, 2], [3, 5]], 0, "0.33")) == [
        "prompt 1, warm: token 1 is [5], without [4]",
        f"0 tokens were loaded, expected at least {SHARED_TOKENS}",
    ]


@pytest.fixture
def runs(monkeypatch):
    """Stands for the processes with a vLLM; what each was given."""
    given = []

    def run(command, *, check, env):
        model, transfer, options, out = json.loads(command[-1])
        given.append((model, transfer, options, env))
        told = Told([[1]], [[1]], SHARED_TOKENS if transfer else 0, "0.33.0")
        if "breaks" not in options:
            Path(out).write_text(json.dumps(vars(told)))
        return SimpleNamespace(returncode=int("breaks" in options))

    monkeypatch.setattr(module, "vllm_version", lambda: (0, 33))
    monkeypatch.setattr(module.subprocess, "run", run)
    return given


def test_one_vllm_after_the_other_without_hurry(runs, monkeypatch):
    monkeypatch.delenv("VLLM_ENGINE_READY_TIMEOUT_S", raising=False)
    lines = []
    assert smoke("m", {"enforce_eager": True}, lines.append)
    assert [run[:3] for run in runs] == [
        ("m", None, {"enforce_eager": True}),
        ("m", CONNECTOR, {"enforce_eager": True}),
    ]
    assert {run[3]["VLLM_ENGINE_READY_TIMEOUT_S"] for run in runs} == {str(READY_SECONDS)}
    assert lines == [
        "vLLM without the connector: it takes a minute to start, or several on busy cores",
        "vLLM with the connector: it takes a minute to start, or several on busy cores",
        f"vLLM 0.33.0, m: {SHARED_TOKENS} tokens loaded from host memory",
        "the outputs are the same",
    ]


def test_what_the_user_has_set_wins(runs, monkeypatch):
    monkeypatch.setenv("VLLM_ENGINE_READY_TIMEOUT_S", "7")
    assert smoke("m", {}, lambda line: None)
    assert {run[3]["VLLM_ENGINE_READY_TIMEOUT_S"] for run in runs} == {"7"}


def test_one_that_does_not_start_is_told(runs):
    with pytest.raises(
        MissingError, match="vLLM ended with 1 without the connector: there is nothing to run it on"
    ):
        smoke("m", {"breaks": True}, lambda line: None)
