"""Options, and what they make of a server: settings and sizes."""

import argparse
import json
from dataclasses import replace
from typing import Any

import pytest
from kv_sim_timed_options import only, parsed
from kv_sim_timed_traces import answer, toy, trace_of

from kv_api import ConfigError
from kv_sim.replay.command.timed.arguments import OLD_NAMES, add_replay_arguments, add_size_arguments
from kv_sim.replay.command.timed.run import run, settings_of
from kv_sim.replay.timed import Contents, EngineSettings, Stepping
from kv_sim.replay.timed.durations.timing import LinkCosts
from kv_sim.replay.timed.server.hardware import find_gpu, find_model
from kv_sim.replay.timed.server.sizes import plan

EXTRA = "kv_connector_extra_config"


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
    "network-bandwidth": ("network_bandwidth", 2.5e9, " (default 5e+10)"),
    "pull-microseconds": ("pull_microseconds", 7.5, " (default 100)"),
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
    others |= {"disk-capacity", "disk-store-threshold", "disk-shared", "store-when", "prefill-servers"}
    assert set(said) == others | NUMBERS.keys()
    assert said["capacity"].endswith("comma-separated (default 64GiB, or none with a disk)")
    parser = argparse.ArgumentParser()
    add_size_arguments(parser)
    said = {action.option_strings[-1][2:]: action.help or "" for action in parser._actions}
    assert said["capacity"].endswith("comma-separated (default: --points)")
    goals = "such as ttft-p90=800ms: ttft|tpot|latency|queueing, mean|p50|p90|p95|p99|worst"
    assert said["goal"] == f"find the least memory that meets these goals, {goals}"


def test_what_a_pull_takes_follows_from_the_network_and_the_gpus() -> None:
    sizes = plan(EngineSettings(network_bandwidth=2e9, link_efficiency=0.5, tp_size=4, pull_microseconds=7.0), 16)
    assert sizes.network == LinkCosts(1 / 4, 0.0, sizes.block_bytes, 0)
    assert sizes.pull_ns == 7000


def test_each_size_comes_with_each_number_of_servers_that_prefill() -> None:
    found = settings_of(parsed("--capacity none,1GiB --prefill-servers 0,2,0"))
    sizes = [(one.cpu_bytes_to_use, one.prefill_servers) for one in found]
    assert sizes == [(0, 0), (0, 2), (1 << 30, 0), (1 << 30, 2)]
    assert found[0].transfer_config() == {}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--prefill-servers 1,x", "--prefill-servers: expected whole numbers with commas between them, got '1,x'"),
        ("--prefill-servers -1", "--prefill-servers: expected whole numbers with commas between them, got '-1'"),
        ("--prefill-servers ²", "--prefill-servers: expected whole numbers with commas between them, got '²'"),
        ("--capacity none", "--capacity none: expected a size such as 64GiB or 64GB"),
        ("--network-bandwidth 0", "--network-bandwidth: expected a number above 0, got 0.0"),
        ("--pull-microseconds -1", "--pull-microseconds: expected a number of at least 0, got -1.0"),
    ],
)
def test_what_servers_for_others_can_not_be(line: str, problem: str) -> None:
    option, value = line.split()
    with pytest.raises(ConfigError) as caught:
        settings_of(parsed(f"{option}={value}"))
    assert str(caught.value) == problem


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
