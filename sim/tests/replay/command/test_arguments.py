"""The options of ``kv-sim replay`` and ``kv-sim size``: what is there, what it is usually, and what it becomes."""

import argparse
import os

import pytest

from kv_api import ConfigError
from kv_sim.cli.main import main
from kv_sim.replay.command.arguments import add_replay_arguments, add_size_arguments
from kv_sim.replay.command.foreign import SAME_IN_ENGINE
from kv_sim.replay.command.selection import (
    bytes_per_token,
    footprint_of,
    gpu_blocks_of,
    policies_of,
    trace_options,
)
from kv_sim.replay.command.timed.arguments import OLD_NAMES
from kv_sim.replay.readers.options import OnError, Partial, TraceOptions, Unsorted
from kv_sim.replay.readers.requests.naming import IdMeaning, IdScope
from kv_sim.replay.readers.requests.sharing import Sharing
from kv_sim.replay.trace import EngineMemory
from kv_sim.replay.units import Footprint


def replay_parser(*typed):
    parser = argparse.ArgumentParser()
    add_replay_arguments(parser, typed)
    return parser


def size_parser(*typed):
    parser = argparse.ArgumentParser()
    add_size_arguments(parser, typed)
    return parser


def shown(parser):
    return [action for action in parser._actions if action.help != argparse.SUPPRESS]


def parsed(*line):
    return replay_parser(*line).parse_args(["trace", *line])


USUAL = {
    "trace": "trace", "format": None, "time_unit": None, "block_size": None, "partial_block": "keep",
    "ids": "auto", "id_scope": "auto", "on_error": "stop", "unsorted": "stop", "stagger": 0.0, "requests": None,
    "assume_sharing": None, "seed": None, "model": None, "kv_dtype": None, "bytes_per_token": None,
    "cache_policy_module_path": None, "capacity": None, "gpu_capacity": None, "json": None, "html": None,
    "servers": None, "routing": None, "disk_shared": False, "columns": None, "turns": "auto", "tokenizer": None,
}  # fmt: skip


def test_what_is_usual():
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    own = {"fidelity": "cache", "policy": "lru", "store_threshold": 0, "stream": False, "write_oracle": None}
    own |= {"disk_capacity": None, "disk_store_threshold": None, "store_when": "computed"}
    assert vars(parsed()) == USUAL | own | {"jobs": cores}
    own = {"policy": "lru,arc,s3fifo,sieve", "points": None, "budget": None, "disk": None, "host_capacity": None}
    own |= {"fidelity": "cache", "jobs": cores, "store_when": "computed"}
    assert vars(size_parser().parse_args(["trace"])) == USUAL | own
    assert trace_options(parsed()) == TraceOptions()
    assert parsed("--jobs", "7").jobs == 7


def test_every_option_reaches_the_reader():
    options = parsed(
        *("--format", "azure", "--time-unit", "ms", "--block-size", "1", "--partial-block", "drop"),
        *("--ids", "prefix", "--id-scope", "session", "--on-error", "skip", "--unsorted", "sort"),
        *("--stagger", "2.5", "--requests", "1", "--assume-sharing", "none", "--seed", "9"),
    )
    assert trace_options(options) == TraceOptions(
        format="azure",
        time_unit="ms",
        block_tokens=1,
        partial=Partial.DROP,
        ids=IdMeaning.PREFIX,
        scope=IdScope.SESSION,
        on_error=OnError.SKIP,
        unsorted=Unsorted.SORT,
        sharing=Sharing(1, 0, 0.0, 0.0),
        seed=9,
        stagger_seconds=2.5,
        requests=1,
    )


CHOICES = {
    "fidelity": "cache, engine",
    "partial-block": "keep, drop",
    "ids": "auto, prefix, block",
    "id-scope": "auto, global, session",
    "on-error": "stop, skip",
    "unsorted": "stop, sort",
    "store-when": "computed, evicted",
}


@pytest.mark.parametrize("option", CHOICES)
def test_choices(option, capsys):
    for choice in CHOICES[option].split(", "):
        assert getattr(parsed(f"--{option}", choice), option.replace("-", "_")) == choice
    with pytest.raises(SystemExit):
        parsed(f"--{option}", "other")
    assert f"argument --{option}: invalid choice: 'other' (choose from" in capsys.readouterr().err


def test_every_option_says_what_it_is():
    """With its default, its choices or the known names, where there are such."""
    parsers = [replay_parser(), replay_parser("--fidelity", "engine"), size_parser()]
    parsers.append(size_parser("--fidelity", "engine"))
    for parser in parsers:
        for action in shown(parser):
            assert action.help, action.option_strings
            takes_text = action.nargs is None and not action.choices
            assert bool(action.metavar) == takes_text, action.option_strings
    said = {action.dest: action.help for action in parsers[0]._actions}
    assert said["policy"] == "eviction policies: arc, lru, s3fifo, sieve, or all (default lru)"
    assert (
        said["capacity"] == "sizes of host memory, comma-separated: 20000blocks, 10Mtokens, 64GiB or 64GB; or none"
    )
    assert said["kv_dtype"] == "the type of KV numbers: bf16, fp16, fp8, int8 (default bf16)"
    assert said["trace"].endswith("a folder of files, or a shipped one: mooncake-conversation, mooncake-synthetic")
    assert (
        "weka, lmcache, bailian, recorded, servegen, lmbench, mooncake, baseten, dynamo, aibrix, aiperf, "
        "aiperf-turns, aiperf-inputs, otel, guidellm, langfuse, langsmith, sglang, sglang-log, sglang-metrics, "
        "har, sagemaker, bedrock, baseten-text, open-webui, chatgpt, claude-ai, deepseek, librechat, lm-studio, "
        "copilot-cli, continue, gemini-cli, opencode, goose, pi, cline, atif, "
        "vllm, conversations-dated, conversations, openai, openai-table, claude-code, codex, azure, "
        "burstgpt, vidur, bench, mooncake-lengths, litellm, splitwise" in said["format"]
    )
    for parser, points in ((parsers[2], 20), (parsers[3], 8)):
        [text] = [action.help for action in parser._actions if action.dest == "points"]
        assert text == f"how many capacities to try (default {points})"
    timed = {action.dest: action.help for action in parsers[1]._actions}
    assert timed["model"].startswith("default Llama-3.1-8B; known: Llama-3.1-8B, ")
    cache, engine = ({name for one in shown(parser) for name in one.option_strings} for parser in parsers[:2])
    assert {"--gpu", "--stepping"} <= engine - cache
    assert {"--requests", "--capacity", "--gpu-capacity", "--policy"} <= engine & cache, "one name for one thing"
    assert not (engine | cache) & OLD_NAMES.keys(), "nobody learns them any more"
    assert {new for new, _ in OLD_NAMES.values()} <= engine & cache
    same = SAME_IN_ENGINE["replay"]
    assert same.keys() <= cache - engine and {*same.values()} <= engine - cache
    cache, engine = ({name for one in shown(parser) for name in one.option_strings} for parser in parsers[2:])
    assert {"--goal", "--gpu"} <= engine - cache and {
        "--points",
        "--budget",
        "--capacity",
        "--jobs",
    } <= engine & cache
    same = SAME_IN_ENGINE["size"]
    assert same.keys() <= cache - engine and {*same.values()} <= engine


def test_as_many_processes_as_there_are_cores_to_be_used(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert parsed().jobs == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert parsed().jobs == 8, "who can't say which, says how many there are"
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert parsed().jobs == 1


def test_policies():
    everybody = ["lru", "arc", "s3fifo", "sieve"]
    for text, names in [
        ("all", everybody),
        ("sieve, all,sieve", ["sieve", "lru", "arc", "s3fifo"]),
        (" arc ,lru,arc", ["arc", "lru"]),
    ]:
        assert policies_of(parsed("--policy", text)) == names
    with pytest.raises(ConfigError, match="unknown eviction_policy 'lruu'"):  # before anything is replayed
        policies_of(parsed("--policy", "arc,lruu"))


def test_the_bytes_of_a_token():
    for line, found in [
        ((), (None, None)),
        (("--bytes-per-token", "1"), (1, "1 bytes a token")),
        (("--bytes-per-token", "12345"), (12_345, "12,345 bytes a token")),
        (
            ("--model", "Qwen3-8B", "--kv-dtype", "fp8"),
            (
                73_728,
                "Qwen3-8B: 36 layers × 2 (K and V) × 8 KV heads × 128 × 1 bytes (fp8) = 73,728 bytes a token",
            ),
        ),
    ]:
        assert bytes_per_token(parsed(*line), None) == found
        assert footprint_of(parsed(*line), 16, None) == Footprint(16, found[0])
        of_trace = bytes_per_token(parsed(*line), EngineMemory(64, 48))
        assert of_trace == (found if line else (64, "recorded: 64 bytes a token, room for 48 tokens on the GPU"))


def test_blocks_of_the_gpu():
    for line, alone, recorded in [
        ((), 0, 3),
        (("--gpu-capacity", "none"), 0, 0),
        (("--gpu-capacity", "5blocks"), 5, 5),
        (("--gpu-capacity", "32tokens"), 2, 2),
    ]:
        assert gpu_blocks_of(parsed(*line), Footprint(16, None), None) == alone
        assert gpu_blocks_of(parsed(*line), Footprint(16, None), EngineMemory(64, 63)) == recorded


def test_a_fidelity_that_is_missing_is_missed_by_the_command(capsys):
    with pytest.raises(SystemExit):
        main(["replay", "trace", "--fidelity"])
    assert capsys.readouterr().err.endswith("kv-sim replay: error: argument --fidelity: expected one argument\n")


@pytest.mark.parametrize(
    ("fidelity", "option"), [("cache", "--store-threshold"), ("engine", "--gpu-memory-utilization")]
)
def test_help_is_that_of_the_fidelity_that_was_typed(fidelity, option, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["replay", "--fidelity", fidelity, "--help"])
    assert ended.value.code == 0
    assert option in capsys.readouterr().out


def test_of_several_options_of_another_fidelity_the_first_is_named(capsys):
    typed = ["replay", "x.jsonl", "--fidelity", "engine", "--store-threshold", "1", "--stream"]
    assert main(typed) == 2
    assert capsys.readouterr().err.startswith(
        "kv-sim replay: --store-threshold works with --fidelity cache only; "
    )
