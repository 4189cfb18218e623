"""What a command writes never replaces what it reads, or what else it writes."""

import json
import os
import resource
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest
from kv_sim_devices import device
from kv_sim_refusals import refused

from kv_api import ConfigError
from kv_sim.cli.main import main
from kv_sim.replay.command.outputs import writing
from kv_sim.replay.report import oracle

COMMANDS = {
    "replay --json": ("replay", "--capacity", "5blocks", "--json"),
    "replay --html": ("replay", "--capacity", "5blocks", "--html"),
    "replay --write-oracle": ("replay", "--capacity", "5blocks", "--write-oracle"),
    "replay --stream --json": ("replay", "--capacity", "5blocks", "--stream", "--json"),
    "replay --fidelity engine --json": ("replay", "--fidelity", "engine", "--json"),
    "replay --fidelity engine --write-oracle": ("replay", "--fidelity", "engine", "--write-oracle"),
    "size --json": ("size", "--json"),
    "size --html": ("size", "--html"),
}
"""a command with its option last"""


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("way", ["itself", "another path", "a link", "a hard link"])
def test_the_trace_is_not_overwritten(small, tmp_path, capsys, name, way):
    command, *options, option = COMMANDS[name]
    (tmp_path / "sub").mkdir()
    place = {"itself": small, "another path": f"{tmp_path}/sub/../small.jsonl"}.get(way, tmp_path / "other")
    if way == "a link":
        place.symlink_to(small)
    if way == "a hard link":
        os.link(small, place)
    was = small.read_bytes()
    said = refused(capsys, command, small, *options, option, place)
    assert said == f"{option} {place}: it would overwrite TRACE {small}, which is the same file"
    assert small.read_bytes() == was


@pytest.mark.parametrize("name", COMMANDS)
def test_no_file_of_a_folder_is_overwritten(small, tmp_path, capsys, name):
    command, *options, option = COMMANDS[name]
    folder = tmp_path / "folder"
    folder.mkdir()
    for part in ("a.jsonl", "b.jsonl"):
        shutil.copy(small, folder / part)
    place = folder / "b.jsonl"
    said = refused(capsys, command, folder, *options, option, place)
    assert said == f"{option} {place}: it would overwrite {place} in TRACE {folder}, which is the same file"
    assert place.read_bytes() == small.read_bytes()


PAIRS = [
    ("replay", "--json", "--html"),
    ("replay", "--json", "--write-oracle"),
    ("replay", "--html", "--write-oracle"),
    ("size", "--json", "--html"),
]


@pytest.mark.parametrize(("command", "first", "second"), PAIRS)
@pytest.mark.parametrize("way", ["new", "there", "a link", "a link to nothing"])
def test_outputs_are_different_files(small, tmp_path, capsys, command, first, second, way):
    one = other = tmp_path / "out"
    if way == "there":
        one.write_text("old")
    if way.startswith("a link"):
        other = tmp_path / "link"
        other.symlink_to(one)
    if way == "a link":
        one.write_text("old")
    said = refused(capsys, command, small, "--capacity", "5blocks", second, other, first, one)
    assert said == f"{second} {other}: it would overwrite {first} {one}, which is the same file"
    assert not one.exists() or one.read_text() == "old"


def test_a_minus_is_a_file_but_for_json(small, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["replay", small, "--capacity", "5blocks", "--jobs", "1"]
    assert main([*map(str, command), "--html", "-", "--json", "-"]) == 0
    assert capsys.readouterr().out.startswith("{") and (tmp_path / "-").read_text().startswith("<!doctype html>")
    said = refused(capsys, *command, "--html", "-", "--write-oracle", "-")
    assert said == "--write-oracle -: it would overwrite --html -, which is the same file"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_is_no_file_to_write(small, tmp_path, capsys, name):
    command, *options, option = COMMANDS[name]
    said = refused(capsys, command, small, *options, option, tmp_path)
    assert said == f"{option} {tmp_path}: this is a folder, expected the path of a file"


@pytest.mark.parametrize("name", COMMANDS)
def test_what_can_not_be_written_is_named(small, tmp_path, capsys, name):
    command, *options, option = COMMANDS[name]
    full = device("full", tmp_path)
    assert main([command, str(small), *options, option, str(full)]) == 2
    out, err = capsys.readouterr()
    assert err == f"kv-sim {command}: {option} {full}: No space left on device\n"
    assert out.startswith("small.jsonl: 4 requests") or "engine" in name, "the table was there to be read"
    assert str(full) not in out


@pytest.mark.parametrize("name", COMMANDS)
def test_what_can_not_be_written_is_what_it_was(small, tmp_path, capsys, monkeypatch, name):
    """Where a disk gets full, the file of an earlier run is as good as before."""
    command, *options, option = COMMANDS[name]
    place = tmp_path / "out"
    place.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        assert (
            main(
                [
                    command,
                    str(small),
                    *options,
                    option,
                    str(place),
                    *([] if "engine" in options else ["--jobs", "1"]),
                ]
            )
            == 2
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert capsys.readouterr().err == f"kv-sim {command}: {option} {place}: File too large\n"
    assert place.read_text() == "old" and sorted(tmp_path.iterdir()) == [place, small]


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_large_oracle_that_can_not_be_written_is_named(small, tmp_path, capsys, monkeypatch, pieces):
    """One that doesn't fit what is buffered, too."""
    full = device("full", tmp_path)
    ids = [*range(11 * 4000)]
    monkeypatch.setattr(oracle, "_PIECE", -(-len(ids) // pieces))
    small.write_text(json.dumps({"timestamp": 0, "input_length": 512 * len(ids), "hash_ids": ids}) + "\n")
    command = ["replay", str(small), "--capacity", "5blocks", "--jobs", "1", "--write-oracle", str(full)]
    assert main(command) == 2
    assert capsys.readouterr().err == f"kv-sim replay: --write-oracle {full}: No space left on device\n"


def test_a_printed_json_that_can_not_be_written_is_named(small, capsys, monkeypatch):
    full = open("/dev/full", "w")  # noqa: SIM115 - closing it fails, too
    monkeypatch.setattr("sys.stdout", full)
    assert main(["replay", str(small), "--capacity", "5blocks", "--json", "-"]) == 2
    monkeypatch.undo()
    with suppress(OSError):
        full.close()
    assert capsys.readouterr().err == "kv-sim replay: --json -: No space left on device\n"


COMMANDS_THAT_PRINT = {
    "replay": ("replay", "{small}", "--capacity", "5blocks", "--jobs", "1"),
    "replay --fidelity engine": ("replay", "{small}", "--fidelity", "engine"),
    "size": ("size", "{small}", "--jobs", "1"),
    "subjects": ("subjects",),
}


@pytest.mark.parametrize("what", COMMANDS_THAT_PRINT)
def test_what_can_not_be_printed_is_named(small, what):
    command = [text.format(small=small) for text in COMMANDS_THAT_PRINT[what]]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "kv_sim", *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert ended.stderr == f"kv-sim {command[0]}: standard output: No space left on device\n"
    assert ended.returncode == 2


@pytest.mark.once
def test_where_nothing_is_printed_to_nothing_fails(small, tmp_path):
    program = [sys.executable, "-m", "kv_sim", "replay", str(small), "--capacity", "5blocks", "--jobs", "1"]
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *program, "--json", str(tmp_path / "out.json")]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads((tmp_path / "out.json").read_text())


def test_two_outputs_may_go_nowhere(small, tmp_path, capsys):
    nowhere = str(device("null", tmp_path))
    assert main(["replay", str(small), "--capacity", "5blocks", "--json", nowhere, "--html", nowhere]) == 0
    assert f"{nowhere}: the report as a page" in capsys.readouterr().out


REFUSED_LATE = {
    "a capacity": ("--capacity", "64GiB"),
    "a policy": ("--policy", "lruu"),
    "a threshold": ("--store-threshold", "-1"),
    "an engine's memory": ("--fidelity", "engine", "--capacity", "64"),
    "an engine's blocks": ("--fidelity", "engine", "--gpu-capacity", "0blocks"),
}


def test_a_reader_that_has_seen_enough_is_no_fault_of_the_file():
    with pytest.raises(BrokenPipeError), writing("--json", "a.json"):
        raise BrokenPipeError(32, "Broken pipe")


def test_what_has_no_name_of_its_own_is_said_as_it_is():
    with pytest.raises(ConfigError, match=r"^--json a\.json: not seekable$"), writing("--json", "a.json"):
        raise OSError("not seekable")


@pytest.mark.parametrize("what", REFUSED_LATE)
def test_who_is_refused_has_written_nothing(small, tmp_path, capsys, what):
    places = {option: tmp_path / option for option in ("--json", "--write-oracle")}
    outputs = [text for option, place in places.items() for text in (option, place)]
    refused(capsys, "replay", small, *REFUSED_LATE[what], *outputs)
    assert [*tmp_path.iterdir()] == [small]


def test_an_oracle_is_not_announced_within_the_json(small, tmp_path, capsys):
    place = tmp_path / "oracle"
    for options in (("--capacity", "5blocks", "--jobs", "1"), ("--fidelity", "engine")):
        assert main(["replay", str(small), *options, "--json", "-", "--write-oracle", str(place)]) == 0
        assert json.loads(capsys.readouterr().out)
        assert place.stat().st_size == 11 * oracle.RECORD.itemsize
        place.unlink()


def test_a_page_may_show_half_a_character(tmp_path, capsys):
    """As a model's name may have in a trace, and a file's name that is none in UTF-8."""
    trace, page = tmp_path / "t.jsonl", tmp_path / "page.html"
    trace.write_text("".join(json.dumps({"prompt": "a", "model": name}) + "\n" for name in ("m", "\ud83d")))
    assert main(["replay", str(trace), "--capacity", "5blocks", "--html", str(page)]) == 0
    assert "none of which can use another" in page.read_text() and "\\ud83d" in page.read_text()
    capsys.readouterr()
