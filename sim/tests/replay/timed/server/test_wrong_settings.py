"""Options and settings of which no server can be: who types them is told what is wrong, and with which."""

import json
from pathlib import Path
from typing import Any

import pytest
from kv_sim_timed_options import only
from kv_sim_timed_traces import answer, toy, trace_of

from kv_api import ConfigError
from kv_sim.cli.main import main
from kv_sim.replay.sizing.transfer_config import disk_config
from kv_sim.replay.timed import EngineSettings
from kv_sim.replay.timed.server.hardware import find_model
from kv_sim.replay.timed.server.sizes import plan

OFFLOAD = (
    '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":1}}'
)
PULLS = '{"kv_connector":"P2PConnector","kv_role":"kv_both"}'
MULTI = '{"kv_connector":"MultiConnector","kv_role":"kv_both"}'
SPLIT = "--servers 2 --prefill-servers 1"
TOO_MANY = "blocks, and a replay supports 67108864 at most; choose larger blocks or less memory"
NAMELESS = "--connector-config.kv_connector: expected a name, got None"
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
    "--max-step-tokens 3": "--max-step-tokens: got 3, less than the 1024 requests that may run at once, ",
    "--connector-config {}": NAMELESS,
    f"{SPLIT} --connector-config {{}}": NAMELESS,
    f"{SPLIT} --connector-config {PULLS}": "--connector-config.kv_connector: P2PConnector has no timing model; ",
    f"{SPLIT} --connector-config {MULTI}": (
        "--connector-config.kv_connector_extra_config.connectors: expected a list, got None"
    ),
    f"--connector-config {OFFLOAD}": "cpu_bytes_to_use: 1 bytes are less than one chunk, ",
}
"""what is typed, and how what is said of it begins"""

CHECKS = {
    "--step-microseconds 1e14": "check its microseconds",
    "--copy-microseconds 1e14": "check the link's bandwidth and efficiency, and the microseconds of a copy",
    "--disk-microseconds 1e14 --disk-capacity 1TiB": "check its bandwidths and its microseconds",
    f"{SPLIT} --network-bandwidth 1e-300": (
        "check the network's bandwidth, the link's efficiency, and the microseconds of a pull"
    ),
    f"{SPLIT} --pull-microseconds 1e14": (
        "check the network's bandwidth, the link's efficiency, and the microseconds of a pull"
    ),
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
            "--model: model 'DeepSeek-V3': only its KV cache size is known, not its parameters; models with both: "
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
        (
            "--capacity 5blocks",
            "--capacity 5blocks: expected a size in bytes, for example 64GiB or 64GB",
        ),
        (
            "--capacity 1Mtokens",
            "--capacity 1Mtokens: expected a size in bytes, for example 64GiB or 64GB",
        ),
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
            "max_step_tokens: got 100, less than the 1024 requests that may run at once, each of which decodes "
            "a token in a step",
        ),
        (
            {"model": find_model("Llama-3.1-70B")},
            "Llama-3.1-70B on 1 × H100: 73.60 GiB of GPU memory may be used, and the model's weights take "
            "131.42 GiB, "
            "which leaves no room for a block of 0.16 GiB; choose another GPU, or more of them",
        ),
    ],
)
def test_servers_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(EngineSettings(**changes), 512)
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
    files = disk_config("/disk", 1 << 20, 0, "lru")
    files["kv_connector_extra_config"]["file_staging_bytes"] = 0
    with pytest.raises(ConfigError, match="file_staging_bytes"):
        answer(trace_of((0, 8, 1, [1, 2])), toy(connector=files))
