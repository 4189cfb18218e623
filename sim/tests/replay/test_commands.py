"""``kv-sim replay`` and ``size`` from end to end: tables, files, and that processes change nothing."""

import io
import json
import re
from dataclasses import fields
from html.parser import HTMLParser

import numpy as np
import pytest

from kv_api import ConfigError, KVTransferConfig
from kv_offload_cpu.options import read_options
from kv_sim.cli import main
from kv_sim.replay import TraceOptions, open_trace, oracle, replay, size
from kv_sim.replay.cache import Setup
from kv_sim.replay.models import MODELS
from kv_sim.replay.oracle import RECORD
from kv_sim.replay.parallel import replay_all
from kv_sim.replay.progress import Progress
from kv_sim.replay.report_text import show_seconds
from kv_sim.replay.results import CacheReplay, Replays
from kv_sim.replay.shape import shape_of
from kv_sim.replay.sizing import recommend, usual_capacities
from kv_sim.replay.tally import AGE_EDGES_SECONDS
from kv_sim.replay.timed import MODELS as MODELS_WITH_WEIGHTS
from kv_sim.replay.timed import EngineSettings, replay_engine
from kv_sim.replay.units import Footprint, parse_bytes, parse_capacity, show_bytes, show_count


@pytest.fixture(scope="module")
def synthetic():
    return open_trace("mooncake-synthetic")


@pytest.fixture
def small(tmp_path):
    """Four requests; the third and the fourth use blocks of the first."""
    file = tmp_path / "small.jsonl"
    ids = ([1, 2, 3], [4, 5], [1, 2, 6], [1, 2, 3])
    requests = [
        {"timestamp": 2000 * n, "input_length": 512 * len(one) - 12, "output_length": 1, "hash_ids": one}
        for n, one in enumerate(ids)
    ]
    file.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return file


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
        "an infinite cache answers: 0.455 of blocks, 0.456 of tokens, 0.571 of full blocks",
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
        "an infinite cache answers: 0.455 of blocks, 0.456 of tokens, 0.571 of full blocks",
        "",
        "policy  blocks  tokens  memory  block  token  full block  GPU token  CPU token    MIN  "
        "loaded  stored  evicted  refused  age  90 %",
        "arc          5    2560       -  0.364  0.367       0.571      0.183      0.183  0.456  "
        "     2       7        2        0  4 s   4 s",
        "",
        "Ratios are hits of host memory and the GPU's prefix cache: "
        "of all blocks, of all prompt tokens, of all full blocks.",
        "MIN: the most that any policy could answer, by token. Age: since a hit's last use, median and 90 %.",
    ]


def test_the_table_of_size(small, capsys):
    sizes = ["--capacity", "2blocks,5blocks,3blocks", "--gpu-capacity", "2blocks", "--budget", "4blocks"]
    command = ["size", str(small), "--policy", "lru,arc", "--bytes-per-token", "1000", "--jobs", "1", *sizes]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines() == [
        "small.jsonl: 4 requests in 6 s, 5584 prompt tokens, 11 blocks of 512 tokens, 6 different ones",
        "  format: mooncake",
        "  1,000 bytes a token",
        "an infinite cache answers: 0.455 of blocks, 0.456 of tokens, 0.571 of full blocks",
        "the GPU's prefix cache alone (2 blocks): 0.182 of blocks, 0.183 of tokens, 0.286 of full blocks",
        "",
        "hits by prompt tokens:",
        "blocks  tokens    memory    lru    arc    MIN      +1 GiB",
        "2         1024  1000 KiB  0.183  0.183  0.456  +1.9e+04 %",
        "3         1536  1.46 MiB  0.275  0.275  0.456  +1.9e+04 %",
        "4         2048  1.95 MiB  0.367  0.367  0.456        +0 %  ◀ here",
        "5         2560  2.44 MiB  0.367  0.367  0.456        +0 %",
        "",
        "recommended: lru, 4 blocks = 2048 tokens = 1.95 MiB",
        "  the knee: up to here a GiB buys more than on average, from here on less",
        "  answers 0.364 of blocks, 0.367 of tokens, 0.571 of full blocks",
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
        "gpu_alone": nothing,
        "recommended": {"policy": "lru", "capacity": 4, "ratios": half},
        "reason": "the knee: up to here a GiB buys more than on average, from here on less",
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


def test_json_has_everything(small, capsys, tmp_path):
    command = ["replay", str(small), "--capacity", "5blocks", "--gpu-capacity", "2blocks", "--policy", "all"]
    assert main([*command, "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [run["setup"]["policy"] for run in data["runs"]] == ["lru", "arc", "s3fifo", "sieve"]
    run = data["runs"][0]
    assert run["setup"]["gpu_blocks"] == 2
    assert (run["gpu"]["block"], run["cpu"]["block"]) == (2 / 11, 2 / 11)
    assert len(run["ages"]["counts"]) == len(AGE_EDGES_SECONDS) + 1 and sum(run["ages"]["counts"]) == 2
    assert sum(window["blocks"] for window in run["series"]) == 11 and len(run["series"]) == 60
    assert sum(window["cpu_hits"] for window in run["series"]) == run["loaded_blocks"] == 2
    assert main([*command, "--json", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text()) == data
    assert set(data) == {field.name for field in fields(Replays)} | {"fidelity", "model", "age_edges_seconds"}
    counted = {"capacity_bytes", "loaded_bytes", "stored_bytes"}
    assert set(run) == {field.name for field in fields(CacheReplay)} | counted
    assert (data["fidelity"], data["model"], data["age_edges_seconds"]) == ("cache", None, [*AGE_EDGES_SECONDS])
    capsys.readouterr()
    assert main([*command, "--bytes-per-token", "10", "--jobs", "1", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    run = data["runs"][0]
    blocks = [run["setup"]["capacity"], run["loaded_blocks"], run["stored_blocks"]]
    assert [run["capacity_bytes"], run["loaded_bytes"], run["stored_bytes"]] == [5120 * count for count in blocks]
    assert blocks == [5, 2, 7] and data["model"] == "10 bytes a token"


@pytest.mark.parametrize("fidelity", [["--fidelity", "engine"], ["--fidelity=engine"]])
def test_engine_fidelity(small, capsys, tmp_path, fidelity):
    command = ["replay", str(small), *fidelity, "--limit", "3", "--gpu-blocks", "40", "--model", "qwen3-8b"]
    assert main([*command, "--json", str(tmp_path / "out.json")]) == 0
    settings = EngineSettings(model=MODELS_WITH_WEIGHTS["Qwen3-8B"], gpu_blocks=40, limit=3)
    expected = replay_engine(open_trace(small), settings)
    assert capsys.readouterr().out == expected.table() + "\n"
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads(json.dumps(expected.as_json()))
    for option in ("--capacity", "--gpu-capacity", "--html"):
        assert main([*command, option, str(tmp_path / "5blocks")]) == 2
        said = f"kv-sim replay: {option} is of --fidelity cache; --help lists what engine has\n"
        assert capsys.readouterr().err == said


def test_options_of_engine_fidelity_are_of_no_other(small, capsys):
    with pytest.raises(SystemExit):
        main(["replay", str(small), "--gpu-blocks", "40"])
    assert "unrecognized arguments: --gpu-blocks 40" in capsys.readouterr().err


def test_processes_change_nothing():
    trace = open_trace("mooncake-synthetic", TraceOptions(requests=500))
    setups = [Setup("sieve", 500), Setup("lru", 500, 300), Setup("arc", 400)]
    one, two = (replay_all(trace, setups, jobs) for jobs in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert (a.setup, a.stored, a.evicted, a.stores_refused) == (b.setup, b.stored, b.evicted, b.stores_refused)
        assert a.cpu_hits.tolist() == b.cpu_hits.tolist()
        assert a.gpu_hits.tolist() == b.gpu_hits.tolist()


def test_a_store_threshold_skips_stores(synthetic):
    plain, choosy = replay_all(synthetic, [Setup("lru", 5000), Setup("lru", 5000, store_threshold=2)])
    assert not plain.stores_skipped and choosy.stores_skipped > 30_000
    assert choosy.stored < plain.stored


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


def test_a_size_without_bytes_says_how_to_get_a_configuration(small, capsys):
    assert main(["size", str(small), "--policy", "lru", "--points", "3"]) == 0
    out = capsys.readouterr().out
    assert "--kv-transfer-config" not in out
    assert "  for GiB and a configuration to paste: --model NAME or --bytes-per-token N\n" in out


def test_a_budget_bounds_what_is_recommended(synthetic):
    free = size(synthetic, ["lru"], points=12)
    assert free.recommended.capacity > 1000 and free.reason.startswith("the knee")
    bound = size(synthetic, ["lru"], points=12, budget=1000)
    assert bound.recommended.capacity == 1000
    assert bound.reason == "the budget: it ends before the knee"
    assert 1000 in bound.capacities and len(bound.gains()) == len(bound.capacities)
    assert [ratios.token for ratios in bound.curves["lru"]] == sorted(r.token for r in bound.curves["lru"])


def test_another_policy_has_to_be_worth_it(synthetic):
    shape = shape_of(synthetic)
    sizing = size(synthetic, ["lru", "arc"], [4392, 10981, 30000])
    lru, arc = sizing.curves["lru"], sizing.curves["arc"]
    assert sizing.recommended.policy == "arc" and arc[1].token - lru[1].token > 0.005
    point, _ = recommend({"lru": lru[:1], "arc": arc[:1]}, [4392], 0.0, shape.unique_blocks, None)
    assert point.policy == "lru"


def test_nothing_comes_back(tmp_path, capsys):
    file = tmp_path / "csv"
    file.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,1\n0,70,1\n")
    assert main(["size", str(file), "--assume-sharing", "none", "--html", str(tmp_path / "page.html")]) == 0
    assert "host memory answers nothing on this trace" in capsys.readouterr().out
    assert main(["replay", str(file), "--assume-sharing", "none", "--html", str(tmp_path / "page.html")]) == 0


def test_no_blocks_at_all(tmp_path, capsys):
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}\n')
    for command in ("replay", "size"):
        assert main([command, str(file), "--html", str(tmp_path / "page.html")]) == 0
    assert "0 blocks of 512 tokens" in capsys.readouterr().out


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects what a page would fetch."""

    VOID = ("meta", "line", "circle", "rect", "polyline", "polygon")

    def __init__(self):
        super().__init__()
        self.open, self.fetched, self.seen = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize(
    "command",
    [
        ["size", "--points", "5", "--bytes-per-token", "1000", "--policy", "lru,arc"],
        ["size", "--points", "2", "--policy", "lru"],
        ["replay", "--capacity", "3blocks,5blocks", "--gpu-capacity", "1block"],
        ["replay", "--capacity", "3blocks"],
    ],
)
def test_a_page_is_whole_and_fetches_nothing(small, tmp_path, command):
    trace = small.rename(tmp_path / "<b>&.jsonl")
    assert main([command[0], str(trace), *command[1:], "--html", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert not page.open and not page.fetched
    assert "script" not in page.seen and "&lt;b&gt;&amp;.jsonl" in text and "<b>&" not in text
    assert not re.search(r"url\(|@import|//", text)
    assert "prefers-color-scheme: dark" in text and "max-width: 620px" in text
    charts = text.count('role="img"')
    assert charts == (6 if len(set(command)) and "3blocks" not in command else 4)


@pytest.mark.parametrize("piece", [1, 5, 11, 1 << 20])
def test_libcachesim_s_format(small, tmp_path, monkeypatch, piece):
    monkeypatch.setattr(oracle, "_PIECE", piece)
    assert main(["replay", str(small), "--capacity", "5blocks", "--write-oracle", str(tmp_path / "oracle")]) == 0
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


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("7blocks", 7),
        ("2kblocks", 2000),
        ("1.5M tokens", 2929),
        ("1024tok", 2),
        ("64GiB", 65536),
        ("64Gi", 65536),
        ("64gib", 65536),
        ("64GB", 61035),
        ("64gb", 61035),
        ("1_024MiB", 1024),
        ("0.5TiB", 524288),
        (" 2e3 Ktokens ", 3906),
        ("1.5blocks", 1),
        ("1token", None),
        ("512token", 1),
        ("3Gblock", 3_000_000_000),
        ("2 M blocks", 2_000_000),
    ],
)
def test_capacities(text, blocks):
    if blocks is not None:
        assert parse_capacity(text, Footprint(512, 2048)) == blocks
        return
    with pytest.raises(ConfigError):
        parse_capacity(text, Footprint(512, 2048))


def test_every_unit_of_bytes():
    powers = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
    known = {"B": 1, **{f"{letter}B": 1000**power for letter, power in powers.items()}}
    for letter in "KMGT":
        known |= {f"{letter}iB": 1024 ** powers[letter], f"{letter}i": 1024 ** powers[letter]}
    known |= {unit.lower(): scale for unit, scale in known.items() if unit != "B"}
    for unit, scale in known.items():
        assert parse_bytes(f"3{unit}", "--size") == parse_bytes(f" 3 {unit} ", "--size") == 3 * scale, unit
    for unit in ("b", "kIB", "Kib", "mB", "PB", "KiBs", "blocks"):
        with pytest.raises(ConfigError, match=r"--size 3" + unit):
            parse_bytes(f"3{unit}", "--size")


def test_numbers_for_people():
    counts = {
        0: "0", 9999: "9999", 10_000: "10k", 12_349: "12.3k", 999_499: "999k", 999_500: "1M", 999_900: "1M",
        1_234_999: "1.23M", 12_345_678: "12.3M", 999_499_999: "999M", 999_500_000: "1G", 1_234_999_999: "1.23G",
    }  # fmt: skip
    assert {count: show_count(count) for count in counts} == counts
    sizes = {
        0: "0 B", 99: "99 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 100_000: "97.7 KiB",
        1023 * 1024: "1023 KiB", 2**20: "1 MiB", 1234 * 2**20: "1.21 GiB", 2**30: "1 GiB",
        1000 * 2**30: "1000 GiB", 2**40: "1 TiB", 2**41: "2 TiB", 999 * 2**40: "999 TiB",
        12_345 * 2**40: "12,345 TiB",
    }  # fmt: skip
    assert {size: show_bytes(size) for size in sizes} == sizes
    seconds = {
        0.5: "0.5 s", 119.0: "119 s", 120.0: "2 min", 7199.0: "120 min", 7200.0: "2 h", 172_799.0: "48 h",
        172_800.0: "2 d", 1e6: "11.6 d",
    }  # fmt: skip
    assert {time: show_seconds(time) for time in seconds} == seconds


def test_usual_capacities_go_from_a_thousandth_to_everything():
    sizes = usual_capacities(100_000, 20)
    assert (sizes[0], sizes[-1], len(sizes)) == (100, 100_000, 20)
    assert usual_capacities(3, 20) == [1, 2, 3]
    assert usual_capacities(0, 5) == [1]


def test_a_bar_is_drawn_on_a_terminal_only():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen, pipe = Terminal(), io.StringIO()
    for stream in (screen, pipe):
        progress = Progress(stream)
        for share in (0.0, 0.5, 0.501, 1.0):
            progress.share("replaying", share)
        progress.count("reading", 4096)
        progress.clear()
    assert not pipe.getvalue()
    shown = screen.getvalue().split("\r")
    assert shown[2].startswith("replaying [███████████████···············]  50%")
    assert len(shown) == 7 and not shown[-1]


def test_bytes_of_a_token_are_a_sum_that_is_shown():
    assert MODELS["llama-3.1-70b"].bytes_per_token("bf16") == 80 * 2 * 8 * 128 * 2 == 327_680
    assert MODELS["deepseek-v3"].bytes_per_token("bf16") == 61 * 576 * 2 == 70_272
    assert MODELS["deepseek-v3"].sum_shown("fp8") == (
        "61 layers × 1 (latent) × 1 KV heads × 576 × 1 bytes (fp8) = 35,136 bytes a token"
    )
    assert {name: model.bytes_per_token("int8") for name, model in MODELS.items()} == {
        "llama-3.1-8b": 65_536,
        "llama-3.1-70b": 163_840,
        "llama-3.1-405b": 258_048,
        "mistral-7b": 65_536,
        "mixtral-8x7b": 65_536,
        "qwen2.5-7b": 28_672,
        "qwen2.5-32b": 131_072,
        "qwen2.5-72b": 163_840,
        "qwen3-8b": 73_728,
        "qwen3-32b": 131_072,
        "qwen3-30b-a3b": 49_152,
        "qwen3-235b-a22b": 96_256,
        "deepseek-v3": 35_136,
        "kimi-k2": 35_136,
    }
    for name, model in MODELS_WITH_WEIGHTS.items():
        if name.lower() in MODELS:
            assert model.kv_bytes_per_token(1) == MODELS[name.lower()].bytes_per_token("bf16"), name
    assert MODELS["qwen3-32b"].bytes_per_token("fp8") * 2 == MODELS["qwen3-32b"].bytes_per_token("bf16")
