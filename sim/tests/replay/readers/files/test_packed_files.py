"""Packed traces are read to their ends, and what is cut off or damaged is refused."""

import gzip
import lzma

import pytest
from kv_sim_refusals import GOOD, line, refused
from kv_sim_slow_replay import same

from kv_sim.replay import open_trace
from kv_sim.replay.readers.files.lines import zstd


@pytest.mark.parametrize("pack", [lzma.open, gzip.open])
def test_packed_files_are_read_by_their_first_bytes(tmp_path, pack):
    plain, packed = tmp_path / "plain", tmp_path / "packed.jsonl"
    text = GOOD + "\n" + line(timestamp=2000, hash_ids=[2])
    plain.write_text(text)
    with pack(packed, "wt") as file:
        file.write(text)
    assert same(open_trace(plain), open_trace(packed))


@pytest.mark.parametrize("cut", [20, 60, 100])
def test_a_truncated_archive(tmp_path, capsys, cut):
    file = tmp_path / "trace.jsonl.xz"
    file.write_bytes(lzma.compress((GOOD + "\n").encode() * 999)[:cut])
    assert refused(capsys, "size", file).startswith(f"{file}: truncated or damaged after line ")


def test_a_damaged_gzip(tmp_path, capsys):
    file = tmp_path / "trace.jsonl.gz"
    good = gzip.compress((GOOD + "\n").encode() * 999)
    file.write_bytes(good[:12] + b"\xff" * 20 + good[32:])
    assert refused(capsys, "size", file).startswith(f"{file}: truncated or damaged after line 0: Error -3 ")


def test_zstd_without_what_unpacks_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("kv_sim.replay.readers.files.lines.zstd", None)
    file = tmp_path / "trace.zst"
    file.write_bytes(b"\x28\xb5\x2f\xfd and so on")
    assert refused(capsys, "replay", file) == (
        f"{file}: packed with zstd, which Python reads by itself from 3.14 on, and before with the package "
        "backports.zstd: pip install 'kv-sim[zstd]', or unpack it"
    )


@pytest.fixture
def packed():
    """A few thousand requests, and how to pack them."""
    text = "".join(line(timestamp=1000 * n, hash_ids=[n * n]) for n in range(3000)).encode()
    return text, zstd.compress


def test_zstd_is_read_to_the_end_of_its_last_frame(tmp_path, packed):
    text, pack = packed
    plain, one, two = tmp_path / "trace.jsonl", tmp_path / "one.jsonl.zst", tmp_path / "two.jsonl.zst"
    plain.write_bytes(text)
    one.write_bytes(pack(text))
    two.write_bytes(pack(text[:5000]) + pack(b"") + pack(text[5000:]))
    expected = open_trace(plain)
    for file in (one, two):
        assert same(open_trace(file), expected)


@pytest.mark.parametrize("cut", [5, 100, 9000, -1])
def test_zstd_that_is_cut_off(tmp_path, capsys, packed, cut):
    text, pack = packed
    file = tmp_path / "trace.jsonl.zst"
    file.write_bytes(pack(text)[:cut])
    said = refused(capsys, "replay", file)
    assert said.startswith(f"{file}: truncated or damaged after line ")
    assert said.endswith(": Compressed file ended before the end-of-stream marker was reached")


def test_zstd_that_is_damaged(tmp_path, capsys, packed):
    text, pack = packed
    good = pack(text)
    file = tmp_path / "trace.jsonl.zst"
    file.write_bytes(good[:6] + b"\xff" * 40 + good[46:])
    assert refused(capsys, "replay", file).startswith(
        f"{file}: truncated or damaged after line 0: Unable to decompress"
    )
