"""``store``, ``load_prefix`` and ``prepare_stores`` are the calls that they stand for, nothing between them."""

from random import Random

import pytest
from kv_offload_cpu_world import make_key

from kv_api import OffloadingManager, OffloadKey, ReqContext
from kv_offload_cpu import POLICIES, AtOnceManager, CPUOffloadingManager, Stored
from kv_offload_cpu.policy import CachePolicy


class Pair:
    """Two managers of which one is asked at once, the other call by call, while other jobs are under way."""

    def __init__(self, random, policy, threshold):
        self.random = random
        self.managers = [
            AtOnceManager(
                random.choice([random.randint(2, 16), 40]), policy, enable_events=True, store_threshold=threshold
            )
        ]
        self.managers.append(
            CPUOffloadingManager(
                self.managers[0]._pool.capacity, policy, enable_events=True, store_threshold=threshold
            )
        )
        self.contexts = []
        self.jobs = []
        self.new = 30  # from this number on no chunk is known
        for index in range(4):
            self.contexts.append([self.context(index) for _ in self.managers])

    def context(self, index):
        made = ReqContext(f"request {index}")
        for number in range(1000):
            if index % 2:
                made.set_offload_key_position(make_key(number), 16 * number)
        return made

    def state(self, place):
        """Everything that a later call can depend on."""
        manager = self.managers[place]
        manager.check()
        pool, policy = manager._pool, manager._policy
        events = [(event.keys, event.removed, event.metadata_only) for event in manager.take_events()]
        known = {name: repr(value) for name, value in vars(policy).items() if name in ("_states", "_ahead", "_p")}
        stats = manager.get_stats().data
        return pool.slot_of, pool.in_flight, [*pool.pins], [*pool.free], policy.slots(), known, events, stats

    def act(self):
        start = self.random.randrange(24)
        keys = [make_key(number) for number in range(start, start + self.random.randrange(7))]
        keys += keys[: self.random.randrange(2)]
        one, two = self.managers
        mine, other = self.random.choice(self.contexts)
        match self.random.randrange(13):
            case 0 | 1 | 2:
                stored, output = one.store(keys, mine), two.prepare_store(keys, other)
                assert (stored is None) is (output is None)
                if stored is not None:
                    two.complete_store(output.keys_to_store, other)
                    slots = list(output.store_spec.block_ids)
                    assert stored == Stored(output.keys_to_store, slots, output.evicted_keys)
            case 3 | 4:
                hits = two.lookup_prefix(keys, other).hits
                two.prepare_load(keys[:hits], other)
                two.complete_load(keys[:hits], other)
                assert one.load_prefix(keys, mine) == hits
            case 5:
                outputs = [manager.prepare_store(keys, place) for manager, place in ((one, mine), (two, other))]
                if outputs[0] is not None:
                    self.jobs.append(("store", outputs[0].keys_to_store, mine, other))
            case 6:
                hits = one.lookup_prefix(keys, mine).hits
                for manager, place in ((one, mine), (two, other)):
                    manager.prepare_load(keys[:hits], place)
                self.jobs.append(("load", keys[:hits], mine, other))
            case 7 | 8:
                self.offer_several()
            case 9:
                self.make_free(keys, mine, other)
            case _ if self.jobs:
                kind, held, *places = self.jobs.pop(self.random.randrange(len(self.jobs)))
                for manager, place in zip(self.managers, places, strict=True):
                    (manager.complete_store if kind == "store" else manager.complete_load)(held, place)
        assert self.state(0) == self.state(1)

    def make_free(self, keys, mine, other):
        """Chunks are dropped, or their store fails."""
        one, two = self.managers
        for manager, place in ((one, mine), (two, other)):
            if len(keys) % 2:
                manager.drop(keys)
            elif (output := manager.prepare_store(keys, place)) is not None:
                manager.complete_store(output.keys_to_store, place, success=False)

    def offer_several(self):
        """One is asked for all stores of a step together, the other for each by itself; many are all new."""
        one, two = self.managers
        start, least, offers, others = self.random.choice([self.random.randrange(24), self.new]), 0, [], []
        if start == self.new:
            least = self.random.randrange(2)
        for mine, other in self.random.choices(self.contexts, k=self.random.randrange(4)):
            end = start + self.random.randrange(least, 3)
            keys = [make_key(number) for number in range(start, end)]
            offers.append((keys, mine))
            others.append(([*keys], other))
            start = end if least else self.random.choice([end, end, end, start, 0])
        self.new = self.random.choice([self.new, max(start, self.new)])
        outputs = one.prepare_stores(offers)
        assert outputs == OffloadingManager.prepare_stores(two, others)
        for output, (_, mine), (_, other) in zip(outputs, offers, others, strict=False):
            self.jobs.append(("store", output.keys_to_store, mine, other))


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("seed", range(12))
def test_at_once_is_the_calls_one_after_the_other(policy, seed):
    random = Random(seed)
    pair = Pair(random, policy, random.randint(0, 2))
    for _ in range(150):
        pair.act()


def test_stores_of_a_step_are_entered_together():
    manager, requests = CPUOffloadingManager(6), [ReqContext(name) for name in "abc"]
    keys = [make_key(number) for number in range(7)]
    offers = [(keys[:2], requests[0]), (keys[2:3], requests[1]), (keys[3:5], requests[2])]
    outputs = manager.prepare_stores(offers)
    assert [(output.keys_to_store, list(output.store_spec.block_ids)) for output in outputs] == [
        (keys[:2], [0, 1]), (keys[2:3], [2]), (keys[3:5], [3, 4]),
    ]  # fmt: skip
    manager.complete_store(keys[2:3], requests[1])
    assert [manager.lookup_prefix(keys[place:], requests[0]).hits for place in (0, 2, 3)] == [0, 1, 0]
    two_of_a_kind = [([keys[5]], requests[0]), ([keys[5]], requests[1])]
    assert [output.keys_to_store for output in manager.prepare_stores(two_of_a_kind)] == [[keys[5]], []]
    manager.check()
    assert manager.prepare_stores([([keys[6]], requests[0]), ([keys[6], *keys[:4]], requests[1])])[1:] == []
    manager.check()


def test_what_does_not_fit_is_refused():
    manager, request = AtOnceManager(2), ReqContext("request")
    keys = [make_key(number) for number in range(3)]
    assert manager.store(keys, request) is None
    assert manager.store(keys[:2], request) == Stored(keys[:2], [0, 1], [])
    assert manager.store(keys[:2], request) == Stored([], [], [])
    assert manager.load_prefix([*keys[:2], *keys], request) == 4
    assert manager.load_prefix(keys[2:], request) == 0
    assert manager.load_prefix([], request) == 0
    assert manager.load_prefix(dict.fromkeys(keys), request) == 2  # in any collection
    manager.check()


class Told(CachePolicy):
    """Writes down what it is told."""

    told = ()

    def make_room(self, keys, count, pins):
        return []

    def insert(self, keys, slots, run):
        self.told.append(("insert", [*slots], run))

    def access(self, slots, run):
        self.told.append(("access", [*slots], run))

    def unpin(self, slots, run):
        self.told.append(("unpin", [*slots], run))

    def remove(self, slots):
        raise NotImplementedError

    def clear(self):
        raise NotImplementedError

    def slots(self):
        return []

    def check(self, pins):
        pass


def test_a_policy_of_one_s_own_is_told_the_same(monkeypatch):
    monkeypatch.setitem(POLICIES, "told", Told)
    monkeypatch.setattr(Told, "told", [])
    manager, request, other = AtOnceManager(4, "told"), ReqContext("request"), ReqContext("other")
    keys = [OffloadKey(bytes([number] * 8)) for number in range(3)]
    manager.store(keys, request)
    manager.prepare_load(keys[:1], other)
    manager.load_prefix(keys, request)
    (_, inserted, its), (_, _, another) = Told.told[0], Told.told[2]
    assert (inserted, its is another) == ([0, 1, 2], False)
    assert Told.told == [
        ("insert", inserted, its), ("unpin", inserted, its), ("access", [0], another), ("access", inserted, its),
        ("unpin", [1, 2], its),
    ]  # fmt: skip


def test_a_policy_is_asked_for_room_before_each_store_and_before_what_is_restored(monkeypatch):
    class Asked(Told):
        def make_room(self, keys, count, pins):
            self.told.append(("room", [*keys], count))
            return []

    monkeypatch.setitem(POLICIES, "asked", Asked)
    monkeypatch.setattr(Told, "told", [])
    keys = [make_key(number) for number in range(3)]
    CPUOffloadingManager(4, "asked").prepare_stores([(keys[:2], ReqContext("a")), (keys[2:], ReqContext("b"))])
    assert [told[:2] for told in Told.told] == [
        ("room", keys[:2]), ("insert", [0, 1]), ("room", keys[2:]), ("insert", [2]),
    ]  # fmt: skip
    assert [told[2] for told in Told.told[::2]] == [0, 0]
    Told.told.clear()
    CPUOffloadingManager(4, "asked").restore([(keys[:2], [3, 0]), (keys[2:], [1])])
    assert [told[:2] for told in Told.told] == [
        ("room", keys[:2]), ("insert", [3, 0]), ("room", keys[2:]), ("insert", [1]),
    ]  # fmt: skip
    assert [told[2] for told in Told.told[::2]] == [0, 0]
