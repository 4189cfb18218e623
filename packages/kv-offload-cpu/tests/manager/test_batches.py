"""What is done by the batch is what is done chunk by chunk, and what is kept of a batch is never out of date."""

from collections import Counter
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kv_api import KVError, LookupResult, ReqContext
from kv_offload_cpu import AtOnceManager, CPULoadStoreSpec
from kv_offload_cpu.policy.arc import _Plan
from kv_offload_cpu.policy.fifo import Ghosts
from kv_offload_cpu.slots.pick import pick
from kv_offload_cpu.slots.pins import Pins

ONE = ReqContext("one")
TWO = ReqContext("two")
CAPACITY = 6
slots = st.lists(st.integers(0, CAPACITY - 1), max_size=4)


@pytest.mark.parametrize("keys", [[], ["b"], ["b", "a"], ["c", "a", "c", "b"], ("b", "a"), {"b": 0, "c": 1}])
def test_pick(keys):
    where = {"a": 1, "b": 2, "c": 3}
    assert pick(keys, where) == [where[key] for key in keys]


@pytest.mark.parametrize("keys", [["x"], ["a", "x"], ["a", "x", "b", "y", "x"]])
def test_what_can_not_be_picked_is_named(keys):
    with pytest.raises(KeyError) as error:
        pick(keys, {"a": 1, "b": 2})
    assert error.value.args == ("x",)


@example([("pin", [1, 2]), ("unpin", [2, 1, 1])])
@given(st.lists(st.tuples(st.sampled_from(["pin", "pin", "unpin", "unpin_all"]), slots), max_size=40))
def test_pins(actions):
    pins, model = Pins(CAPACITY), Counter()
    for action, some in actions:
        if action == "pin":
            assert pins.pin(some) == [*dict.fromkeys(some)]
            model.update(some)
        elif action == "unpin_all":
            for slot in some:
                assert pins.unpin_all(slot) == model.pop(slot, 0)
        else:
            short = [slot for index, slot in enumerate(some) if some[: index + 1].count(slot) > model[slot]]
            assert pins.first_missing(some) == (short[0] if short else None)
            if not short:
                model.subtract(some)
                ended = {slot: index for index, slot in enumerate(some) if not model[slot]}
                assert pins.unpin(some) == sorted(ended, key=ended.get)
        pins.check()
        assert [*pins] == [model[slot] for slot in range(CAPACITY)]
        assert pins.slots == {slot for slot, count in model.items() if count}


class Stored:
    """Pins, of slots that loads or stores use, and the obvious model of them."""

    def __init__(self):
        self.pins, self.loads, self.stores = Pins(CAPACITY), Counter(), []

    def begin(self, some):
        free = [slot for slot in dict.fromkeys(some) if slot not in self.in_flight() and not self.loads[slot]]
        if free:
            self.pins.arrive(free)
            self.stores.append(free)

    def end(self, some):
        """A store as it began, or some slots of any stores."""
        if some and self.stores and some[0] % 2:
            ended = self.stores.pop(some[0] % len(self.stores))
        else:
            ended = sorted(self.in_flight().intersection(some))
            self.stores = [[slot for slot in store if slot not in ended] for store in self.stores]
            self.stores = [store for store in self.stores if store]
        self.pins.land(ended)

    def load(self, some):
        loaded = [slot for slot in some if slot not in self.in_flight()]
        self.pins.pin(loaded)
        self.loads.update(loaded)

    def unload(self, some):
        ended = [slot for slot in dict.fromkeys(some) if self.loads[slot]]
        assert self.pins.first_missing(ended) is None
        self.pins.unpin(ended)
        self.loads.subtract(ended)

    def forget(self, some):
        for slot in some:
            assert self.pins.unpin_all(slot) == self.loads.pop(slot, 0) + (slot in self.in_flight())
            self.stores = [[other for other in store if other != slot] for store in self.stores]

    def in_flight(self):
        return {slot for store in self.stores for slot in store}

    def look(self, some):
        loading = {slot for slot, count in self.loads.items() if count}
        assert self.pins.counts() == (len(self.in_flight()), len(loading))
        match len(some):
            case 0:
                assert self.pins.slots == self.in_flight() | loading
            case 1:
                assert self.pins.in_flight == self.in_flight()
            case 2:
                self.pins.check()
            case _:
                for slot in some:
                    assert self.pins[slot] == self.loads[slot] + (slot in self.in_flight())


@given(
    st.lists(
        st.tuples(st.sampled_from(["begin", "begin", "end", "load", "unload", "forget", "look", "look"]), slots),
        max_size=50,
    )
)
def test_it_is_no_matter_when_pins_are_looked_at(actions):
    stored = Stored()
    for action, some in actions:
        getattr(stored, action)(some)
    for some in ([], [0], [0, 1], range(CAPACITY)):
        stored.look(some)


@pytest.mark.parametrize(
    ("ended", "left"), [([0], {1, 2, 3}), ([0, 1], {2, 3}), ([2, 0], {1, 3}), ([3], {0, 1, 2})]
)
def test_a_part_of_a_store_ends_before_anybody_asked(ended, left):
    pins = Pins(4)
    pins.arrive([0, 1])
    pins.arrive([2, 3])
    pins.land(ended)
    assert (pins.slots, pins.in_flight, pins.counts()) == (left, left, (len(left), 0))
    pins.check()


def test_what_is_forgotten_is_not_in_flight():
    pins = Pins(3)
    pins.arrive([0, 1])
    assert [pins.unpin_all(slot) for slot in (0, 2)] == [1, 0]
    assert (pins.slots, pins.in_flight, pins.counts()) == ({1}, {1}, (1, 0))
    pins.check()


def test_what_landed_is_not_in_flight_whatever_else_is():
    """A store that ended may be as it came, or noted since; and so may others that go on."""
    pins = Pins(9)
    pins.arrive([0, 1, 2])
    assert pins.in_flight == {0, 1, 2}  # noted
    pins.arrive([3, 4])
    pins.land([3, 4])  # an equal list, and not the one that was kept
    assert (pins.in_flight, pins.slots, pins.counts()) == ({0, 1, 2}, {0, 1, 2}, (3, 0))
    pins.arrive([5, 6])
    pins.land([1, 5])
    assert (pins.in_flight, pins.slots, pins.counts()) == ({0, 2, 6}, {0, 2, 6}, (3, 0))
    pins.check()


def test_a_slot_with_a_pin_is_not_stored_to():
    pins = Pins(3)
    pins.pin([1])
    pins.arrive([0, 1])
    with pytest.raises(AssertionError, match=r"of the slots \[0, 1\] some were pinned before a store"):
        pins.check()


def test_pins_are_a_sequence():
    pins = Pins(3)
    pins.pin([1, 2, 2])
    assert (len(pins), pins[1:], pins[-3:1]) == (3, [1, 2], [0])
    with pytest.raises(IndexError, match="slot 3 of 3"):
        pins[3]


# What was found, and what was loaded


def test_what_was_found_is_looked_for_again_once_a_chunk_left(make, keys, store):
    manager, found = make(3), keys(range(3))
    store(manager, range(3))
    assert manager.lookup_prefix(found, ONE) == (3, LookupResult.HIT)
    store(manager, [7])
    assert manager.lookup_prefix(found, ONE) == (2, LookupResult.MISS)
    store(manager, [2])
    assert manager.lookup_prefix(found, ONE).hits == 1  # 1, the tail, had to go for it
    manager.drop(found[:1])
    assert manager.lookup_prefix(found[:2], ONE) == (0, LookupResult.MISS)


def test_a_chunk_that_comes_back_elsewhere_is_found_there(make, keys, store):
    manager, found = make(2), keys([0, 1])
    store(manager, [0, 1])
    assert manager.lookup_prefix(found, ONE).hits == 2
    manager.drop(found)
    store(manager, [1])
    store(manager, [0])
    assert manager.prepare_load(found, ONE) == CPULoadStoreSpec([0, 1])
    manager.complete_load(found, ONE)
    manager.drop(found)
    store(manager, [0])
    store(manager, [1])
    assert manager.prepare_load(found, ONE) == CPULoadStoreSpec([1, 0])
    manager.complete_load(found, ONE)


def test_a_caller_s_list_is_not_kept(make, keys, store):
    manager, found = make(3), keys([0, 1])
    store(manager, range(3))
    manager.lookup_prefix(found, ONE)
    manager.prepare_load(found, ONE)
    found[0] = keys([2])[0]
    with pytest.raises(KVError, match="is resident, not pinned"):
        manager.complete_load(found, ONE)
    manager.complete_load(keys([0, 1]), ONE)


@pytest.mark.parametrize(
    ("begun", "ended"),
    [
        ([[0, 1, 2]], [[2], [0, 1]]),
        ([[0, 1, 2]], [[0, 1], [2]]),
        ([[0, 1], [0, 1]], [[0, 1], [0, 1]]),
        ([[0, 1], [2, 1]], [[0, 1], [2, 1]]),
        ([[0, 1], [2, 1]], [[2, 1], [0, 1]]),
        ([[0, 1], [2, 1]], [[0, 1, 2, 1]]),
        ([[0, 1, 1]], [[1], [0], [1]]),
        ([[0], [1], [2]], [[2, 1, 0]]),
    ],
)
def test_loads_may_end_in_other_batches_than_they_began(make, keys, store, begun, ended):
    manager = make(3)
    store(manager, range(3))
    for numbers in begun:
        manager.prepare_load(keys(numbers), ONE)
        manager.check()
    for numbers in ended:
        assert manager.prepare_store(keys([7, 8, 9]), TWO) is None
        manager.complete_load(keys(numbers), ONE)
        manager.check()
    for numbers in [*begun, *ended]:  # nothing is left of them
        with pytest.raises(KVError, match="is resident, not pinned"):
            manager.complete_load(keys(numbers), ONE)
    assert len(store(manager, [7, 8, 9])) == 3


@pytest.mark.parametrize(
    ("begun", "ended"),
    [
        ([[0, 1, 2]], [[2], [0, 1]]),
        ([[0, 1, 2]], [[1, 0, 2]]),
        ([[0, 1], [2]], [[0, 1, 2]]),
        ([[0, 1], [2]], [[1, 2], [0]]),
        ([[0], [1], [2]], [[2, 1, 0, 2]]),
        ([[0, 2], [1]], [[0, 2], [0, 2], [1]]),
    ],
)
@pytest.mark.parametrize("success", [True, False])
def test_stores_may_end_in_other_batches_than_they_began(make, keys, begun, ended, success):
    manager, landed = make(3), set()
    for numbers in begun:
        manager.prepare_store(keys(numbers), ONE)
        manager.check()
    for numbers in ended:
        if success:
            assert manager.prepare_store(keys([7, 8, 9]), TWO) is None
        manager.complete_store(keys(numbers), ONE, success)
        manager.check()
        landed.update(numbers)
        there = {number for number in range(3) if manager.lookup(*keys([number]), ONE) is LookupResult.HIT}
        assert there == (landed if success else set())
    assert len(manager.prepare_store(keys([7, 8, 9]), TWO).keys_to_store) == 3


def test_a_caller_s_list_of_a_store_is_not_kept(make, keys):
    manager = make(3)
    output = manager.prepare_store(keys([0, 1]), ONE)
    output.keys_to_store[0] = keys([2])[0]
    manager.complete_store(output.keys_to_store, ONE)
    manager.check()
    assert [manager.lookup(key, ONE) for key in keys([0, 1])] == [LookupResult.HIT_PENDING, LookupResult.HIT]


def test_what_is_kept_of_a_load_ends_with_a_reset(make, keys, store):
    manager, loaded = make(2), keys([0, 1])
    store(manager, [0, 1])
    manager.prepare_load(loaded, ONE)
    manager.reset_cache()
    manager.on_reset_flushed()
    store(manager, [0, 1])
    with pytest.raises(KVError, match="is resident, not pinned"):
        manager.complete_load(loaded, ONE)


@pytest.mark.parametrize("seed", range(10))
def test_lists_are_as_good_as_tuples(make, keys, policy, seed):
    """Of a tuple nothing is kept, so that whatever is asked with it is worked out anew."""
    random = Random(seed)
    managers = [make(12, policy) for _ in range(2)]
    requests = [[ReqContext("request") for _ in range(2)] for _ in range(4)]
    jobs = []
    for _ in range(200):
        start = random.randrange(16)
        batch = keys(range(start, start + random.randint(1, 6)))
        place, answers = random.randrange(4), []
        what, dropped = random.randrange(4), batch[: random.randrange(8) == 0]
        ended = jobs.pop(random.randrange(len(jobs))) if len(jobs) > 1 else None
        for index, kind in enumerate((list, tuple)):
            manager, context = managers[index], requests[place][index]
            hits = manager.lookup_prefix(kind(batch), context).hits
            if what == 0 and ended:
                end, old, loaded = ended
                getattr(manager, end)(kind(loaded), requests[old][index])
            elif what == 1:
                answers.append(manager.prepare_load(kind(batch[:hits]), context))
            elif what == 2:
                answers.append(manager.prepare_store(kind(batch), context))
            else:
                manager.drop(kind(dropped))
            answers.append(hits)
        assert answers[: len(answers) // 2] == answers[len(answers) // 2 :]
        if what == 1:
            jobs.append(("complete_load", place, batch[: answers[1]]))
        elif what == 2 and answers[0] is not None:
            jobs.append(("complete_store", place, answers[0].keys_to_store))
        if ended and what:
            jobs.append(ended)
        for manager in managers:
            manager.check()
        assert managers[0]._pool.slot_of == managers[1]._pool.slot_of
        assert managers[0]._pool.in_flight == managers[1]._pool.in_flight
        assert managers[0]._policy.slots() == managers[1]._policy.slots()
        assert [*managers[0]._pool.pins] == [*managers[1]._pool.pins]


@pytest.mark.parametrize("seed", range(10))
def test_nobody_needs_to_ask(make, keys, policy, seed):
    """Who is asked everything after each call answers as who is never asked."""
    random = Random(seed)
    managers, contexts = (
        [make(8, policy, AtOnceManager) for _ in range(2)],
        [ReqContext("request") for _ in range(2)],
    )
    jobs, outcomes = [], []
    for _ in range(200):
        start = random.randrange(20)
        offers = [keys(range(first, first + random.randrange(1, 4))) for first in (start, start + 3)]
        action, place, success = random.randrange(5), random.random(), random.random() < 0.8
        answers = []
        for manager, context in zip(managers, contexts, strict=True):
            if action < 2:
                offered = offers[: action + 1]
                answers.append(manager.prepare_stores([(offer, context) for offer in offered]))
            elif action == 2:
                answers.append([manager.prepare_store(offers[0], context)])
            elif action == 3 and jobs:
                manager.complete_store(jobs[int(place * len(jobs))], context, success)
            elif action == 4:
                manager.store(offers[1], context)
        managers[0].check()
        managers[0].get_stats()
        if answers:
            assert answers[0] == answers[1]
            jobs += [output.keys_to_store for output in answers[0] if output is not None]
            outcomes += [bool(output and output.evicted_keys) for output in answers[0]]
        elif action == 3 and jobs:
            jobs.pop(int(place * len(jobs)))
    assert {*outcomes} == {False, True}
    managers[1].check()
    assert managers[0]._policy.slots() == managers[1]._policy.slots()


@given(data=st.data(), c=st.integers(1, 20), count=st.integers(1, 30), p=st.floats(0, 20))
def test_arc_admits_new_keys_together_as_one_by_one(data, c, count, p):
    """That one by one is right, is compared with the paper's algorithm elsewhere."""
    t1 = data.draw(st.integers(0, c))
    t2, b1 = data.draw(st.just(c - t1) | st.integers(0, c - t1)), data.draw(st.integers(0, c - t1))
    b2 = data.draw(st.integers(0, 2 * c - t1 - t2 - b1))
    room = c - t1 - t2
    plans = []
    for steps in ([count], [1] * count):
        ghosts = [Ghosts(), Ghosts()]
        ghosts[0].add([b"1 %d" % number for number in range(b1)])
        ghosts[1].add([b"2 %d" % number for number in range(b2)])
        plan = _Plan(c, min(c, p), t1, t2, *ghosts, room)
        for step in steps:
            plan.admit_new(step)
        known = vars(plan) | {"ghosts1": [*ghosts[0]], "ghosts2": [*ghosts[1]]}
        plans.append((known, ghosts[0]._surplus, ghosts[1]._surplus))
    assert plans[0] == plans[1]
