"""Files on a disk, alone and behind host memory: what a replay says of them, and what ``size`` makes of that."""

import json
import re
import shlex
from html import unescape
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_sim_file_specs import spec_of
from kv_sim_slow_replay import lru_hits, prefix_trace, trace_of

from kv_api import ConfigError, KVTransferConfig
from kv_sim.cli.main import main
from kv_sim.replay import replay, size
from kv_sim.replay.caches.cache import replay_cache
from kv_sim.replay.caches.medium import MediumRun, Traffic
from kv_sim.replay.caches.outcome import Outcome, Setup
from kv_sim.replay.caches.stack import longest_prompt
from kv_sim.replay.servers.fleet import RoutedTrace
from kv_sim.replay.sizing.around import Around, Disk
from kv_sim.replay.sizing.capacities import size_trace, sweep
from kv_sim.replay.units import Footprint

traces = st.builds(
    lambda seed, count: prefix_trace(Random(seed), count), st.integers(0, 10**9), st.integers(1, 40)
)


def test_whoever_has_more_loads_and_each_stores_what_it_did_not_load():
    requests = [[1, 2, 3], [4, 5], [1, 2, 3, 6], [1, 2, 3, 6]]
    outcome = replay_cache(trace_of(requests), Setup("lru", 4, disk=5))
    # The third finds one block in host memory, which kept the newest four, and three on the disk. Then host memory
    # is offered all four, and the disk the one that it doesn't have. The fourth finds as many in either.
    assert outcome.disk_hits.tolist() == [0, 0, 3, 0]
    assert outcome.cpu_hits.tolist() == [0, 0, 0, 4]
    assert outcome.host == Traffic(stored=3 + 2 + 2, evicted=1 + 2)
    assert outcome.disk == Traffic(stored=3 + 2 + 1, evicted=1)
    outcome.check(trace_of(requests))


def test_who_loads_is_asked_for_what_the_gpu_lacks(monkeypatch):
    found, asked = MediumRun.found, []
    monkeypatch.setattr(
        MediumRun, "found", lambda run, keys, context: asked.append(len(keys)) or found(run, keys, context)
    )
    requests = [[1, 2, 3], [4, 5, 6], [1, 7], [1, 2, 3]]
    outcome = replay_cache(trace_of(requests), Setup("lru", 3, 2, disk=20))
    assert outcome.gpu_hits.tolist() == [0, 0, 0, 1]
    assert outcome.disk_hits.tolist() == [0, 0, 1, 2]
    assert not outcome.cpu_hits.any()
    assert asked == [3, 3, 3, 3, 2, 2, 2, 2], "each of the two for all but the block that the GPU has"


def test_the_disk_has_a_threshold_of_its_own():
    requests = [[1, 2], [3], [1, 2], [1, 2]]
    outcome = replay_cache(trace_of(requests), Setup("lru", 1, disk=20, disk_store_threshold=2))
    assert outcome.host == Traffic(stored=1 + 1 + 1, evicted=1 + 1, refused=1 + 1 + 1)
    assert outcome.disk == Traffic(stored=2, skipped=3)
    assert (outcome.cpu_hits.tolist(), outcome.disk_hits.tolist()) == ([0, 0, 0, 0], [0, 0, 0, 2])


def test_a_recount_finds_two_who_loaded():
    columns = trace_of([[1, 2, 3]])
    one, none = (replay_cache(columns, Setup("lru", 4)).gpu_hits + count for count in (1, 0))
    Outcome(Setup("lru", 4), none, one, none).check(columns)
    with pytest.raises(AssertionError, match="two media loaded for one request"):
        Outcome(Setup("lru", 4, disk=4), none, one, one).check(columns)
    with pytest.raises(AssertionError, match="more hits than blocks"):
        Outcome(Setup("lru", 4, disk=4), none, none, one * 4).check(columns)
    with pytest.raises(AssertionError, match=r"^5 chunks kept in 4 slots"):
        Outcome(Setup("lru", 9, disk=4), none, one, none, disk=Traffic(stored=5)).check(columns)


@given(requests=traces, host=st.integers(0, 30), disk=st.integers(0, 30), gpu_blocks=st.integers(0, 8))
def test_where_every_prompt_fits_either_is_an_lru_of_its_own(requests, host, disk, gpu_blocks):
    columns = trace_of(requests)
    longest = longest_prompt(columns)
    host, disk = longest + host, longest + disk
    outcome = replay_cache(columns, Setup("lru", host, gpu_blocks, disk=disk))
    outcome.check(columns)
    gpu = outcome.gpu_hits.tolist()
    in_host, on_disk = (
        [max(0, hits - there) for hits, there in zip(lru_hits(requests, size, False), gpu, strict=True)]
        for size in (host, disk)
    )
    asked = [*zip(in_host, on_disk, strict=True)]
    assert outcome.cpu_hits.tolist() == [mine if mine >= other else 0 for mine, other in asked]
    assert outcome.disk_hits.tolist() == [other if other > mine else 0 for mine, other in asked]


@pytest.mark.once
@given(requests=traces, host=st.integers(0, 20), gpu_blocks=st.integers(0, 8))
def test_a_sweep_of_disks_is_what_replays_say(requests, host, gpu_blocks):
    """One pass for all sizes is taken only where it is exact."""
    columns = trace_of(requests)
    longest = longest_prompt(columns)
    sizes = [1, 2, max(1, longest - 1), longest, longest + 1, 3 * longest]
    found = sweep(RoutedTrace(columns), ["lru", "sieve"], sizes, Around(gpu_blocks, Disk("/kv", host)))
    for policy, ratios in found.items():
        for disk, ratio in zip(sizes, ratios, strict=True):
            outcome = replay_cache(columns, Setup(policy, host, gpu_blocks, disk=disk))
            hits = int((outcome.gpu_hits + outcome.loaded).sum())
            assert ratio.block == hits / max(1, columns.references), (policy, disk)


def test_files_answer_what_host_memory_of_their_size_would(small):
    """Where nothing lies in front of them."""
    of_memory = size(small, ["lru", "arc"], [1, 2, 4, 6], bytes_per_token=100)
    of_disk = size(small, ["lru", "arc"], [1, 2, 4, 6], bytes_per_token=100, disk="/mnt/kv")
    assert of_disk.curves == of_memory.curves and of_disk.best == of_memory.best
    assert of_disk.recommended == of_memory.recommended and of_disk.without == of_memory.without
    assert (of_memory.medium, of_disk.medium) == ("host memory", "the disk")
    assert (of_memory.setup, of_disk.setup) == (Setup("lru", 4), Setup("lru", 0, disk=4))
    assert of_memory.recommended_gib == 4 * 512 * 100 / 2**30
    assert size(small, ["lru"], [4]).recommended_gib is None, "of blocks without bytes"


FILES = ["--disk", "/mnt/nvme/kv", "--bytes-per-token", "1000", "--jobs", "1"]


def test_what_size_says_of_a_disk(small, capsys):
    assert main(["size", str(small), *FILES, "--policy", "lru", "--capacity", "2blocks,4blocks,6blocks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[4:-1] == [
        "",
        "hits by prompt tokens:",
        "blocks  tokens      disk    lru    MIN    +1 GiB",
        "2         1024  1000 KiB  0.092  0.367  +28.8k %",
        "4         2048  1.95 MiB  0.367  0.456   +9389 %  ◀ here",
        "6         3072  2.93 MiB  0.456  0.456      +0 %",
        "",
        "recommended: lru, 4 blocks = 2048 tokens = 1.95 MiB of disk",
        "  the knee: up to here more room buys more than on average, from here on less",
        "  hits 0.364 of blocks, 0.367 of tokens, 0.571 of full blocks",
    ]
    [text] = re.fullmatch("--kv-transfer-config '(.*)'", lines[-1]).groups()
    config = KVTransferConfig(**json.loads(text))
    assert (config.kv_connector, config.kv_connector_module_path) == ("OffloadingConnector", "kv_vllm")
    extra = config.kv_connector_extra_config
    assert {key: extra[key] for key in ("spec_name", "spec_module_path", "file_dir", "eviction_policy")} == {
        "spec_name": "FileOffloadingSpec",
        "spec_module_path": "kv_offload_file",
        "file_dir": "/mnt/nvme/kv",
        "eviction_policy": "lru",
    }
    assert spec_of(extra, 512_000).num_chunks == 4
    smaller = extra | {"file_bytes_to_use": extra["file_bytes_to_use"] - 1}
    assert spec_of(smaller, 512_000).num_chunks == 3


def test_a_folder_with_a_quote_in_its_name_is_one_argument_in_a_shell(small, capsys, tmp_path):
    disk, page = '/mnt/it\'s "é" $HOME', tmp_path / "page.html"
    options = ["--disk", disk, "--bytes-per-token", "1000", "--policy", "lru", "--capacity", "4blocks"]
    assert main(["size", str(small), *options, "--html", str(page)]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("--kv-transfer-config ")]
    _, text = shlex.split(line)
    assert json.loads(text)["kv_connector_extra_config"]["file_dir"] == disk
    assert line in unescape(page.read_text())


@pytest.mark.parametrize("of_a_token", [7, 8, 9])
def test_room_is_for_whole_pages_and_a_row_beside_each(small, of_a_token):
    """512 tokens of 8 bytes are a page of the disk."""
    found = size(small, ["lru"], [1, 4], bytes_per_token=of_a_token, disk="/kv")
    extra = found.config()["kv_connector_extra_config"] | {"file_staging_bytes": 1 << 20}
    assert extra["file_bytes_to_use"] == 4 * ((2 if of_a_token > 8 else 1) * 4096 + 256)
    assert spec_of(extra, 512 * of_a_token).num_chunks == 4
    assert found.recommended_gib == 4 * 512 * of_a_token / 2**30


def test_what_size_says_of_a_disk_behind_host_memory(small, capsys):
    command = ["size", str(small), *FILES, "--policy", "sieve,lru", "--capacity", "5blocks,6blocks"]
    in_front = ["--host-capacity", "3blocks", "--gpu-capacity", "2blocks"]
    assert main([*command, *in_front]) == 0
    lines = capsys.readouterr().out.splitlines()
    gpu = "the GPU's prefix cache"
    assert lines[4:6] == [
        f"{gpu} alone (2 blocks): 0.182 of blocks, 0.183 of tokens, 0.286 of full blocks",
        f"host memory (1.46 MiB) and {gpu}, without the disk: 0.273 of blocks, 0.275 of tokens, "
        "0.429 of full blocks",
    ]
    assert main([*command, "--host-capacity", "3blocks"]) == 0
    assert capsys.readouterr().out.splitlines()[4] == (
        "host memory (1.46 MiB), without the disk: 0.273 of blocks, 0.275 of tokens, 0.429 of full blocks"
    )
    assert lines[8].split() == ["blocks", "tokens", "disk", "sieve", "lru", "MIN", "+1", "GiB"]
    assert main([*command, *in_front, "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["disk"] == {"folder": "/mnt/nvme/kv", "host_blocks": 3}
    assert (data["without"]["block"], data["gpu_alone"]["block"]) == (3 / 11, 2 / 11)
    one_more = [*command, "--capacity", "1block", "--policy", "lru", "--json", "-"]
    best = []
    for blocks in ("1block", "3blocks"):
        assert main([*one_more, "--host-capacity", blocks]) == 0
        best += json.loads(capsys.readouterr().out)["best"]
    assert [ratios["block"] for ratios in best] == [4 / 11, 5 / 11], "of host memory and the disk together"
    config = data["kv_transfer_config"]
    assert (config["kv_connector"], config["kv_load_failure_policy"]) == ("MultiConnector", "recompute")
    extra = config["kv_connector_extra_config"]
    host, files = (child["kv_connector_extra_config"] for child in extra["connectors"])
    assert extra["load_policy"] == "longest"
    assert {child["kv_connector"] for child in extra["connectors"]} == {"OffloadingConnector"}
    assert {child["kv_role"] for child in extra["connectors"]} == {"kv_both"}
    assert host == {"cpu_bytes_to_use": 3 * 512_000, "eviction_policy": data["recommended"]["policy"]}
    assert files.pop("name") == "files" and files["eviction_policy"] == data["recommended"]["policy"]
    assert spec_of(files, 512_000).num_chunks == data["recommended"]["capacity"]


def test_no_disk_is_recommended_that_answers_nothing_more(small, tmp_path, capsys):
    page = tmp_path / "page.html"
    command = ["size", str(small), *FILES, "--policy", "lru", "--capacity", "3blocks"]
    assert main([*command, "--host-capacity", "6blocks", "--html", str(page)]) == 0
    assert capsys.readouterr().out.splitlines()[-3:-1] == [
        "recommended: no disk beside host memory",
        "  it answers nothing on this trace at any size that was tried",
    ]
    assert '<p class="big">No disk beside host memory</p>' in page.read_text(encoding="utf-8")
    assert main([*command, "--host-capacity", "6blocks", "--gpu-capacity", "1block"]) == 0
    assert "recommended: no disk beside host memory and the GPU's prefix cache" in capsys.readouterr().out
    assert main([*command, "--gpu-capacity", "9blocks"]) == 0
    assert "recommended: no disk beside the GPU's prefix cache\n" in capsys.readouterr().out
    assert main([*command, "--capacity", "1block,4blocks,6blocks", "--budget", "1block"]) == 0
    assert "the budget: it ends before the knee" in capsys.readouterr().out
    assert (
        main([*command, "--capacity", "1block,6blocks", "--budget", "1block", "--host-capacity", "3blocks"]) == 0
    )
    assert "the budget: up to there the disk answers nothing" in capsys.readouterr().out


def test_the_best_policy_in_front_is_what_a_disk_is_measured_against():
    """Or a disk would be recommended for what host memory with another policy does alone."""
    columns = trace_of([[1, 2], [3], [1, 2], [3], [4], [1, 2]] * 4)
    found = size_trace(
        RoutedTrace(columns), ["lru", "s3fifo"], [1], Footprint(4, None), Around(disk=Disk("/kv", 3))
    )
    alone = [replay_cache(columns, Setup(policy, 3)).cpu_hits.sum() for policy in ("lru", "s3fifo")]
    assert alone[0] != alone[1]
    assert (found.gpu_blocks, found.setup.gpu_blocks) == (0, 0), "nobody said that there is one in front"
    assert found.without.block == max(alone) / columns.references


@pytest.mark.once
def test_the_tables_of_a_replay_with_a_disk(small, capsys):
    command = ["replay", str(small), "--bytes-per-token", "1000", "--capacity", "2blocks,3blocks"]
    assert main([*command, "--disk-capacity", "6blocks"]) == 0
    assert capsys.readouterr().out.splitlines()[5:] == [
        "policy  blocks  tokens    memory      disk  block  token  full block  CPU token  disk token    MIN  "
        "loaded    stored   evicted   refused  age  90 %",
        "lru          2    1024  1000 KiB  2.93 MiB  0.455  0.456       0.571      0.000       0.456  0.456  "
        "     0  1.95 MiB  1000 KiB  2.93 MiB  4 s   6 s",
        "lru          3    1536  1.46 MiB  2.93 MiB  0.455  0.456       0.571      0.000       0.456  0.456  "
        "     0  3.91 MiB  2.44 MiB         0  4 s   6 s",
        "",
        "the disk behind it:",
        "policy    memory  blocks  tokens      disk    loaded    stored  evicted  refused",
        "lru     1000 KiB       6    3072  2.93 MiB  2.44 MiB  2.93 MiB        0        0",
        "lru     1.46 MiB       6    3072  2.93 MiB  2.44 MiB  2.93 MiB        0        0",
        "",
        "Ratios are hits of host memory and the disk: of all blocks, of all prompt tokens, of all full blocks.",
        "MIN: the most that any policy could hit, by token. Age: since a hit's last use, median and 90 %.",
    ]
    assert main([*command, "--disk-capacity", "6blocks", "--gpu-capacity", "2blocks", "--json", "-"]) == 0
    run = json.loads(capsys.readouterr().out)["runs"][0]
    threshold = ["--disk-capacity", "6blocks", "--store-threshold", "3", "--disk-store-threshold", "2"]
    assert main([*command, *threshold, "--json", "-"]) == 0
    setup = json.loads(capsys.readouterr().out)["runs"][0]["setup"]
    assert (setup["store_threshold"], setup["disk_store_threshold"]) == (3, 2)
    assert run["setup"] == {
        "policy": "lru", "capacity": 2, "gpu_blocks": 2, "store_threshold": 0, "policy_module": None,
        "disk": 6, "disk_store_threshold": 0, "store_when": "computed",
    }  # fmt: skip
    assert run["disk_bytes"] == 6 * 512_000
    assert run["disk"]["loaded_blocks"] == sum(window["disk_hits"] for window in run["series"]) == 3
    assert run["disk"]["ratios"]["block"] == 3 / 11 and run["both"]["block"] == 5 / 11


@pytest.mark.once
def test_a_disk_without_host_memory(small, capsys):
    """Where the disk's size is said and host memory's is not, there is none."""
    assert main(["replay", str(small), "--disk-capacity", "4blocks,6blocks", "--policy", "lru,arc"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[5:9]]
    assert [(row[0], row[1], " ".join(row[4:6])) for row in rows] == [
        ("lru", "0", "4 blocks"), ("lru", "0", "6 blocks"), ("arc", "0", "4 blocks"), ("arc", "0", "6 blocks"),
    ]  # fmt: skip
    assert main(["replay", str(small), "--disk-capacity", "4blocks", "--stream"]) == 0
    assert capsys.readouterr().out.splitlines()[4].split()[:6] == ["lru", "0", "0", "-", "4", "blocks"]


def test_in_a_notebook(small):
    run = replay(small, capacity=2, disk_capacity="6blocks", disk_store_threshold=2, bytes_per_token=10)
    assert run.setup == Setup("lru", 2, disk=6, disk_store_threshold=2)
    assert (run.disk_bytes, run.disk.skipped_blocks, run.disk.loaded_blocks) == (6 * 5120, 6, 2)
    assert size(small, ["lru"], [2, 6], disk="/kv", host_capacity="3blocks").disk == Disk("/kv", 3)


@pytest.mark.parametrize(
    ("command", "options", "problem"),
    [
        ("size", "--host-capacity 2blocks",
         "--host-capacity is the host memory in front of --disk, which isn't given; without a disk give "
         "--capacity"),
        ("size", "--disk=", "--disk: expected a folder of the server, got nothing"),
        ("size", "--disk /kv --host-capacity 2", "--host-capacity 2: 2 what? "
         "Expected 20000blocks, 10Mtokens, 64GiB or 64GB"),
        ("replay", "--disk-store-threshold 2", "--disk-store-threshold is for --disk-capacity, which isn't given"),
        ("replay", "--disk-capacity 2blocks --disk-store-threshold -1",
         "--disk-store-threshold: expected at least 0, got -1"),
        ("replay", "--disk-capacity 2", "--disk-capacity 2: 2 what? "
         "Expected 20000blocks, 10Mtokens, 64GiB or 64GB"),
        ("replay", "--disk-capacity 268435457blocks --stream",
         "--disk-capacity: that is 268435457 blocks, and --stream supports 268435456 at most; without --stream "
         "only blocks of the trace count"),
    ],
)  # fmt: skip
def test_what_can_not_be_meant_is_refused(small, capsys, command, options, problem):
    assert main([command, str(small), *options.split()]) == 2
    assert capsys.readouterr() == ("", f"kv-sim {command}: {problem}\n")


def test_a_disk_below_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"^disk: expected at least 0 blocks, got -1$"):
        replay_cache(trace_of([[1]]), Setup("lru", 4, disk=-1))


@pytest.mark.once
def test_the_pages_say_what_is_the_disks(small, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["size", str(small), *FILES, "--host-capacity", "3blocks", "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "<h1>small.jsonl</h1>" in text and "<title>small.jsonl: how much disk</title>" in text
    assert re.search(r'<p class="big">[\d.]+ MiB of disk, policy \w+</p>', text)
    assert "disk (logarithmic)" in text and "Age of what host memory and the disk answered" in text
    assert re.search(r'<p class="soft">\w+, 1.46 MiB, [\d.]+ MiB of disk</p>', text)
    over_time = text.split("<h2>Blocks answered over time</h2>")[1].split("<h2>")[0]
    shown = dict(re.findall(r'class="line (\w+)"[^>]*/></svg>([^<]*)</li>', over_time))
    assert shown == {"c0": "host memory", "c1": "disk", "bound": "infinite cache"}
    command = ["replay", str(small), "--bytes-per-token", "1000", "--html", str(page)]
    assert main([*command, "--capacity", "2blocks,3blocks", "--disk-capacity", "4blocks,6blocks"]) == 0
    text = page.read_text(encoding="utf-8")
    assert "host memory (logarithmic)" in text and ">lru, 1.95 MiB of disk</li>" in text
    cells = [re.findall("<t[dh]>([^<]*)</t[dh]>", row)[8:] for row in re.findall("<tr>.*?</tr>", text)]
    moved, of_disk = ("stored", "evicted", "refused"), ("3.42 MiB", "1.46 MiB", "0 B")
    assert cells[:2] == [
        ["loaded", "stored", "evicted", "refused", *("disk", "by disk", "loaded from it"), *moved],
        ["0 B", "1.95 MiB", "1000 KiB", "2.93 MiB", *("1.95 MiB", "36.7%", "1.95 MiB"), *of_disk],
    ]
    assert main([*command, "--capacity", "2blocks", "--disk-capacity", "4blocks,6blocks"]) == 0
    text = page.read_text(encoding="utf-8")
    assert "disk (logarithmic)" in text and ">lru</li>" in text
    assert main([*command, "--disk-capacity", "4blocks"]) == 0
    assert "(logarithmic)" not in page.read_text(encoding="utf-8"), "of one size there is no curve"
    capsys.readouterr()
