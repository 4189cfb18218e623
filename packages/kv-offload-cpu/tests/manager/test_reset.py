"""Resets and drops while jobs run: nothing old is served, and no slot is handed out under a running job."""

from random import Random

import pytest

from kv_api import LookupResult, ReqContext

OLD, NEW = ReqContext("old"), ReqContext("new")


def free_slots(manager, keys, numbers):
    """The slots that a store of new chunks gets now."""
    output = manager.prepare_store(keys(numbers), NEW)
    return None if output is None else sorted(output.store_spec.block_ids)


@pytest.fixture
def busy(make, keys, store):
    """Four slots: chunk 0 pinned by two loads, 1 resident, 2 in flight, one free."""
    manager = make(4)
    store(manager, [0, 1])
    manager.prepare_load(keys([0]), OLD)
    manager.prepare_load(keys([0]), OLD)
    manager.prepare_store(keys([2]), OLD)
    return manager


def test_after_a_reset_nothing_is_found(busy, keys):
    busy.reset_cache()
    assert [busy.lookup(key, NEW) for key in keys(range(3))] == [LookupResult.MISS] * 3


def test_slots_under_a_job_are_not_handed_out_until_the_reset_is_flushed(busy, keys):
    busy.reset_cache()
    assert free_slots(busy, keys, [7, 8, 9]) is None
    assert free_slots(busy, keys, [7, 8]) == [1, 3]
    busy.check()
    busy.on_reset_flushed()
    assert free_slots(busy, keys, [5, 6]) == [0, 2]


def test_late_completions_lift_the_fences_as_well(busy, keys):
    busy.reset_cache()
    busy.complete_store(keys([2]), OLD)
    assert busy.lookup(keys([2])[0], NEW) is LookupResult.MISS
    busy.complete_load(keys([0]), OLD)
    busy.check()
    assert free_slots(busy, keys, [7, 8, 9]) == [1, 2, 3]
    assert free_slots(busy, keys, [6]) is None
    busy.complete_load(keys([0]), OLD)
    assert free_slots(busy, keys, [6]) == [0]
    busy.on_reset_flushed()


def test_a_stale_store_that_fails_lifts_its_fence_too(busy, keys):
    busy.reset_cache()
    busy.complete_store(keys([2]), OLD, success=False)
    assert free_slots(busy, keys, [7, 8, 9]) == [1, 2, 3]


@pytest.mark.parametrize("seed", range(3))
def test_after_a_reset_nothing_is_remembered_of_who_was_used(make, store, keys, policy, seed):
    def feed():
        random, evicted = Random(seed), []
        for _ in range(40):
            number = random.randrange(12)
            evicted += store(manager, [number])
        return evicted

    manager = make(5, policy)
    before = feed()
    manager.reset_cache()
    manager.on_reset_flushed()
    assert feed() == before


def test_a_stale_store_does_not_complete_a_new_one_of_the_same_chunk(busy, keys):
    """Its bytes are in another slot; the new store may still be copying."""
    busy.reset_cache()
    assert busy.prepare_store(keys([2, 3]), NEW).keys_to_store == keys([3])
    busy.complete_store(keys([2]), OLD)
    assert busy.lookup(keys([2])[0], NEW) is LookupResult.MISS
    assert busy.prepare_store(keys([2]), NEW).keys_to_store == keys([2])
    assert busy.lookup(keys([2])[0], NEW) is LookupResult.HIT_PENDING


def test_a_stray_completion_of_a_store_does_not_end_a_load(busy, keys):
    busy.reset_cache()
    busy.complete_store(keys([0]), OLD)
    busy.complete_store(keys([0]), OLD)
    assert free_slots(busy, keys, [7, 8, 9]) is None


def test_a_reset_flushes_what_earlier_resets_fenced_but_not_later_drops(busy, keys, store):
    busy.reset_cache()
    store(busy, [5])
    busy.prepare_load(keys([5]), NEW)
    busy.reset_cache()
    store(busy, [6])
    busy.prepare_load(keys([6]), NEW)
    busy.drop(keys([6]))
    busy.on_reset_flushed()
    busy.check()
    assert free_slots(busy, keys, [7, 8, 9, 10]) is None
    assert len(free_slots(busy, keys, [7, 8, 9])) == 3
    busy.complete_load(keys([6]), NEW)
    assert len(free_slots(busy, keys, [10])) == 1


def test_dropped_chunks_are_gone_at_once(busy, keys):
    busy.drop(keys([0, 1, 2, 99]))
    assert [busy.lookup(key, NEW) for key in keys(range(3))] == [LookupResult.MISS] * 3
    assert free_slots(busy, keys, [8, 9]) == [1, 3]
    busy.complete_store(keys([2]), OLD)
    assert busy.lookup(keys([2])[0], NEW) is LookupResult.MISS
    busy.complete_load(keys([0]), OLD)
    busy.complete_load(keys([0]), OLD)
    assert free_slots(busy, keys, [0, 2]) == [0, 2]


def test_a_flush_without_a_reset_does_nothing(busy, keys):
    busy.drop(keys([0]))
    busy.on_reset_flushed()
    assert free_slots(busy, keys, [6, 7, 8]) is None
