"""The comparison that the smoke test makes."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from kv_api import ConfigError, KVTransferConfig
from kv_vllm.installed import SETTINGS, MissingError
from kv_vllm.smoke import run as module
from kv_vllm.smoke.run import CONNECTOR, READY_SECONDS, SHARED_TOKENS, Told, compare, prompts, read_transfer, smoke


def test_what_is_tried_where_nobody_says_another_is_our_connector_both_ways():
    config = KVTransferConfig.from_mapping(CONNECTOR)
    assert (config.kv_connector, config.kv_connector_module_path) == ("OffloadingConnector", "kv_vllm")
    assert (config.kv_role, config.kv_load_failure_policy) == ("kv_both", "recompute")
    assert config.kv_connector_extra_config == {"cpu_bytes_to_use": 1 << 30}


def test_prompts_share_their_beginning():
    made = prompts(1000)
    assert {tuple(prompt[:SHARED_TOKENS]) for prompt in made} == {tuple(made[0][:SHARED_TOKENS])}
    assert len({len(prompt) for prompt in made}) == len(made)
    assert max(map(max, made)) < 1000


def test_prompts_are_the_same_for_both():
    assert prompts(1000) == prompts(1000)


def test_the_same_is_fine():
    told = Told([[1, 2]], [[1, 2]], SHARED_TOKENS, "0.33")
    assert compare(Told([[1, 2]], [[1, 2]], 0, "0.33"), told) == []


def test_each_difference_is_a_line():
    without = Told([[1, 2], [3, 4, 6]], [[1, 2], [3, 4, 6]], 0, "0.33")
    assert compare(without, Told([[1, 2], [3, 4, 6]], [[1, 2], [3, 5, 7]], 0, "0.33")) == [
        "prompt 1, warm: token 1 is [5], without [4]",
        f"0 tokens were loaded, expected at least {SHARED_TOKENS}",
    ]


def test_a_difference_in_the_last_token_is_told_as_that():
    without, with_it = (Told([[1, 2]], [[1, last]], SHARED_TOKENS, "0.33") for last in (2, 3))
    assert compare(without, with_it) == ["prompt 0, warm: token 1 is [3], without [2]"]


def test_a_shorter_answer_is_a_difference_too():
    without, hits = Told([[1, 2]], [[1, 2]], 0, "0.33"), SHARED_TOKENS - 0.5
    assert compare(without, Told([[1]], [[1, 2, 3]], hits, "0.33")) == [
        "prompt 0, cold: token 2 is [], without []",
        "prompt 0, warm: token 2 is [3], without []",
        f"{SHARED_TOKENS - 0.5:g} tokens were loaded, expected at least {SHARED_TOKENS}",
    ]


class SomeLLM:
    """Stands for a vLLM whose answers are the lengths of prompts, and how often it was reset."""

    made: ClassVar = []

    def __init__(self, **given):
        self.made.append(given)
        self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: 1000))
        self.resets, self.asked, self.refusals = 0, [], 2

    def generate(self, asked, params, use_tqdm):
        ((prompt,), self.params) = asked, params
        self.asked.append(prompt["prompt_token_ids"])
        ids = (len(prompt["prompt_token_ids"]), self.resets, use_tqdm)
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids)])]

    def reset_prefix_cache(self):
        if self.refusals:  # blocks are held for stores
            self.refusals -= 1
            return False
        self.resets += 1
        return True

    def get_metrics(self):
        values = (("other", 1000), (module.HITS, 5), (module.HITS, 7))
        return [SimpleNamespace(name=name, value=value) for name, value in values]


def test_what_one_vllm_is_asked(monkeypatch):
    params = []
    fake = SimpleNamespace(LLM=SomeLLM, SamplingParams=lambda **given: params.append(given), __version__="0.33.0")
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.setattr(SomeLLM, "made", [])
    lengths = [len(prompt) for prompt in prompts(1000)]
    told = module.run_one("m", {"a": 1}, {"max_model_len": 3, "more": 4})
    assert told == Told([[n, 0, 0] for n in lengths], [[n, 1, 0] for n in lengths], 12, "0.33.0")
    assert params == [
        {"temperature": 0, "max_tokens": module.OUTPUT_TOKENS, "ignore_eos": True, "detokenize": False}
    ]
    assert SomeLLM.made == [
        {
            "model": "m",
            "kv_transfer_config": {"a": 1},
            "max_model_len": 3,
            "enable_prefix_caching": True,
            "disable_log_stats": False,
            "skip_tokenizer_init": True,
            "seed": 0,
            "more": 4,
        }
    ]


def test_a_vllm_that_never_lets_go_of_its_blocks(monkeypatch):
    fake = SimpleNamespace(LLM=SomeLLM, SamplingParams=lambda **given: given, __version__="0.33.0")
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.setattr(SomeLLM, "reset_prefix_cache", lambda llm: False)
    times = iter([10.0, *[10.0 + module.REST_SECONDS] * 2, 10.1 + module.REST_SECONDS])
    monkeypatch.setattr(module, "monotonic", lambda: next(times))
    paused = []

    def pause(seconds):
        assert len(paused) < 5, "it waits for ever"
        paused.append(seconds)

    monkeypatch.setattr(module, "sleep", pause)
    with pytest.raises(SystemExit) as ended:
        module.run_one("m", None, {})
    assert str(ended.value) == "blocks are still held 120 seconds after the last answer"
    assert paused == [module.PAUSE_SECONDS] * 2


def test_prompts_end_in_the_middle_of_blocks():
    assert [len(prompt) - SHARED_TOKENS for prompt in prompts(1000)] == [1, 17, 70, 130]
    assert min(map(min, prompts(11))) == 10


@pytest.fixture
def runs(monkeypatch):
    """Stands for the processes with a vLLM; what each was given. `breaks`: how one ends, and if it tells."""
    given = []
    for name in (*SETTINGS, "VLLM_ENGINE_READY_TIMEOUT_S"):
        monkeypatch.delenv(name, raising=False)

    def run(command, *, check, env):
        model, transfer, options, out = json.loads(command[-1])
        given.append((model, transfer, options, env))
        hits = options.get("hits", SHARED_TOKENS) if transfer else 0
        told = Told([[1]], [[1]], hits, "0.33.0")
        assert not check, "a process that fails would be told in its own words"
        assert Path(out).is_absolute(), "it would be left in the user's folder"
        code, says = options.get("breaks", {}).get("with" if transfer else "without", (0, True))
        if says:
            Path(out).write_text(json.dumps(vars(told)))
        return SimpleNamespace(returncode=code)

    def version():
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # so does the real one
        return 0, 33

    monkeypatch.setattr(module, "vllm_version", version)
    monkeypatch.setattr(module.subprocess, "run", run)
    return given


def test_one_vllm_after_the_other_without_hurry(runs):
    lines = []
    assert smoke("m", {"enforce_eager": True}, lines.append)
    assert [run[:3] for run in runs] == [
        ("m", None, {"enforce_eager": True}),
        ("m", CONNECTOR, {"enforce_eager": True}),
    ]
    assert {run[3]["VLLM_ENGINE_READY_TIMEOUT_S"] for run in runs} == {str(READY_SECONDS)}
    settled = {name: value for name, value in SETTINGS.items() if name != "HF_HUB_OFFLINE"}
    assert all(run[3].items() >= settled.items() for run in runs)
    assert not any("HF_HUB_OFFLINE" in run[3] for run in runs)  # a model may have to be fetched
    assert lines == [
        "vLLM without a connector: it takes a minute to start, or several on busy cores",
        "vLLM with OffloadingConnector: it takes a minute to start, or several on busy cores",
        f"vLLM 0.33.0, m: {SHARED_TOKENS} tokens loaded by OffloadingConnector",
        "the outputs are the same",
    ]


def test_a_difference_fails(runs):
    lines = []
    assert not smoke("m", {"hits": 1}, lines.append)
    assert lines[-3:] == [
        "vLLM 0.33.0, m: 1 tokens loaded by OffloadingConnector",
        f"  1 tokens were loaded, expected at least {SHARED_TOKENS}",
        "FAILED",
    ]


def test_without_a_model_a_tiny_one_is_made(runs, monkeypatch):
    monkeypatch.setattr("kv_vllm.smoke.tiny_model.make_model", lambda folder: folder)
    assert smoke(None, {}, lambda line: None)
    (model,) = {run[0] for run in runs}
    assert Path(model).name == "model" and not Path(model).exists()
    assert {run[3]["HF_HUB_OFFLINE"] for run in runs} == {"1"}


@pytest.mark.parametrize("name", ["VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_NO_USAGE_STATS", "HF_HUB_OFFLINE", "HOME"])
def test_what_the_user_has_set_wins(name, runs, monkeypatch):
    monkeypatch.setenv(name, "7")
    assert smoke("m", {}, lambda line: None)
    assert {run[3][name] for run in runs} == {"7"}


@pytest.mark.parametrize("breaks", [(1, True), (0, False), (-9, False)])
@pytest.mark.parametrize("name", ["without", "with"])
def test_one_that_does_not_start_is_told(name, breaks, runs):
    with pytest.raises(MissingError) as error:
        smoke("m", {"breaks": {name: breaks}}, lambda line: None)
    why = {
        "without": "without a connector: can it run on this machine at all?",
        "with": "with OffloadingConnector, but not without it: see what it printed",
    }
    assert str(error.value) == f"vLLM ended with exit code {breaks[0]} {why[name]}"


def test_a_connector_of_ones_own(runs):
    lines, mine = [], {"kv_connector": "Mine", "kv_connector_module_path": "my_vllm", "kv_role": "kv_both"}
    assert smoke("m", {}, lines.append, mine)
    assert [run[1] for run in runs] == [None, mine]
    assert lines[1].startswith("vLLM with Mine: ") and lines[2].endswith(" tokens loaded by Mine")
    with pytest.raises(MissingError, match=r"^vLLM ended with exit code 1 with Mine, but not without it: "):
        smoke("m", {"breaks": {"with": (1, False)}}, lines.append, mine)


def test_what_is_typed_for_a_connector_is_an_object_that_names_one():
    assert read_transfer('{"kv_connector": "Mine", "kv_role": "kv_both"}') == {
        "kv_connector": "Mine",
        "kv_role": "kv_both",
    }
    for text in ('["Mine"]', '"Mine"', "{}", '{"kv_connector": 7}'):
        with pytest.raises(ConfigError) as error:
            read_transfer(text)
        assert str(error.value) == (
            f"--kv-transfer-config: expected an object with the name of a connector as kv_connector; got {text}"
        )
    with pytest.raises(ConfigError, match=r"^--kv-transfer-config: this is no JSON: Expecting value: line 1"):
        read_transfer("Mine")


def test_without_vllm_nothing_is_begun(runs, monkeypatch):
    def none():
        raise MissingError("none")

    monkeypatch.setattr(module, "vllm_version", none)
    with pytest.raises(MissingError, match="none"):
        smoke("m", {}, lambda line: None)
    assert not runs


SMALL_VLLM = """
from types import SimpleNamespace

__version__, SamplingParams = "0.33.0", dict

class LLM:
    def __init__(self, kv_transfer_config, **given):
        self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: 1000))
        self.hits = 1000 if kv_transfer_config else 0

    def generate(self, asked, params, use_tqdm):
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=asked[0]["prompt_token_ids"][-2:])])]

    def reset_prefix_cache(self):
        return True

    def get_metrics(self):
        return [SimpleNamespace(name="vllm:external_prefix_cache_hits", value=self.hits)]
"""


def test_each_vllm_has_a_process_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "vllm.py").write_text(SMALL_VLLM)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(module, "vllm_version", lambda: (0, 33))
    lines = []
    assert smoke("m", {}, lines.append)
    assert lines[2:] == ["vLLM 0.33.0, m: 1000 tokens loaded by OffloadingConnector", "the outputs are the same"]
