"""Tails: how far they are loaded, where they go, and what becomes of a load that fails."""

import pytest
from kv_offload_calls import report
from kv_offload_configs import Blocks, step
from kv_offload_medium import Slots
from kv_offload_tails import COPIES, TABLES, TAIL, begin, go_on, request, tail, tail_jobs

from kv_api import CacheHitSource, GPULoadStoreSpec, OffloadPolicy, make_offload_key
from kv_offload import TransferJob


def resident(manager, asked):
    """The first block of the tokens, and the tail."""
    manager.resident[make_offload_key(asked.block_hashes[3], 0)] = 30
    manager.resident.update({key: 40 + place for place, key in enumerate(tail(asked))})


def load(connector, asked, local=0, tables=TABLES, answer=None):
    connector.on_new_request(asked)
    found, is_async = connector.get_num_new_matched_tokens(asked, local)
    assert is_async is (found > 0)
    connector.update_state_after_alloc(asked, Blocks(*tables), found if answer is None else answer)
    (job,) = connector.build_connector_meta(step()).load_jobs.values()
    return found, job


def test_a_block_more_of_each_group(tails):
    connector, manager = tails()
    a = request(count=15)
    resident(manager, a)
    assert load(connector, a) == (
        12,
        TransferJob("a", Slots([30, 40, 41, 42]), GPULoadStoreSpec([1, 2, 4, 5], (2, 1, 1), (0, 1, 1))),
    )
    assert connector.get_external_cache_hit_sources(a, 12) == {CacheHitSource.HOST: 12}
    assert connector.side._books.states["a"].progress.loaded_tail == 12


def test_after_several_blocks(tails):
    connector, manager = tails()
    a = request(count=31)
    manager.resident.update({make_offload_key(a.block_hashes[4 * end - 1], 0): 30 + end for end in (1, 2, 3)})
    manager.resident.update({key: 40 + place for place, key in enumerate(tail(a, 28))})
    tables = [1, 2, 3, 6], [0, 0, 0, 4], [0, 0, 0, 5]
    assert load(connector, a, tables=tables) == (
        28,
        TransferJob(
            "a",
            Slots([31, 32, 33, 40, 41, 42]),
            GPULoadStoreSpec([1, 2, 3, 6, 4, 5], (4, 1, 1), (0, 3, 3)),
        ),
    )


def test_on_what_the_request_has(tails):
    connector, manager = tails()
    a = request(count=15)
    resident(manager, a)
    assert load(connector, a, local=8) == (
        4,
        TransferJob("a", Slots([40, 41, 42]), GPULoadStoreSpec([2, 4, 5], (1, 1, 1), (1, 1, 1))),
    )


@pytest.mark.parametrize(
    ("count", "params", "found"),
    [
        (12, None, 0),
        (13, None, 12),
        (15, {"max_load_tokens": 12}, 12),
        (15, {"max_load_tokens": 11}, 0),
    ],
)
def test_as_far_as_it_may(tails, count, params, found):
    connector, manager = tails()
    a = request(count=count, params=params)
    resident(manager, a)
    connector.on_new_request(a)
    assert connector.get_num_new_matched_tokens(a, 0) == (found, found > 0)


def test_what_was_sampled_is_no_prompt(tails):
    connector, manager = tails()
    a = request(count=15, prompt=12)
    resident(manager, a)
    connector.on_new_request(a)
    assert connector.get_num_new_matched_tokens(a, 0) == (0, False)


def test_it_waits_for_a_tail_that_is_being_stored(tails):
    connector, manager = tails(max_deferred_lookups=2)
    a = request(count=15)
    resident(manager, a)
    manager.storing[tail(a)[2]] = manager.resident.pop(tail(a)[2])
    connector.on_new_request(a)
    answers = [connector.get_num_new_matched_tokens(a, 0) for _ in range(3)]
    assert answers == [(None, False), (None, False), (0, False)]


def test_it_does_not_wait_for_one_that_this_engine_is_storing(tails):
    """The engine has found it on the GPU, and asks with the blocks that are whole."""
    connector, _ = tails()
    a, b = request(), request("b", 15)
    begin(connector, a)
    report(connector, done=[0])
    go_on(connector, a)
    connector.on_new_request(b)
    assert connector.get_num_new_matched_tokens(b, 8) == (0, False)
    connector.build_connector_meta(step())
    report(connector, done=[1])
    assert connector.get_num_new_matched_tokens(b, 8) == (4, True)


def test_an_answer_that_the_engine_shortened_has_no_state(tails):
    connector, manager = tails()
    a = request(count=15)
    resident(manager, a)
    manager.resident.update(dict.fromkeys(tail(a, 10), 50))
    _, job = load(connector, a, answer=11)
    assert job.src_spec is None


def test_no_block_for_a_state(tails):
    connector, manager = tails()
    a = request(count=15)
    resident(manager, a)
    _, job = load(connector, a, tables=([1, 2], [0, 4], [0]))
    assert job.src_spec is None


@pytest.mark.parametrize("policy", OffloadPolicy)
def test_what_was_loaded_is_not_stored_again_unless_the_medium_wants_it(tails, policy):
    connector, manager = tails()
    manager.policy = policy
    a = request(count=15)
    resident(manager, a)
    load(connector, a)
    report(connector, done=[0])
    manager.resident.clear()
    a.num_computed_tokens = 12
    name = {"a": 1}
    output = step(new=[("a", TABLES)], counts=name, offers={"a": TAIL}, copies=COPIES)
    assert bool(tail_jobs(connector.build_connector_meta(output))) is (policy is OffloadPolicy.REQUEST_LEVEL)


def test_its_block_is_stored_when_it_is_complete(tails):
    connector, manager = tails()
    a = request(count=18)
    resident(manager, a)
    load(connector, a)
    report(connector, done=[0])
    a.num_computed_tokens = 12
    meta = connector.build_connector_meta(step(new=[("a", TABLES)], counts={"a": 4}))
    assert [job.gpu_spec for job in meta.store_jobs.values()] == [GPULoadStoreSpec([2], (1, 0, 0), (1, 0, 0))]


def test_a_failed_load_is_not_tried_again_and_spoils_what_came_of_it(tails):
    connector, manager = tails()
    a = request(count=15)
    resident(manager, a)
    load(connector, a)
    a.num_computed_tokens = 12
    meta = connector.build_connector_meta(
        step(new=[("a", TABLES)], counts={"a": 2}, offers={"a": [(1, 14, 14), (2, 15, 14)]}, copies=COPIES)
    )
    (stored,) = meta.store_jobs
    report(connector, done=[0], failed=[0])
    report(connector, done=[stored])
    assert not manager.resident
    assert connector.side._books.states["a"].progress.loaded_tail == 0
    assert connector.get_num_new_matched_tokens(a, 0) == (0, False)


def test_a_load_tells_what_a_store_of_another_engine_could_not(tails):
    connector, manager = tails(self_describing_kv_events=True)
    a = request(count=15)
    resident(manager, a)
    load(connector, a)
    payload = connector.side._books.events._payloads[tail(a)[0]]
    assert (payload.block_hashes, payload.token_ids) == (a.block_hashes[4:6], [8, 9, 10, 11])
