"""Chunks are stored from their n-th offer on, and offers are counted as they should be."""

import pytest

from kv_api import ReqContext

CONTEXT = ReqContext("any")


def offer(manager, keys, numbers):
    output = manager.prepare_store(keys(numbers), CONTEXT)
    if output is not None:
        manager.complete_store(output.keys_to_store, CONTEXT)
    return None if output is None else [int(key[:6]) for key in output.keys_to_store]


def skipped(manager):
    return manager.get_stats().data.get("vllm:kv_offload_stores_skipped", 0)


def test_below_two_everything_is_stored(make, keys):
    for threshold in (0, 1):
        assert offer(make(4, store_threshold=threshold), keys, [0, 1]) == [0, 1]


@pytest.mark.parametrize("threshold", [2, 3, 4, 5])
def test_the_nth_offer_is_stored(make, keys, threshold):
    manager = make(4, store_threshold=threshold)
    assert [offer(manager, keys, [0]) for _ in range(6)] == [[0] if n == threshold else [] for n in range(1, 7)]
    assert skipped(manager) == threshold - 1


def test_an_offer_counts_a_chunk_once(make, keys):
    manager = make(4, store_threshold=2)
    assert offer(manager, keys, [0, 0, 0]) == []
    assert offer(manager, keys, [0, 1]) == [0]


def test_lookups_are_no_offers(make, keys):
    manager = make(4, store_threshold=2)
    for _ in range(5):
        manager.lookup_prefix(keys([0]), CONTEXT)
    assert offer(manager, keys, [0]) == []


def test_a_refused_offer_does_not_count(make, keys, store):
    manager = make(2, store_threshold=2)
    for _ in range(2):
        offer(manager, keys, [0, 1])
    manager.prepare_load(keys([0, 1]), CONTEXT)
    assert offer(manager, keys, [5, 6]) == []  # worth nothing yet, so nothing has to fit
    assert skipped(manager) == 4
    assert offer(manager, keys, [5, 7]) is None
    assert skipped(manager) == 0
    manager.complete_load(keys([0, 1]), CONTEXT)
    assert offer(manager, keys, [7]) == []  # 7 was offered once before, and refused
    assert offer(manager, keys, [5]) == [5]


def test_the_tracker_forgets_what_was_offered_longest_ago(make, keys):
    manager = make(8, store_threshold=2, max_tracker_size=3)
    for number in range(3):
        offer(manager, keys, [number])
    offer(manager, keys, [0])  # stored, and the most recent
    offer(manager, keys, [5])  # 1 is forgotten
    assert offer(manager, keys, [1]) == []  # 2 is forgotten
    assert offer(manager, keys, [5]) == [5]


def test_the_tracker_forgets_no_more_than_there_was(make, keys):
    manager = make(8, store_threshold=2, max_tracker_size=3)
    for number in (8, 9):
        offer(manager, keys, [number])
    assert offer(manager, keys, range(5)) == []  # there is room for 0, and 1 and 2 take those of 8 and 9
    assert offer(manager, keys, range(5)) == [0, 1, 2]


def test_the_tracker_never_forgets_for_the_same_offer(make, keys):
    manager = make(8, store_threshold=2, max_tracker_size=3)
    assert offer(manager, keys, range(5)) == []
    assert offer(manager, keys, range(5)) == [0, 1, 2]
    assert offer(manager, keys, [0, 1, 2, 9]) == []  # no room for 9 but in place of 0, 1 or 2
    assert offer(manager, keys, [9]) == []
