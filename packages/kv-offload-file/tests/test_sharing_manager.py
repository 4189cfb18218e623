"""What the manager of an engine that shares answers, and what it tells its neighbours, call by call."""

import pytest
from kv_offload_file_rig import Rig, make_key, make_keys

from kv_api import LookupResult, ReqContext
from kv_offload_file.home import Home
from kv_offload_file.restore import Found
from kv_offload_file.sharing.manager import SharingManager
from kv_offload_file.sharing.place import NeighbourSlot
from kv_offload_file.stats import BORROWED


@pytest.fixture
def two(tmp_path):
    rigs = [Rig(tmp_path, 6, file_shared=True, file_engine=number) for number in range(2)]
    yield rigs
    for rig in rigs:
        rig.check()
        rig.stop()


def found(rig, numbers):
    return rig.manager.lookup_prefix(make_keys(numbers), rig.context)


def test_a_prompt_that_is_all_there_has_no_rest_wherever_its_end_lies(two):
    first, second = two
    first.store([1, 2])
    second.store([3])
    for numbers in ([1, 2], [3, 1], [1, 3], [3, 1, 2]):
        for rig in two:
            assert found(rig, numbers) == (len(numbers), LookupResult.HIT)
    assert found(first, [1, 3, 4]) == (2, LookupResult.MISS) == found(second, [3, 1, 4])


def test_an_offer_is_refused_only_if_what_nobody_reads_does_not_suffice(two):
    first, second = two
    first.store([1, 2, 3, 4, 5, 6])
    assert found(second, [5, 6]) == (2, LookupResult.HIT)
    for rig, lent in ((second, [5, 6]), (first, [1])):
        rig.manager.prepare_load(make_keys(lent), rig.context)
    assert first.manager.prepare_store(make_keys([10, 11, 12, 13]), first.context) is None
    stored = first.manager.prepare_store(make_keys([10, 11, 12]), first.context)
    assert stored.evicted_keys == make_keys([4, 3, 2])
    for rig, lent in ((second, [5, 6]), (first, [1])):
        rig.manager.complete_load(make_keys(lent), rig.context)


def is_hit(rig, key):
    return rig.manager.lookup(key, rig.context) is LookupResult.HIT


def offers_of(*numbers):
    return [([make_key(number)], ReqContext(f"request {number}")) for number in numbers]


@pytest.mark.parametrize("numbers", [[7], [7, 8], [7, 8, 9]])
def test_what_leaves_for_others_is_found_no_more(two, numbers):
    """They need not come to be: their bytes may be lost, and the slots are no longer what they were."""
    first, second = two
    first.store([1, 2, 3, 4, 5, 6])
    assert found(second, [5, 6]) == (2, LookupResult.HIT)
    offers = offers_of(*numbers)
    outputs = first.manager.prepare_stores(offers)
    gone = make_keys([6, 5, 4][: len(numbers)])
    assert [output.evicted_keys for output in outputs] == [[key] for key in gone]
    left = [key for key in make_keys(range(1, 7)) if key not in gone]
    for success in (None, False):
        for keys, context in offers if success is False else ():
            first.manager.complete_store(keys, context, success)
        assert [key for key in make_keys(range(1, 10)) if is_hit(second, key)] == left


def test_of_several_offers_none_is_stored_that_a_neighbour_has_by_now(two):
    first, second = two
    first.store([1])
    outputs = second.manager.prepare_stores(offers_of(1, 2))
    assert [output.keys_to_store for output in outputs] == [[], [make_key(2)]]
    second.manager.complete_store([make_key(2)], second.context, success=False)


def test_for_several_offers_nothing_leaves_that_is_borrowed(two):
    first, second = two
    first.store([1, 2, 3, 4, 5, 6])
    spec = second.begin_load([3, 4, 5, 6])
    outputs = first.manager.prepare_stores(offers_of(7, 8, 9))
    assert [output.evicted_keys for output in outputs] == [[make_key(2)], [make_key(1)]], "there is room for two"
    for keys, context in offers_of(7, 8):
        first.manager.complete_store(keys, context, success=False)
    assert second.end_load([3, 4, 5, 6], spec)


def test_what_both_have_is_used_by_who_offers_it_again(two):
    first, second = two
    second.store([1, 2, 3])
    outputs = [rig.manager.prepare_store(make_keys([4, 5, 6]), rig.context) for rig in two]
    for rig, output in zip(two, outputs, strict=True):
        rig.manager.complete_store(output.keys_to_store, rig.context)
    second.context = ReqContext("another")
    assert second.store([5, 6]) == [] and second.store([7, 8, 9]) == make_keys([7, 8, 9])
    first.manager.reset_cache()
    assert [number for number in range(1, 10) if found(second, [number]).hits] == [1, 5, 6, 7, 8, 9]
    first.manager.on_reset_flushed()


def test_a_store_from_before_a_reset_may_end_after_it(two):
    first, second = two
    output = first.manager.prepare_store(make_keys([1, 2]), first.context)
    first.manager.reset_cache()
    first.manager.complete_store(output.keys_to_store, first.context)
    assert found(first, [1]).hits == found(second, [1]).hits == 0
    first.manager.on_reset_flushed()


def test_a_reset_that_is_over_lets_go_of_what_was_loaded_from_here(two):
    first, _ = two
    first.store([1, 2, 3, 4, 5, 6])
    first.begin_load([1, 2, 3, 4, 5, 6])
    first.manager.reset_cache()
    assert first.store([7]) is None
    first.manager.on_reset_flushed()
    assert first.store([7]) == [make_key(7)]


def test_what_was_not_there_to_be_borrowed_may_be_dropped(two):
    _, second = two
    spec = second.begin_load([1])
    second.manager.drop([make_key(1)])  # as kv-offload does when a load fails
    assert not second.end_load([1], spec)


def test_what_is_borrowed_is_counted_beside_all_else(two):
    first, second = two
    first.store([1])
    second.store([2])
    usual = first.manager.get_stats().data
    assert len(usual) > 2
    specs = [second.begin_load([1]) for _ in range(2)]
    assert second.manager.get_stats().data == usual | {BORROWED: 2}
    for spec in specs:
        assert second.end_load([1], spec)
    assert BORROWED not in second.manager.get_stats().data


def test_the_end_of_a_load_from_here_and_there_gives_back_both(two):
    first, second = two
    first.store([1])
    second.store([2, 3])
    assert second.load([2, 1, 3])
    assert first.manager._own.lent() == []
    second.context = ReqContext("another")
    second.store([4, 5, 6, 7, 8, 9])
    assert [number for number in range(1, 10) if found(second, [number]).hits] == [1, 4, 5, 6, 7, 8, 9]


def test_each_load_is_a_use_to_the_owner(two):
    first, second = two
    first.store([1])
    told = []
    second.manager._own.uses = told.append
    specs = [second.begin_load([1]) for _ in range(2)]
    assert told == [[NeighbourSlot(0, 0)]] * 2
    for spec in specs:
        assert second.end_load([1], spec)
    assert told == [[NeighbourSlot(0, 0)]] * 2


def test_what_neighbours_used_is_over_at_once(two):
    """It is no request that goes on: nothing is kept of it."""
    first, second = two
    first.store([1, 2])
    assert found(first, [9]).hits == 0
    second.load([1, 2])
    policy, ended = first.manager._policy, []
    finish, policy.finish = policy.finish, ended.append
    assert found(first, [9]).hits == 0 and len(ended) == 1
    assert found(first, [9]).hits == 0 and len(ended) == 1, "nobody has used more"
    policy.finish = finish


class Recorded:
    """Stands for both what a manager tells its neighbours and what it asks of them, and notes it."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args: self.calls.append((name, *args))

    def take_used(self):
        return []

    def lent(self):
        return []

    places = {}  # noqa: RUF012 (nobody adds to it)


class AHome(Home):
    epoch = 7

    def renew(self):
        self.epoch += 1

    def close(self):
        pass


def test_what_was_kept_is_told_before_the_list_may_be_read():
    own = Recorded()
    kept = Found([(make_keys([1, 2]), [3, 0]), (make_keys([5]), [2])], 9)
    manager = SharingManager(4, AHome(), kept, own=own, neighbours=Recorded())
    assert own.calls == [
        ("begin", 7),
        ("holds", make_keys([1, 2]), [3, 0]),
        ("holds", make_keys([5]), [2]),
        ("open",),
    ]
    own.calls.clear()
    manager.reset_cache()
    assert own.calls == [("begin", 8), ("open",)]
    manager.check()


def test_a_recount_is_one_of_its_own_chunks_too(two):
    first, _ = two
    first.store([1])
    first.manager._pool.slot_of[make_key(9)] = 5
    with pytest.raises(AssertionError):
        first.manager.check()
    del first.manager._pool.slot_of[make_key(9)]
