"""What is no trace that can be opened is refused, and named."""

import os
import socket

import pytest
from kv_sim_refusals import GOOD, refused

from kv_sim.cli.main import main


def test_a_place_without_a_trace(tmp_path, capsys):
    assert refused(capsys, "replay", tmp_path / "none.jsonl") == (
        f"{tmp_path}/none.jsonl: there is no such file; traces that ship with kv-sim: "
        "mooncake-conversation, mooncake-synthetic"
    )
    assert refused(capsys, "replay", tmp_path) == (
        f"{tmp_path}: there is no trace in this folder "
        "(.json .jsonl .ndjson .csv .tsv .txt .log .parquet .arrow .feather, also with .xz .gz .bz2 .zst)"
    )
    (tmp_path / "inner").mkdir()
    for name in ("b.orc", "inner/a.jsonl.lz4"):
        (tmp_path / name).touch()
    told = refused(capsys, "replay", tmp_path)
    assert told.endswith(".zst); other files: 2 (b.orc, inner/a.jsonl.lz4)")


@pytest.mark.parametrize("command", [("replay",), ("replay", "--stream", "--capacity", "5blocks"), ("size",)])
def test_what_can_not_be_opened_twice(tmp_path, capsys, monkeypatch, command):
    """It would be found empty, after its first bytes were looked at."""
    twice = "a trace is a file, since it is opened more than once: save it first"
    name, *options = command
    assert refused(capsys, name, "-", *options) == f"-: {twice}"
    assert refused(capsys, name, "/dev/null", *options) == f"/dev/null: this is a device, and {twice}"
    reading, writing = os.pipe()
    os.write(writing, GOOD.encode())
    os.close(writing)
    try:
        for place in (f"/dev/fd/{reading}", f"/proc/self/fd/{reading}"):
            assert refused(capsys, name, place, *options) == f"{place}: this is a pipe, and {twice}"
    finally:
        os.close(reading)
    monkeypatch.chdir(tmp_path)  # a socket's whole name may be too long
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
        said = refused(capsys, name, tmp_path / "socket", *options)
        assert said == f"{tmp_path}/socket: this is a socket, and {twice}"


def test_a_file_can_be_given_by_its_number_or_be_called_minus(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-").write_text(GOOD + "\n")
    with open("-") as file:
        for place in (f"/dev/fd/{file.fileno()}", "-"):
            assert main(["replay", place, "--capacity", "5blocks", "--jobs", "1"]) == 0
            assert ": 1 request in " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["replay", "size"])
def test_what_can_not_be_read_is_named(tmp_path, capsys, monkeypatch, name):
    """Reading tells nobody of which file it was, other than opening."""
    assert refused(capsys, name, "/proc/self/mem") == "/proc/self/mem: Input/output error"
    file = tmp_path / "trace.jsonl"
    file.write_text(GOOD)
    monkeypatch.setattr(type(file), "open", lambda *_, **__: os.open("/proc/1/none", os.O_RDONLY))
    assert refused(capsys, name, file) == f"{file}: No such file or directory"
