"""``--fidelity engine`` from end to end: its report and its options, which no other fidelity takes or ignores."""

import json
import re

import pytest

from kv_sim.cli.main import main
from kv_sim.replay import TraceOptions, open_trace
from kv_sim.replay.report.timed.as_json import timed_as_json
from kv_sim.replay.report.timed.text import timed_lines
from kv_sim.replay.timed import MODELS as MODELS_WITH_WEIGHTS
from kv_sim.replay.timed import EngineSettings, replay_engine


@pytest.mark.parametrize("fidelity", [["--fidelity", "engine"], ["--fidelity=engine"]])
def test_engine_fidelity(small, capsys, tmp_path, fidelity):
    command = [
        "replay",
        str(small),
        *fidelity,
        "--requests",
        "3",
        "--gpu-capacity",
        "40blocks",
        "--model",
        "qwen3-8b",
    ]
    assert main([*command, "--json", str(tmp_path / "out.json")]) == 0
    settings = EngineSettings(model=MODELS_WITH_WEIGHTS["Qwen3-8B"], gpu_blocks=40)
    expected = replay_engine(open_trace(small, TraceOptions(requests=3)), settings)
    assert capsys.readouterr().out.splitlines() == [*timed_lines(expected)]
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads(json.dumps(timed_as_json(expected)))


def test_old_names_of_options_of_engine_fidelity(small, capsys):
    """What the documentation has shown goes on to work, and a note says the name."""
    command = ["replay", str(small), "--fidelity", "engine"]
    assert main([*command, "--requests", "3", "--capacity", "2GiB", "--gpu-capacity", "40blocks"]) == 0
    said, noted = capsys.readouterr()
    assert noted == ""
    assert main([*command, "--limit", "3", "--cpu-bytes-to-use", "2GiB", "--gpu-blocks", "40"]) == 0
    assert capsys.readouterr() == (
        said,
        "note: --limit is called --requests now\n"
        "note: --cpu-bytes-to-use is called --capacity now\n"
        "note: --gpu-blocks is called --gpu-capacity now\n",
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--limit 3", "--requests 3"),
        ("--cpu-bytes-to-use 2GiB", "--capacity 2GiB"),
        ("--gpu-blocks 40", "--gpu-capacity 40blocks"),
    ],
)
def test_an_option_has_one_of_its_names(small, capsys, old, new):
    assert main(["replay", str(small), "--fidelity", "engine", *old.split(), *new.split()]) == 2
    names = [text.split()[0] for text in (old, new)]
    assert capsys.readouterr() == (
        "",
        "kv-sim replay: {} is the old name of {}: give one of them\n".format(*names),
    )


def test_old_names_are_of_engine_fidelity_alone(small, capsys):
    """Cache fidelity never had them."""
    for line in ("--limit 3", "--cpu-bytes-to-use 2GiB", "--gpu-blocks 40"):
        with pytest.raises(SystemExit):
            main(["replay", str(small), *line.split()])
        assert f"unrecognized arguments: {line}" in capsys.readouterr().err


FOREIGN = [
    *(
        ("replay", option, "")
        for option in ("--kv-dtype fp8", "--bytes-per-token 7", "--stream", "--html page.html")
    ),
    *(("replay", f"--store-threshold{value}", "--connector-config") for value in (" 3", " 0", "=3")),
    ("replay", "--cache-policy-module-path json", "--connector-config"),
    *(("size", option, "") for option in ("--kv-dtype fp8", "--bytes-per-token 7", "--html page.html")),
    ("size", "--cache-policy-module-path json", ""),
    ("size", "--disk /mnt", "--disk-capacity"),
    ("size", "--host-capacity 3GiB", "--capacity"),
]
"""A command, an option of cache fidelity, and what engine has instead."""


@pytest.mark.parametrize(("command", "option", "instead"), FOREIGN)
def test_engine_fidelity_ignores_no_option_of_the_other(small, capsys, command, option, instead):
    name = re.split("[ =]", option)[0]
    hint = f"engine has {instead}" if instead else "--help lists what engine has"
    assert main([command, str(small), *option.split(), "--fidelity", "engine"]) == 2
    assert capsys.readouterr() == ("", f"kv-sim {command}: {name} works with --fidelity cache only; {hint}\n")


@pytest.mark.parametrize("trace", ["none", "engine"])
def test_options_of_engine_fidelity_are_of_no_other(capsys, trace):
    """Whatever else is called so."""
    with pytest.raises(SystemExit):
        main(["replay", trace, "--max-running", "40"])
    assert "unrecognized arguments: --max-running 40" in capsys.readouterr().err
