"""The same manager for another medium: what a subclass may say, and what outlives an engine."""

import pytest

from kv_api import CacheHitSource, Medium, ReqContext
from kv_offload_cpu import CPUOffloadingManager


class Shelf(CPUOffloadingManager):
    medium, source = Medium.STORAGE, CacheHitSource.DISK

    def places(self, keys, slots):
        return [*zip(keys, slots, strict=True)]


def test_another_medium_says_what_it_is_and_where_chunks_are(keys):
    manager, context = Shelf(4, enable_events=True), ReqContext("r")
    one, two = keys(range(2))
    assert manager.prepare_store([one, two], context).store_spec == [(one, 0), (two, 1)]
    manager.complete_store([one, two], context)
    assert manager.prepare_load([two], context) == [(two, 1)]
    assert [
        output.store_spec for output in manager.prepare_stores([(keys([7]), context), (keys([8]), context)])
    ] == [
        [(keys([7])[0], 2)],
        [(keys([8])[0], 3)],
    ]
    manager.drop([one])
    assert [(event.medium, event.removed) for event in manager.take_events()] == [
        (Medium.STORAGE, False),
        (Medium.STORAGE, True),
    ]
    assert manager.get_load_source(one, context) is CacheHitSource.DISK


def test_what_is_there_already_is_restored_where_it_lies(make, keys, policy):
    manager, context = make(6, policy, enable_events=True), ReqContext("r")
    first, second = keys([10, 11, 12]), keys([20])
    manager.restore(iter([(first, [4, 0, 5]), (second, [2])]))
    manager.check()
    assert manager.lookup_prefix([*first, *second], context).hits == 4
    assert list(manager.prepare_load([*second, *first], context).block_ids) == [2, 4, 0, 5]
    assert [event.keys for event in manager.take_events()] == [first, second]
    output = manager.prepare_store(keys([30, 31]), context)
    assert sorted(output.store_spec.chunk_ids) == [1, 3]
    assert manager.prepare_store(keys([32]), context) is None, "all others are pinned"
    manager.complete_load([*second, *first], context)
    manager.complete_store(keys([30, 31]), context)
    assert len(manager.prepare_store(keys(range(40, 46)), context).evicted_keys) == 6
    manager.check()


def test_of_what_is_restored_what_was_stored_first_leaves_first(make, keys):
    manager = make(3)
    manager.restore([(keys([3]), [2]), (keys([1]), [0]), (keys([2]), [1])])
    evicted = [manager.prepare_store(keys([n]), ReqContext(str(n))).evicted_keys for n in (10, 11, 12)]
    assert evicted == [keys([3]), keys([1]), keys([2])]


@pytest.mark.parametrize(
    ("stores", "said"),
    [
        ([([1, 1], [0, 1])], "2 chunks"),
        ([([1], [0]), ([2], [0])], "1 different slots"),
        ([([1], [8])], "isn't free"),
        ([([0], [1])], "is held"),
        ([([1], [7])], "isn't free"),
    ],
)
def test_what_can_not_be_restored_changes_nothing(make, keys, store, stores, said):
    manager = make(8)
    store(manager, [0])
    [taken] = manager.prepare_load(keys([0]), ReqContext("r")).block_ids
    manager.complete_load(keys([0]), ReqContext("r"))
    where = {7: taken, 0: taken + 1, 1: taken + 2, 8: 8}
    with pytest.raises(AssertionError, match=said):
        manager.restore([(keys(numbers), [where[slot] for slot in slots]) for numbers, slots in stores])
    manager.check()
