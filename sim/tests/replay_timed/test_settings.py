"""Options, and what they make of a server: settings, sizes, and media that are timed; wrong ones are refused."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kv_sim_timed_traces import PAGE, answer, toy, trace_of

from kv_api import ConfigError
from kv_offload_file.options import FileOptions
from kv_sim.cli.main import main
from kv_sim.replay.timed import Contents, EngineSettings, Stepping
from kv_sim.replay.timed.command import OLD_NAMES, add_replay_arguments, add_size_arguments, run, settings_of
from kv_sim.replay.timed.connectors.timed_config import (
    NOTHING,
    decides_in_known_steps,
    has_files,
    timed_config,
    without_files,
)
from kv_sim.replay.timed.hardware import find_gpu, find_model
from kv_sim.replay.timed.settings import plan
from kv_sim.replay.transfer_config import disk_config


def parsed(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_replay_arguments(parser)
    parser.set_defaults(jobs=1)
    return parser.parse_args(line.split())


def only(line: str) -> EngineSettings:
    """What a line says, where it is one server."""
    [settings] = settings_of(parsed(line))
    return settings


def test_no_options_are_the_defaults() -> None:
    assert only("") == EngineSettings()


def test_options_change_settings() -> None:
    line = (
        "--model mistral-7b --gpu l40s --gpu-flops 1e14 --hbm-bandwidth 2e12 --link-bandwidth 5e10 "
        "--gpu-memory 40GiB "
        "--tp-size 2 --copy-microseconds 3 --max-running 9 --capacity 1GB "
        "--policy arc --stepping single --arrival-scale 2"
    )
    gpu = replace(find_gpu("L40S"), flops=1e14, hbm_bandwidth=2e12, link_bandwidth=5e10, memory_bytes=40 << 30)
    assert only(line) == EngineSettings(
        model=find_model("Mistral-7B"),
        gpu=gpu,
        tp_size=2,
        copy_microseconds=3.0,
        max_running=9,
        cpu_bytes_to_use=10**9,
        eviction_policy="arc",
        stepping=Stepping.SINGLE,
        arrival_scale=2.0,
    )


NUMBERS = {
    "tp-size": ("tp_size", 2, " (default 1)"),
    "flops-efficiency": ("flops_efficiency", 0.25, " (default 0.5)"),
    "hbm-efficiency": ("hbm_efficiency", 0.25, " (default 0.8)"),
    "link-efficiency": ("link_efficiency", 0.25, " (default 0.85)"),
    "step-microseconds": ("step_microseconds", 0.25, " (default 1000)"),
    "idle-step-microseconds": ("idle_step_microseconds", 0.25, " (default 1000)"),
    "copy-microseconds": ("copy_microseconds", 0.25, " (default 0.5)"),
    "page-tokens": ("page_tokens", 3, ""),
    "gpu-memory-utilization": ("gpu_memory_utilization", 0.25, " (default 0.92)"),
    "block-tokens": ("block_tokens", 3, " (default: the trace's)"),
    "max-step-tokens": ("max_step_tokens", 3, ""),
    "max-running": ("max_running", 3, ""),
    "disk-read-bandwidth": ("disk_read_bandwidth", 2.5e9, " (default 6.8e+09)"),
    "disk-write-bandwidth": ("disk_write_bandwidth", 1.5e9, " (default 4e+09)"),
    "disk-microseconds": ("disk_microseconds", 7.5, " (default 25)"),
    "arrival-scale": ("arrival_scale", 0.25, " (default 1)"),
    "max-model-len": ("max_model_len", 3, " (default: the model's)"),
}
"""option: setting, another value, what is said of the default"""


def test_every_number_has_an_option() -> None:
    parser = argparse.ArgumentParser()
    add_replay_arguments(parser)
    said = {action.option_strings[-1][2:]: action.help or "" for action in parser._actions}
    for option, (setting, value, default) in NUMBERS.items():
        changed: dict[str, Any] = {setting: value}
        assert only(f"--{option} {value}") == replace(EngineSettings(), **changed), option
        assert said[option].endswith(default) and ("(default" in said[option]) == bool(default), option
    others = {"help", "model", "stepping", "check-contents", "capacity", "gpu-capacity", "policy"}
    others |= {old.removeprefix("--") for old in OLD_NAMES}
    others |= {"gpu", "gpu-flops", "hbm-bandwidth", "link-bandwidth", "gpu-memory", "connector-config"}
    others |= {"disk-capacity", "disk-store-threshold", "store-when"}
    assert set(said) == others | NUMBERS.keys()
    assert said["capacity"].endswith("one or more (default 64GiB, or none where there is a disk)")
    parser = argparse.ArgumentParser()
    add_size_arguments(parser)
    said = {action.option_strings[-1][2:]: action.help or "" for action in parser._actions}
    assert said["capacity"].endswith("one or more (default: --points)")
    goals = "such as ttft-p90=800ms: ttft|tpot|latency|queueing, mean|p50|p90|p95|p99|worst"
    assert said["goal"] == f"what the least memory is looked for with, {goals}"


@pytest.mark.parametrize("stepping", Stepping)
def test_steps_can_be_fused_or_single(stepping: Stepping) -> None:
    assert only(f"--stepping {stepping.value}").stepping is stepping


def test_a_connector_of_its_own_and_checks() -> None:
    config = {"kv_connector": "MultiConnector"}
    options = parsed(f"--check-contents --connector-config {json.dumps(config, separators=(',', ':'))}")
    assert settings_of(options) == [EngineSettings(connector=config, contents=Contents.CHECKED)]


def test_a_server_of_defaults() -> None:
    settings = EngineSettings()
    assert (settings.model, settings.gpu) == (find_model("Llama-3.1-8B"), find_gpu("H100"))
    assert settings.transfer_config() == {
        "kv_connector": "OffloadingConnector",
        "kv_connector_module_path": "kv_vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 64 << 30, "eviction_policy": "lru"},
    }


def test_a_server_with_a_disk() -> None:
    """As ``kv-sim size`` has it; without a ``--capacity`` there is no host memory."""
    settings = only("--disk-capacity 1TiB --policy arc --disk-store-threshold 2")
    assert settings == EngineSettings(
        cpu_bytes_to_use=0, eviction_policy="arc", disk_bytes_to_use=1 << 40, disk_store_threshold=2
    )
    files = {
        "spec_name": "FileOffloadingSpec",
        "spec_module_path": "kv_offload_file",
        "file_dir": "/mnt/nvme/kv",
        "file_bytes_to_use": 1 << 40,
        "store_threshold": 2,
        "eviction_policy": "arc",
    }
    alone = settings.transfer_config()
    assert (alone["kv_connector"], alone[EXTRA]) == ("OffloadingConnector", files)
    both = only("--disk-capacity 1TiB --capacity 3GiB").transfer_config()
    assert both[EXTRA]["load_policy"] == "longest"
    host, disk = (child[EXTRA] for child in both[EXTRA]["connectors"])
    assert host == {"cpu_bytes_to_use": 3 << 30, "eviction_policy": "lru"}
    del files["store_threshold"]
    assert disk == {"name": "files", **files, "eviction_policy": "lru"}


def test_a_disk_of_nothing_is_none() -> None:
    assert only("--disk-capacity 0GiB") == EngineSettings()


def test_several_sizes_and_policies_are_as_many_servers() -> None:
    found = settings_of(parsed("--policy lru,arc --capacity 1GiB,2GiB,1GiB --disk-capacity 3GiB"))
    assert [(s.eviction_policy, s.cpu_bytes_to_use >> 30, s.disk_bytes_to_use >> 30) for s in found] == [
        ("lru", 1, 3),
        ("lru", 2, 3),
        ("arc", 1, 3),
        ("arc", 2, 3),
    ]
    found = settings_of(parsed("--disk-capacity 0GiB,3GiB --policy all"))
    assert [(s.cpu_bytes_to_use >> 30, s.disk_bytes_to_use >> 30) for s in found[:2]] == [(64, 0), (0, 3)]
    assert [s.eviction_policy for s in found[::2]] == ["lru", "arc", "s3fifo", "sieve"]


def test_what_a_disk_takes() -> None:
    sizes = plan(EngineSettings(disk_read_bandwidth=2e9, disk_write_bandwidth=1e9, disk_microseconds=50.0), 512)
    block_bytes = 512 * 131_072
    assert (sizes.disk_read.job_ns(2), sizes.disk_write.job_ns(1)) == (
        2 * (block_bytes // 2 + 32 * 50_000) + 1,
        block_bytes + 32 * 50_000 + 1,
    )


def test_options_reach_a_replay() -> None:
    options = parsed("--model qwen2.5-7b --gpu-capacity 3blocks")
    assert settings_of(options)[0].model.name == "Qwen2.5-7B"
    found = run(trace_of((0, 600, 2, [1, 2]), block_tokens=512), options)
    assert (found.with_connector.requests, found.sizes.gpu_blocks) == (1, 3)


@pytest.mark.parametrize(
    ("size", "blocks"), [("7blocks", 7), ("5120tokens", 10), ("10239tokens", 19), ("1GiB", 16), ("1GB", 14)]
)
def test_a_size_of_the_gpu(size: str, blocks: int) -> None:
    """Of 512 tokens a block, and 131,072 bytes a token."""
    trace = trace_of((0, 600, 2, [1, 2]), block_tokens=512)
    assert run(trace, parsed(f"--gpu-capacity {size}")).settings.gpu_blocks == blocks


def test_a_size_of_blocks_that_the_server_has() -> None:
    trace = trace_of((0, 600, 2, [1, 2]), block_tokens=512)
    found = run(trace, parsed("--gpu-capacity 5120tokens --block-tokens 16"))
    assert (found.sizes.gpu_blocks, found.sizes.block_tokens) == (320, 16)


def test_a_size_of_the_gpu_is_taken_for_a_model_that_its_memory_has_no_room_for() -> None:
    trace = trace_of((0, 600, 2, [1, 2]), block_tokens=512)
    assert run(trace, parsed("--gpu-capacity 7blocks --gpu-memory 1GiB")).settings.gpu_blocks == 7


def test_a_size_of_the_gpu_that_is_none() -> None:
    with pytest.raises(ConfigError) as refused:
        run(trace_of((0, 600, 2, [1, 2]), block_tokens=512), parsed("--gpu-capacity 511tokens"))
    assert str(refused.value) == (
        "--gpu-capacity 511tokens: less than one block of 512 tokens, which takes 64 MiB"
    )


OFFLOAD = (
    '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":1}}'
)
TOO_MANY = "blocks, and a replay keeps books of 67108864 at most; choose larger blocks or less memory"
NAMED = {
    "--capacity 0GiB": "--capacity: expected a whole number of at least 1, got 0",
    "--capacity 1B": "--capacity: 1 bytes are less than one chunk, ",
    "--disk-capacity 1B": "--disk-capacity: 1 bytes are less than one chunk, ",
    "--disk-capacity 1TiB --capacity 1B": "--capacity: 1 bytes are less than one chunk, ",
    "--disk-capacity 1TiB --disk-store-threshold -1": "--disk-store-threshold: expected a whole number of ",
    "--capacity 9000000TiB": f"--capacity: that is 147456000000 {TOO_MANY}",
    "--disk-capacity 9000000TiB": f"--disk-capacity: that is 147456000000 {TOO_MANY}",
    "--gpu-capacity 900000000blocks": f"--gpu-capacity: that is 900000000 {TOO_MANY}",
    "--page-tokens 7": "--page-tokens: got 7, which doesn't divide blocks of 512 tokens",
    "--block-tokens 7": "--block-tokens: got 7, which doesn't divide the trace's blocks of 512 tokens",
    "--max-step-tokens 3": "--max-step-tokens: got 3, less than the 1024 requests that may run at once; ",
    "--connector-config {}": "--connector-config.kv_connector: expected a name, got None",
    f"--connector-config {OFFLOAD}": "cpu_bytes_to_use: 1 bytes are less than one chunk, ",
}
"""what is typed, and how what is said of it begins"""

CHECKS = {
    "--step-microseconds 1e14": "check its microseconds",
    "--copy-microseconds 1e14": "check the link's bandwidth and efficiency, and the microseconds of a copy",
    "--disk-microseconds 1e14 --disk-capacity 1TiB": "check its bandwidths and its microseconds",
    "--model Llama-3.1-70B": "choose another GPU, or more of them",
}
"""what is typed, and how what is said of it ends"""


@pytest.mark.parametrize("line", [*NAMED, *CHECKS])
def test_what_is_wrong_with_an_option_is_said_of_it(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Who types options isn't told of settings that nobody typed."""
    assert main(["replay", "mooncake-synthetic", "--requests", "5", "--fidelity", "engine", *line.split()]) == 2
    [said] = capsys.readouterr().err.removeprefix("kv-sim replay: ").splitlines()
    assert said.startswith(NAMED.get(line, "")) and said.endswith(CHECKS.get(line, ""))


REFUSED = {
    "all of them": (
        [(0, 600, [1, 2]), (1, 700, [3, 4])],
        "2 requests, each of which is longer than all GPU blocks",
    ),
    "the only one": ([(0, 600, [1, 2])], "1 request, which is longer than all GPU blocks"),
    "for two reasons": (
        [(0, 600, [1, 2]), (0, 0, []), (1, 700, [1, 2])],
        "1 request, which has no prompt; 2 requests, each of which is longer than all GPU blocks",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("more", [(), ("--servers", "2"), ("--capacity", "1GiB,2GiB")])
def test_where_nothing_can_be_replayed_that_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, more: tuple[str, ...]
) -> None:
    records, why = REFUSED[what]
    file, place = tmp_path / "trace.jsonl", tmp_path / "out.json"
    fields = ("timestamp", "input_length", "hash_ids")
    file.write_text("".join(json.dumps(dict(zip(fields, record, strict=True))) + "\n" for record in records))
    engine = ["--block-size", "512", "--fidelity", "engine", "--gpu-capacity", "1blocks"]
    small = ["replay", str(file), *engine, *more]
    assert main([*small, "--json", str(place)]) == 2
    assert capsys.readouterr() == ("", f"kv-sim replay: trace.jsonl: nothing can be replayed: {why}\n")
    assert not place.exists()
    goal = ["--goal", "ttft-mean=1s"]
    assert main(["size", str(file), *engine, *goal, *(more or ("--capacity", "1GiB"))]) == 2
    assert capsys.readouterr() == ("", f"kv-sim size: trace.jsonl: nothing can be replayed: {why}\n")
    with file.open("a") as opened:
        opened.write('{"timestamp": 2, "input_length": 100, "hash_ids": [9]}\n')
    assert main(small) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-len(why.split("; ")) :] == [f"not replayed: {text}" for text in why.split("; ")]


def test_another_arrival_rate() -> None:
    trace = trace_of((0, 8, 1, [1, 2]), (10, 8, 1, [3, 4]))
    assert answer(trace, toy()).queueing.worst == 8_145e-9
    assert answer(trace, toy(arrival_scale=1.5)).queueing.worst == 3_145e-9
    assert answer(trace, toy(arrival_scale=2.0)).queueing.worst == 0.0
    later = trace_of((0, 8, 1, [1, 2]), (1e9, 8, 1, [3, 4]))
    assert answer(later, toy(arrival_scale=0)).seconds < 1e-3, "all come at once"


def test_smaller_blocks_than_the_traces() -> None:
    trace = trace_of((0, 16, 1, [1, 2]), (1000, 14, 1, [1, 3]), block_tokens=8)
    answers = answer(trace, toy(block_tokens=4))
    # Of 14 tokens 8 are shared: two blocks of four.
    assert (answers.block_tokens, answers.gpu_hit_tokens, answers.prompt_blocks) == (4, 8, 8)


MODELS_SHOWN = (
    "Llama-3.1-70B, Llama-3.1-70B-FP8, Llama-3.1-8B, Llama-3.2-3B, Mistral-7B, Qwen2.5-14B, Qwen2.5-32B, "
    "Qwen2.5-72B, Qwen2.5-7B, Qwen3-32B, Qwen3-8B"
)
GPUS_SHOWN = "A10, A100-40, A100-80, B200, GH200, H100, H100-PCIe, H200, L4, L40S"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--gpu H10", f"--gpu: unknown GPU 'H10'; known: {GPUS_SHOWN}; did you mean 'H100'?"),
        ("--model lama", f"--model: unknown model 'lama'; known: {MODELS_SHOWN}"),
        (
            "--model DeepSeek-V3",
            "--model: model 'DeepSeek-V3': only its KV cache is known; with parameters and heads, too: "
            f"{MODELS_SHOWN}",
        ),
        ("--gpu-flops 0", "--gpu-flops: expected more than 0, got 0"),
        ("--link-bandwidth nan", "--link-bandwidth: expected more than 0, got nan"),
        ("--flops-efficiency 1.5", "--flops-efficiency: expected a number above 0 and up to 1, got 1.5"),
        ("--gpu-memory-utilization 0", "--gpu-memory-utilization: expected a number above 0 and up to 1, got 0.0"),
        ("--copy-microseconds -1", "--copy-microseconds: expected a number of at least 0, got -1.0"),
        ("--step-microseconds inf", "--step-microseconds: expected a number of at least 0, got inf"),
        (
            "--idle-step-microseconds 0",
            "--idle-step-microseconds: expected more than 0, or waiting for a copy takes no time",
        ),
        (
            "--idle-step-microseconds inf",
            "--idle-step-microseconds: expected a number of at least 0, got inf",
        ),
        ("--arrival-scale nan", "--arrival-scale: expected a number of at least 0, got nan"),
        ("--gpu-flops inf", "--gpu-flops: expected more than 0, got inf"),
        ("--gpu-memory 80", "--gpu-memory 80: 80 what? Expected for example 64GiB or 64GB"),
        (
            "--capacity 1G",
            "--capacity 1G: 'G' can mean GB (powers of 1000) or GiB (powers of 1024): say which",
        ),
        ("--tp-size 0", "--tp-size: expected a whole number of at least 1, got 0"),
        (
            "--tp-size 3",
            "--tp-size: got 3, which neither divides the 8 KV heads of Llama-3.1-8B nor is a multiple of them",
        ),
        ("--capacity 5blocks", "--capacity 5blocks: expected a number of bytes here, for example 64GiB or 64GB"),
        ("--capacity 1Mtokens", "--capacity 1Mtokens: expected a number of bytes here, for example 64GiB or 64GB"),
        ("--capacity 5gigs", "--capacity 5gigs: unknown unit 'gigs'; expected for example 64GiB or 64GB"),
        ("--capacity 1GiB,2", "--capacity 2: 2 what? Expected for example 64GiB or 64GB"),
        ("--capacity 1GiB,", "--capacity : expected a size such as 64GiB or 64GB"),
        (
            "--policy lru,lruu",
            "unknown eviction_policy 'lruu'; known: arc, lru, s3fifo, sieve; did you mean 'lru'?",
        ),
        (
            "--connector-config {",
            "--connector-config: no JSON: Expecting property name enclosed in double quotes at column 2",
        ),
        ("--connector-config 3", "--connector-config: expected an object, got 3 (a whole number)"),
        (
            "--connector-config {} --policy lru",
            "--policy and --connector-config (where it is eviction_policy): give one of them",
        ),
        (
            "--connector-config {} --capacity 1GiB",
            "--capacity and --connector-config (where it is cpu_bytes_to_use): give one of them",
        ),
    ],
)
def test_wrong_options(line: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        only(line)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu": "L40S"}, "gpu: expected a Gpu, such as GPUS['H100'], got 'L40S'"),
        ({"model": None}, "model: expected a Model, such as MODELS['Llama-3.1-8B'], got None"),
        ({"stepping": "single"}, "stepping: expected Stepping.FUSED or Stepping.SINGLE, got 'single'"),
        ({"contents": True}, "contents: expected Contents.IGNORED or Contents.CHECKED, got True"),
        ({"limit": True}, "limit: expected a whole number of at least 1, got True"),
        ({"max_running": 2.0}, "max_running: expected a whole number of at least 1, got 2.0"),
        ({"gpu_blocks": 0}, "gpu_blocks: expected a whole number of at least 1, got 0"),
        ({"tp_size": None}, "tp_size: expected a whole number of at least 1, got None"),
        ({"cpu_bytes_to_use": None}, "cpu_bytes_to_use: expected a whole number of at least 1, got None"),
        ({"max_model_len": "9"}, "max_model_len: expected a whole number of at least 1, got '9'"),
        ({"hbm_efficiency": True}, "hbm_efficiency: expected a number above 0 and up to 1, got True"),
        ({"link_efficiency": "1"}, "link_efficiency: expected a number above 0 and up to 1, got '1'"),
        ({"step_microseconds": False}, "step_microseconds: expected a number of at least 0, got False"),
        ({"disk_read_bandwidth": True}, "disk_read_bandwidth: expected a number above 0, got True"),
        ({"disk_write_bandwidth": "1"}, "disk_write_bandwidth: expected a number above 0, got '1'"),
        ({"arrival_scale": None}, "arrival_scale: expected a number of at least 0, got None"),
        (
            {"tp_size": 12},
            "tp_size: got 12, which neither divides the 8 KV heads of Llama-3.1-8B nor is a multiple of them",
        ),
        ({"block_tokens": 5}, "block_tokens: got 5, which doesn't divide the trace's blocks of 512 tokens"),
        ({"page_tokens": 100}, "page_tokens: got 100, which doesn't divide blocks of 512 tokens"),
        (
            {"max_step_tokens": 100},
            "max_step_tokens: got 100, less than the 1024 requests that may run at once; "
            "then not all of them could decode in one step",
        ),
        (
            {"model": find_model("Llama-3.1-70B")},
            "Llama-3.1-70B on 1 × H100: 73.60 GiB of GPU memory may be used and its weights take 131.42 GiB, "
            "which leaves no room for a block of 0.16 GiB; choose another GPU, or more of them",
        ),
    ],
)
def test_servers_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(EngineSettings(**changes), 512)
    assert str(caught.value) == message


EXTRA = "kv_connector_extra_config"
OFFLOADING = {"kv_connector": "OffloadingConnector", EXTRA: {"cpu_bytes_to_use": PAGE}}
NO_MODEL = "moves bytes in a way that has no timing model; OffloadingConnector has one, and MultiConnector of such"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "connector.kv_connector: expected a name, got None"),
        ({"kv_connector": 5}, "connector.kv_connector: expected a name, got 5"),
        (
            OFFLOADING,
            "kv_transfer_config.kv_role: required because kv_connector is 'OffloadingConnector'; choices: "
            "kv_producer, kv_consumer, kv_both",
        ),
        ({**OFFLOADING, EXTRA: 3}, f"connector.{EXTRA}: expected a mapping, got 3"),
        (
            {"kv_connector": "MemoryConnector", "kv_connector_module_path": "kv_sim.examples.memory"},
            f"connector.kv_connector: MemoryConnector {NO_MODEL}",
        ),
        (
            {**OFFLOADING, EXTRA: {"spec_name": "TieringOffloadingSpec"}},
            f"connector.{EXTRA}.spec_name: 'TieringOffloadingSpec' is a medium that has no timing model; "
            "CPUOffloadingSpec and FileOffloadingSpec have one",
        ),
        (
            {**OFFLOADING, EXTRA: {"spec_module_path": "theirs.cpu"}},
            f"connector.{EXTRA}.spec_module_path: 'theirs.cpu' has a CPUOffloadingSpec of its own, which "
            "has no timing model; that of kv_offload_cpu has one",
        ),
        (
            {"kv_connector": "MultiConnector"},
            f"connector.{EXTRA}.connectors: expected a list, got None",
        ),
        (
            {"kv_connector": "MultiConnector", EXTRA: {"connectors": [OFFLOADING, 5]}},
            f"connector.{EXTRA}.connectors[1]: expected a mapping, got 5",
        ),
    ],
)
def test_connectors_that_cannot_be_timed(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        timed_config(config, 1)
    assert str(caught.value) == message
    assert (has_files(config), without_files(config)) == (False, None), "nobody stumbles over it before"


def test_servers_at_the_edge() -> None:
    assert EngineSettings(arrival_scale=1e15, step_microseconds=1e15).arrival_scale == 1e15
    settings = EngineSettings(
        **dict.fromkeys(("flops_efficiency", "hbm_efficiency", "link_efficiency", "gpu_memory_utilization"), 1),
        **dict.fromkeys(("step_microseconds", "copy_microseconds", "arrival_scale"), 0),
        max_step_tokens=1024,
        idle_step_microseconds=0.0001,
        gpu_blocks=1,
    )
    sizes = plan(settings, 512)
    assert (sizes.step.overhead_ns, sizes.step.idle_ns, sizes.link.ns_per_piece) == (0, 1, 0.0)
    assert (sizes.most_tokens, sizes.max_step_tokens, sizes.max_running) == (512, 1024, 1024)
    # Weights of 1000 bytes and a block of 16.
    room = [
        toy(gpu=replace(toy().gpu, memory_bytes=size), gpu_memory_utilization=1.0, gpu_blocks=None)
        for size in (1015, 1016, 1048)
    ]
    assert [plan(settings, 4).gpu_blocks for settings in room[1:]] == [1, 3]
    with pytest.raises(ConfigError, match="leaves no room for a block of"):
        plan(room[0], 4)
    # Pieces have 16 tokens, or are whole blocks where those are no multiple of it.
    layers = settings.model.layers
    pieces = {tokens: plan(settings, tokens).pieces_per_block for tokens in (16, 24, 64)}
    assert pieces == {16: layers, 24: layers, 64: 4 * layers}


MEDIUM = "kv_sim.replay.timed.connectors.host_memory"
TIMED = {"spec_name": "ReplayCPUOffloadingSpec", "spec_module_path": MEDIUM}


def test_the_media_of_a_configuration_are_timed() -> None:
    ours = {"kv_connector": "ReplayOffloadingConnector", "kv_connector_module_path": MEDIUM}
    timed = {EXTRA: {"cpu_bytes_to_use": PAGE, **TIMED}}
    assert timed_config({**OFFLOADING, "kv_role": "kv_both"}, 1) == {"kv_role": "kv_both", **ours, **timed}
    bare = {"kv_connector": "OffloadingConnector", "kv_role": "kv_producer"}
    assert timed_config(bare, 1) == {"kv_role": "kv_producer", **ours, EXTRA: TIMED}
    inside = {**bare, "kv_connector_module_path": "kv_vllm"}
    assert timed_config(inside, 1) == timed_config(bare, 1)
    plain = {"kv_connector": "OffloadingConnector", "kv_role": "kv_producer"}
    assert (bare, inside) == (plain, {**plain, "kv_connector_module_path": "kv_vllm"}), "nobody's own is changed"
    other = {"kv_connector": "PlainConnector", "kv_connector_module_path": "kv_sim_timed_broken"}
    nothing = {"kv_connector": "NoConnector", "kv_connector_module_path": "kv_sim.replay.timed.connectors.nothing"}
    several = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_consumer",
        EXTRA: {"connectors": [OFFLOADING, {**other, "kv_role": "kv_both"}, nothing], "more": 1},
    }
    found = timed_config(several, 1)
    assert found == {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_consumer",
        EXTRA: {
            "connectors": [
                {"kv_role": "kv_consumer", **ours, **timed},
                {**other, "kv_role": "kv_both", EXTRA: TIMED},
                {"kv_role": "kv_consumer", **nothing},
            ],
            "more": 1,
        },
    }
    assert not decides_in_known_steps(found), "one of them may count steps"
    found[EXTRA]["connectors"][1:2] = []
    assert decides_in_known_steps(found) and decides_in_known_steps(NOTHING)
    for timeout in ("load_timeout_seconds", "store_timeout_seconds"):
        for seconds, is_known in ((0.5, False), (0, True)):
            found[EXTRA]["connectors"][0][EXTRA][timeout] = seconds
            assert decides_in_known_steps(found) == is_known, (timeout, seconds)


def test_what_is_pasted_into_a_server_can_be_replayed() -> None:
    """Whether or not kv-vllm is there: inside vLLM our connectors have the same names in another module."""
    pasted = disk_config("/disk", 9 * PAGE, 4 * PAGE, "arc")
    assert pasted["kv_connector_module_path"] == "kv_vllm"
    timed = timed_config(pasted, ranks=2)
    host, disk = timed[EXTRA]["connectors"]
    assert (timed["kv_connector"], "kv_connector_module_path" in timed) == ("MultiConnector", False)
    assert host[EXTRA] == {"cpu_bytes_to_use": 4 * PAGE, "eviction_policy": "arc", **TIMED}
    assert (disk["kv_connector"], disk[EXTRA]["spec_name"]) == (
        "ReplayOffloadingConnector",
        "ReplayFileOffloadingSpec",
    )
    assert disk[EXTRA]["file_staging_bytes"] == 2 * FileOptions.file_staging_bytes, "each rank has its own"
    assert has_files(pasted) and decides_in_known_steps(timed)
    left = without_files(pasted)
    assert left == {**pasted, EXTRA: {**pasted[EXTRA], "connectors": pasted[EXTRA]["connectors"][:1]}}
    assert not has_files(left) and without_files(left) is None
    alone = disk_config("/disk", 9 * PAGE, 0, "lru")
    assert has_files(alone) and without_files(alone) is None
    assert alone[EXTRA] == {
        "spec_name": "FileOffloadingSpec",
        "spec_module_path": "kv_offload_file",
        "file_dir": "/disk",
        "file_bytes_to_use": 9 * PAGE,
        "eviction_policy": "lru",
    }
    assert without_files({**pasted, EXTRA: {"connectors": pasted[EXTRA]["connectors"][1:]}}) is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--capacity 0GiB", "--capacity: expected a whole number of at least 1, got 0"),
        ("--disk-store-threshold 2", "--disk-store-threshold is for --disk-capacity, which isn't given"),
        (
            "--disk-capacity 1TiB --disk-store-threshold -1",
            "--disk-store-threshold: expected a whole number of at least 0, got -1",
        ),
        ("--disk-read-bandwidth 0", "--disk-read-bandwidth: expected a number above 0, got 0.0"),
        ("--disk-write-bandwidth inf", "--disk-write-bandwidth: expected a number above 0, got inf"),
        ("--disk-microseconds -1", "--disk-microseconds: expected a number of at least 0, got -1.0"),
        (
            "--disk-capacity 1TiB --connector-config {}",
            "--disk-capacity and --connector-config (where it is file_bytes_to_use): give one of them",
        ),
        (
            "--disk-store-threshold 2 --connector-config {}",
            "--disk-store-threshold and --connector-config (where it is store_threshold): give one of them",
        ),
    ],
)
def test_disks_that_cannot_be(line: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        only(line)
    assert str(caught.value) == message


def test_a_disk_that_takes_longer_than_a_day() -> None:
    for option in ("disk_read_bandwidth", "disk_write_bandwidth"):
        settings = toy(**{option: 1e-6}, gpu_blocks=4)
        with pytest.raises(
            ConfigError, match=r"4 blocks on the disk could take .* check its bandwidths and its microseconds"
        ):
            answer(trace_of((0, 8, 1, [1, 2])), settings)


def test_a_mistake_in_a_mediums_settings_is_the_mediums_error() -> None:
    with pytest.raises(ConfigError, match="lruu"):
        answer(trace_of((0, 8, 1, [1, 2])), toy(eviction_policy="lruu"))
