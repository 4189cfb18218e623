"""One contract for every policy: what it evicts is what the paper's algorithm evicts, and never what is pinned."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_offload_cpu_models import MODELS

from kv_offload_cpu import POLICIES, Run
from kv_offload_cpu.policy.fifo import Fifo
from kv_offload_cpu.slots.pins import Pins

FEWER = settings(max_examples=max(10, settings().max_examples // 2))
"""One of these takes long."""

ACTIONS = ["store", "store", "store", "land", "fail", "access", "load", "unload", "finish"]
actions = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 999), st.integers(0, 999)), min_size=20, max_size=100
)


class World:
    """A policy and its model under the same calls, with the slots and pins that a manager would keep."""

    def __init__(self, name, capacity, largest=5):
        self.name, self.capacity, self.largest = name, capacity, largest
        self.policy, self.model = POLICIES[name](capacity), MODELS[name](capacity)
        self.policy.key_of = self.key_of = [b""] * capacity
        self.pins = Pins(capacity)
        self.free = list(range(capacity))
        self.slot_of = {}  # held keys
        self.in_flight = []  # batches of keys
        self.loads = []  # batches of slots
        self.runs = [Run() for _ in range(4)]

    def act(self, action, a, b):
        getattr(self, action)(a, b)
        self.check()

    def check(self):
        self.policy.check(self.pins)
        assert sorted(self.policy.slots()) == sorted(self.slot_of.values())

    def store(self, a, b):
        universe = [b"%d" % number for number in range(2 * self.capacity + 2)]
        keys = [key for key in universe[a % len(universe) :][: 1 + b % self.largest] if key not in self.slot_of]
        count = max(0, len(keys) - len(self.free))
        if keys and count <= sum(not self.pins[slot] for slot in self.slot_of.values()):
            self.evict_and_insert(keys, count, self.runs[(a + b) % 4])

    def evict_and_insert(self, keys, count, run):
        evicted = self.policy.make_room(keys, count, self.pins)
        assert not any(self.pins[slot] for slot in evicted), "evicted a pinned chunk"
        assert len(set(evicted)) == count
        self.slot_of = {key: slot for key, slot in self.slot_of.items() if slot not in evicted}
        self.free += evicted
        slots, self.free = self.free[: len(keys)], self.free[len(keys) :]

        def same_slots(expected):
            # ARC's batches are evicted list by list; the order within a batch is nobody's business.
            assert sorted(evicted) == sorted(expected)
            if self.name != "arc":
                assert evicted == expected
            return slots

        before = list(self.pins)
        self.model.store(keys, same_slots, count, before, run)
        for key, slot in zip(keys, slots, strict=True):
            self.slot_of[key] = slot
            self.key_of[slot] = key
        self.policy.insert(keys, slots, run)
        self.pins.pin(slots)
        self.in_flight.append((keys, run))

    def end_store(self, a):
        keys, run = self.in_flight.pop(a % len(self.in_flight))
        slots = [self.slot_of[key] for key in keys]
        self.pins.unpin(slots)
        return keys, slots, run

    def land(self, a, b):
        if self.in_flight:
            _, slots, run = self.end_store(a)
            self.both("unpin", slots, run)

    def fail(self, a, b):
        if self.in_flight and b % 3 == 0:
            keys, slots, _ = self.end_store(a)
            self.both("remove", slots)
            for key in keys:
                self.free.append(self.slot_of.pop(key))

    def choose(self, a, b):
        writing = {key for keys, _ in self.in_flight for key in keys}
        slots = [slot for key, slot in self.slot_of.items() if key not in writing]
        start = a % len(slots) if slots else 0
        return slots[start : start + max(1, b % self.largest)]

    def access(self, a, b):
        slots = self.choose(a, b)
        if slots:
            self.both("access", slots, self.runs[(a + b) % 4])

    def load(self, a, b):
        slots = self.choose(a, b)
        if slots:
            run = self.runs[(a + b) % 4]
            self.pins.pin(slots)
            if b % 5:  # else a job that is no use of them
                self.both("access", slots, run)
            self.loads.append((slots, run))

    def unload(self, a, b):
        if self.loads:
            slots, run = self.loads.pop(a % len(self.loads))
            self.both("unpin", self.pins.unpin(slots), run)

    def finish(self, a, b):
        self.both("finish", self.runs[a % 4])

    def both(self, method, *arguments):
        getattr(self.policy, method)(*arguments)
        getattr(self.model, method)(*arguments)

    def drain(self):
        """Let every job end, then evict everything, one by one: the whole order is compared."""
        while self.in_flight:
            self.land(0, 0)
        while self.loads:
            self.unload(0, 0)
        for number in range(self.capacity):
            self.evict_and_insert([b"new %d" % number], int(not self.free), self.runs[0])
            self.check()


@pytest.mark.parametrize("name", sorted(POLICIES))
@FEWER
@given(capacity=st.integers(1, 12), actions=actions)
def test_it_evicts_what_the_papers_algorithm_evicts(name, capacity, actions):
    world = World(name, capacity)
    for action in actions:
        world.act(*action)
    world.drain()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_large_batches(name, seed):
    """Most of a batch is treated alike, as in a server: prompts come, come back soon, and leave."""
    random = Random(seed)
    world = World(name, random.randint(20, 60), largest=random.randint(6, 20))
    weights = [random.random() for _ in ACTIONS]
    for action in random.choices(ACTIONS, weights, k=150):
        world.act(action, random.randrange(1000), random.randrange(1000))
    world.drain()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_batches_as_large_as_the_cache(name, seed):
    """Part of a batch has just been evicted, part of it is new, and it drives out nearly everything."""
    random = Random(seed)
    for capacity in (2, 3, 5, 8):
        world = World(name, capacity, largest=capacity)
        for _ in range(60):
            world.act("store", random.randrange(1000), random.randrange(1000))
            world.act("land", 0, 0)
            world.act(random.choice(["access", "finish"]), random.randrange(1000), random.randrange(1000))
        world.drain()


def replay(name, capacity, accesses):
    """No batches, no pins, a request for every access: then each policy is exactly the algorithm of its paper."""
    policy, model = POLICIES[name](capacity), MODELS[name](capacity)
    slot_of, pins = {}, Pins(capacity)
    policy.key_of = key_of = [b""] * capacity
    for number in accesses:
        key, run = b"%d" % number, Run()
        if key in slot_of:
            policy.access([slot_of[key]], run)
            model.access([slot_of[key]], run)
            continue
        evicted = policy.make_room([key], int(len(slot_of) == capacity), pins)
        slot = evicted[0] if evicted else len(slot_of)
        slot_of = {other: place for other, place in slot_of.items() if place != slot}
        expected, _ = model.store([key], lambda _, slot=slot: [slot], len(evicted), pins, run)
        assert evicted == expected
        slot_of[key], key_of[slot] = slot, key
        policy.insert([key], [slot], run)
    policy.check(pins)


@pytest.mark.parametrize("name", sorted(POLICIES))
@FEWER
@given(capacity=st.integers(1, 30), accesses=st.lists(st.integers(0, 60), max_size=300))
def test_one_chunk_at_a_time_it_is_the_textbooks_cache(name, capacity, accesses):
    replay(name, capacity, accesses)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_on_long_traces_too(name, seed):
    """Popular chunks, loops a little larger than the cache, and scans, by turns."""
    random = Random(seed)
    capacity = random.randint(4, 40)
    accesses = []
    for turn in range(30):
        popular = [int(random.paretovariate(0.8)) % (4 * capacity) for _ in range(60)]
        loop = [number % (capacity + random.randint(1, 3)) for number in range(60)]
        scan = range(1000 * turn, 1000 * turn + 20)
        accesses += random.choice([popular, popular, loop, [*popular, *scan, *popular]])
    replay(name, capacity, accesses)


@pytest.mark.parametrize("uses", [1, 2, 3])
@pytest.mark.parametrize("name", ["s3fifo", "sieve"])
def test_an_eviction_for_which_many_are_spared_takes_few_looks(name, uses, monkeypatch):
    capacity, looks = 4000, []
    policy, model, pins, run = POLICIES[name](capacity), MODELS[name](capacity), Pins(capacity), Run()
    policy.key_of = keys = [b"%d" % slot for slot in range(capacity)]
    take = Fifo.take
    monkeypatch.setattr(Fifo, "take", lambda queue, count: looks.append(count) or take(queue, count))
    for start in range(0, capacity, 500):
        batch = range(start, start + 500)
        policy.insert(keys[start : start + 500], batch, run)
        model.store(keys[start : start + 500], lambda _, batch=batch: batch, 0, pins, run)
        for _ in range(uses):
            policy.access(batch, run)
            model.access(batch, run)

    def evict(numbers):
        new = [b"new %d" % number for number in numbers]
        evicted = policy.make_room(new, len(new), pins)
        assert evicted == model.store(new, lambda _: evicted, len(new), pins, run)[0]
        for slot, key in zip(evicted, new, strict=True):
            keys[slot] = key
        policy.insert(new, evicted, run)

    for number in range(3):
        evict([number])
    assert sum(looks) > (0 if (name, uses) == ("s3fifo", 1) else 0.9 * capacity)
    assert len(looks) < 60
    for used in (policy, model):
        used.access(range(10, 40), run)
    evict(range(3, capacity))  # shows who had been spared by then, and who hadn't


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_clear_makes_it_new(name, seed):
    def feed(policy):
        order = []
        pins = Pins(5)
        policy.key_of = [b""] * 5
        random = Random(seed)
        for number in range(41):
            key = b"%d" % random.randrange(15)
            if key in policy.key_of:  # nothing comes in that is there
                policy.access([policy.key_of.index(key)], Run())
                continue
            evicted = policy.make_room([key], int(b"" not in policy.key_of), pins)
            slot = evicted[0] if evicted else policy.key_of.index(b"")
            policy.key_of[slot] = key
            policy.insert([key], [slot], Run())
            if number % 7 == 0:
                policy.access([slot], Run())
            order += evicted
        return order

    policy = POLICIES[name](5)
    before = feed(policy)
    assert policy.capacity == 5
    pinned = []
    for _ in range(2):  # the second time, what left the first time is pinned when its turn comes
        pins = Pins(5)
        pins.pin(pinned)
        evicted = policy.make_room([b"new"], 1, pins)
        policy.insert([b"new"], evicted, Run())
        assert policy.awaits_unpin() == bool(pinned)
        policy.clear()
        policy.check(Pins(5))
        assert (policy.slots(), policy.awaits_unpin()) == ([], False)
        assert feed(policy) == before
        pinned = evicted


@pytest.mark.parametrize(("queue", "state"), [("_small", 4), ("_main", 0)])
def test_check_of_s3fifo_sees_a_slot_in_the_wrong_queue(queue, state):
    policy = POLICIES["s3fifo"](4)
    policy.key_of = [b"%d" % slot for slot in range(4)]
    policy.insert(policy.key_of[:2], [0, 1], Run())
    policy.check(Pins(4))
    policy._states[2] = state
    getattr(policy, queue).push([2])
    with pytest.raises(AssertionError, match=r"slots \[2\] are in the wrong queue"):
        policy.check(Pins(4))
