"""What several threads of a wire over TCP change is only touched by who has its lock."""

import threading
from collections import deque

import pytest
from kv_p2p_carrier import LocalCarrier
from kv_p2p_tcp import PATIENCE

from kv_p2p.pulling import wire
from kv_p2p.pulling.carrier import LingeringReadError
from kv_p2p.pulling.tcp import client, lanes
from kv_p2p.pulling.tcp.slots import SlotPool
from kv_p2p.pulling.ticket import Address

OF_HOLDS = ("serve", "is_to_come", "begin_read", "end_read", "decline", "withdraw", "take_served", "check")


@pytest.fixture
def here(worker):
    return worker(1)


@pytest.fixture
def touch(here):
    """Notes what is touched, and whether somebody had the lock then."""
    touched = set()

    def note(name):
        touched.add((name, here.wire._lock.locked()))

    note.all = touched
    return note


def test_holds(here, worker, touch, monkeypatch):
    def watch(name, method):
        def watched(*arguments, **named):
            touch(name)
            return method(*arguments, **named)

        monkeypatch.setattr(here.wire._holds, name, watched)

    for name in OF_HOLDS:
        watch(name, getattr(here.wire._holds, name))
    there = worker(2)
    for name in "abc":
        here.serve(name, 1, 2)
    there.pull("r", here.source("a"), 3)
    there.wait_for_pulls()
    there.wire.decline(here.source("b"))
    here.wait_for(lambda: sorted(here.served) == ["a", "b"])
    assert here.wire.withdraw("c") is True
    here.wire.check()
    assert touch.all == {(name, True) for name in OF_HOLDS}


def test_pulls(here, worker, touch, raw, monkeypatch):
    class Pulls(dict):
        def __setitem__(self, key, value):
            touch("begin")
            super().__setitem__(key, value)

        def __delitem__(self, key):
            touch("end")
            super().__delitem__(key)

        def clear(self):
            touch("clear")
            super().clear()

    class UnderWay(client._UnderWay):
        def __setattr__(self, name, value):
            if name in vars(self):  # it has been made
                touch(name)
            super().__setattr__(name, value)

    class Ended(wire.Ended):
        def __setattr__(self, name, value):
            if name in vars(self):
                touch(name)
            super().__setattr__(name, value)

    here.wire._client._pulls = Pulls()
    here.wire._client._ended = Ended()
    monkeypatch.setattr(client, "Ended", Ended)
    monkeypatch.setattr(client, "_UnderWay", UnderWay)
    there = worker(2)
    there.serve("a", 1, 2)
    here.pull("r", there.source("a"), 3)
    here.wait_for_pulls()
    for name in "st":
        here.pull(name, raw.source, 4)
        raw.asked()
    assert here.wire.give_up("s") is True
    here.close()
    names = ("begin", "end", "clear", "socket", "is_writing", "is_given_up", "pulled_bytes", "served")
    assert touch.all == {(name, True) for name in names}


def test_clients(here, worker, touch):
    class Clients(set):
        def add(self, client):
            touch("add")
            super().add(client)

        def discard(self, client):
            touch("discard")
            super().discard(client)

    here.wire.server._clients = clients = Clients()
    there = worker(2)
    here.serve("a", 1)
    there.pull("r", here.source("a"), 3)
    there.wait_for_pulls()
    here.wait_for(lambda: here.served and not clients)
    assert touch.all == {("add", True), ("discard", True)}


def test_slots():
    class Slots(list):
        def __init__(self, name):
            self.name = name

        def __len__(self):
            touched.add((self.name, "look", pool._lock.locked()))
            return super().__len__()

        def __iter__(self):
            touched.add((self.name, "recount", pool._lock.locked()))
            return super().__iter__()

        def __iadd__(self, more):
            touched.add((self.name, "add", pool._lock.locked()))
            return super().__iadd__(more)

    touched = set()
    pool = SlotPool(LocalCarrier(), 10)
    pool._free, pool._lost = Slots("free"), Slots("lost")
    with pool.take(2):
        pass
    with pytest.raises(LingeringReadError), pool.take(1):
        raise LingeringReadError
    pool.check()
    used = [("free", "look"), ("free", "add"), ("free", "recount"), ("lost", "add"), ("lost", "recount")]
    assert touched >= {(*use, True) for use in used}
    assert all(is_locked for *_, is_locked in touched), touched


def test_lanes(monkeypatch):
    class Places(dict):
        def setdefault(self, key, default):
            touch("begin")
            return super().setdefault(key, default)

        def get(self, key):
            touch("look")
            return super().get(key)

        def __delitem__(self, key):
            touch("end")
            super().__delitem__(key)
            has_ended.set()

        def items(self):
            touch("recount")
            return super().items()

        def clear(self):
            touch("clear")
            super().clear()

    class Waiting(deque):
        def popleft(self):
            touch("take")
            return super().popleft()

    class Lock:
        """Of two threads at once the other one may have it."""

        def __init__(self):
            self._lock, self.owner = threading.Lock(), None

        def __enter__(self):
            self._lock.acquire()
            self.owner = threading.get_ident()

        def __exit__(self, *raised):
            self.owner = None
            self._lock.release()

    def touch(name):
        touched.add((name, all_lanes._lock.owner == threading.get_ident()))

    touched, has_ended = set(), threading.Event()
    make = lanes._Lane
    monkeypatch.setattr(lanes, "_Lane", lambda: make(Waiting()))
    all_lanes = lanes.Lanes("lanes")
    all_lanes._lanes, all_lanes._lock = Places(), Lock()
    here = Address("here", 1)
    all_lanes.add(here, int)
    assert has_ended.wait(PATIENCE)
    all_lanes.length(here)
    all_lanes.check()
    all_lanes.stop()
    all_lanes.join()
    names = ("begin", "take", "end", "look", "recount", "clear")
    assert touched == {(name, True) for name in names}
