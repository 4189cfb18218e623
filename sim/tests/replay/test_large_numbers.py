"""Numbers that are too large, or too small, for a clock or for memory: refused, or of no consequence."""

import json
from dataclasses import replace

import numpy as np
import pytest

from kv_api import ConfigError
from kv_sim.cli.main import main
from kv_sim.replay.report.oracle import RECORD
from kv_sim.replay.timed.server.refuse import MOST_BLOCKS, refuse_too_late, refuse_too_much
from kv_sim.replay.timed.server.settings import EngineSettings
from kv_sim.replay.timed.server.sizes import plan

REQUESTS = [
    {"timestamp": at, "input_length": 1024, "output_length": 3, "hash_ids": [1, 2 + at % 2]} for at in range(4)
]
HUGE = str(10**20)
CONFIG = json.dumps({"kv_connector": "OffloadingConnector", "kv_role": "kv_both"})
SLOW = "more than the day that one step of a replay's clock may take; check {causes}"
GPU = SLOW.format(causes="the GPU's FLOP/s, bandwidth and efficiencies")
LINK = SLOW.format(causes="the link's bandwidth and efficiency, and the microseconds of a copy")


@pytest.fixture
def run(tmp_path, capsys):
    """Runs a command on a trace; its exit code, and what it printed."""
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(request) + "\n" for request in REQUESTS))

    def run(command, *options):
        code = main([command, str(file), *options])
        out, err = capsys.readouterr()
        return code, out if code == 0 else err

    return run


ENGINE = {
    ("--gpu-capacity", f"{2**26 + 1}blocks"): (
        "--gpu-capacity: that is 67108865 blocks, and a replay supports 67108864 at most; choose larger blocks "
        "or less memory"
    ),
    ("--gpu-capacity", f"{HUGE}blocks"): f"--gpu-capacity: expected at most 2147483647, got {HUGE}",
    ("--max-step-tokens", str(2**31)): "--max-step-tokens: expected at most 2147483647, got 2147483648",
    ("--capacity", "5000TiB"): (
        "--capacity: that is 81920000 blocks, and a replay supports 67108864 at most; choose larger blocks or "
        "less memory"
    ),
    ("--step-microseconds", "1e300"): "--step-microseconds: expected at most 1e+15, got 1e+300",
    ("--step-microseconds", "86401e6"): (
        "a step beside its forward pass could take 8.64e+04 s, " + SLOW.format(causes="its microseconds")
    ),
    ("--idle-step-microseconds", "1e12"): (
        "an idle step could take 1e+06 s, " + SLOW.format(causes="its microseconds")
    ),
    ("--copy-microseconds", "1e9"): f"a copy of 256 blocks could take 2.62e+08 s, {LINK}",
    ("--link-bandwidth", "1"): f"a copy of 256 blocks could take 2.02e+10 s, {LINK}",
    ("--link-efficiency", "1e-300"): f"a copy of 256 blocks could take for ever, {LINK}",
    ("--hbm-bandwidth", "1e-300"): f"the forward pass of a step could take for ever, {GPU}",
    ("--hbm-bandwidth", "1e5", "--max-running", "1", "--max-model-len", "512"): (
        f"the forward pass of a step could take 2.02e+05 s, {GPU}"
    ),
    ("--hbm-bandwidth", "1e7"): f"the forward pass of a step could take 2.2e+06 s, {GPU}",
    ("--gpu-flops", "1e6"): f"the forward pass of a step could take 1.39e+09 s, {GPU}",
    ("--arrival-scale", "1e14"): (
        "request 1 arrives after 1e+11 s, and a replay's clock ends at 1e+09 s; check --time-unit and "
        "--arrival-scale"
    ),
}


@pytest.mark.parametrize("options", list(ENGINE), ids=lambda options: " ".join(options)[:40])
def test_what_an_engine_replay_refuses(run, options):
    assert run("replay", "--fidelity", "engine", *options) == (2, f"kv-sim replay: {ENGINE[options]}\n")


def test_a_configuration_that_is_too_deep_is_refused_in_a_line(run):
    code, printed = run("replay", "--fidelity", "engine", "--connector-config", 100_000 * "[")
    assert (code, printed.count("\n")) == (2, 1)
    assert printed.startswith("kv-sim replay: --connector-config: no JSON that can be read: ")


@pytest.mark.parametrize(
    "options",
    [
        ("--max-step-tokens", "2147483647"),
        ("--max-model-len", "2147483647"),
        ("--arrival-scale", "0"),
        ("--link-bandwidth", "1e6"),
        ("--gpu-flops", "1e12"),
        ("--hbm-bandwidth", "1e7", "--max-running", "1"),
        ("--step-microseconds", "86400e6"),
        ("--requests", HUGE),
        ("--connector-config", CONFIG.replace("}", ', "kv_connector_extra_config": {"cpu_bytes_to_use": 1e13}}')),
    ],
    ids=lambda options: " ".join(options)[:40],
)
def test_what_an_engine_replay_takes(run, options):
    code, printed = run("replay", "--fidelity", "engine", *options)
    assert code == 0, printed
    assert "requests" in printed


@pytest.mark.parametrize("policy", ["lru", "arc", "s3fifo", "sieve"])
def test_a_cache_beyond_all_blocks_answers_as_one_that_holds_them_and_takes_no_more_memory(run, policy, tmp_path):
    answers = []
    for capacity in ("3blocks", "9000000000000blocks"):
        code, printed = run("replay", "--policy", policy, "--capacity", capacity, "--json", str(tmp_path / "x"))
        assert code == 0, printed
        [result] = json.loads((tmp_path / "x").read_text())["runs"]
        answers.append({name: value for name, value in result.items() if name != "setup"})
    assert answers[0] == answers[1]
    assert answers[0]["cpu"]["block"] == 0.625


def test_as_much_as_a_replay_takes():
    refuse_too_late(0, 1e9)
    with pytest.raises(ConfigError, match="request 3 arrives after nan s"):
        refuse_too_late(3, float("nan"))
    settings = EngineSettings()
    assert MOST_BLOCKS == 2**26
    refuse_too_much(settings, replace(plan(settings, 512), gpu_blocks=MOST_BLOCKS))
    # Who brings a connector has host memory by that one's settings, whatever the default's would be.
    refuse_too_much(replace(settings, connector={}, cpu_bytes_to_use=1 << 60), plan(settings, 512))


def test_as_long_as_a_step_may_take():
    """A day in all: a step's tokens, pairs of them with the longest prompt's, weights, the prompts of all."""
    day, settings = 86_400 * 10**9, EngineSettings()
    sizes = replace(plan(settings, 4), gpu_blocks=3, max_step_tokens=100, max_model_len=10, max_running=5)
    quick = replace(
        sizes.step,
        ns_per_token=0,
        ns_per_pair=0,
        ns_of_weights=0,
        ns_per_context_token=0,
        overhead_ns=0,
        idle_ns=1,
    )
    for slow in (
        {"ns_per_token": day / 12},  # the GPU has room for three blocks of four
        {"ns_per_pair": day / 12 / 10},
        {"ns_per_token": day / 2 / 12, "ns_per_pair": day / 2 / 12 / 10},
        {"ns_of_weights": day},
        {"ns_per_context_token": day / 5 / 10},
        {"ns_of_weights": day / 2, "ns_per_context_token": day / 2 / 5 / 10},
        {"overhead_ns": day},
        {"idle_ns": day},
    ):
        refuse_too_much(settings, replace(sizes, step=replace(quick, **slow)))
        slower = {name: ns + max(1, ns // 1000) for name, ns in slow.items()}
        with pytest.raises(
            ConfigError, match=r"could take 8\.6[45]e\+04 s, more than the day that one step of a replay's clock"
        ):
            refuse_too_much(settings, replace(sizes, step=replace(quick, **slower)))


@pytest.mark.once
def test_a_sweep_reaches_beyond_all_blocks(run, tmp_path):
    sizes = ("1blocks", "2blocks", "3blocks", "9000000000000blocks")
    code, printed = run("size", "--policy", "lru", "--capacity", ",".join(sizes), "--json", str(tmp_path / "x"))
    assert code == 0, printed
    curve = json.loads((tmp_path / "x").read_text())["curves"]["lru"]
    assert [ratios["block"] for ratios in curve] == [0.25, 0.375, 0.625, 0.625]
    assert run("size", "--points", "3", "--gpu-capacity", "9000000000000blocks")[0] == 0


@pytest.mark.parametrize(("seconds", "code"), [(2**32 - 1, 0), (2**32, 2)])
def test_an_oracle_has_room_for_136_years(tmp_path, capsys, seconds, code):
    file, written = tmp_path / "trace.jsonl", tmp_path / "oracle"
    record = {"input_length": 512, "output_length": 1, "hash_ids": [1]}
    file.write_text("".join(json.dumps({**record, "timestamp": time}) + "\n" for time in (0, seconds * 1000)))
    command = ["replay", str(file), "--capacity", "5blocks", "--jobs", "1", "--write-oracle", str(written)]
    assert main(command) == code
    if code:
        assert capsys.readouterr().err == (
            "kv-sim replay: the last request arrives after 4.29e+09 s, and oracleGeneral has room for 4294967295; "
            "check --time-unit\n"
        )
        assert not written.exists()
    else:
        assert np.fromfile(written, dtype=RECORD)["time"].tolist() == [0, seconds]


def test_a_stream_keeps_books_of_its_capacity(run):
    assert run("replay", "--stream", "--capacity", "268435457blocks") == (
        2,
        "kv-sim replay: --capacity: that is 268435457 blocks, and --stream supports 268435456 at most; without "
        "--stream only blocks of the trace count\n",
    )
