"""LRU lets a request's tail leave before its head, whatever the batches, groups and order of completion."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_api import OffloadKey, ReqContext
from kv_offload_cpu import CPUOffloadingManager


def evict_all(manager, keys, count):
    """Push everything out, one chunk at a time."""
    order = []
    for number in range(count):
        output = manager.prepare_store(keys([1000 + number]), ReqContext(f"pusher {number}"))
        order += output.evicted_keys
    return order


@pytest.fixture(params=["lru", "arc"])
def recency(request):
    return request.param


def test_one_batch(make, keys, store, recency):
    manager = make(6, recency)
    store(manager, range(6))
    assert evict_all(manager, keys, 6) == keys([5, 4, 3, 2, 1, 0])


def test_batches_of_one_request(make, keys, store, recency):
    manager, context = make(6, recency), ReqContext("long")
    for start in (0, 2, 4):
        store(manager, [start, start + 1], context)
    assert evict_all(manager, keys, 6) == keys([5, 4, 3, 2, 1, 0])


class TellsPositions(ReqContext):
    """A context like vLLM's, which tells positions that were noted, and no order."""

    @property
    def is_offload_key_before(self):
        raise AttributeError("is_offload_key_before")


@pytest.mark.parametrize("context", [ReqContext, TellsPositions])
@pytest.mark.parametrize("is_known", [False, True])
def test_batches_that_come_in_another_order(make, keys, store, recency, context, is_known):
    """The head leaves last if anybody has said where chunks lie; else what came last is taken for the tail."""
    manager, request = make(4, recency), context("backwards")
    for place, key in enumerate(keys(range(4))):
        if is_known:
            request.set_offload_key_position(key, 16 * (place + 1))
    store(manager, [2, 3], request)
    store(manager, [0, 1], request)
    assert evict_all(manager, keys, 4) == keys([3, 2, 1, 0] if is_known else [1, 0, 3, 2])


def test_what_came_late_is_put_in_order_when_the_request_ends(make, keys, store, recency):
    """Only then, and never again: who has ended tells nobody where its chunks lie."""
    manager, request = make(4, recency), ReqContext("backwards")
    for place, key in enumerate(keys(range(4))):
        request.set_offload_key_position(key, 16 * (place + 1))
    store(manager, [2, 3], request)
    store(manager, [0, 1], request)
    manager.on_request_finished(request)
    assert evict_all(manager, keys, 4) == keys([3, 2, 1, 0])


def test_batches_that_complete_in_another_order(make, keys, recency):
    manager, context = make(4, recency), ReqContext("long")
    manager.prepare_store(keys([0, 1]), context)
    manager.prepare_store(keys([2, 3]), context)
    manager.complete_store(keys([2, 3]), context)
    manager.complete_store(keys([0, 1]), context)
    assert evict_all(manager, keys, 4) == keys([3, 2, 1, 0])


def test_requests_leave_in_the_order_of_their_last_use(make, keys, store):
    manager, first, second = make(6), ReqContext("first"), ReqContext("second")
    store(manager, [0, 1], first)
    store(manager, [10, 11], second)
    store(manager, [2, 3], first)
    assert evict_all(manager, keys, 6) == keys([11, 10, 3, 2, 1, 0])


def test_a_request_that_finishes_is_the_newest(make, keys, store, recency):
    manager, first = make(4, recency), ReqContext("first")
    store(manager, [0, 1], first)
    store(manager, [10, 11])
    manager.on_request_finished(first)
    assert evict_all(manager, keys, 4) == keys([11, 10, 1, 0])


def test_a_shared_head_outlives_the_tail_of_who_stored_it(make, keys, store):
    manager, reader = make(6), ReqContext("reader")
    store(manager, range(6))
    manager.prepare_load(keys([0, 1, 2]), reader)
    manager.complete_load(keys([0, 1, 2]), reader)
    assert evict_all(manager, keys, 6) == keys([5, 4, 3, 2, 1, 0])


def test_groups_of_one_batch_leave_together(make, keys):
    manager, context = make(6), ReqContext("two groups")
    for group in (0, 1):
        for number, key in enumerate(keys(range(3), group)):
            context.set_offload_key_position(key, 16 * (number + 1))
    offer = keys(range(3)) + keys(range(3), group=1)
    output = manager.prepare_store(offer, context)
    assert output.keys_to_store == offer
    assert list(output.store_spec.block_ids) == [0, 1, 2, 3, 4, 5]
    manager.complete_store(offer, context)
    evicted = evict_all(manager, keys, 6)
    assert [int(key[:6]) for key in evicted] == [2, 2, 1, 1, 0, 0]


def test_groups_that_are_used_together_leave_together(make, keys, store, recency):
    """Of who loads them, though others stored each group by itself; a part of both stays behind."""
    manager, reader = make(6, recency), ReqContext("reader")
    store(manager, range(3))
    offer = keys(range(3), group=1)
    manager.prepare_store(offer, ReqContext("other group"))
    manager.complete_store(offer, ReqContext("other group"))
    for group in (0, 1):
        for number, key in enumerate(keys(range(3), group)):
            reader.set_offload_key_position(key, 16 * (number + 1))
    used = keys(range(2)) + keys(range(2), group=1)
    manager.prepare_load(used, reader)
    manager.complete_load(used, reader)
    evicted = evict_all(manager, keys, 6)
    assert [int(key[:6]) for key in evicted] == [2, 2, 1, 1, 0, 0]


def test_a_policy_hears_of_new_chunks_in_token_order_and_of_each_with_its_key(make, keys, policy, monkeypatch):
    manager, context = make(6, policy), ReqContext("two groups")
    heard, insert = [], manager._policy.insert

    def note(new, slots, run):
        heard.append(([*new], [*slots]))
        insert(new, slots, run)

    monkeypatch.setattr(manager._policy, "insert", note)
    for group in (0, 1):
        for number, key in enumerate(keys(range(3), group)):
            context.set_offload_key_position(key, 16 * (number + 1))
    manager.prepare_store(keys([1]) + keys([0], group=1), context)
    manager.prepare_store(keys([0, 2]) + keys([1, 2], group=1), context)
    assert heard == [
        (keys([0], group=1) + keys([1]), [1, 0]),
        (keys([0]) + keys([1], group=1) + keys([2]) + keys([2], group=1), [2, 4, 3, 5]),
    ]


def test_a_batch_stored_late_takes_its_place(make, keys, store, recency):
    """Sliding windows are stored backwards; the positions that the connector notes tell."""
    manager, context = make(6, recency), ReqContext("backfilled")
    for number, key in enumerate(keys(range(6))):
        context.set_offload_key_position(key, 16 * (number + 1))
    store(manager, [4, 5], context)
    store(manager, [0, 1], context)
    store(manager, [2, 3], context)
    assert evict_all(manager, keys, 6) == keys([5, 4, 3, 2, 1, 0])


def test_the_memory_of_positions_ends_with_the_request(make, keys, store):
    """The policy keeps a run as long as its chunks; it must not keep the request alive."""
    import gc
    import weakref

    manager, context = make(2), ReqContext("gone")
    context.set_offload_key_position(keys([0])[0], 16)
    store(manager, [0], context)
    manager.on_request_finished(context)
    ref = weakref.ref(context)
    del context
    gc.collect()
    assert ref() is None


batches = st.lists(st.integers(1, 3), min_size=1, max_size=4)  # a request fits into the pool


@given(requests=st.lists(batches, min_size=1, max_size=5), data=st.data())
def test_interleaved_requests_lose_their_tails_first(requests, data):
    """What leaves of a request is what stood last of it."""
    manager = CPUOffloadingManager(12)
    contexts = [ReqContext(f"request {index}") for index in range(len(requests))]
    held = [[] for _ in requests]
    counts = [0] * len(requests)
    todo = [index for index, sizes in enumerate(requests) for _ in sizes]
    while todo:
        index = todo.pop(data.draw(st.integers(0, len(todo) - 1)))
        size = requests[index][todo.count(index)]
        new = [b"%03d%03d" % (index, number) for number in range(counts[index], counts[index] + size)]
        batch = [OffloadKey(name + bytes(4)) for name in new]
        output = manager.prepare_store(batch, contexts[index])
        manager.complete_store(batch, contexts[index])
        for key in output.evicted_keys:
            assert held[int(key[:3])].pop() == key[:6]
        held[index] += new
        counts[index] += size
    manager.check()
