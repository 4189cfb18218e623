"""Locks of slots side by side, which the system takes for one."""

import errno
import os

import pytest
from kv_offload_file_rig import config, found_at

from kv_api import ConfigError
from kv_offload_file import FileOffloadingSpec
from kv_offload_file.folder import home_of
from kv_offload_file.sharing import loans
from kv_offload_file.sharing.neighbours import ListedNeighbours
from kv_offload_file.sharing.own_listing import FileListing
from kv_offload_file.sharing.place import NeighbourSlot


def test_of_slots_side_by_side_those_are_named_that_were_asked_about(tmp_path):
    """Their owner may have begun anew with less room."""
    owner, other = (os.open(tmp_path / "listing", os.O_RDWR | os.O_CREAT) for _ in range(2))
    for slot in (3, 4, 5, 6):
        assert loans.lock(other, slot)
    for num_slots in range(9):
        assert loans.locked(owner, num_slots) == [slot for slot in (3, 4, 5, 6) if slot < num_slots]
    loans.unlock(other, 5)
    assert loans.locked(owner, 9) == [3, 4, 6]
    for fd in (owner, other):
        os.close(fd)


def test_who_shares_where_there_are_no_such_locks_is_refused(tmp_path, monkeypatch):
    before = os.listdir("/proc/self/fd")
    monkeypatch.delattr(loans.fcntl, "F_OFD_GETLK")
    with pytest.raises(ConfigError, match="file_shared: this system has no locks of open files"):
        FileOffloadingSpec(config(tmp_path, file_shared=True)).get_manager()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_recount_of_neighbours_is_one_of_each(tmp_path):
    home_of(tmp_path, 1).mkdir()
    own = FileListing(home_of(tmp_path, 1), 9)
    own.begin(77)
    own.open()
    own.holds([b"a", b"b"], [1, 2])
    others = ListedNeighbours(tmp_path, 0, iter(range(9)).__next__)
    others.look(77)
    others.check()
    others._known[1]._keys[2] = b"c"
    with pytest.raises(AssertionError, match="63 isn't known to be in slot 2"):
        others.check()
    others._known[1]._keys[2] = None
    with pytest.raises(AssertionError, match="1 chunks are known, and 2 places"):
        others.check()
    others._known[1]._keys[2] = b"b"
    others._known[1]._loans[1] = 0
    with pytest.raises(AssertionError, match=r"borrowed \{1: 0\}"):
        others.check()
    del others._known[1]._loans[1]
    others.close()
    own.close()


def test_who_has_ended_tells_nothing_any_more(tmp_path, caplog):
    """Its files may be other ones' by then: numbers of files are used again."""
    own = FileListing(tmp_path, 9)
    own.begin(77)
    own.open()
    own.close()
    with (tmp_path / "another").open("w+b") as another:
        own.holds([b"a"], [1])
        own.leaves([2])
        own.uses([NeighbourSlot(1, 2)])
        own.open()
        assert another.read() == b"" and caplog.records == []


def test_where_nobody_can_say_what_is_lent_nothing_is_told_any_more(tmp_path, monkeypatch, caplog):
    """As on a file system without locks. It is said once, and the engine goes on."""
    home_of(tmp_path, 1).mkdir()
    own, near = FileListing(home_of(tmp_path, 1), 9), ListedNeighbours(tmp_path, 0, iter(range(99)).__next__)
    own.begin(77)
    own.holds([b"a"], [1])
    own.open()
    near.look(77)
    assert found_at(near, b"a") == (1, 1)

    def refused(*args):
        raise OSError(errno.ENOLCK, "no locks available")

    with monkeypatch.context() as broken:
        broken.setattr(loans.fcntl, "fcntl", refused)
        assert own.lent() == [] == own.lent()
    [record] = caplog.records
    assert record.getMessage().endswith(f"finds anything here: [Errno {errno.ENOLCK}] no locks available")
    near.look(77)
    assert found_at(near, b"a") is None and own.lent() == []
    own.close()
    near.close()
