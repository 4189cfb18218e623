"""What a command writes never replaces what it reads, or what else it writes."""

import os
import shutil

import pytest

from kv_sim.command.cli import main

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


def refused(capsys, *command):
    """The message of a command that is refused before it does anything."""
    assert main([*map(str, command)]) == 2
    out, err = capsys.readouterr()
    assert not out
    [text] = err.splitlines()
    return text.removeprefix(f"kv-sim {command[0]}: ")


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
    assert said == f"{option} {tmp_path}: this is a folder, and a file is written"
