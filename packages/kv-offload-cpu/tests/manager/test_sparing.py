"""Chunks that others read, too: meanwhile they don't leave, and then they leave as any other."""

import pytest

from kv_api import ReqContext

NEW = ReqContext("new")


def leave(manager, keys, numbers):
    """Which chunks leave for new ones."""
    output = manager.prepare_store(keys(numbers), NEW)
    if output is None:
        return None
    manager.complete_store(output.keys_to_store, NEW)
    return output.evicted_keys


@pytest.mark.parametrize("policy", ["lru", "arc", "sieve", "s3fifo"])
def test_what_is_spared_stays_and_leaves_later(make, keys, store, policy):
    manager = make(4, cache_policy=policy)
    store(manager, [0, 1, 2, 3])
    with manager.sparing([3, 2, 1]):
        assert leave(manager, keys, [4]) == keys([0])
        assert leave(manager, keys, [5]) == keys([4])
        assert leave(manager, keys, [6, 7]) is None
        manager.check()
    manager.check()
    assert sorted(leave(manager, keys, [10, 11, 12, 13])) == sorted(keys([1, 2, 3, 5]))
    manager.check()


def test_what_a_job_uses_or_nobody_has_is_as_it_was(make, keys, store):
    """A slot that is free, or that a store fills, may be named: who reads it saw what was there before.

    So may one that there isn't any more, since there is less room than there was.
    """
    manager = make(5)
    store(manager, [0, 1, 2])
    manager.prepare_load(keys([0]), NEW)
    manager.prepare_store(keys([3]), NEW)
    with manager.sparing([0, 2, 3, 4, 5, 99]):
        manager.check()
        assert leave(manager, keys, [4]) == [], "there is room"
        assert leave(manager, keys, [5, 6]) == keys([1, 4])
    manager.check()
    assert leave(manager, keys, [7, 8, 9, 10]) is None, "a job still uses two of the five"
    manager.complete_store(keys([3]), NEW)
    manager.complete_load(keys([0]), NEW)
    assert sorted(leave(manager, keys, [11, 12, 13, 14, 15])) == sorted(keys([0, 2, 3, 5, 6]))
    manager.check()


def test_what_left_before_is_not_spared(make, keys, store):
    manager = make(2)
    store(manager, [0, 1])
    manager.drop(keys([1]))
    with manager.sparing([1]):
        assert leave(manager, keys, [2]) == []
    assert sorted(leave(manager, keys, [3, 4])) == sorted(keys([0, 2]))
    manager.check()


def test_it_ends_however_the_rest_does(make, keys, store):
    manager = make(2)
    store(manager, [0, 1])
    sparing = manager.sparing([0, 1])
    sparing.__enter__()
    assert leave(manager, keys, [2]) is None
    with pytest.raises(ZeroDivisionError):
        sparing.gen.throw(ZeroDivisionError())
    assert leave(manager, keys, [2, 3]) is not None
