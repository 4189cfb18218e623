"""The files of one rank: what was written is read, and what wasn't is never taken for it."""

import os
import re
from types import SimpleNamespace

import numpy as np
import pytest
from kv_offload_file_slots import BYTES, KEY, LABEL, OTHER, opened, read, rows

from kv_api import ConfigError, KVError
from kv_offload_file.label import ROW_BYTES
from kv_offload_file.slot_file import ALIGNMENT, DamagedError, SlotFile, rows_path


def test_what_was_written_is_read(tmp_path):
    file = opened(tmp_path)
    file.write(1, LABEL, BYTES.data)
    assert (read(file) == BYTES).all()
    assert rows(tmp_path) == {1: LABEL}
    assert (tmp_path / "rank-0.slots").stat().st_size == 4 * 2 * ALIGNMENT
    assert rows_path(tmp_path, 0).stat().st_size == 5 * ROW_BYTES
    file.close()
    file.close()


@pytest.mark.parametrize("direct", [False, True])
def test_it_makes_the_folder_and_nobody_else_may_read_it(tmp_path, direct):
    folder = tmp_path / "a" / "b"
    opened(folder, direct=direct).close()
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        "rank-0.slots": 0o600,
        "rank-0.rows": 0o600,
    }


@pytest.mark.parametrize("slot", [-1, 4])
def test_a_slot_that_there_is_not(tmp_path, slot):
    file = opened(tmp_path)
    for what in (file.write, file.read):
        with pytest.raises(KVError, match=rf"^slot {slot} of {tmp_path}/rank-0.slots: there are 0 to 3$"):
            what(slot, LABEL, BYTES.copy().data)
    file.close()


@pytest.mark.parametrize(
    ("slot", "label", "said"),
    [
        (0, LABEL, "slot 0 of {} holds nothing readable, not chunk 6f6e65 of this epoch"),
        (1, LABEL._replace(key=OTHER), "slot 1 of {} holds chunk 6f6e65, not chunk 6f74686572 of this epoch"),
        (1, LABEL._replace(epoch=6), "slot 1 of {} holds chunk 6f6e65, not chunk 6f6e65 of this epoch"),
    ],
)
def test_another_chunk_is_not_read(tmp_path, slot, label, said):
    file = opened(tmp_path)
    file.write(1, LABEL, BYTES.data)
    with pytest.raises(DamagedError) as refused:
        read(file, slot, label)
    assert str(refused.value) == said.format(tmp_path / "rank-0.slots")
    assert (read(file) == BYTES).all(), "who asked wrongly has changed what there is"
    file.close()


def test_who_loads_need_not_know_which_store_it_was(tmp_path):
    file = opened(tmp_path)
    file.write(1, LABEL, BYTES.data)
    assert (read(file, label=LABEL._replace(number=9, nth=3)) == BYTES).all()
    file.close()


@pytest.mark.parametrize("place", [0, 4711, 2 * ALIGNMENT - 1])
def test_a_byte_that_changed_is_found_and_the_slot_says_nothing_from_then_on(tmp_path, place):
    file = opened(tmp_path)
    file.write(0, LABEL, BYTES.data)
    file.write(1, LABEL, BYTES.data)
    with (tmp_path / "rank-0.slots").open("r+b") as changed:
        changed.seek(2 * ALIGNMENT + place)
        changed.write(bytes([BYTES[place] ^ 255]))
    with pytest.raises(
        DamagedError,
        match=rf"^slot 1 of {tmp_path}/rank-0.slots has other bytes than were stored of chunk 6f6e65$",
    ):
        read(file)
    assert rows(tmp_path) == {0: LABEL}
    with pytest.raises(DamagedError, match=r" holds nothing readable, not chunk 6f6e65 of this epoch$"):
        read(file)
    file.write(1, LABEL._replace(key=OTHER), BYTES.data)
    assert rows(tmp_path) == {0: LABEL, 1: LABEL._replace(key=OTHER)}
    file.close()


def test_a_write_that_is_interrupted_never_looks_like_one_that_was_not(tmp_path, monkeypatch):
    """Whatever call is the last one."""
    after = np.roll(BYTES, 1)
    for last in range(8):
        file = opened(tmp_path / str(last))
        file.write(1, LABEL, BYTES.data)
        calls, write = [], os.pwrite

        def short(fd, data, begin, calls=calls, last=last, write=write):
            if len(calls) == last:
                raise OSError(28, "No space left on device")
            calls.append(1)
            return write(fd, data[: 3 * ALIGNMENT // 4], begin)

        monkeypatch.setattr(os, "pwrite", short)
        said = "it ended"
        try:
            file.write(1, LABEL._replace(key=OTHER), after.data)
        except OSError as error:
            said = str(error)
        ended = said == "it ended"
        monkeypatch.undo()
        assert ended or said.endswith(f"device: '{file.path}'")
        now = LABEL._replace(key=OTHER) if ended else LABEL
        assert rows(tmp_path / str(last)) == ({1: now} if ended or not last else {}), (
            "what the next start believes"
        )
        found = {}
        for label in (LABEL, LABEL._replace(key=OTHER)):
            try:
                found[label.key] = read(file, label=label)
            except DamagedError:
                continue
        expected = {OTHER: after} if ended else ({KEY: BYTES} if not last else {})
        assert found.keys() == expected.keys(), f"after {last} calls"
        assert all((found[key] == expected[key]).all() for key in found)
        file.close()
    assert ended


def test_reads_may_come_in_pieces_too(tmp_path, monkeypatch):
    file = opened(tmp_path)
    file.write(1, LABEL, BYTES.data)
    read_once = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, into, begin: read_once(fd, [into[0][:1000]], begin))
    assert (read(file) == BYTES).all()
    file.close()


def test_a_file_that_somebody_cut_is_an_error_of_the_system_and_not_endless(tmp_path):
    file = opened(tmp_path)
    file.write(1, LABEL, BYTES.data)
    os.truncate(tmp_path / "rank-0.slots", 3 * ALIGNMENT)
    with pytest.raises(OSError, match=rf"\] the file ends at {3 * ALIGNMENT}: '{re.escape(str(file.path))}'$"):
        read(file)
    file.close()


# What is refused


def test_more_than_the_file_system_has_is_refused_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=7, f_frsize=1000))
    with pytest.raises(
        ConfigError,
        match=rf"^file_bytes_to_use: {tmp_path}/rank-0.slots and its like \(there are 1\) would grow by 32768 "
        r"bytes, the file system has 7000 free$",
    ):
        opened(tmp_path)


def test_ranks_that_share_a_file_system_are_reckoned_together(tmp_path, monkeypatch):
    files = [SlotFile(tmp_path, 0, 9, 2 * ALIGNMENT)]
    files[0].write(1, LABEL, BYTES.data)
    files[0].close()
    free = 2 * 32768 - 2 * ALIGNMENT
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=free, f_frsize=1))
    files = [SlotFile(tmp_path, rank, 4, 2 * ALIGNMENT) for rank in range(2)]
    with pytest.raises(ConfigError, match=rf"rank-2.slots and its like \(there are 3\) .* {free + 32768} bytes"):
        SlotFile(tmp_path, 2, 4, 2 * ALIGNMENT)
    for file in files:
        file.close()


def test_what_one_rank_has_too_much_another_has_not(tmp_path, monkeypatch):
    larger = SlotFile(tmp_path, 0, 9, 2 * ALIGNMENT)
    for slot in range(9):
        larger.write(slot, LABEL, BYTES.data)
    larger.close()
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=32767, f_frsize=1))
    with pytest.raises(ConfigError, match="would grow by 32768 bytes"):
        SlotFile(tmp_path, 1, 4, 2 * ALIGNMENT)


def test_what_the_file_has_already_need_not_be_free(tmp_path, monkeypatch):
    file = opened(tmp_path)
    for slot in range(4):
        file.write(slot, LABEL, BYTES.data)
    file.close()
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=0, f_frsize=1000))
    opened(tmp_path).close()


@pytest.mark.parametrize("problem", [OSError(5, "Input/output error"), RuntimeError("no")])
def test_a_file_that_can_not_be_begun_is_not_left_open(tmp_path, monkeypatch, problem):
    def fail(fd):
        raise problem

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "fstatvfs", fail)
    with pytest.raises((ConfigError, RuntimeError), match=r"file_dir: Input/output error: .*rank-0.slots|no"):
        opened(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_folder_that_can_not_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=rf"^file_dir: Not a directory: {tmp_path}/file/sub$"):
        opened(tmp_path / "file" / "sub")


def test_a_file_system_that_can_not_be_written_past_its_page_cache(tmp_path, monkeypatch):
    really = os.open

    def refuse(path, flags, mode=0o777):
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument", str(path))
        return really(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(
        ConfigError,
        match=rf"^file_direct: the file system of {tmp_path}/rank-0.slots has a page cache in between$",
    ):
        opened(tmp_path, direct=True)


def test_a_system_that_knows_no_way_past_its_page_cache(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_DIRECT")
    with pytest.raises(
        ConfigError,
        match=rf"^file_direct: the file system of {tmp_path}/rank-0.slots has a page cache in between$",
    ):
        opened(tmp_path, direct=True)


def test_another_error_of_the_system_stays_what_it_is(tmp_path):
    (tmp_path / "rank-0.slots").mkdir()
    for direct in (False, True):
        with pytest.raises(ConfigError, match=rf"^file_dir: Is a directory: {tmp_path}/rank-0.slots$"):
            opened(tmp_path, direct=direct)
