"""A pool full of pins: evictions look at a pinned chunk once for each pin, not once for each eviction."""

import pytest

from kv_api import ReqContext
from kv_offload_cpu.slots.pins import Pins

CAPACITY = 400


class CountingSet(set):
    looks = 0

    def __contains__(self, slot):
        self.looks += 1
        return super().__contains__(slot)

    def isdisjoint(self, slots):
        self.looks += len(slots)
        return super().isdisjoint(slots)


@pytest.fixture
def mostly_pinned(make, keys, store, policy):
    """All chunks but the newest are being loaded; what is looked at is counted from here on."""
    manager = make(CAPACITY, policy)
    for start in range(0, CAPACITY, 40):
        store(manager, range(start, start + 40))
    loads = ReqContext("loads")
    manager.prepare_load(keys(range(CAPACITY - 10)), loads)
    manager._pool.pins._slots = CountingSet(manager._pool.pins.slots)
    return manager, loads


def test_evictions_do_not_scan_the_pins_again_and_again(mostly_pinned, store):
    manager, _ = mostly_pinned
    for number in range(1000):
        store(manager, [CAPACITY + number])
    # One look at each pin, and a few for each eviction and store. Scanning would be 400 for each.
    assert manager._pool.pins.slots.looks < 4 * CAPACITY + 10 * 1000


def test_refusals_look_at_nothing(mostly_pinned, keys):
    manager, _ = mostly_pinned
    manager.prepare_load(keys(range(CAPACITY - 10, CAPACITY)), ReqContext("the rest"))
    manager._pool.pins.slots.looks = 0
    for number in range(1000):
        assert manager.prepare_store(keys([CAPACITY + number]), ReqContext("refused")) is None
    assert manager._pool.pins.slots.looks == 0


def test_unpinned_chunks_can_be_evicted_again(mostly_pinned, keys, store):
    manager, loads = mostly_pinned
    for number in range(20):
        store(manager, [CAPACITY + number])
    manager.complete_load(keys(range(CAPACITY - 10)), loads)
    manager.check()
    assert len(store(manager, range(2000, 2000 + CAPACITY))) == CAPACITY


def test_stores_that_fit_look_at_no_pins(make, keys, monkeypatch):
    """Nor do their ends. Slots that nobody asks about go into no set, one by one, and out of it."""
    manager = make(CAPACITY, "lru")
    batches = [keys(range(start, start + 40)) for start in range(0, CAPACITY, 40)]
    with monkeypatch.context() as patches:
        patches.setattr(Pins, "_note_arriving", lambda pins: pytest.fail("somebody asks which slots have a pin"))
        for batch in batches:
            assert manager.prepare_store(batch, ReqContext("stores")) is not None
        for batch in batches:
            manager.complete_store(batch, ReqContext("stores"))
