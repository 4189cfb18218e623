"""Which of the free slots a store gets: neighbours side by side, so that chunks are copied together."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_api import ReqContext
from kv_offload_cpu.chunks.pool import ChunkPool

CAPACITY = 8


def full_pool(capacity=CAPACITY):
    """A pool whose chunks are in the slots of their numbers."""
    pool = ChunkPool(capacity)
    assert pool.enter([b"%d" % number for number in range(capacity)]) == [*range(capacity)]
    return pool


def new_keys(count, name=b"new"):
    return [name + b"%d" % number for number in range(count)]


@pytest.mark.parametrize(
    ("freed", "expected"),
    [
        ([7, 6, 5, 4], [4, 5, 6, 7]),
        ([6, 5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5, 6]),
        ([3, 2, 7, 6], [6, 7, 2, 3]),  # what became free first is the last
        ([7, 6, 3, 2], [2, 3, 6, 7]),
        ([5, 4, 1, 0, 3, 2], [0, 1, 2, 3, 4, 5]),  # in three pieces, and one span again
        ([4, 0, 6, 2], [6, 0, 2, 4]),
        ([2], [2]),
    ],
)
def test_slots_are_taken_in_rising_order_and_last_what_became_free_first(freed, expected):
    for enter in ("enter", "enter_if_new"):
        pool = full_pool()
        pool.evict(freed)
        assert getattr(pool, enter)(new_keys(len(freed))) == expected
        pool.check()


def test_slots_that_became_free_last_are_taken_first():
    pool = full_pool()
    pool.evict([7, 6, 1, 0])
    assert [pool.enter(new_keys(2, name)) for name in (b"a", b"b")] == [[0, 1], [6, 7]]
    pool.check()


@given(st.permutations(range(CAPACITY)), st.integers(1, CAPACITY), st.integers(0, CAPACITY))
def test_they_rise_but_for_one_place_whoever_takes_them(order, count, first):
    freed, given_together, given_apart = order[:count], [], []
    for given_, sizes in ((given_together, [count]), (given_apart, [min(first, count), max(0, count - first)])):
        pool = full_pool()
        pool.evict(freed)
        for size in sizes:
            given_ += pool.enter(new_keys(size, b"%d of" % len(given_))) if size else []
        pool.check()
    assert given_apart == given_together
    assert sorted(given_together) == sorted(freed)
    assert given_together[-1] == freed[0]
    assert sum(slot < before for before, slot in pairwise(given_together)) <= 1


def copies(slots):
    """Copies of a job in which neighbours are joined."""
    return 1 + sum(slot != before + 1 for before, slot in pairwise(slots))


@pytest.mark.parametrize(("step", "most"), [(30, 0.6), (1000, 0.12)])
def test_slots_still_follow_each_other_when_many_pools_went_by(make, policy, step, most):
    """Prompts of any length, stored in steps; now and then one comes again."""
    random, manager, prompts, jobs = Random(step), make(300, policy), [], []
    for number in range(400):
        if random.random() < 0.1 and prompts:
            keys = random.choice(prompts)
        else:
            keys = [b"%d %d" % (number, place) + bytes(4) for place in range(random.randint(10, 100))]
            prompts = [*prompts[-4:], keys]
        context = ReqContext(str(number))
        context.derive_offload_key_positions(keys, 16)
        hits = manager.lookup_prefix(keys, context).hits
        manager.prepare_load(keys[:hits], context)
        manager.complete_load(keys[:hits], context)
        for begin in range(hits, len(keys), step):
            output = manager.prepare_store(keys[begin : begin + step], context)
            jobs.append([*output.store_spec.chunk_ids])
            manager.complete_store(output.keys_to_store, context)
        manager.on_request_finished(context)
    late = jobs[len(jobs) // 2 :]
    assert sum(map(copies, late)) / sum(map(len, late)) < most


@pytest.mark.parametrize("seed", range(5))
def test_what_leaves_does_not_depend_on_where_it_is(make, policy, seed, monkeypatch):
    random, elsewhere = Random(seed), Random(-seed)
    managers, contexts = [make(40, policy) for _ in range(2)], [{}, {}]
    evict = ChunkPool.evict

    def evict_and_shuffle(pool, slots):
        evicted_keys = evict(pool, slots)
        if pool is managers[1]._pool:
            elsewhere.shuffle(pool.free._stack)
        return evicted_keys

    monkeypatch.setattr(ChunkPool, "evict", evict_and_shuffle)
    evicted = 0
    for _ in range(300):
        name, first = f"{random.randrange(12)}", random.randrange(120)
        success, is_last = random.random() < 0.9, random.random() < 0.3
        keys = [b"%d" % number + bytes(4) for number in range(first, first + random.randint(1, 12))]
        answers = []
        for manager, known in zip(managers, contexts, strict=True):
            context = known.setdefault(name, ReqContext(name))
            hits = manager.lookup_prefix(keys, context).hits
            manager.prepare_load(keys[:hits], context)
            output = manager.prepare_store(keys[hits:], context)
            manager.complete_load(keys[:hits], context)
            if output is not None:
                manager.complete_store(output.keys_to_store, context, success)
            answers.append((hits, output and (output.keys_to_store, output.evicted_keys)))
            if is_last:
                manager.on_request_finished(known.pop(name))
        assert answers[0] == answers[1]
        evicted += len(answers[0][1][1]) if answers[0][1] else 0
    assert evicted > 300
    assert managers[0]._pool.slot_of != managers[1]._pool.slot_of
