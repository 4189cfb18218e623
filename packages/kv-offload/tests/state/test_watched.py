"""Watched blocks against a model that goes through all jobs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_offload.scheduler.state.watched import WatchedBlocks

blocks = st.sets(st.integers(1, 8))


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "ask"]), blocks)))
def test_agrees_with_the_model(history):
    watched, model = WatchedBlocks(), {}
    for number, (call, some) in enumerate(history):
        if call == "add":
            watched.add(number, sorted(some))
            model[number] = some
        elif call == "remove" and model:
            job_id = next(iter(model))
            watched.remove(job_id, sorted(model.pop(job_id)))
        assert watched.touching(some) == sorted(job_id for job_id, of_job in model.items() if of_job & some)
        assert bool(watched) is bool(model)
        watched.check(model)


def test_jobs_apart_share_a_layer():
    watched = WatchedBlocks()
    for job_id in range(100):
        watched.add(job_id, [2 * job_id + 1, 2 * job_id + 2])
    assert len(watched._layers) == 1
    watched.add(100, [7])
    assert watched.touching({7, 9}) == [3, 4, 100]
    watched.remove(100, [7])
    assert len(watched._layers) == 1


def test_a_job_may_use_a_block_twice():
    watched = WatchedBlocks()
    watched.add(1, [5, 5])
    watched.remove(1, [5, 5])
    assert (watched.touching({5}), bool(watched)) == ([], False)


def test_check_sees_a_block_too_many():
    watched = WatchedBlocks()
    watched.add(1, [5, 6])
    with pytest.raises(AssertionError, match="blocks watched"):
        watched.check({1: {5}})
