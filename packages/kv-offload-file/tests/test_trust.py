"""Which files of an engine before are believed: those from which nothing can be missing."""

import os
import zlib
from types import SimpleNamespace

import pytest
from kv_offload_file_slots import BYTES, LABEL, kill, opened, read, rows

from kv_api import ConfigError
from kv_offload_file import slot_file
from kv_offload_file.label import ROW_BYTES
from kv_offload_file.slot_file import ALIGNMENT, SlotFile, read_rows, rows_path


@pytest.fixture
def boot(monkeypatch):
    """Sets what the system calls its present start."""

    def start(name):
        monkeypatch.setattr(slot_file, "this_boot", lambda: name)

    start("first")
    return start


@pytest.fixture
def calls(monkeypatch):
    """What is asked of the system from now on, and of which file."""
    made = []

    def record(name):
        really = getattr(os, name)

        def call(fd, *args):
            made.append((name, os.path.basename(os.readlink(f"/proc/self/fd/{fd}")).removeprefix("rank-0.")))
            return really(fd, *args)

        monkeypatch.setattr(os, name, call)

    for name in ("pwrite", "fsync", "ftruncate"):
        record(name)
    return made


def test_they_say_that_they_were_closed_when_all_the_rest_is_on_the_disk(tmp_path, calls):
    file = opened(tmp_path)
    file.write(1, LABEL, BYTES.data)
    calls.clear()
    file.close()
    assert calls == [("fsync", "slots"), ("fsync", "rows"), ("pwrite", "rows"), ("fsync", "rows")]


def test_they_say_on_the_disk_that_they_are_open_before_anything_changes(tmp_path, boot, calls):
    file = opened(tmp_path)
    file.close()
    calls.clear()
    file = opened(tmp_path, 9)
    assert calls[:2] == [("pwrite", "rows"), ("fsync", "rows")]
    kill(file)
    boot("second")
    calls.clear()
    opened(tmp_path).close()
    assert calls[:3] == [("ftruncate", "rows"), ("pwrite", "rows"), ("fsync", "rows")], (
        "unless it is all forgotten"
    )


def test_a_later_version_finds_what_this_one_wrote(tmp_path, boot):
    """Otherwise it has another name for the format: the first eight bytes."""
    opened(tmp_path).close()
    header = rows_path(tmp_path, 0).read_bytes()[:ROW_BYTES]
    assert header[4:].rstrip(b"\0") == b"KVSLOTS1" + (8192).to_bytes(8, "little") + b"\1first"


@pytest.mark.parametrize("end", [kill, SlotFile.close])
def test_another_process_finds_what_was_written_however_this_one_ended(tmp_path, boot, end):
    file = opened(tmp_path)
    file.write(1, LABEL, BYTES.data)
    end(file)
    assert rows(tmp_path) == {1: LABEL}
    file = opened(tmp_path)
    assert rows(tmp_path) == {1: LABEL}
    assert (read(file) == BYTES).all()
    file.close()


def test_after_the_machine_went_down_only_files_that_were_closed_are_trusted(tmp_path, boot):
    for end, expected in ((SlotFile.close, {1: LABEL}), (kill, {})):
        boot("first")
        file = opened(tmp_path)
        file.write(1, LABEL, BYTES.data)
        end(file)
        boot("second")
        assert rows(tmp_path) == expected, "the manager may look before any worker"
        file = opened(tmp_path)
        assert rows(tmp_path) == expected, "or after it"
        file.close()


def test_files_that_were_closed_once_are_open_again_before_anything_changes(tmp_path, boot):
    opened(tmp_path).close()
    boot("second")
    kill(opened(tmp_path))
    boot("third")
    assert rows(tmp_path) == {}
    file = opened(tmp_path)
    file.write(1, LABEL, BYTES.data)
    kill(file)
    boot("fourth")
    assert rows(tmp_path) == {}


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_what_does_not_reach_the_disk_at_the_end_was_not_closed(tmp_path, boot, monkeypatch, caplog, failing):
    file = opened(tmp_path)
    file.write(1, LABEL, BYTES.data)
    before, sync, calls = os.listdir("/proc/self/fd"), os.fsync, []

    def fsync(fd):
        calls.append(fd)
        if len(calls) > failing:
            raise OSError(5, "Input/output error")
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    file.close()
    assert "rank-0.slots: if the machine goes down, what it holds will be forgotten: " in caplog.text
    assert {record.name for record in caplog.records} == {"kv_offload_file"}
    assert len(os.listdir("/proc/self/fd")) == len(before) - 2
    assert rows(tmp_path) == {1: LABEL}
    boot("second")
    assert (rows(tmp_path) == {}) == (failing < 2), "what was written last may have got there"


def test_where_the_system_does_not_say_only_files_that_were_closed_are_trusted(tmp_path, boot):
    boot("")
    file = opened(tmp_path)
    file.write(1, LABEL, BYTES.data)
    kill(file)
    assert rows(tmp_path) == {}
    file = opened(tmp_path)
    file.write(1, LABEL, BYTES.data)
    file.close()
    assert rows(tmp_path) == {1: LABEL}


def test_what_the_system_says_of_this_start(tmp_path, monkeypatch):
    monkeypatch.setattr(slot_file, "_BOOT_ID", tmp_path / "boot_id")
    assert slot_file.this_boot() == ""
    (tmp_path / "boot_id").write_text("0b4f8a3c\n")
    assert slot_file.this_boot() == "0b4f8a3c"


@pytest.mark.parametrize("place", [0, 8, 12, 30, 255])
def test_a_first_row_that_is_none_empties_the_file(tmp_path, boot, place):
    file = opened(tmp_path)
    file.write(1, LABEL, BYTES.data)
    file.close()
    data = bytearray(rows_path(tmp_path, 0).read_bytes())
    data[place] ^= 1
    rows_path(tmp_path, 0).write_bytes(data)
    assert rows(tmp_path) == {}
    file = opened(tmp_path)
    assert rows(tmp_path) == {}
    file.close()


def test_files_of_another_format_are_forgotten(tmp_path, boot):
    file = opened(tmp_path)
    file.write(1, LABEL, BYTES.data)
    file.close()
    data = rows_path(tmp_path, 0).read_bytes()
    header = data[4:ROW_BYTES].replace(b"KVSLOTS1", b"KVSLOTS2")
    rows_path(tmp_path, 0).write_bytes(zlib.crc32(header).to_bytes(4, "little") + header + data[ROW_BYTES:])
    assert rows(tmp_path) == {}
    file = opened(tmp_path)
    assert rows(tmp_path) == {}
    file.close()


def test_slots_of_another_size_are_forgotten(tmp_path, boot):
    file = opened(tmp_path)
    file.write(0, LABEL, BYTES.data)
    file.close()
    file = SlotFile(tmp_path, 0, 4, ALIGNMENT)
    assert rows(tmp_path) == {}
    file.close()


@pytest.mark.parametrize("slot_bytes", [2 * ALIGNMENT, 4 * ALIGNMENT])
def test_whoever_is_refused_for_want_of_room_changes_nothing(tmp_path, boot, monkeypatch, slot_bytes):
    """Also if the machine goes down before the next start."""
    file = opened(tmp_path)
    file.write(1, LABEL, BYTES.data)
    file.close()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=0, f_frsize=1000))
        with pytest.raises(ConfigError, match=r"^file_bytes_to_use: .* 0 free$"):
            SlotFile(tmp_path, 0, 1000, slot_bytes)
    boot("second")
    file = opened(tmp_path)
    assert rows(tmp_path) == {1: LABEL}
    assert (read(file) == BYTES).all()
    file.close()


@pytest.mark.parametrize(("slots", "found"), [(2, {1}), (3, {1, 2}), (9, {1, 2, 3})])
def test_more_or_fewer_slots_than_before(tmp_path, boot, slots, found):
    file = opened(tmp_path)
    for slot in (1, 2, 3):
        file.write(slot, LABEL, BYTES.data)
    file.close()
    assert rows(tmp_path, slots).keys() == found
    file = opened(tmp_path, slots)
    assert rows(tmp_path, slots).keys() == found
    assert (read(file) == BYTES).all()
    assert (tmp_path / "rank-0.slots").stat().st_size == slots * 2 * ALIGNMENT
    file.close()


def test_without_the_slots_their_rows_mean_nothing(tmp_path, boot):
    """Somebody removed the large file, to make room."""
    file = opened(tmp_path)
    file.write(1, LABEL, BYTES.data)
    file.close()
    (tmp_path / "rank-0.slots").unlink()
    assert rows(tmp_path) == {}
    file = opened(tmp_path)
    assert rows(tmp_path) == {}
    file.close()


def test_rows_that_can_not_be_read_are_an_error_that_names_them(tmp_path):
    rows_path(tmp_path, 0).mkdir()
    with pytest.raises(ConfigError, match=r"file_dir: Is a directory: .*rank-0.rows"):
        rows(tmp_path)


def test_of_a_rank_that_has_no_files_nothing_is_read(tmp_path):
    assert [*read_rows(tmp_path, 0, 4)] == []
