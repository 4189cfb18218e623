"""An offer is refused if free places and chunks that may leave don't suffice for it, and only then."""

import pytest

from kv_api import ReqContext
from kv_offload_cpu import AtOnceManager

CAPACITY = 9
REQUEST = ReqContext("request")


@pytest.fixture(params=["one", "several"])
def offer(request, keys):
    """Offers new chunks: in one call, or in one of several stores. Says whether all of them got a place."""

    def offer_them(manager, first, count):
        new = keys(range(first, first + count))
        if request.param == "one":
            return manager.prepare_store(new, REQUEST) is not None
        return len(manager.prepare_stores([(new[:1], REQUEST), (new[1:], REQUEST)])) == 2

    return offer_them


@pytest.mark.parametrize(("resident", "in_flight", "pinned"), [
    (0, 0, 0), (4, 0, 0), (9, 0, 0), (9, 0, 3), (6, 3, 0), (4, 3, 2), (7, 2, 5), (5, 0, 3), (3, 4, 3),
])  # fmt: skip
def test_all_that_is_free_or_may_leave_is_given(make, keys, store, policy, offer, resident, in_flight, pinned):
    def fill():
        manager = make(CAPACITY, policy)
        for number in range(resident):
            store(manager, [number])
        manager.touch(keys(range(0, resident, 2)), REQUEST)
        manager.prepare_store(keys(range(100, 100 + in_flight)), REQUEST)
        manager.prepare_load(keys(range(pinned)), REQUEST)
        return manager

    room = CAPACITY - in_flight - pinned
    assert offer(fill(), 200, room)
    refused = fill()
    assert not refused.prepare_store(keys(range(200, 201 + room)), REQUEST)
    assert not offer(refused, 200, room + 1)


@pytest.mark.parametrize("pinned", [0, 2])
def test_what_a_policy_remembers_is_given_as_much(make, keys, store, policy, pinned):
    """Chunks come back that left before, while others were used twice."""
    manager = make(CAPACITY, policy)
    for number in range(CAPACITY):
        store(manager, [number])
    manager.touch(keys(range(4)), REQUEST)
    evicted = [key for number in range(50, 54) for key in store(manager, [number])]
    manager.prepare_load(keys([53 - number for number in range(pinned)]), REQUEST)
    offered = [*evicted, *keys(range(70, 70 + CAPACITY - pinned - len(evicted)))]
    assert manager.prepare_store([*offered, *keys([99])], REQUEST) is None
    assert manager.prepare_store(offered, REQUEST).keys_to_store == offered


@pytest.mark.parametrize("pinned", [0, 2])
def test_of_an_offer_only_what_is_new_needs_room(make, keys, store, policy, pinned):
    manager = make(CAPACITY, policy)
    store(manager, range(CAPACITY))
    manager.prepare_load(keys(range(pinned)), REQUEST)
    there = range(CAPACITY - 3)
    assert manager.prepare_store(keys([*there, 90, 91, 92, 93]), REQUEST) is None
    assert manager.prepare_store(keys([*there, 90, 91, 92]), REQUEST).keys_to_store == keys([90, 91, 92])


def test_at_once_all_is_given_too(make, keys, policy):
    manager = make(CAPACITY, policy, kind=AtOnceManager)
    assert manager.store(keys(range(CAPACITY + 1)), REQUEST) is None
    assert manager.store(keys(range(CAPACITY)), REQUEST) is not None
    assert manager.store(keys(range(100, 100 + CAPACITY)), REQUEST) is not None
