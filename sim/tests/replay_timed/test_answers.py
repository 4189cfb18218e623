"""What a replay says: the connector's counts beside the engine's, the table, JSON, and wrong input."""

import argparse
import json
from array import array
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from kv_sim_timed_traces import PAGE, ListedTrace, answer, servers, toy, trace_of, traces

from kv_api import ConfigError
from kv_sim.replay.timed import Answers, Contents, EngineSettings, Stepping, replay_engine
from kv_sim.replay.timed.answers import Copies, Spread, rows
from kv_sim.replay.timed.command import add_arguments, run, settings_of
from kv_sim.replay.timed.hardware import find_gpu, find_model
from kv_sim.replay.timed.settings import plan
from kv_sim.replay.timed.stack import timed_config

LOADED, STORED = "vllm:kv_offload_load_bytes", "vllm:kv_offload_store_bytes"


@given(traces(), servers())
def test_the_connector_counts_what_the_engine_counts(trace: ListedTrace, settings: EngineSettings) -> None:
    answers = answer(trace, settings)
    assert answers.connector.get(LOADED, 0) == answers.loads.bytes
    assert answers.connector.get(STORED, 0) == answers.stores.bytes
    if not answers.preemptions:
        assert answers.loads.blocks * answers.block_tokens >= answers.cpu_hit_tokens
    assert list(answers.connector) == sorted(answers.connector)
    refused = sum(answers.refused.values())
    assert answers.requests + refused == len(trace.requests)
    assert answers.ttft.count == answers.latency.count == answers.requests
    assert answers.gpu_hit_tokens + answers.cpu_hit_tokens <= answers.prompt_tokens


def test_a_prompt_that_comes_again_whole() -> None:
    """The GPU's cache gives whole blocks and leaves a token to compute; the connector gives all but that token."""
    answers = answer(trace_of((0, 8, 1, [1, 2]), (1000, 8, 1, [1, 2])), toy())
    assert (answers.gpu_hit_tokens, answers.cpu_hit_tokens) == (4, 3)
    assert (answers.gpu_hit_blocks, answers.cpu_hit_blocks) == (1, 1)


TRACE = trace_of(
    *((turn * 1000 + n, 13, 6, [10 * n, 10 * n + 1, 10 * n + 2, 99 + turn]) for turn in range(3) for n in range(3))
)


def test_the_table_has_both_columns() -> None:
    seen: list[int] = []
    replay = replay_engine(TRACE, toy(gpu_blocks=5, limit=8, max_model_len=18 + 1), seen.append)
    lines = replay.table().splitlines()
    assert lines[0] == "listed, 4 tokens a block, on 1 × toy with toy"
    assert lines[1:5] == [
        "  model   0.00 G parameters, 1 layers, 1 heads, 1 of KV, of 1, 2 bytes a number; "
        "4 bytes of KV a token; at most 19 tokens",
        "  GPU     0 TFLOP/s × 1, 0.001 TB/s × 1, 1 GiB × 0.92; 5 blocks = 20 tokens",
        "  link    1 GB/s × 1 each way and GPU, 1 µs a copy, 1 copies a block",
        "  steps   at most 64 tokens and 8 requests; 10 µs each beside the forward pass",
    ]
    table = [line.split("  ") for line in lines[6:]]
    rows = {cells[0]: [cell.strip() for cell in cells[1:] if cell.strip()] for cells in table}
    assert rows["requests"] == ["8", "8"]
    assert rows["hit ratio, tokens: CPU"] == [f"{60 / 104:.4f}", "0.0000"]
    assert rows["time to first token, mean"][0] != rows["time to first token, mean"][1]
    assert seen == [*range(1, 9), *range(9, 17)]
    checked = replay_engine(TRACE, toy(gpu_blocks=5, limit=1, contents=Contents.CHECKED)).table()
    assert checked.endswith("contents were checked: every slot that was read held what it should")
    assert "contents" not in replay_engine(TRACE, toy(gpu_blocks=5, limit=1)).table()


def spread(mean: float) -> Spread:
    return Spread(2, mean, 2 * mean, 3 * mean, 4 * mean, 5 * mean)


BUSY = Answers(
    requests=1234,
    refused={},
    prompt_tokens=4000,
    prompt_blocks=500,
    full_prompt_blocks=450,
    output_tokens=3000,
    gpu_hit_tokens=1000,
    cpu_hit_tokens=100,
    gpu_hit_blocks=50,
    cpu_hit_blocks=25,
    block_tokens=8,
    seconds=2.0,
    ttft=spread(0.025),
    time_per_output_token=spread(0.001),
    latency=spread(1.5),
    queueing=spread(0.0),
    load_wait=spread(0.02),
    preemptions=5678,
    loads=Copies(3, 30, 3 << 29, 0.25),
    stores=Copies(4, 40, 1 << 41, 1000.5),
    host_wait_seconds=0.05,
    steps=98765,
    fused_steps=9,
    connector={},
    digest="0",
)
IDLE = replace(BUSY, prompt_tokens=0, prompt_blocks=0, seconds=0.0, load_wait=Spread.of(array("q")))
TABLE = {
    "requests": ["1,234", "1,234"],
    "hit ratio, blocks: GPU": ["0.1000", "0.0000"],
    "hit ratio, blocks: CPU": ["0.0500", "0.0000"],
    "hit ratio, tokens: GPU": ["0.2500", "0.0000"],
    "hit ratio, tokens: CPU": ["0.0250", "0.0000"],
    "bytes loaded": ["1.50 GiB"] * 2,
    "link busy, loaded": ["0.250 s"] * 2,
    "bytes stored": ["2,048.00 GiB"] * 2,
    "link busy, stored": ["1,000.500 s"] * 2,
    "wait for a load, mean": ["20.000 ms", "-"],
    "host waits for copies": ["50.000 ms"] * 2,
    "time to first token, mean": ["25.000 ms"] * 2,
    "time to first token, p50": ["50.000 ms"] * 2,
    "time to first token, p90": ["75.000 ms"] * 2,
    "time to first token, p99": ["0.100 s"] * 2,
    "time per output token, mean": ["1.000 ms"] * 2,
    "time per output token, p50": ["2.000 ms"] * 2,
    "time per output token, p90": ["3.000 ms"] * 2,
    "time per output token, p99": ["4.000 ms"] * 2,
    "latency, mean": ["1.500 s"] * 2,
    "latency, p50": ["3.000 s"] * 2,
    "latency, p90": ["4.500 s"] * 2,
    "latency, p99": ["6.000 s"] * 2,
    "queueing, mean": ["0.000 s"] * 2,
    "queueing, p50": ["0.000 s"] * 2,
    "queueing, p90": ["0.000 s"] * 2,
    "queueing, p99": ["0.000 s"] * 2,
    "output tokens/s": ["1,500.0", "0.0"],
    "all tokens/s": ["3,500.0", "0.0"],
    "preemptions": ["5,678"] * 2,
    "first arrival to last token": ["2.000 s", "0.000 s"],
    "engine steps": ["98,765"] * 2,
}


def test_every_row_of_the_table() -> None:
    assert rows([("busy", BUSY), ("idle", IDLE)]) == [
        ["", "busy", "idle"],
        *([label, *cells] for label, cells in TABLE.items()),
    ]
    assert rows([("busy", BUSY)]) == [["", "busy"], *([label, cells[0]] for label, cells in TABLE.items())]
    assert Spread.of(array("q")) == Spread(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert BUSY.as_json() == asdict(BUSY) | {
        "gpu_block_ratio": 0.1,
        "cpu_block_ratio": 0.05,
        "gpu_token_ratio": 0.25,
        "cpu_token_ratio": 0.025,
        "output_tokens_per_second": 1500.0,
        "tokens_per_second": 3500.0,
    }


def test_json_has_everything() -> None:
    replay = replay_engine(TRACE, toy(gpu_blocks=5, limit=4, max_model_len=18))
    values = json.loads(json.dumps(replay.as_json()))
    assert values["with_connector"]["refused"] == {"is longer than the model's maximum": 4}
    assert values["settings"]["stepping"] == "fused"
    assert values["settings"]["gpu"]["link_bandwidth"] == 1e9
    assert values["sizes"]["gpu_blocks"] == 5
    assert values["kv_transfer_config"]["kv_connector"] == "OffloadingConnector"
    assert values["without"]["ttft"]["count"] == 0
    assert "not replayed: 4 requests, each of which is longer than the model's maximum" in replay.table()


# -- options -----------------------------------------------------------------------------------


def parsed(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(line.split())


def test_no_options_are_the_defaults() -> None:
    assert settings_of(parsed("")) == EngineSettings()


def test_options_change_settings() -> None:
    line = (
        "--model mistral-7b --gpu l40s --gpu-flops 1e14 --hbm-bandwidth 2e12 --link-bandwidth 5e10 "
        "--gpu-memory 40GiB "
        "--tp-size 2 --copy-microseconds 3 --gpu-blocks 77 --max-running 9 --cpu-bytes-to-use 1GB "
        "--eviction-policy arc --stepping single --limit 5 --arrival-scale 2"
    )
    gpu = replace(find_gpu("L40S"), flops=1e14, hbm_bandwidth=2e12, link_bandwidth=5e10, memory_bytes=40 << 30)
    assert settings_of(parsed(line)) == EngineSettings(
        model=find_model("Mistral-7B"),
        gpu=gpu,
        tp_size=2,
        copy_microseconds=3.0,
        gpu_blocks=77,
        max_running=9,
        cpu_bytes_to_use=10**9,
        eviction_policy="arc",
        stepping=Stepping.SINGLE,
        limit=5,
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
    "gpu-blocks": ("gpu_blocks", 3, ""),
    "block-tokens": ("block_tokens", 3, " (default: the trace's)"),
    "max-step-tokens": ("max_step_tokens", 3, ""),
    "max-running": ("max_running", 3, ""),
    "arrival-scale": ("arrival_scale", 0.25, " (default 1)"),
    "max-model-len": ("max_model_len", 3, " (default: the model's)"),
}
"""option: setting, another value, what is said of the default"""


def test_every_number_has_an_option() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    said = {action.option_strings[-1][2:]: action.help or "" for action in parser._actions}
    for option, (setting, value, default) in NUMBERS.items():
        changed: dict[str, Any] = {setting: value}
        assert settings_of(parsed(f"--{option} {value}")) == replace(EngineSettings(), **changed), option
        assert said[option].endswith(default) and ("(default" in said[option]) == bool(default), option
    others = {"help", "model", "limit", "stepping", "check-contents", "cpu-bytes-to-use", "eviction-policy"}
    others |= {"gpu", "gpu-flops", "hbm-bandwidth", "link-bandwidth", "gpu-memory", "connector-config"}
    assert set(said) == others | NUMBERS.keys()


def test_a_connector_of_its_own_and_checks() -> None:
    config = {"kv_connector": "MultiConnector"}
    options = parsed(f"--check-contents --connector-config {json.dumps(config, separators=(',', ':'))}")
    assert settings_of(options) == EngineSettings(connector=config, contents=Contents.CHECKED)


def test_a_server_of_defaults() -> None:
    settings = EngineSettings()
    assert (settings.model, settings.gpu) == (find_model("Llama-3.1-8B"), find_gpu("H100"))
    assert settings.transfer_config() == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 64 << 30, "eviction_policy": "lru"},
    }


def test_a_command_with_a_model_shares_it() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--limit", type=int)
    add_arguments(parser)
    options = parser.parse_args(["--model", "qwen2.5-7b", "--limit", "1"])
    assert settings_of(options).model.name == "Qwen2.5-7B"
    assert run(trace_of((0, 600, 2, [1, 2]), block_tokens=512), options).with_connector.requests == 1


def test_another_arrival_rate() -> None:
    trace = trace_of((0, 8, 1, [1, 2]), (10, 8, 1, [3, 4]))
    assert answer(trace, toy()).queueing.worst == 8_145e-9
    assert answer(trace, toy(arrival_scale=1.5)).queueing.worst == 3_145e-9
    assert answer(trace, toy(arrival_scale=2.0)).queueing.worst == 0.0


def test_smaller_blocks_than_the_traces() -> None:
    trace = trace_of((0, 16, 1, [1, 2]), (1000, 14, 1, [1, 3]), block_tokens=8)
    answers = answer(trace, toy(block_tokens=4))
    # Of 14 tokens 8 are shared: two blocks of four.
    assert (answers.block_tokens, answers.gpu_hit_tokens, answers.prompt_blocks) == (4, 8, 8)


GPUS_SHOWN = "A10, A100-40, A100-80, B200, GH200, H100, H100-PCIe, H200, L4, L40S"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--gpu H10", f"unknown GPU 'H10'; known: {GPUS_SHOWN}; did you mean 'H100'?"),
        ("--gpu-flops 0", "--gpu-flops: expected more than 0, got 0"),
        ("--link-bandwidth nan", "--link-bandwidth: expected more than 0, got nan"),
        ("--flops-efficiency 1.5", "flops_efficiency: expected a number above 0 and up to 1, got 1.5"),
        ("--gpu-memory-utilization 0", "gpu_memory_utilization: expected a number above 0 and up to 1, got 0.0"),
        ("--copy-microseconds -1", "copy_microseconds: expected a number of at least 0, got -1.0"),
        ("--step-microseconds inf", "step_microseconds: expected a number of at least 0, got inf"),
        (
            "--idle-step-microseconds 0",
            "idle_step_microseconds: expected more than 0, or waiting for a copy takes no time",
        ),
        ("--arrival-scale nan", "arrival_scale: expected a number of at least 0, got nan"),
        ("--gpu-flops inf", "--gpu-flops: expected more than 0, got inf"),
        ("--gpu-memory 80", "--gpu-memory 80: 80 what? Expected for example 64GiB or 64GB"),
        (
            "--cpu-bytes-to-use 1G",
            "--cpu-bytes-to-use 1G: 'G' can mean GB (powers of 1000) or GiB (powers of 1024): say which",
        ),
        ("--tp-size 0", "tp_size: expected a whole number of at least 1, got 0"),
        (
            "--tp-size 3",
            "tp_size: got 3, which neither divides the 8 KV heads of Llama-3.1-8B nor is a multiple of them",
        ),
        ("--limit -2", "limit: expected a whole number of at least 1, got -2"),
        (
            "--connector-config {",
            "--connector-config: no JSON: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1)",
        ),
        ("--connector-config 3", "--connector-config: expected an object, got '3'"),
        (
            "--connector-config {} --eviction-policy lru",
            "--connector-config has its own eviction_policy; leave --eviction-policy out",
        ),
        (
            "--connector-config {} --cpu-bytes-to-use 1GiB",
            "--connector-config has its own cpu_bytes_to_use; leave --cpu-bytes-to-use out",
        ),
    ],
)
def test_wrong_options(line: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(parsed(line))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_tokens": 5}, "block_tokens: got 5, which doesn't divide the trace's blocks of 512 tokens"),
        ({"page_tokens": 100}, "page_tokens: got 100, which doesn't divide blocks of 512 tokens"),
        (
            {"max_step_tokens": 100},
            "max_step_tokens: got 100, less than max_running 1024; then not all that run could decode in one step",
        ),
        (
            {"model": find_model("Llama-3.1-70B")},
            "Llama-3.1-70B on 1 × H100: 73.60 GiB of GPU memory may be used and its weights take 131.42 GiB, "
            "which leaves no room for a block of 0.16 GiB; choose another GPU or a higher tp_size",
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
        ({}, "connector config.kv_connector: expected a name, got None"),
        ({**OFFLOADING, EXTRA: 3}, f"connector config.{EXTRA}: expected a mapping, got 3"),
        (
            {"kv_connector": "MemoryConnector", "kv_connector_module_path": "kv_sim.examples.memory"},
            f"connector config.kv_connector: MemoryConnector {NO_MODEL}",
        ),
        (
            {**OFFLOADING, EXTRA: {"spec_name": "TieringOffloadingSpec"}},
            f"connector config.{EXTRA}.spec_name: 'TieringOffloadingSpec' is a medium that has no timing model; "
            "CPUOffloadingSpec has one",
        ),
        (
            {"kv_connector": "MultiConnector"},
            f"connector config.{EXTRA}.connectors: expected a list, got None",
        ),
        (
            {"kv_connector": "MultiConnector", EXTRA: {"connectors": [OFFLOADING, 5]}},
            f"connector config.{EXTRA}.connectors[1]: expected a mapping, got 5",
        ),
    ],
)
def test_connectors_that_cannot_be_timed(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        timed_config(config)
    assert str(caught.value) == message


def test_a_mistake_in_a_mediums_settings_is_the_mediums_error() -> None:
    with pytest.raises(ConfigError, match="lruu"):
        answer(TRACE, toy(eviction_policy="lruu"))
