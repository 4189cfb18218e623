"""What is asked of NIXL, which is none here. ``carrier_run_check.py`` has a real one."""

import ctypes
import sys
from base64 import b64encode
from collections import Counter
from types import ModuleType, SimpleNamespace

import pytest

from kv_api import ConfigError
from kv_p2p.pulling.carrier import CarrierError, LingeringReadError
from kv_p2p.pulling.nixl import NixlCarrier
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.tcp.slots import SlotPool
from kv_p2p.pulling.tcp.wire import make_carrier

AGENTS = {}
"""By name."""
STATES = []
"""What a transfer answers, one after the other, before it is done."""
FAILS = {}
"""By call: what it raises."""


class NixlError(Exception):
    """NIXL's have no base of their own either."""


class Agent:
    """Reads memory of the process at once, if it was registered when whoever reads learned of it."""

    def __init__(self, name, config):
        self.name, self.config = name, config
        self.backends, self.memory, self.known, self.released, self.removed = [], [], {}, [], []
        AGENTS[name] = self

    def _may_fail(self, name):
        if name in FAILS:
            raise NixlError(FAILS[name])

    def get_plugin_list(self):
        return ["UCX", "POSIX"]

    def create_backend(self, name):
        self._may_fail("create_backend")
        self.backends.append(name)

    def register_memory(self, places, kind):
        self._may_fail("register_memory")
        assert kind == "DRAM"
        [(address, size, device, text)] = places
        assert (device, text) == (0, "")
        self.memory.append((address, size))
        return (address, size)

    def deregister_memory(self, place):
        self.memory.remove(place)

    def get_agent_metadata(self):
        return f"{self.name} {len(self.memory)}".encode()

    def add_remote_agent(self, metadata):
        self._may_fail("add_remote_agent")
        name, count = metadata.decode().rsplit(maxsplit=1)
        self.known[name.encode()] = AGENTS[name].memory[: int(count)]
        return name.encode()

    def remove_remote_agent(self, name):
        del self.known[name]
        self.removed.append(name)

    def get_xfer_descs(self, places, kind):
        assert kind == "DRAM"
        [(address, size, device)] = places
        assert device == 0
        return address, size

    def initialize_xfer(self, operation, here, there, peer):
        assert operation == "READ"
        assert any(begin <= here[0] and sum(here) <= begin + size for begin, size in self.memory)
        if not any(begin <= there[0] and sum(there) <= begin + size for begin, size in self.known[peer]):
            raise NixlError("NOT_FOUND")
        return here, there

    def transfer(self, handle):
        self._may_fail("transfer")
        return self._next(handle)

    def check_xfer_state(self, handle):
        return self._next(handle)

    def _next(self, handle):
        state = STATES.pop(0) if STATES else "DONE"
        if state == "DONE":
            (to, size), (at, _) = handle
            ctypes.memmove(to, at, size)
        return state

    def release_xfer_handle(self, handle):
        self._may_fail("release_xfer_handle")
        self.released.append(handle)


@pytest.fixture(autouse=True)
def nixl(monkeypatch):
    """In the place of NIXL's own."""
    package, module = ModuleType("nixl"), ModuleType("nixl._api")
    module.nixl_agent = Agent
    module.nixl_agent_config = SimpleNamespace
    module.nixl_thread_sync_t = SimpleNamespace(NIXL_THREAD_SYNC_STRICT="strict")
    monkeypatch.setitem(sys.modules, "nixl", package)
    monkeypatch.setitem(sys.modules, "nixl._api", module)
    monkeypatch.setattr("kv_p2p.pulling.nixl.sleep", lambda seconds: None)
    yield
    for kept in (AGENTS, STATES, FAILS):
        kept.clear()


def pair():
    return NixlCarrier("UCX", 30.0, serves=False), NixlCarrier("UCX", 30.0, serves=True)


def agent_of(carrier):
    return carrier._agent


def filled(carrier, text):
    slot = carrier.make_slot(4096)
    slot.memory[: len(text)] = text
    return slot


def test_an_agent_has_a_name_of_its_own_one_backend_a_lock_and_if_it_serves_a_thread():
    one, other = pair()
    assert (one.name, len(AGENTS)) == ("nixl", 2)
    assert agent_of(one).backends == ["UCX"]
    config = {"backends": [], "sync_mode": "strict"}
    assert vars(agent_of(one).config) == {"enable_prog_thread": False, **config}
    assert vars(agent_of(other).config) == {"enable_prog_thread": True, **config}
    assert NixlCarrier("POSIX", 1.0, serves=True)._agent.backends == ["POSIX"]
    assert one.session != other.session


def test_slots_are_registered_memory_of_whole_pages_until_the_end():
    one, _ = pair()
    slots = [one.make_slot(size) for size in (5000, 0)]
    assert agent_of(one).memory == [(slots[0].address, 5000), (slots[1].address, 1)]
    assert [(len(slot.memory), slot.address % 4096) for slot in slots] == [(5000, 0), (0, 0)]
    slots[0].memory[:3] = b"abc"
    assert bytes(slots[0].owner[:4]) == b"abc\0"
    one.close()
    one.close()
    assert agent_of(one).memory == []


def test_a_session_tells_of_every_slot_and_is_learned_once():
    one, other = pair()
    into, sessions = one.make_slot(4096), []
    for text in (b"first", b"second"):
        slot = filled(other, text)
        sessions.append(other.session)
        for _ in range(2):
            one.read(other.session, slot.address, into, len(text))
            assert bytes(into.memory[: len(text)]) == text
        FAILS["add_remote_agent"] = "it is known"
        one.read(other.session, slot.address, into, len(text))
        del FAILS["add_remote_agent"]
    assert len({*sessions}) == 2
    assert len(agent_of(one).released) == 6
    one.check()
    for _ in range(2):
        one.close()
        one.check()
    assert agent_of(one).known == {}


def test_it_looks_until_all_is_read():
    one, other = pair()
    slot, into = filled(other, b"x"), one.make_slot(10)
    STATES[:] = ["PROC"] * 5
    one.read(other.session, slot.address, into, 1)
    assert (bytes(into.memory[:1]), STATES) == (b"x", [])


def read_fails(one, other, slot, into):
    with pytest.raises(CarrierError) as raised:
        one.read(other.session, slot.address, into, 9)
    one.check()
    return str(raised.value)


def test_after_a_read_that_failed_the_other_agent_is_learned_anew():
    one, other = pair()
    slot, into = filled(other, b"text"), one.make_slot(10)
    STATES[:] = ["PROC", "ERR"]
    assert read_fails(one, other, slot, into) == "NIXL's transfer of 9 bytes ended with ERR"
    assert (agent_of(one).known, len(agent_of(one).released)) == ({}, 1)
    FAILS["transfer"] = "no route"
    assert read_fails(one, other, slot, into) == "NIXL can't read 9 bytes: NixlError: no route"
    assert (agent_of(one).known, len(agent_of(one).released)) == ({}, 2)
    del FAILS["transfer"]
    one.read(other.session, slot.address, into, 4)
    assert bytes(into.memory[:4]) == b"text"
    assert len(agent_of(one).known) == 1


def test_of_the_others_all_is_known_still():
    one, other = pair()
    third = NixlCarrier("UCX", 30.0, serves=True)
    slots, into = {carrier: filled(carrier, b"text") for carrier in (other, third)}, one.make_slot(10)
    one.read(third.session, slots[third].address, into, 4)
    STATES[:] = ["ERR"]
    assert read_fails(one, other, slots[other], into) == "NIXL's transfer of 9 bytes ended with ERR"
    FAILS["add_remote_agent"] = "it is known"
    one.read(third.session, slots[third].address, into, 4)
    assert [*agent_of(one).known] == [agent_of(third).name.encode()]


def test_it_is_not_forgotten_while_somebody_else_reads_from_it(monkeypatch):
    one, other = pair()
    slot, into = filled(other, b"text"), one.make_slot(10)
    failing, seen = one.make_slot(10), []

    def meanwhile(_seconds):
        monkeypatch.setattr("kv_p2p.pulling.nixl.sleep", lambda seconds: None)
        STATES[:] = ["ERR"]
        with pytest.raises(CarrierError):
            one.read(other.session, slot.address, failing, 4)
        seen.extend(agent_of(one).known)

    monkeypatch.setattr("kv_p2p.pulling.nixl.sleep", meanwhile)
    STATES[:] = ["PROC"]
    one.read(other.session, slot.address, into, 4)
    assert (len(seen), bytes(into.memory[:4])) == (1, b"text")
    assert agent_of(one).known == {}
    one.check()


def test_of_engines_that_came_and_went_so_many_are_known(monkeypatch):
    """Each start of one is another agent."""
    monkeypatch.setattr("kv_p2p.pulling.nixl.MOST_SESSIONS", 3)
    one, lasting = NixlCarrier("UCX", 30.0, serves=False), NixlCarrier("UCX", 30.0, serves=True)
    into, slot, names = one.make_slot(10), filled(lasting, b"text"), []
    for _ in range(9):
        other = NixlCarrier("UCX", 30.0, serves=True)
        theirs = filled(other, b"text")
        one.read(other.session, theirs.address, into, 4)
        names.append(agent_of(other).name.encode())
        one.read(lasting.session, slot.address, into, 4)
        one.check()
    assert agent_of(one).removed == names[:-2], "never the one that is read from again and again"
    with one._peer(lasting.session), one._peer(other.session):
        for peer in [NixlCarrier("UCX", 30.0, serves=True) for _ in range(3)]:
            theirs = filled(peer, b"text")
            one.read(peer.session, theirs.address, into, 4)
        assert {agent_of(lasting).name.encode(), names[-1]} < {*agent_of(one).known}
    one.check()


def test_a_read_does_not_wait_for_ever(monkeypatch):
    one, other = pair()
    slot, into = filled(other, b"text"), one.make_slot(10)
    now = iter([100.0, 129.9, 130.0])
    monkeypatch.setattr("kv_p2p.pulling.nixl.monotonic", lambda: next(now))
    STATES[:] = ["PROC"] * 9
    assert read_fails(one, other, slot, into) == "NIXL hasn't read 9 bytes within 30 s"
    assert (len(STATES), len(agent_of(one).released)) == (7, 1)


def test_a_slot_is_lost_into_which_a_read_may_still_write():
    one, other = pair()
    slot, pool = filled(other, b"text"), SlotPool(one, 10)
    STATES[:] = ["ERR"]
    FAILS["release_xfer_handle"] = "active"
    with pytest.raises(LingeringReadError) as raised, pool.take(1) as [lost]:
        one.read(other.session, slot.address, lost, 4)
    assert str(raised.value) == "NIXL can't end a transfer: NixlError: active"
    with pool.take(2) as slots:
        assert lost not in slots
    pool.check()
    FAILS.clear()
    STATES[:] = ["ERR"]
    with pytest.raises(CarrierError), pool.take(1) as [failed]:
        one.read(other.session, slot.address, failed, 4)
    assert failed is not lost
    with pool.take(3) as slots:
        assert lost in slots, "it has ended by now"
    pool.check()
    assert (pool._made, len(agent_of(one).released)) == (3, 2)


@pytest.mark.parametrize("session", ["10.0.0.1:80", "é", ""])
def test_what_is_no_session_is_said(session):
    one, _ = pair()
    into = one.make_slot(10)
    with pytest.raises(CarrierError, match=r"^NIXL can't read 9 bytes: "):
        one.read(session, 4096, into, 9)
    one.check()


def test_what_nixl_can_not_do_is_said():
    one, other = pair()
    into = one.make_slot(10)
    with pytest.raises(CarrierError, match=r"^NIXL can't read 9 bytes: NixlError: NOT_FOUND$"):
        one.read(other.session, 4096, into, 9)
    FAILS.update(register_memory="limit", create_backend="no device")
    with pytest.raises(CarrierError, match=r"^NIXL can't register 10 bytes: NixlError: limit$"):
        one.make_slot(10)
    where = "kv_connector_extra_config.nixl_backend"
    with pytest.raises(ConfigError) as raised:
        NixlCarrier("UCX", 1.0, serves=True)
    assert str(raised.value) == f"{where}: 'UCX' doesn't start: NixlError: no device"
    with pytest.raises(ConfigError) as raised:
        NixlCarrier("EFA", 1.0, serves=True)
    assert str(raised.value) == f"{where}: expected one of POSIX, UCX, got 'EFA'"


def test_without_nixl_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "nixl._api", None)
    with pytest.raises(ConfigError, match=r"^kv_connector_extra_config.carrier: 'nixl' needs the package nixl: "):
        NixlCarrier("UCX", 1.0, serves=True)


def test_a_worker_has_the_carrier_that_was_chosen():
    chosen = make_carrier(Options(carrier="nixl", nixl_backend="POSIX", pull_seconds=7.0), serves=True)
    assert (type(chosen), agent_of(chosen).backends, chosen._seconds) == (NixlCarrier, ["POSIX"], 7.0)
    assert agent_of(chosen).config.enable_prog_thread


def test_a_recount_sees_who_still_reads():
    one, other = pair()
    assert b64encode(agent_of(other).get_agent_metadata()).decode() == other.session
    with pytest.raises(AssertionError, match=r"^Counter\(.*, broken: set\(\)"), one._peer(other.session):
        one.check()
    one.check()
    one._broken.add("other")
    with pytest.raises(AssertionError, match=r"broken: {'other'}$"):
        one.check()
    one._broken.clear()
    one._reads["other"] = 0
    with pytest.raises(AssertionError, match=r"^Counter\({'other': 0}\), known: {}$"):
        one.check()


def test_who_reads_is_counted_by_who_has_the_lock():
    class Reads(Counter):
        def __setitem__(self, peer, count):
            seen.append(("count", one._lock.locked()))
            super().__setitem__(peer, count)

        def values(self):
            seen.append(("recount", one._lock.locked()))
            return super().values()

        def clear(self):
            seen.append(("clear", one._lock.locked()))
            super().clear()

    seen = []
    one, other = pair()
    slot, into = filled(other, b"text"), one.make_slot(10)
    one._reads = Reads()
    one.read(other.session, slot.address, into, 4)
    one.check()
    one.close()
    assert seen == [("count", True), ("count", True), ("recount", True), ("clear", True)]
