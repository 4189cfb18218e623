"""``kv-sim replay`` and ``size`` from end to end: tables, files, and that processes change nothing."""

import json
import re
from dataclasses import fields

import numpy as np
import pytest

from kv_api import ConfigError, KVTransferConfig
from kv_offload_cpu.options import read_options
from kv_sim.cli.main import main
from kv_sim.replay import TraceOptions, open_trace, replay, size
from kv_sim.replay.caches.outcome import Setup
from kv_sim.replay.crew import Crew
from kv_sim.replay.hit_rates.results import CacheReplay, Replays
from kv_sim.replay.hit_rates.setups import replay_all
from kv_sim.replay.report import oracle
from kv_sim.replay.report.oracle import RECORD
from kv_sim.replay.servers.fleet import RoutedTrace
from kv_sim.replay.sizing.capacities import usual_capacities
from kv_sim.replay.units import Footprint


@pytest.fixture(scope="module")
def synthetic():
    return open_trace("mooncake-synthetic")


@pytest.mark.once
def test_the_table_of_a_replay(small, capsys):
    assert main(["replay", str(small), "--capacity", "5blocks,100 blocks", "--model", "qwen3-8b"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading == (
        "small.jsonl: 4 requests in 6 s, 5584 prompt tokens, 11 blocks of 512 tokens, 6 different ones"
    )
    table = [re.split(r"  +", line.strip()) for line in lines[4:7]]
    assert lines[:4] == [
        "  format: mooncake",
        "  qwen3-8b: 36 layers × 2 (K and V) × 8 KV heads × 128 × 2 bytes (bf16) = 147,456 bytes a token",
        "an infinite cache would hit: 0.455 of blocks, 0.456 of tokens, 0.571 of full blocks",
        "",
    ]
    assert [list(row) for row in zip(*table, strict=True)] == [
        ["policy", "lru", "lru"],
        ["blocks", "5", "100"],
        ["tokens", "2560", "51.2k"],
        ["memory", "360 MiB", "7.03 GiB"],
        ["block", "0.364", "0.455"],
        ["token", "0.367", "0.456"],
        ["full block", "0.571", "0.571"],
        ["MIN", "0.456", "0.456"],
        ["loaded", "288 MiB", "360 MiB"],
        ["stored", "504 MiB", "432 MiB"],
        ["evicted", "144 MiB", "0"],
        ["refused", "0", "0"],
        ["age", "2 s", "4 s"],
        ["90 %", "4 s", "6 s"],
    ]


def test_the_table_of_a_replay_behind_a_gpu_and_without_bytes(small, capsys):
    assert (
        main(["replay", str(small), "--policy", "arc", "--capacity", "5blocks", "--gpu-capacity", "2blocks"]) == 0
    )
    assert capsys.readouterr().out.splitlines()[2:] == [
        "an infinite cache would hit: 0.455 of blocks, 0.456 of tokens, 0.571 of full blocks",
        "",
        "policy  blocks  tokens  memory  block  token  full block  GPU token  CPU token    MIN  "
        "loaded  stored  evicted  refused  age  90 %",
        "arc          5    2560       -  0.364  0.367       0.571      0.183      0.183  0.456  "
        "     2       7        2        0  4 s   4 s",
        "",
        "Ratios are hits of host memory and the GPU's prefix cache: "
        "of all blocks, of all prompt tokens, of all full blocks.",
        "MIN: the most that any policy could hit, by token. Age: since a hit's last use, median and 90 %.",
    ]


@pytest.mark.parametrize(
    ("options", "rows", "ends"),
    [
        (
            ["--bytes-per-token", "200000"],
            [
                "blocks  tokens    memory    lru    MIN  +1 GiB",
                "1          512  97.7 MiB  0.092  0.183    +0 %",
                "2         1024   195 MiB  0.092  0.367  +144 %",
                "4         2048   391 MiB  0.367  0.456   +47 %  ◀ here",
                "6         3072   586 MiB  0.456  0.456    +0 %",
            ],
            "recommended: lru, 4 blocks = 2048 tokens = 391 MiB",
        ),
        (
            [],
            [
                "blocks  tokens  memory    lru    MIN  +1M tokens",
                "1          512       -  0.092  0.183        +0 %",
                "2         1024       -  0.092  0.367    +26.9k %",
                "4         2048       -  0.367  0.456     +8744 %  ◀ here",
                "6         3072       -  0.456  0.456        +0 %",
            ],
            "recommended: lru, 4 blocks = 2048 tokens",
        ),
    ],
)
def test_what_one_more_buys_without_a_gpu(small, capsys, options, rows, ends):
    command = [
        "size",
        str(small),
        "--policy",
        "lru",
        "--jobs",
        "1",
        "--capacity",
        "1block,2blocks,4blocks,6blocks",
    ]
    assert main([*command, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = 3 if options else 2
    assert lines[head + 1 : head + 10] == ["", "hits by prompt tokens:", *rows, "", ends]
    assert lines[head] == "an infinite cache would hit: 0.455 of blocks, 0.456 of tokens, 0.571 of full blocks"


def test_the_table_of_size(small, capsys):
    sizes = ["--capacity", "2blocks,5blocks,3blocks", "--gpu-capacity", "1024kB", "--budget", "4blocks"]
    command = ["size", str(small), "--policy", "lru,arc", "--bytes-per-token", "1000", "--jobs", "1", *sizes]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines() == [
        "small.jsonl: 4 requests in 6 s, 5584 prompt tokens, 11 blocks of 512 tokens, 6 different ones",
        "  format: mooncake",
        "  1,000 bytes a token",
        "an infinite cache would hit: 0.455 of blocks, 0.456 of tokens, 0.571 of full blocks",
        "the GPU's prefix cache alone (2 blocks): 0.182 of blocks, 0.183 of tokens, 0.286 of full blocks",
        "",
        "hits by prompt tokens:",
        "blocks  tokens    memory    lru    arc    MIN    +1 GiB",
        "2         1024  1000 KiB  0.183  0.183  0.456  +19.2k %",
        "3         1536  1.46 MiB  0.275  0.275  0.456  +19.2k %",
        "4         2048  1.95 MiB  0.367  0.367  0.456      +0 %  ◀ here",
        "5         2560  2.44 MiB  0.367  0.367  0.456      +0 %",
        "",
        "recommended: lru, 4 blocks = 2048 tokens = 1.95 MiB",
        "  the knee: up to here more room buys more than on average, from here on less",
        "  hits 0.364 of blocks, 0.367 of tokens, 0.571 of full blocks",
        '--kv-transfer-config \'{"kv_connector": "OffloadingConnector", "kv_connector_module_path": "kv_vllm", '
        '"kv_role": "kv_both", "kv_load_failure_policy": "recompute", '
        '"kv_connector_extra_config": {"cpu_bytes_to_use": 2048000, "eviction_policy": "lru"}}\'',
    ]
    assert main([*command, "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    nothing, half, most = (
        {"block": hits / 11, "token": tokens / 5584, "full_block": full / 7}
        for hits, tokens, full in ((2, 1024, 2), (4, 2048, 4), (5, 2548, 4))
    )
    third = {"block": 3 / 11, "token": 1536 / 5584, "full_block": 3 / 7}
    assert data == {
        "trace": "small.jsonl",
        "notes": ["format: mooncake"],
        "requests": 4,
        "duration_seconds": 6.0,
        "totals": {"blocks": 11, "full_blocks": 7, "tokens": 5584, "block_tokens": 512},
        "unique_blocks": 6,
        "footprint": {"block_tokens": 512, "bytes_per_token": 1000},
        "gpu_blocks": 2,
        "capacities": [2, 3, 4, 5],
        "curves": {policy: [nothing, third, half, half] for policy in ("lru", "arc")},
        "best": [most] * 4,
        "infinite": most,
        "infinite_shared": most,
        "load": None,
        "disk_shared": False,
        "observed": None,
        "gpu_alone": nothing,
        "without": nothing,
        "recommended": {"policy": "lru", "capacity": 4, "ratios": half},
        "reason": "the knee: up to here more room buys more than on average, from here on less",
        "policy_module": None,
        "disk": None,
        "store_when": "computed",
        "if_evicted": {"policy": "lru", "capacity": 4, "ratios": half},
        "model": "1,000 bytes a token",
        "capacities_bytes": [1_024_000, 1_536_000, 2_048_000, 2_560_000],
        "token_ratio_per_block": pytest.approx([512 / 5584, 512 / 5584, 0.0, 0.0]),
        "kv_transfer_config": {
            "kv_connector": "OffloadingConnector",
            "kv_connector_module_path": "kv_vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"cpu_bytes_to_use": 2_048_000, "eviction_policy": "lru"},
        },
    }


EDGES = [1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10_800, 36_000, 86_400]


def test_json_that_is_printed_is_written_nowhere(small, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = {*tmp_path.iterdir()}
    for command in ("replay", "size"):
        assert main([command, str(small), "--capacity", "5blocks", "--jobs", "1", "--json", "-"]) == 0
    assert {*tmp_path.iterdir()} == before


def test_no_host_memory_may_be_one_of_several_sizes(small, capsys):
    command = ["replay", str(small), "--capacity", "none,5blocks", "--gpu-capacity", "2blocks", "--json", "-"]
    assert main([*command, "--jobs", "1"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["setup"]["capacity"], run["stored_blocks"]) for run in runs] == [(0, 0), (5, 7)]


@pytest.mark.once
def test_json_has_everything(small, capsys, tmp_path):
    command = ["replay", str(small), "--capacity", "5blocks", "--gpu-capacity", "2blocks", "--policy", "all"]
    assert main([*command, "--json", "-"]) == 0
    printed = capsys.readouterr().out
    data = json.loads(printed)
    assert printed == json.dumps(data, indent=1) + "\n"
    assert [run["setup"]["policy"] for run in data["runs"]] == ["lru", "arc", "s3fifo", "sieve"]
    run = data["runs"][0]
    assert run["setup"]["gpu_blocks"] == 2
    assert (run["gpu"]["block"], run["cpu"]["block"]) == (2 / 11, 2 / 11)
    assert len(run["ages"]["counts"]) == len(EDGES) + 1 and sum(run["ages"]["counts"]) == 2
    assert sum(window["blocks"] for window in run["series"]) == 11 and len(run["series"]) == 60
    assert sum(window["cpu_hits"] for window in run["series"]) == run["loaded_blocks"] == 2
    assert main([*command, "--json", str(tmp_path / "out.json")]) == 0
    assert set(data) == {field.name for field in fields(Replays)} | {"fidelity", "model", "age_edges_seconds"}
    counted = {"capacity_bytes", "loaded_bytes", "stored_bytes", "disk_bytes"}
    assert set(run) == {field.name for field in fields(CacheReplay)} | counted
    assert (data["fidelity"], data["model"], data["age_edges_seconds"]) == ("cache", None, EDGES)
    assert (tmp_path / "out.json").read_text() == json.dumps(data, indent=1) + "\n"
    capsys.readouterr()
    assert main([*command, "--bytes-per-token", "10", "--jobs", "1", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    run = data["runs"][0]
    blocks = [run["setup"]["capacity"], run["loaded_blocks"], run["stored_blocks"]]
    assert [run["capacity_bytes"], run["loaded_bytes"], run["stored_bytes"]] == [5120 * count for count in blocks]
    assert blocks == [5, 2, 7] and data["model"] == "10 bytes a token"


@pytest.mark.once
def test_processes_change_nothing():
    trace = open_trace("mooncake-synthetic", TraceOptions(requests=500))
    setups = [Setup("sieve", 500), Setup("lru", 500, 300), Setup("arc", 400, disk=700)]
    shares = {1: [], 2: []}
    one, two = (replay_all(RoutedTrace(trace), setups, Crew(jobs, shares[jobs].append)) for jobs in (1, 2))
    assert shares[1] == sorted(shares[1]) and shares[1][-1] == 1.0 and len(set(shares[1])) > 4
    assert shares[2] == [1 / 3, 2 / 3, 1.0]
    for a, b in zip(one, two, strict=True):
        assert (a.setup, a.host, a.disk) == (b.setup, b.host, b.disk)
        assert a.disk_hits.tolist() == b.disk_hits.tolist()
        assert a.cpu_hits.tolist() == b.cpu_hits.tolist()
        assert a.gpu_hits.tolist() == b.gpu_hits.tolist()


def test_a_policy_that_nobody_has_is_known_before_anything_runs(small):
    done = []
    with pytest.raises(ConfigError, match=r"^unknown eviction_policy 'lfu'"):
        replay_all(RoutedTrace(open_trace(small)), [Setup("lru", 4), Setup("lfu", 4)], Crew(progress=done.append))
    assert not done


def test_a_replay_in_no_process(synthetic):
    with pytest.raises(ConfigError, match=r"^--jobs: expected at least 1, got 0$"):
        size(synthetic, ["lru"], jobs=0)


@pytest.mark.once
def test_a_store_threshold_skips_stores(synthetic):
    plain, choosy = replay_all(RoutedTrace(synthetic), [Setup("lru", 5000), Setup("lru", 5000, store_threshold=2)])
    assert not plain.host.skipped and choosy.host.skipped > 30_000
    assert choosy.host.stored < plain.host.stored


POLICY = """
from kv_offload_cpu.policy import LRUPolicy

class Newest(LRUPolicy):
    pass
"""


def test_a_policy_of_a_module_of_its_own(small, tmp_path, monkeypatch, capsys):
    (tmp_path / "newest_policy.py").write_text(POLICY)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = ["--cache-policy-module-path", "newest_policy"]
    for command in (["replay"], ["replay", "--stream"], ["size"]):
        options = ["--capacity", "5blocks,7blocks", "--policy", "Newest", "--jobs", "1", *module]
        page = [] if "--stream" in command else ["--html", str(tmp_path / "page.html")]
        assert main([command[0], str(small), *command[1:], *options, *page, "--json", "-"]) == 0
        data = json.loads(capsys.readouterr().out)
        policies = data["curves"] if command == ["size"] else {run["setup"]["policy"] for run in data["runs"]}
        assert set(policies) == {"Newest"}
        if command != ["size"]:
            assert {run["setup"]["policy_module"] for run in data["runs"]} == {"newest_policy"}


def test_a_configuration_says_where_its_policy_is_found(small, tmp_path, monkeypatch, capsys):
    (tmp_path / "newest_policy.py").write_text(POLICY)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = ["--cache-policy-module-path", "newest_policy", "--capacity", "5blocks", "--bytes-per-token", "1000"]
    for policy, named in [("Newest", {"cache_policy_module_path": "newest_policy"}), ("arc", {})]:
        assert main(["size", str(small), "--policy", policy, *module, "--json", "-"]) == 0
        config = json.loads(capsys.readouterr().out)["kv_transfer_config"]["kv_connector_extra_config"]
        assert config == {"cpu_bytes_to_use": 5 * 512 * 1000, "eviction_policy": policy, **named}
        assert read_options(config).cache_policy_module_path == named.get("cache_policy_module_path")


@pytest.mark.once
def test_the_printed_configuration_is_understood(small, capsys):
    assert main(["size", str(small), "--bytes-per-token", "1000", "--policy", "arc,lru"]) == 0
    out = capsys.readouterr().out
    [text] = re.findall(r"^--kv-transfer-config '(.*)'$", out, re.MULTILINE)
    config = KVTransferConfig(**json.loads(text))
    assert (config.kv_connector, config.kv_connector_module_path) == ("OffloadingConnector", "kv_vllm")
    assert (config.kv_role, config.kv_load_failure_policy) == ("kv_both", "recompute")
    options = read_options(config.kv_connector_extra_config)
    assert (options.cpu_bytes_to_use, options.eviction_policy) == (4 * 512 * 1000, "lru")
    assert "recommended: lru, 4 blocks = 2048 tokens = 1.95 MiB\n" in out


@pytest.mark.once
def test_a_size_without_bytes_says_how_to_get_a_configuration(small, capsys):
    assert main(["size", str(small), "--policy", "lru", "--points", "3"]) == 0
    out = capsys.readouterr().out
    assert "--kv-transfer-config" not in out
    assert "  for GiB and a configuration to paste: --model NAME or --bytes-per-token SIZE\n" in out


@pytest.mark.once
def test_nothing_comes_back(tmp_path, capsys):
    file = tmp_path / "csv"
    file.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,1\n0,70,1\n")
    page = tmp_path / "page.html"
    options = ["--assume-sharing", "none", "--model", "qwen3-8b", "--html", str(page)]
    assert main(["size", str(file), *options]) == 0
    said = ["recommended: no host memory", "  it answers nothing on this trace at any size that was tried"]
    out = capsys.readouterr().out
    assert out.splitlines()[-3:-1] == said and "◀" not in out
    shown = page.read_text()
    assert (
        "No host memory" in shown and "It answers nothing on this trace" in shown and "kv_connector" not in shown
    )
    assert main(["size", str(file), "--assume-sharing", "none", "--model", "qwen3-8b", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["kv_transfer_config"] is None
    assert main(["replay", str(file), *options]) == 0


@pytest.mark.once
def test_nothing_comes_back_beside_the_gpu(small, capsys):
    options = ["--policy", "lru", "--bytes-per-token", "1000"]
    assert main(["size", str(small), *options, "--gpu-capacity", "9blocks"]) == 0
    assert "recommended: no host memory beside the GPU's prefix cache\n" in capsys.readouterr().out
    assert main(["size", str(small), *options, "--gpu-capacity", "3blocks", "--budget", "3blocks"]) == 0
    assert capsys.readouterr().out.endswith(
        "recommended: no host memory beside the GPU's prefix cache\n"
        "  the budget: up to there host memory answers nothing\n"
        "  with --store-when evicted lru, 3 blocks would hit 0.367 of tokens\n"
    )


@pytest.mark.once
def test_no_blocks_at_all(tmp_path, capsys):
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}\n')
    for command in ("replay", "size"):
        assert main([command, str(file), "--html", str(tmp_path / "page.html")]) == 0
    assert "0 blocks of 512 tokens" in capsys.readouterr().out


@pytest.mark.parametrize("piece", [1, 5, 11, 1 << 20])
def test_libcachesim_s_format(small, tmp_path, monkeypatch, capsys, piece):
    monkeypatch.setattr(oracle, "_PIECE", piece)
    assert main(["replay", str(small), "--capacity", "5blocks", "--write-oracle", str(tmp_path / "oracle")]) == 0
    [said] = [line for line in capsys.readouterr().out.splitlines() if "oracleGeneral" in line]
    assert said == f"{tmp_path}/oracle: 11 records of libCacheSim's oracleGeneral"
    found = np.fromfile(tmp_path / "oracle", dtype=RECORD)
    assert RECORD.itemsize == 24
    assert found["time"].tolist() == [0, 0, 0, 2, 2, 4, 4, 4, 6, 6, 6]
    assert found["next"].tolist() == [5, 6, 10, -1, -1, 8, 9, -1, -1, -1, -1]
    assert found["size"].tolist() == [1] * 11
    ids = found["id"].tolist()
    assert ids[5:7] == ids[0:2] and ids[10] == ids[2] and len(set(ids)) == 6


def test_the_library_takes_what_the_command_takes(small):
    columns = open_trace(small)
    assert replay(small) == replay(columns, "lru", 0, gpu_capacity=0, model=None, store_threshold=0)
    assert replay(small).setup == Setup("lru", 0, 0, 0)
    run = replay(small, "arc", "5blocks", gpu_capacity="1024tokens", bytes_per_token=10, store_threshold=2)
    assert (run.setup, run.footprint) == (Setup("arc", 5, 2, 2), Footprint(512, 10))
    assert replay(small, capacity=3, model="qwen3-8b", bytes_per_token=7).footprint == Footprint(512, 7)
    assert replay(small, capacity=3, model="qwen3-8b").footprint == Footprint(512, 147_456)
    for wrong in ({"capacity": "64"}, {"gpu_capacity": "64"}):
        with pytest.raises(ConfigError) as caught:
            replay(small, **wrong)
        assert str(caught.value).startswith("capacity 64: 64 what?")
    for wrong, said in [({"capacity": -1}, "capacity"), ({"gpu_capacity": -1}, "gpu_blocks")]:
        with pytest.raises(ConfigError) as caught:
            replay(small, **wrong)
        assert str(caught.value) == f"{said}: expected at least 0 blocks, got -1"
    some = open_trace("mooncake-synthetic", TraceOptions(requests=100))
    found = size(some, ["lru"])
    assert (list(found.capacities), found.gpu_blocks) == (usual_capacities(found.unique_blocks, 20), 0)
    done = []
    found = size(columns, gpu_capacity=2, budget="2048tokens", model="qwen3-8b", progress=done.append)
    assert (found.policies, found.gpu_blocks) == (("lru", "arc", "s3fifo", "sieve"), 2)
    assert found.capacities == (1, 2, 3, 4, 5, 6) and found.footprint == Footprint(512, 147_456)
    assert done == sorted(done) and done[-1] == 1.0
    assert size(small, ["lru"]) == size(small, ["lru"], usual_capacities(6, 20))
    assert size(small, ["lru"]).capacities == (1, 2, 3, 4, 5, 6)
    assert size(small, ["lru"], points=2).capacities == (1, 6)


def test_the_library(synthetic):
    run = replay(synthetic, policy="arc", capacity="64GiB", model="llama-3.1-8b", gpu_capacity=100)
    assert run.setup == Setup("arc", 1024, 100)
    assert 0 < run.block_ratio < run.best.block
    assert run.loaded_bytes == run.loaded_blocks * 512 * 131_072


def test_a_replay_that_names_no_capacity_tries_shares_of_the_trace(capsys):
    assert main(["replay", "mooncake-synthetic", "--requests", "300", "--jobs", "1", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    shares = (0.001, 0.01, 0.05, 0.1, 0.25)
    assert data["unique_blocks"] > 4000 and [run["setup"]["capacity"] for run in data["runs"]] == [
        int(data["unique_blocks"] * share) for share in shares
    ]


def test_of_shares_that_are_less_than_a_block_one_block_is_tried(small, capsys):
    """The trace has six."""
    assert main(["replay", str(small), "--jobs", "1", "--json", "-"]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert Setup(**run["setup"]) == Setup("lru", 1, 0, 0, None, disk=0, disk_store_threshold=0)


def test_in_a_notebook_text_means_what_it_does_on_the_command_line(small):
    trace = open_trace(small)
    assert size(trace, "lru", [4]) == size(trace, ["lru"], [4])
    assert size(trace, policies="arc, lru,arc", capacities="4blocks, 2048tokens,5blocks") == size(
        trace, ["arc", "lru"], [4, 4, 5]
    )
    assert size(trace, "all", 4) == size(trace, capacities=[4])
    assert size(trace, "lru", "64GiB", model="qwen3-8b") == size(trace, ["lru"], ["64GiB"], model="qwen3-8b")
    with pytest.raises(ConfigError, match=r"^unknown eviction_policy 'lfu'"):
        size(trace, "lfu")


def test_one_of_anything_is_not_many(small, capsys):
    small.write_text('{"timestamp": 0, "input_length": 512, "hash_ids": [1]}\n')
    assert main(["size", str(small), "--capacity", "1block", "--gpu-capacity", "1block", "--jobs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "small.jsonl: 1 request in 0 s, 512 prompt tokens, 1 block of 512 tokens, 1 different one"
    assert lines[3].startswith("the GPU's prefix cache alone (1 block): ")
    engine = ["--fidelity", "engine", "--block-size", "512", "--gpu-capacity", "1block"]
    assert main(["replay", str(small), *engine, "--max-running", "1", "--max-step-tokens", "1"]) == 2
    small.write_text('{"timestamp": 0, "input_length": 500, "output_length": 9, "hash_ids": [1]}\n')
    assert main(["replay", str(small), *engine, "--max-running", "1", "--max-step-tokens", "1"]) == 0
    out = capsys.readouterr().out
    assert "; 1 block = 512 tokens\n" in out and "  steps   at most 1 token and 1 request; " in out
