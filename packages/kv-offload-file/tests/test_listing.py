"""What an engine tells its neighbours, in a file that is read while it is written; and what keeps a chunk lent."""

import errno
import logging
import os
import signal
import subprocess
import sys

import pytest
from kv_offload_file_rig import found_at

from kv_api import ConfigError
from kv_offload_file.folder import home_of
from kv_offload_file.sharing import listing, loans, neighbours
from kv_offload_file.sharing.listing import (
    ENTRY_BYTES,
    MOST_KEY_BYTES,
    ListingWriter,
    changed_slots,
    read_entries,
    read_entry,
    read_opening,
    size_of,
    used_slots,
)
from kv_offload_file.sharing.neighbours import ListedNeighbours, Neighbour
from kv_offload_file.sharing.own_listing import FileListing
from kv_offload_file.sharing.place import NeighbourSlot, slot_of_neighbour
from kv_offload_file.sharing.whereabouts import Whereabouts

EPOCH = 77


@pytest.fixture
def few(monkeypatch):
    """Only eight changes are told one by one."""
    monkeypatch.setattr(listing, "REMEMBERED", 8)


@pytest.fixture
def fd(tmp_path):
    opened = os.open(tmp_path / "listing", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def started(fd, num_slots=40, run=1):
    writer = ListingWriter(fd, num_slots)
    writer.open(EPOCH, run)
    return writer


def begin(own):
    own.begin(EPOCH)
    own.open()


def listing_of(folder, engine, num_slots, keys, slots):
    """That of an engine whose home is in the folder, and which has these chunks."""
    home_of(folder, engine).mkdir()
    own = FileListing(home_of(folder, engine), num_slots)
    begin(own)
    own.holds(keys, slots)
    return own


def told(fd, num_slots=40):
    return dict(read_entries(fd, range(num_slots)))


class Near(Neighbour):
    """A neighbour whose listing is in ``folder``, as engine 5 sees it."""

    def __init__(self, folder):
        self.whereabouts = Whereabouts()
        super().__init__(folder, 5, 1, self.whereabouts)

    def seen(self, epoch=EPOCH):
        self.look(epoch, neighbours.READ_AT_ONCE)
        self.check()
        return {slot_of_neighbour(place).slot: key for key, place in self.whereabouts.places.items()}


def test_what_is_written_is_read(fd):
    writer = started(fd)
    writer.write([3, 4, 5, 9, 7], [b"c", b"d", b"e", b"i", b"g"])
    writer.write([4], [b""])
    assert told(fd) == {3: b"c", 5: b"e", 7: b"g", 9: b"i"}
    assert [read_entry(fd, slot) for slot in (3, 4)] == [b"c", b""]
    assert read_opening(fd) == (40, EPOCH, 1, 6, 0)
    assert changed_slots(fd, 0, 6) == [3, 4, 5, 9, 7, 4] and changed_slots(fd, 4, 5) == [7]
    assert os.fstat(fd).st_size == size_of(40)


def test_slots_side_by_side_are_written_in_one_go(fd, monkeypatch):
    writer, counts, write = started(fd), [], os.pwrite

    def written(fd, data, at):
        counts.append(len(data) / ENTRY_BYTES)
        return write(fd, data, at)

    monkeypatch.setattr(listing.os, "pwrite", written)
    writer.write([4, 5, 6, 9, 2, 3], [b"k%d" % number for number in range(6)])
    assert [count for count in counts if count >= 1] == [3, 1, 2]


def test_entries_are_read_from_where_to_where(fd):
    started(fd).write([*range(11)], [b"%d" % slot for slot in range(11)])
    assert dict(read_entries(fd, range(3, 6))) == {slot: b"%d" % slot for slot in (3, 4, 5)}
    assert dict(read_entries(fd, range(35, 50))) == {} == dict(read_entries(fd, range(60, 70)))
    os.ftruncate(fd, size_of(9) + 30)
    assert dict(read_entries(fd, range(7, 11))) == {7: b"7", 8: b"8"}, "half an entry is none"


def test_of_many_entries_some_are_read_each_time_and_what_changes_at_once(fd, tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours, "READ_AT_ONCE", 4)
    writer, near = started(fd), Near(tmp_path)
    state = {slot: b"%d" % slot for slot in range(11)}
    writer.write([*state], [*state.values()])
    assert near.seen() == {slot: state[slot] for slot in range(4)}
    state |= {1: b"x", 9: b"y"}
    writer.write([1, 9, 10], [b"x", b"y", b""])
    del state[10]
    assert near.seen() == {slot: state[slot] for slot in (*range(8), 9)}
    assert near.seen() == state == near.seen(), "and that is all"
    started(fd, run=2).write([0, 7], [b"a", b"b"])
    assert near.seen() == {0: b"a"} and near.seen() == {0: b"a", 7: b"b"}, "another list is read from its start"
    assert near.seen(epoch=78) == {} and near.seen() == {0: b"a"}
    near.close()


def test_a_slot_that_changes_while_it_is_read_has_one_chunk(fd, tmp_path, monkeypatch):
    """It was known as changed before it was read with all others; between the two its owner stores anew."""
    writer, near = started(fd), Near(tmp_path)
    near.look(EPOCH, 0)
    writer.write([3], [b"a"])
    near.look(EPOCH, 0)
    near.check()
    assert [*near.whereabouts.places] == [b"a"]

    def late(*args):
        writer.write([3], [b"b"])
        return read_entries(*args)

    monkeypatch.setattr(neighbours, "read_entries", late)
    assert near.look(EPOCH, 40) == 40
    near.check()
    assert [*near.whereabouts.places] == [b"b"] and len(near.whereabouts) == near.num_known == 1
    near.close()


def test_whoever_begins_anew_begins_with_nothing(fd):
    started(fd).write([1, 2], [b"a", b"b"])
    started(fd, run=2)
    assert told(fd) == {} and read_opening(fd) == (40, EPOCH, 2, 0, 0)


def test_a_key_has_room_or_is_not_told(fd):
    longest = b"k" * MOST_KEY_BYTES
    started(fd).write([1, 2], [longest, longest + b"k"])
    assert told(fd) == {1: longest}
    assert MOST_KEY_BYTES == ENTRY_BYTES - 1 == 63


def test_a_list_that_is_not_open_says_nothing(fd):
    assert read_opening(fd) is None, "there is nothing"
    ListingWriter(fd, 40).write([1], [b"a"])
    assert read_opening(fd) is None
    started(fd)
    os.ftruncate(fd, 528)
    assert read_opening(fd) == (40, EPOCH, 1, 0, 0)
    for size in (527, 512, 60, 3, 0):
        os.ftruncate(fd, size)
        assert read_opening(fd) is None, "it is cut off"


@pytest.mark.parametrize("at", [0, 4, 5, 12, 30, 60])
def test_a_page_that_was_changed_says_nothing(fd, at):
    started(fd)
    assert read_opening(fd) is not None
    os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1]), at)
    assert read_opening(fd) is None


def test_a_list_of_another_kind_says_nothing(fd, monkeypatch):
    monkeypatch.setattr(listing, "_MAGIC", b"KVLIST99")
    started(fd)
    monkeypatch.undo()
    assert read_opening(fd) is None


@pytest.mark.parametrize("boots", [("before", "now"), ("", "")])
def test_a_list_of_another_start_of_the_machine_says_nothing(fd, monkeypatch, boots):
    written, read = boots
    monkeypatch.setattr(listing, "this_boot", lambda: written)
    started(fd)
    monkeypatch.setattr(listing, "this_boot", lambda: read)
    assert read_opening(fd) is None


@pytest.mark.usefixtures("few")
def test_changes_are_told_as_long_as_they_are_sure_to_be_there(fd):
    writer = started(fd)
    for number in range(20):
        writer.write([number], [b"k"])
    assert changed_slots(fd, 16, 20) == [16, 17, 18, 19]
    assert changed_slots(fd, 15, 20) is None, "half of them may be written over while they are read"
    assert changed_slots(fd, 21, 20) is None, "this is another list"
    writer.write([*range(30)], [b"k"] * 30)
    assert read_opening(fd).changes == 50
    assert changed_slots(fd, 46, 50) == [26, 27, 28, 29]
    os.ftruncate(fd, 4096 + 7 * 4)
    assert changed_slots(fd, 46, 50) is None, "of the two at the ring's end one is gone"
    os.ftruncate(fd, 4096 + 4)
    assert changed_slots(fd, 46, 50) is None


@pytest.mark.usefixtures("few")
def test_a_neighbour_knows_the_same_however_much_has_changed(fd, tmp_path):
    writer, near = started(fd), Near(tmp_path)
    state = {}
    for step, size in enumerate([1, 3, 4, 5, 8, 9, 20, 2]):
        slots = [(step * 7 + number) % 40 for number in range(size)]
        keys = [b"" if slot % 3 == step % 3 else b"%d-%d" % (slot, step) for slot in slots]
        writer.write(slots, keys)
        state.update(zip(slots, keys, strict=True))
        assert near.seen() == {slot: key for slot, key in state.items() if key}
    near.close()


def test_a_chunk_that_moved_is_found_where_it_is(fd, tmp_path):
    writer, near = started(fd), Near(tmp_path)
    writer.write([1], [b"a"])
    assert near.seen() == {1: b"a"}
    writer.write([1, 2], [b"", b"a"])
    assert near.seen() == {2: b"a"}
    writer.write([1, 2], [b"a", b"b"])
    assert near.seen() == {1: b"a", 2: b"b"}
    near.close()


def test_a_neighbour_of_another_epoch_has_nothing(fd, tmp_path):
    writer, near = started(fd), Near(tmp_path)
    writer.write([1], [b"a"])
    assert near.seen(epoch=78) == {} and near.seen() == {1: b"a"} and near.seen(epoch=78) == {}
    near.close()


def test_who_begins_another_run_is_read_from_the_start(fd, tmp_path):
    near = Near(tmp_path)
    started(fd, run=1).write([1, 2], [b"a", b"b"])
    assert near.seen() == {1: b"a", 2: b"b"}
    started(fd, run=2).write([3, 3], [b"c", b"c"])
    assert near.seen() == {3: b"c"}
    near.close()


def test_entries_that_were_never_read_are_so_many_of_all_neighbours(tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours, "READ_AT_ONCE", 4)
    for engine in (1, 2):
        own = listing_of(tmp_path, engine, 6, [b"%d-%d" % (engine, slot) for slot in range(6)], range(6))
        own.close()
    near = ListedNeighbours(tmp_path, 0, iter(range(99)).__next__)
    found = []
    for _ in range(4):
        near.look(EPOCH)
        found.append([(e, s) for e in (1, 2) for s in range(6) if found_at(near, b"%d-%d" % (e, s))])
    everything = [(engine, slot) for engine in (1, 2) for slot in range(6)]
    assert found == [everything[:4], everything[:8], everything, everything]
    near.close()


def test_a_change_of_a_slot_that_is_not_there_is_passed_over(fd, tmp_path):
    """The file was spoilt. What it says of others counts still, since a load believes none of it."""
    writer, near = started(fd, num_slots=4), Near(tmp_path)
    writer.write([1], [b"a"])
    assert near.seen() == {1: b"a"}
    writer.write([4, 2], [b"x", b"b"])
    assert os.fstat(fd).st_size > size_of(4)
    assert near.seen() == {1: b"a", 2: b"b"}
    near.close()


def test_who_is_not_there_yet_has_nothing(tmp_path, caplog):
    near = Near(tmp_path)
    assert near.seen() == {}
    own = FileListing(tmp_path, 40)
    begin(own)
    own.holds([b"a", b"b", b"c", b"d"], [1, 2, 3, 0])
    own.leaves([3, 2, 0])
    assert near.seen() == {1: b"a"}
    own.close()
    own.close()
    assert near.seen() == {1: b"a"}, "its files are there still"
    near.close()
    near.close()
    assert caplog.messages == [], "an engine that doesn't share, or not yet"


def test_what_is_distrusted_is_not_found_until_it_changes(fd, tmp_path):
    own = listing_of(tmp_path, 4, 40, [b"a", b"b"], [1, 2])
    others = ListedNeighbours(tmp_path, 0, iter(range(99)).__next__)
    others.look(EPOCH)
    assert found_at(others, b"a") == (4, 1) == NeighbourSlot(4, 1)
    others.distrust(NeighbourSlot(4, 2), b"a")
    assert found_at(others, b"a") and found_at(others, b"b"), "that one isn't there"
    others.distrust(NeighbourSlot(4, 1), b"a")
    assert found_at(others, b"a") is None and found_at(others, b"b")
    others.look(EPOCH)
    assert found_at(others, b"a") is None
    own.holds([b"a"], [1])
    others.look(EPOCH)
    assert found_at(others, b"a") == (4, 1)
    others.check()
    others.distrust(NeighbourSlot(4, 40), b"a")  # it had more slots when that was found
    assert found_at(others, b"a") == (4, 1)
    others.close()
    assert not others.places, "nobody is known any more"
    own.close()


def test_a_recount_sees_a_chunk_that_nobody_has(tmp_path):
    own = listing_of(tmp_path, 4, 40, [b"a", b"b"], [1, 2])
    others = ListedNeighbours(tmp_path, 0, iter(range(99)).__next__)
    others.look(EPOCH)
    others.check()
    [place, _] = others.places.values()
    others._whereabouts.add([(b"c", place + 6)])
    with pytest.raises(AssertionError, match="2 chunks are known, and 3 places"):
        others.check()
    others._whereabouts.remove(b"c", place + 6)
    others.check()
    others._whereabouts.remove(b"a", place)
    with pytest.raises(AssertionError, match="61 isn't known to be in slot 1"):
        others.check()
    others._whereabouts.add([(b"a", place)])
    others._whereabouts._others[b"a"] = []
    with pytest.raises(AssertionError, match="61 is in"):
        others.check()
    own.close()


def test_homes_are_known_by_their_names(tmp_path):
    names = ["engine-0", "engine-2", "engine-10", "engine-02", "engine-x", "rank-0", "engine-1"]
    names += ["engine-252", "engine-253", "engine-1000000000000"]
    for name in names:
        (tmp_path / name).mkdir()
        own = FileListing(tmp_path / name, 9)
        begin(own)
        own.holds([name.encode()], [3])
        own.close()
    others = ListedNeighbours(tmp_path, 1, iter(range(99)).__next__)
    others.look(EPOCH)
    found = {name: found_at(others, name.encode()) for name in names}
    assert {name: place for name, place in found.items() if place} == {
        "engine-0": (0, 3),
        "engine-2": (2, 3),
        "engine-10": (10, 3),
        "engine-252": (252, 3),
    }
    others.close()


def test_a_neighbour_that_comes_later_is_noticed(tmp_path):
    others = ListedNeighbours(tmp_path, 0, iter(range(99)).__next__)
    for engine in (1, 2):
        others.look(EPOCH)
        own = listing_of(tmp_path, engine, 9, [b"%d" % engine], [3])
        own.close()
        others.look(EPOCH)
        assert found_at(others, b"%d" % engine) == (engine, 3)
    others.close()


def test_of_several_the_first_one_lends(tmp_path):
    for engine in (10, 2, 5):
        own = listing_of(tmp_path, engine, 9, [b"a"], [engine % 9])
        own.close()
    others = ListedNeighbours(tmp_path, 0, iter(range(99)).__next__)
    others.look(EPOCH)
    assert found_at(others, b"a") == (2, 2)
    others.close()


def test_what_was_just_looked_at_is_not_looked_at_again(tmp_path):
    home_of(tmp_path, 2).mkdir()
    own = FileListing(home_of(tmp_path, 2), 9)
    begin(own)
    times = iter([0.0, 0.0009, 0.001, 0.0011, 0.0012])
    others = ListedNeighbours(tmp_path, 0, times.__next__)
    others.look(EPOCH)
    own.holds([b"a"], [1])
    others.look(EPOCH)
    assert found_at(others, b"a") is None
    others.look(EPOCH)
    assert found_at(others, b"a") == (2, 1)
    others.look(78)
    assert found_at(others, b"a") is None, "another epoch is another question"
    others.close()
    own.close()


def test_a_folder_that_is_gone_has_no_neighbours(tmp_path):
    others = ListedNeighbours(tmp_path / "gone", 0, iter(range(99)).__next__)
    others.look(EPOCH)
    assert found_at(others, b"a") is None
    (tmp_path / "gone" / "engine-1").mkdir(parents=True)
    own = FileListing(tmp_path / "gone" / "engine-1", 9)
    begin(own)
    own.holds([b"a"], [1])
    others.look(EPOCH)
    assert found_at(others, b"a") == (1, 1)
    others.close()
    own.close()


# What is used


@pytest.mark.usefixtures("few")
def test_who_is_borrowed_from_hears_of_it_once(fd, tmp_path):
    writer, near = started(fd), Near(tmp_path)
    writer.use([NeighbourSlot(5, 1)])
    near.seen()
    assert near.used == [], "what was before nobody asks about"
    writer.use([NeighbourSlot(5, 2), NeighbourSlot(4, 3), NeighbourSlot(5, 30)])
    writer.write([7] * 8, [b"g"] * 8)
    assert near.seen() == {7: b"g"} and near.used == [2, 30]
    writer.use([NeighbourSlot(5, 4)])
    near.seen()
    near.seen()
    assert near.used == [2, 30, 4]
    near.used = []
    writer.use([NeighbourSlot(5, slot) for slot in range(20)])
    near.seen()
    assert near.used == [16, 17, 18, 19], "as many as are sure to be told still"
    assert read_opening(fd)[3:] == (8, 25)
    started(fd, run=2).use([NeighbourSlot(5, 9)])
    near.seen()
    assert near.used == [16, 17, 18, 19]
    os.ftruncate(fd, 8192)
    assert used_slots(fd, 0, 1, 5) == []
    near.close()


def test_uses_of_all_are_taken_together_once(tmp_path):
    lists = {}
    for engine in (1, 2):
        home_of(tmp_path, engine).mkdir()
        lists[engine] = FileListing(home_of(tmp_path, engine), 9)
        begin(lists[engine])
    others = ListedNeighbours(tmp_path, 0, iter(range(99)).__next__)
    others.look(EPOCH)
    assert others.take_used() == []
    lists[1].uses([NeighbourSlot(0, 3), NeighbourSlot(2, 4)])
    lists[2].uses([NeighbourSlot(0, 5)])
    others.look(EPOCH)
    assert others.take_used() == [3, 5] and others.take_used() == []
    others.close()
    for own in lists.values():
        own.close()
        own.uses([NeighbourSlot(0, 1)])


# What is lent


def test_what_is_borrowed_its_owner_knows(fd, tmp_path):
    started(fd).write([1, 2, 3, 9, 39], [b"a", b"b", b"c", b"d", b"e"])
    near, other = Near(tmp_path), Near(tmp_path)
    near.seen()
    other.seen()
    assert loans.locked(fd, 40) == []
    assert near.borrow(2, b"b") and near.borrow(3, b"c") and other.borrow(3, b"c") and other.borrow(39, b"e")
    assert loans.locked(fd, 40) == [2, 3, 39] and loans.locked(fd, 39) == [2, 3]
    near.give_back(3)
    assert loans.locked(fd, 40) == [2, 3, 39]
    other.give_back(3)
    assert loans.locked(fd, 40) == [2, 39]
    near.close()
    assert loans.locked(fd, 40) == [39]
    other.close()
    assert loans.locked(fd, 40) == []


def test_whoever_borrowed_in_whatever_order_all_is_known(fd, tmp_path):
    """The system lists locks by who has them, not by where they are."""
    started(fd).write([*range(40)], [b"%d" % slot for slot in range(40)])
    several = [Near(tmp_path) for _ in range(3)]
    borrowed = set()
    for index, slot in enumerate([30, 31, 4, 39, 0, 17, 5, 16, 38, 1]):
        near = several[index % 3]
        near.seen()
        assert near.borrow(slot, b"%d" % slot)
        borrowed.add(slot)
        assert loans.locked(fd, 40) == sorted(borrowed)
    assert loans.locked(fd, 31) == [0, 1, 4, 5, 16, 17, 30]
    for near in several:
        near.close()


def test_a_lock_of_all_that_follows_is_of_all_slots_that_follow(fd, tmp_path):
    started(fd)
    with (tmp_path / "listing").open("rb") as other:
        loans.fcntl.fcntl(other, loans.fcntl.F_OFD_SETLK, loans._FLOCK.pack(loans.fcntl.F_RDLCK, 0, 35, 0, 0))
        assert loans.locked(fd, 40) == [35, 36, 37, 38, 39] and loans.locked(fd, 30) == []


def test_what_is_borrowed_twice_is_given_back_twice(fd, tmp_path):
    started(fd).write([1], [b"a"])
    near = Near(tmp_path)
    near.seen()
    assert near.borrow(1, b"a") and near.borrow(1, b"a")
    near.give_back(1)
    assert loans.locked(fd, 40) == [1]
    near.give_back(1)
    assert loans.locked(fd, 40) == []
    near.close()


def test_what_went_is_not_borrowed(fd, tmp_path):
    writer, near = started(fd), Near(tmp_path)
    writer.write([1, 2], [b"a", b"b"])
    near.seen()
    assert near.borrow(2, b"b")
    writer.write([1, 2], [b"c", b"d"])
    assert not near.borrow(1, b"a") and not near.borrow(2, b"b")
    assert loans.locked(fd, 40) == [2], "as it was before"
    near.close()


def test_a_lock_that_can_not_be_had_is_a_chunk_that_is_not_borrowed(fd, tmp_path, monkeypatch):
    started(fd).write([1], [b"a"])
    near = Near(tmp_path)
    near.seen()

    def refused(*args):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(loans.fcntl, "fcntl", refused)
    assert not near.borrow(1, b"a")
    monkeypatch.undo()
    assert near.borrow(1, b"a") and loans.locked(fd, 40) == [1]
    near.close()


@pytest.mark.parametrize("was_read", [True, False])
def test_who_can_not_be_read_has_nothing_and_is_said_once(was_read, fd, tmp_path, monkeypatch, caplog):
    """The disk of a neighbour's home fails, and the engine goes on."""
    started(fd).write([1], [b"a"])
    near = Near(tmp_path)
    if was_read:
        near.seen()
    really, fails = os.pread, []

    def pread(*args):
        if fails:
            raise OSError(errno.EIO, "Input/output error")
        return really(*args)

    monkeypatch.setattr(os, "pread", pread)
    for times in (1, 2):
        fails.append(times)
        if was_read or times > 1:
            assert not near.borrow(1, b"a") and loans.locked(fd, 40) == []
        for _ in range(3):
            assert near.seen() == {}
            assert len(caplog.messages) == times
        assert caplog.messages[-1].startswith(f"{near._path}: what this neighbour has isn't found: [Errno 5]")
        fails.clear()
        assert near.seen() == {1: b"a"} and near.borrow(1, b"a")
        near.give_back(1)
    near.check()
    near.close()


BORROWER = """
import sys
from pathlib import Path
from kv_offload_file.sharing.neighbours import Neighbour
from kv_offload_file.sharing.whereabouts import Whereabouts
near = Neighbour(Path(sys.argv[1]), 5, 1, Whereabouts())
near.look(77, 40)
print(near.borrow(1, b"a"), flush=True)
sys.stdin.read()
"""


def test_what_another_process_borrowed_is_free_when_it_is_killed(fd, tmp_path):
    started(fd).write([1], [b"a"])
    with subprocess.Popen(
        [sys.executable, "-c", BORROWER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"True\n"
        assert loans.locked(fd, 40) == [1]
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert loans.locked(fd, 40) == []


def test_a_system_without_such_locks_is_refused(monkeypatch):
    loans.refuse_without_locks()
    monkeypatch.delattr(loans.fcntl, "F_OFD_GETLK")
    with pytest.raises(ConfigError, match="file_shared: this system has no locks of open files"):
        loans.refuse_without_locks()


def test_a_list_is_read_when_it_is_whole(tmp_path):
    own, near = FileListing(tmp_path, 40), Near(tmp_path)
    own.begin(EPOCH)
    own.holds([b"a", b"b"], [1, 2])
    assert near.seen() == {}
    own.open()
    assert near.seen() == {1: b"a", 2: b"b"}
    assert (tmp_path / "listing").stat().st_mode & 0o777 == 0o600, "or others could keep chunks where they are"
    own.begin(EPOCH)
    assert near.seen() == {}
    own.close()
    near.close()


# What goes wrong


def test_a_list_that_can_not_be_written_is_emptied_and_said_once(tmp_path, monkeypatch, caplog):
    own, near = FileListing(tmp_path, 40), Near(tmp_path)
    begin(own)
    own.holds([b"a"], [1])
    assert near.seen() == {1: b"a"}

    def full(*args):
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as broken, caplog.at_level(logging.ERROR):
        broken.setattr(listing.os, "pwrite", full)
        own.holds([b"b"], [2])
        own.holds([b"c"], [3])
    [record] = caplog.records
    assert record.getMessage() == (
        f"{tmp_path / 'listing'}: from now on no neighbour finds anything here: [Errno 28] no space left"
    )
    assert near.seen() == {} and own.lent() == []
    own.leaves([1])
    own.uses([NeighbourSlot(0, 1)])
    begin(own)
    own.holds([b"d"], [4])
    assert near.seen() == {4: b"d"}, "who begins anew tries again"
    own.close()
    near.close()
    assert own.lent() == [], "nobody asks of what is closed"


def test_a_use_that_can_not_be_told_is_the_end_of_telling(tmp_path, monkeypatch, caplog):
    own, near = FileListing(tmp_path, 40), Near(tmp_path)
    begin(own)
    own.holds([b"a"], [1])

    def full(*args):
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as broken:
        broken.setattr(listing.os, "pwrite", full)
        own.uses([NeighbourSlot(0, 1)])
    assert "from now on no neighbour finds anything here" in caplog.text and near.seen() == {}
    own.close()
    near.close()


def test_a_list_that_can_not_even_be_emptied_is_said_to_be_wrong(tmp_path, monkeypatch, caplog):
    own = FileListing(tmp_path, 40)

    def broken(*args):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(listing.os, "ftruncate", broken)
    begin(own)
    assert [record.getMessage().split(": ", 1)[1] for record in caplog.records] == [
        "from now on no neighbour finds anything here: [Errno 5] broken",
        "what it says may be wrong: [Errno 5] broken",
    ]
    own.holds([b"a"], [1])
    own.close()


def test_a_home_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"file_dir: No such file or directory: .*gone/listing"):
        FileListing(tmp_path / "gone", 40)
