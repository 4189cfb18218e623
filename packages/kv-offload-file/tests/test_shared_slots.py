"""Files of neighbours that a worker has open, when their owner has others by now and several threads read them."""

import fcntl
import os

import pytest
from kv_offload_file_rig import Rig


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


def test_a_file_that_was_replaced_is_forgotten_once_by_all_who_read_it(replaced):
    old = replaced._file_of(0)
    for _ in range(2):
        replaced._forget_if_replaced(0, old)
    new = replaced._file_of(0)
    replaced._forget_if_replaced(0, old)
    replaced._forget_if_replaced(0, new)
    assert replaced._file_of(0) is new is not old


def test_a_file_that_was_replaced_is_open_until_all_are_closed(replaced):
    """A thread may be reading it."""
    old = replaced._file_of(0)
    replaced._forget_if_replaced(0, old)
    new = replaced._file_of(0)
    assert not old.is_current() and new.is_current()
    before = len(os.listdir("/proc/self/fd"))
    replaced.close()
    assert len(os.listdir("/proc/self/fd")) == before - 6, "two files each of this worker, and of both"
    replaced.close()


def test_files_of_others_are_open_to_be_read_alone(replaced):
    file = replaced._file_of(0)
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
    for file in (slots._file, slots._file_of(0)):
        assert bool(fcntl.fcntl(file._slots, fcntl.F_GETFL) & os.O_DIRECT) == direct
    for rig in (first, second):
        rig.stop()
