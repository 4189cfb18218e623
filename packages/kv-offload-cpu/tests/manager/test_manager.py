"""What each call of the manager answers: whole outputs, compared."""

from inspect import Parameter, signature

import pytest

from kv_api import (
    CacheHitSource,
    ConfigInfo,
    KVError,
    LookupResult,
    PrepareStoreOutput,
    ReqContext,
    make_offload_key,
)
from kv_offload_cpu import CPULoadStoreSpec, CPUOffloadingManager, Options
from kv_offload_cpu.stats import ALLOCATION_FAILURE

ONE = ReqContext("one")
TWO = ReqContext("two")


def test_the_life_of_a_chunk(make, keys):
    manager, [a, b, c] = make(4), keys(range(3))
    assert manager.lookup_prefix([a, b, c], ONE) == (0, LookupResult.MISS)
    assert manager.prepare_store([a, b], ONE) == PrepareStoreOutput([a, b], CPULoadStoreSpec([0, 1]), [])
    assert [manager.lookup(key, TWO) for key in (a, c)] == [LookupResult.HIT_PENDING, LookupResult.MISS]
    manager.complete_store([a, b], ONE)
    assert manager.lookup(a, TWO) is LookupResult.HIT
    assert manager.lookup_prefix([a, b, c], TWO) == (2, LookupResult.MISS)
    assert manager.lookup_prefix([b, a], TWO) == (2, LookupResult.HIT)
    assert manager.get_load_source(a, TWO) is CacheHitSource.HOST
    assert manager.prepare_load([b, a], TWO) == CPULoadStoreSpec([1, 0])
    manager.complete_load([b, a], TWO)
    manager.on_request_finished(ONE)
    manager.on_request_finished(TWO)


@pytest.mark.parametrize("kind", [list, tuple, dict.fromkeys])
def test_keys_may_be_in_any_collection(make, keys, kind):
    manager, [a, b, c] = make(4), keys(range(3))
    assert manager.prepare_store(kind([a, b]), ONE) == PrepareStoreOutput([a, b], CPULoadStoreSpec([0, 1]), [])
    manager.complete_store(kind([a, b]), ONE)
    assert manager.lookup_prefix(kind([b, c, a]), TWO) == (1, LookupResult.MISS)
    assert manager.lookup_prefix(kind([b, c, c]), TWO) == (1, LookupResult.MISS)
    assert manager.prepare_load(kind([b, a]), TWO) == CPULoadStoreSpec([1, 0])
    manager.complete_load(kind([b, a]), TWO)
    manager.touch(kind([b, a]), TWO)
    manager.drop(kind([a]))
    assert [manager.lookup(key, TWO) for key in (a, b)] == [LookupResult.MISS, LookupResult.HIT]


def test_a_prefix_ends_at_a_chunk_in_flight(make, keys, store):
    manager = make(4)
    store(manager, [0])
    manager.prepare_store(keys([1]), ONE)
    assert manager.lookup_prefix(keys([0, 1, 2]), TWO) == (1, LookupResult.HIT_PENDING)


def test_empty_calls_do_nothing(make):
    manager = make()
    assert manager.lookup_prefix([], ONE) == (0, LookupResult.HIT)
    assert manager.prepare_store([], ONE) == PrepareStoreOutput([], CPULoadStoreSpec([]), [])
    assert manager.prepare_load([], ONE) == CPULoadStoreSpec([])
    manager.complete_load([], ONE)
    manager.complete_store([], ONE)
    manager.touch([], ONE)
    manager.drop([])


def test_what_is_held_is_not_stored_again(make, keys, store):
    manager, [a, b, c] = make(4), keys(range(3))
    store(manager, [0])
    manager.prepare_store([b], ONE)
    assert manager.prepare_store([a, b, c], TWO).keys_to_store == [c]


def test_a_duplicate_in_an_offer_is_stored_once(make, keys):
    manager, [a, b] = make(4), keys(range(2))
    assert manager.prepare_store([a, b, a], ONE) == PrepareStoreOutput([a, b], CPULoadStoreSpec([0, 1]), [])


def test_a_chunk_may_be_pinned_twice_by_one_load(make, keys, store):
    manager = make(1)
    store(manager, [0])
    assert manager.prepare_load(keys([0, 0]), ONE) == CPULoadStoreSpec([0, 0])
    manager.complete_load(keys([0]), ONE)
    assert manager.prepare_store(keys([1]), TWO) is None
    manager.complete_load(keys([0]), ONE)
    assert manager.prepare_store(keys([1]), TWO).evicted_keys == keys([0])


def test_slots_are_handed_out_in_order_so_that_copies_can_merge(make, keys, store):
    manager = make(4)
    store(manager, range(4))
    assert manager.prepare_store(keys([4, 5, 6]), ONE).store_spec == CPULoadStoreSpec([1, 2, 3])


def test_more_than_the_capacity_never_fits(make, keys, policy):
    manager = make(3, policy)
    assert manager.prepare_store(keys(range(4)), ONE) is None
    assert manager.prepare_store(keys(range(3)), ONE) is not None


def test_an_offer_does_not_evict_its_own_chunks(make, keys, store, policy):
    manager = make(4, policy)
    store(manager, [0, 1])
    store(manager, [2, 3])
    assert manager.prepare_store(keys([0, 1, 8, 9]), ONE).evicted_keys in (keys([2, 3]), keys([3, 2]))


def test_a_chunk_of_an_offer_that_is_loading_takes_no_room_twice(make, keys, store, policy):
    manager = make(4, policy)
    store(manager, range(4))
    manager.prepare_load(keys([0]), ONE)
    assert manager.prepare_store(keys([0, 10, 11, 12]), TWO).keys_to_store == keys([10, 11, 12])


def test_a_chunk_of_an_offer_that_is_loading_counts_as_used_when_its_load_ends(make, keys, store):
    manager, [first, loading, new] = make(2), keys([0, 1, 2])
    store(manager, [0, 1], ONE)
    manager.prepare_load([loading], ONE)
    assert manager.prepare_store([loading, new], ONE) == PrepareStoreOutput([new], CPULoadStoreSpec([0]), [first])
    manager.complete_store([new], ONE)
    manager.touch([new], TWO)
    manager.complete_load([loading], ONE)
    assert store(manager, [3]) == [new]


def test_an_offer_that_needs_its_own_chunks_room_is_refused(make, keys, store, policy):
    manager = make(4, policy)
    store(manager, range(4))
    assert manager.prepare_store(keys([0, 1, 7, 8, 9]), ONE) is None
    assert manager.lookup_prefix(keys(range(4)), ONE).hits == 4


def test_a_failed_store_is_a_miss_and_its_slot_is_free(make, keys, policy):
    manager = make(2, policy)
    manager.prepare_store(keys([0, 1]), ONE)
    manager.complete_store(keys([0, 1]), ONE, success=False)
    assert manager.lookup(keys([0])[0], ONE) is LookupResult.MISS
    assert manager.prepare_store(keys([0, 2]), ONE).evicted_keys == []


def test_completions_of_what_nobody_stores_are_ignored(make, keys, store):
    manager = make(2)
    store(manager, [0])
    manager.complete_store(keys([0, 7]), ONE)
    manager.complete_store(keys([0, 7]), ONE, success=False)
    assert manager.lookup(keys([0])[0], ONE) is LookupResult.HIT
    assert manager.lookup(keys([7])[0], ONE) is LookupResult.MISS


def test_stores_may_end_otherwise_than_they_began(make, keys):
    manager = make(4)
    manager.prepare_store(keys([0, 1]), ONE)
    manager.prepare_store(keys([2, 3]), ONE)
    manager.complete_store(keys([2, 1]), ONE)  # as many as the first, and the same last one
    manager.check()
    assert [manager.lookup(key, ONE) is LookupResult.HIT for key in keys(range(4))] == [False, True, True, False]
    for ended in ([0, 1], [2, 3]):
        manager.complete_store(keys(ended), ONE)
    manager.check()
    assert manager.lookup_prefix(keys(range(4)), ONE) == (4, LookupResult.HIT)


def test_touch_is_a_use(make, keys, store):
    manager = make(3)
    for number in range(3):
        store(manager, [number])
    manager.touch(keys([0, 5, 0]), ONE)
    assert store(manager, [3]) == keys([1])


def test_an_offer_is_a_use_of_what_is_there(make, keys, store):
    manager = make(3)
    for number in range(3):
        store(manager, [number])
    manager.prepare_store(keys([0]), ReqContext("repeats it"))
    assert store(manager, [3]) == keys([1])
    manager.prepare_store(keys([2, 4]), ReqContext("goes on from it"))
    manager.complete_store(keys([4]), ONE)
    assert store(manager, [5]) == keys([3])


def test_a_chunk_that_is_listed_twice_is_used_once(make, keys, store):
    """A second use would have this policy keep it."""
    manager = make(4, "s3fifo")
    store(manager, range(4))
    manager.touch(keys([3, 3]), ONE)
    assert store(manager, [9]) == keys([3])


def test_a_chunk_in_flight_is_not_touched(make, keys, store):
    manager = make(3)
    (early,) = keys([0])
    assert manager.prepare_store([early], ONE).keys_to_store == [early]
    store(manager, [1, 2])
    manager.touch([early], ONE)
    manager.complete_store([early], ONE)
    assert store(manager, [3]) == [early]


def test_one_request_may_be_served_by_two_managers(make, keys, store):
    small, large, context = make(2), make(8), ReqContext("both")
    for numbers in ([0, 1], [2, 3]):
        for number, key in zip(numbers, keys(numbers), strict=True):
            context.set_offload_key_position(key, 16 * number)
        store(large, numbers, context)
        store(small, numbers, context)
    assert large.lookup_prefix(keys(range(4)), context).hits == 4
    assert small.lookup_prefix(keys([2, 3]), context).hits == 2


def test_finished_requests_may_still_complete_jobs(make, keys):
    manager = make(2)
    manager.prepare_store(keys([0]), ONE)
    manager.on_request_finished(ONE)
    manager.complete_store(keys([0]), ONE)
    assert manager.lookup(keys([0])[0], ONE) is LookupResult.HIT


class Info(ConfigInfo):
    @classmethod
    def config_info_keys(cls):
        return ("cpu_num_chunks",)

    cpu_num_chunks = 8


def test_info():
    assert CPUOffloadingManager(8).config_info() == [{}]
    assert CPUOffloadingManager(8, info=Info()).config_info() == [{"cpu_num_chunks": 8}]


def test_defaults():
    """They are vLLM's, but for the threshold: every chunk is stored, and 0 says the same."""
    parameters = signature(CPUOffloadingManager).parameters.values()
    assert {parameter.name: parameter.default for parameter in parameters} == {
        "num_chunks": Parameter.empty,
        "cache_policy": Options(1).eviction_policy,
        "cache_policy_module_path": Options(1).cache_policy_module_path,
        "enable_events": False,
        "store_threshold": 1,
        "max_tracker_size": Options(1).max_tracker_size,
        "most_in_flight": None,
        "info": None,
        "info_of": None,
    }


def test_no_more_chunks_are_in_flight_than_may_be():
    """For a medium that has somewhere to put so many; nothing else changes: a hit needs no place."""
    manager, request = CPUOffloadingManager(8, most_in_flight=3), ReqContext("request")
    first, more, last = (
        [make_offload_key(b"%d" % number, 0) for number in part] for part in ([1, 2], [3, 4], [5])
    )
    assert manager.prepare_store(first, request).keys_to_store == first
    assert manager.prepare_store(more, request) is None
    assert manager.get_stats().data[ALLOCATION_FAILURE] == 1
    assert manager.prepare_store([*first, *last], request).keys_to_store == last
    assert manager.prepare_store(first, request).keys_to_store == []
    assert manager.prepare_stores([(more[:1], request)]) == []
    manager.complete_store(first, request)
    assert [
        len(output.keys_to_store) for output in manager.prepare_stores([(more, request), (last, request)])
    ] == [2, 0]
    manager.check()
    manager._pool.most_in_flight = 2
    with pytest.raises(AssertionError, match="3 in flight, at most 2"):
        manager.check()


# Errors

IN_FLIGHT, RESIDENT, PINNED, DROPPED, UNKNOWN = range(5)
LOAD = "only chunks for which lookup answers HIT can be loaded"
COMPLETE = "complete_load has to be called once for each prepare_load"


@pytest.fixture
def in_every_state(make, keys, store):
    manager = make(8)
    store(manager, [RESIDENT, PINNED, DROPPED])
    manager.prepare_load(keys([PINNED, DROPPED]), ONE)
    manager.drop(keys([DROPPED]))
    manager.prepare_store(keys([IN_FLIGHT]), ONE)
    return manager


@pytest.mark.parametrize(
    ("call", "numbers", "message"),
    [
        ("prepare_load", [RESIDENT, IN_FLIGHT], "chunk 303030303030 is in flight"),
        ("prepare_load", [RESIDENT, UNKNOWN], "chunk 303030303034 is not here"),
        ("prepare_load", [PINNED, DROPPED], "chunk 303030303033 is forgotten while in use"),
        ("complete_load", [PINNED, IN_FLIGHT], "chunk 303030303030 is in flight"),
        ("complete_load", [PINNED, RESIDENT], "chunk 303030303031 is resident, not pinned"),
        ("complete_load", [PINNED, PINNED], "chunk 303030303032 is resident, not pinned"),
        ("complete_load", [PINNED, UNKNOWN], "chunk 303030303034 is not here"),
    ],
)
def test_calls_in_the_wrong_state(in_every_state, keys, call, numbers, message):
    hint = LOAD if call == "prepare_load" else COMPLETE
    whole = f"{call}: " + message.replace(" is ", "00000000 is ", 1) + f"; {hint}"
    with pytest.raises(KVError) as error:
        getattr(in_every_state, call)(keys(numbers), ONE)
    assert str(error.value) == whole
    in_every_state.complete_load(keys([PINNED, DROPPED]), ONE)  # nothing was changed by the failed call


def test_what_is_resident(in_every_state, keys):
    pool = in_every_state._pool
    assert [pool.is_resident(key) for key in keys(range(5))] == [False, True, True, False, False]


def test_the_most_chunks_are_still_allowed(make, monkeypatch):
    monkeypatch.setattr("kv_offload_cpu.manager.MOST_CHUNKS", 4)  # the real number takes too much memory
    make(4)
    with pytest.raises(KVError, match="num_chunks: expected at most 4, got 5"):
        make(5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_chunks": 0}, "num_chunks: expected a whole number of at least 1, got 0"),
        ({"num_chunks": 2.5}, "num_chunks: expected a whole number of at least 1, got 2.5"),
        ({"num_chunks": True}, "num_chunks: expected a whole number of at least 1, got True"),
        ({"num_chunks": 2**31}, "num_chunks: expected at most 2147483647, got 2147483648"),
        ({"store_threshold": -1}, "store_threshold: expected a whole number of at least 0, got -1"),
        ({"max_tracker_size": 0}, "max_tracker_size: expected a whole number of at least 1, got 0"),
        ({"most_in_flight": 0}, "most_in_flight: expected a whole number of at least 1, got 0"),
        (
            {"cache_policy": "lruu"},
            "unknown eviction_policy 'lruu'; known: arc, lru, s3fifo, sieve; did you mean 'lru'?",
        ),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole message is compared
        CPUOffloadingManager(**{"num_chunks": 4, **options})
    assert str(error.value) == message
    assert isinstance(error.value, KVError)
