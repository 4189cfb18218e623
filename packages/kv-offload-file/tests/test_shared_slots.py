"""Files of neighbours that a worker has open, when their owner has others by now and several threads read them."""

import fcntl
import os
import shutil
from contextlib import suppress

import pytest
from kv_offload_file_rig import Rig

from kv_api import ConfigError


def open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def replaced(tmp_path):
    """The slots of a worker that has read of a neighbour, of which its rank has another file of rows since."""
    first, second = (Rig(tmp_path, 6, ranks=2, file_shared=True, file_engine=number) for number in range(2))
    first.store([1])
    assert second.load([1])
    rows = first.folder / "rank-1.rows"
    kept = rows.read_bytes()
    rows.unlink()
    rows.write_bytes(kept)
    yield second.ranks[1].worker.engine._slots
    for rig in (first, second):
        rig.stop()


def test_a_file_that_was_replaced_is_closed_when_nobody_reads_it(replaced):
    """Until then it has its room on the disk."""
    with replaced._file_of(0) as other:
        pass
    before = open_files()
    other.path.rename(other.path.with_suffix(".moved"))
    other.path.write_bytes(b"")
    assert not other.is_current()
    with replaced._file_of(0) as new, replaced._file_of(0) as again:
        assert new is again is not other and new.is_current()
        assert open_files() == before
        new.path.unlink()
        with suppress(ConfigError), replaced._file_of(0):
            raise AssertionError("there is none")
        assert open_files() == before, "it is being read"
    assert open_files() == before - 2
    replaced.close()
    replaced.close()


def test_a_file_whose_owner_has_gone_is_closed_when_another_one_s_is_opened(tmp_path):
    first, second, third = (Rig(tmp_path, 6, file_shared=True, file_engine=number) for number in range(3))
    first.store([1])
    assert second.load([1])
    shutil.rmtree(first.folder)
    third.store([2])
    before = open_files()
    assert second.load([2])
    assert open_files() == before - 1, "two files closed, two opened, and the listing of who has gone"
    for rig in (first, second, third):
        rig.stop()


def test_an_engine_whose_home_is_made_anew_is_found_there_from_then_on(tmp_path):
    second = Rig(tmp_path, 6, file_shared=True, file_engine=1)
    left = set()
    for turn in range(4):
        first = Rig(tmp_path, 6, file_shared=True, file_engine=0)
        first.store([turn])
        assert second.load([turn])
        first.stop()
        left.add(open_files())
        shutil.rmtree(first.folder)
        assert second.hits([turn]) == 0
    assert len(left) == 1, "nothing of what was removed is open"
    second.check()
    second.stop()


def test_what_is_borrowed_of_a_home_that_is_removed_meanwhile_is_given_back(tmp_path):
    first, second = (Rig(tmp_path, 6, file_shared=True, file_engine=number) for number in range(2))
    first.store([1])
    spec = second.begin_load([1])
    first.stop()
    shutil.rmtree(first.folder)
    again = Rig(tmp_path, 6, file_shared=True, file_engine=0)
    again.store([2])
    assert (second.hits([1]), second.hits([2])) == (0, 0), "first what was borrowed is given back"
    assert not second.end_load([1], spec), "its file was never opened, and there is another one"
    assert second.load([2])
    second.check()
    for rig in (again, second):
        rig.stop()


def test_those_of_all_neighbours_are_closed(tmp_path):
    first, second, third = (Rig(tmp_path, 6, file_shared=True, file_engine=number) for number in range(3))
    first.store([1])
    third.store([2])
    assert second.load([1]) and second.load([2])
    before = open_files()
    second.ranks[0].worker.engine._slots.close()
    assert open_files() == before - 6, "two of its own, and two of each neighbour"
    for rig in (first, second, third):
        rig.stop()


def test_which_files_are_open_is_only_touched_by_who_has_the_lock(replaced):
    """Several threads read, and each of them may find that a file was replaced."""

    class Readers(dict):
        def __setitem__(self, file, count):
            touched.add((count, replaced._lock.locked()))
            super().__setitem__(file, count)

        def __delitem__(self, file):
            touched.add(("closed", replaced._lock.locked()))
            super().__delitem__(file)

    touched = set()
    replaced._readers = Readers(replaced._readers)
    with replaced._file_of(0), replaced._file_of(0):
        pass
    assert touched == {("closed", True), (2, True), (1, True), (0, True)}


def test_files_of_others_are_open_to_be_read_alone(replaced):
    with replaced._file_of(0) as file:
        for fd in (file._rows, file._slots):
            assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


@pytest.mark.parametrize("direct", [False, True])
def test_files_of_others_are_read_past_the_page_cache_as_its_own_are(tmp_path, direct):
    first, second = (
        Rig(tmp_path, 6, file_shared=True, file_engine=number, file_direct=direct) for number in (0, 1)
    )
    first.store([1])
    assert second.load([1])
    slots = second.ranks[0].worker.engine._slots
    with slots._file_of(0) as other:
        for file in (slots._file, other):
            assert bool(fcntl.fcntl(file._slots, fcntl.F_GETFL) & os.O_DIRECT) == direct
    for rig in (first, second):
        rig.stop()
