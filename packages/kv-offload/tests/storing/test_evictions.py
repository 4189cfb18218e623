"""Stores when blocks are given away: what was left, what becomes of it, and who is refused."""

import gc
import weakref

import pytest
from kv_offload_calls import arrive, ask, gpu, key, keys, plan, report, run
from kv_offload_configs import FULL, STATE, WINDOW, Blocks, Request, kv_cache_config, make, step, vllm_config
from kv_offload_medium import Slots
from kv_offload_pool import Pool, QueueingPool

from kv_api import BlockStored, ConfigError, KVConnectorRole
from kv_offload import OffloadingConnector, TransferJob
from kv_offload.metrics import ALLOCATION_FAILURE

LOOKED_AT = 16
"""Of 64 blocks."""


@pytest.fixture
def late(fenced):
    """A scheduler's side that stores when blocks are given away, its manager, and its engine's pool."""

    def make_one(pool=None, **config):
        connector, manager = fenced(store_when="evicted", **config)
        pool = pool or QueueingPool()
        connector.bind_gpu_block_pool(pool)
        return connector, manager, pool

    return make_one


def leave(connector, name="a", table=(5, 6, 7), count=13, first=0, **config):
    """A request comes, computes all, samples a token, and ends."""
    request = arrive(connector, Request(name, range(first, first + count), **config))
    assert not run(connector, request, [*table]).store_jobs
    assert connector.request_finished(request, [*table]) == (False, None)
    return request


def go_on(connector, **more):
    """A step of nobody in particular."""
    return connector.build_connector_meta(step(**more))


def stored(meta):
    """The blocks of each job that a step begins."""
    return [list(job.gpu_spec.block_ids) for job in meta.store_jobs.values()]


def test_nothing_is_stored_before_its_blocks_come_up(late):
    """And then by a request of its own, which a medium hears of."""
    connector, manager, pool = late()
    heard = []
    manager.on_new_request = lambda context, real=manager.on_new_request: heard.append(context) or real(context)
    a = leave(connector)
    assert [context.req_id for context in manager.finished] == ["a"]
    pool.next = [99]
    assert go_on(connector) == plan()
    pool.next = [7, 6, 5]
    meta = go_on(connector)
    assert meta == plan(stores={0: TransferJob("a, left 1", gpu(5, 6, 7), Slots([0, 1, 2]), is_computed=True)})
    assert [context.req_id for context in heard] == ["a", "a, left 1"]
    assert manager.finished[1:] == heard[1:]
    assert [heard[1].get_offload_key_position(one) for one in keys(a, 3)] == [4, 8, 12]
    report(connector, done=[0])
    assert [*manager.resident] == keys(a, 3)
    assert go_on(connector) == plan()


def test_chunks_come_up_one_by_one(late):
    """Each time by another request, since one that has ended prepares nothing more."""
    connector, manager, pool = late()
    leave(connector)
    found = []
    for block in (7, 5, 6):
        pool.next = [block, 40]
        found += stored(go_on(connector))
    assert found == [[7], [5], [6]]
    assert len({id(context) for context in manager.finished}) == 4


@pytest.mark.parametrize(("blocks", "ahead"), [(64, 16), (128, 16), (136, 17), (800, 100)])
def test_an_eighth_of_all_blocks_is_looked_at_and_16_at_least(late, blocks, ahead):
    connector, _, pool = late(QueueingPool(blocks), cache=kv_cache_config(num_blocks=blocks))
    leave(connector)
    pool.next = [*range(300, 300 + ahead), 7, 6, 5]
    assert stored(go_on(connector)) == []
    others = [*range(500, 500 + ahead)]
    connector.on_new_request(b := Request("b", range(50, 50 + 4 * ahead)))
    pool.next = pool.next[1:]
    assert stored(run(connector, b, others)) == [[7]]


def test_it_is_looked_again_when_half_has_been_given_away(late):
    """Blocks that a request finds on the GPU weren't next, and don't count."""
    connector, _, pool = late()
    leave(connector)
    pool.next = [*range(30, 30 + LOOKED_AT), 7, 6, 5]
    go_on(connector)
    b = arrive(connector, Request("b", range(100)))
    connector.get_num_new_matched_tokens(b, 12)
    connector.update_state_after_alloc(b, Blocks([5, 6, 7, *range(30, 37)]), 0)
    go_on(connector, new=[("b", ([5, 6, 7, *range(30, 37)],))], counts={"b": 28})
    assert pool.looks == 1
    go_on(connector, more=[("b", ([37],))], counts={"b": 4})
    assert pool.looks == 2
    go_on(connector, more=[("b", ([38],))], counts={"b": 4})
    assert pool.looks == 2


def test_who_left_nothing_is_not_looked_for(late):
    connector, _, pool = late()
    pool.next = [7]
    go_on(connector)
    assert pool.looks == 0


def test_what_somebody_else_got_is_lost(late):
    connector, _, pool = late()
    leave(connector)
    b = arrive(connector, Request("b", range(20, 28)))
    run(connector, b, [6, 20])
    pool.next = [7, 6, 5]
    assert stored(go_on(connector)) == [[5, 7]]


def test_what_was_given_away_in_the_very_step_is_lost(late):
    connector, _, pool = late()
    leave(connector)
    b = arrive(connector, Request("b", range(20, 28)))
    connector.get_num_new_matched_tokens(b, 0)
    connector.update_state_after_alloc(b, Blocks([6, 20]), 0)
    pool.next = [7, 5]
    assert stored(go_on(connector, new=[("b", ([6, 20],))], counts={"b": 8})) == [[5, 7]]


def test_what_the_engine_does_not_find_is_lost(late):
    connector, _, pool = late()
    leave(connector)
    pool.next, pool.hashed = [7, 6, 5], {7, 5}
    assert stored(go_on(connector)) == [[5, 7]]
    pool.hashed.add(6)
    assert stored(go_on(connector)) == []


@pytest.mark.parametrize(("lost", "found"), [(None, [[5, 6, 7, 8]]), (7, [[5, 6]]), (6, [[7, 8]])])
def test_a_chunk_of_several_blocks_is_stored_whole_or_not_at_all(late, lost, found):
    """When the first of its blocks comes up, whichever that is."""
    connector, _, pool = late(blocks_per_chunk=2)
    leave(connector, table=(5, 6, 7, 8, 9), count=21)
    if lost is not None:
        b = arrive(connector, Request("b", range(50, 54)))
        run(connector, b, [lost])
    pool.next = [8, 5]
    assert stored(go_on(connector)) == found
    looks, pool.next = pool.looks, [6, 7]
    assert stored(go_on(connector)) == []
    assert pool.looks == looks, "no block of a chunk is still left"


def test_chunks_are_stored_in_the_order_of_their_tokens(late):
    connector, _, pool = late()
    leave(connector, table=range(30, 50), count=77)
    pool.next = [38, 31, 46, 30]
    assert stored(go_on(connector)) == [[30, 31, 38, 46]]


def test_what_is_left_of_a_chunk_does_not_take_anothers_along(late):
    """Of a request that had one of its blocks found on the GPU, and computed the other anew."""
    connector, _, pool = late(blocks_per_chunk=2)
    leave(connector, table=(5, 6), count=9)
    b = arrive(connector, Request("b", [*range(4), *range(70, 75)]))
    run(connector, b, [5, 16], local=4)
    connector.request_finished(b, [5, 16])
    pool.next = [6, 40]
    assert stored(go_on(connector)) == []
    c = arrive(connector, Request("c", range(20, 24)))
    run(connector, c, [11])
    pool.next = [5]
    assert stored(go_on(connector)) == [[5, 16]]


def test_several_groups_are_stored_together(late):
    connector, _, pool = late(cache=kv_cache_config(((FULL, 4, 0), (FULL, 8, 0))))
    a = arrive(connector, Request("a", range(17)))
    tables = ([5, 6, 7, 8], [11, 12])
    connector.get_num_new_matched_tokens(a, 0)
    connector.update_state_after_alloc(a, Blocks(*tables), 0)
    go_on(connector, new=[("a", tables)], counts={"a": 17})
    a.num_computed_tokens = 17
    connector.request_finished_all_groups(a, tables)
    pool.next = [12, 6, 5]
    (job,) = go_on(connector).store_jobs.values()
    assert (list(job.gpu_spec.block_ids), list(job.gpu_spec.group_sizes)) == ([5, 6, 12], [2, 1])
    assert list(job.gpu_spec.block_indices) == [0, 1]


def test_who_is_preempted_leaves_what_it_had(late):
    """What it computes when it goes on lies elsewhere, and is left by itself when it ends."""
    connector, manager, pool = late(offload_prompt_only=False)
    a = arrive(connector, Request("a", range(14), prompt=8))
    run(connector, a, [5, 6, 7, 8])
    a.num_computed_tokens = 0  # as vLLM's scheduler has it by then
    go_on(connector, preempted=["a"])
    connector.get_num_new_matched_tokens(a, 0)
    connector.update_state_after_alloc(a, Blocks([25, 26, 27, 28]), 0)
    pool.next, pool.hashed = [8, 7, 6], {5, 6, 7}
    meta = go_on(connector, more=[("a", ([25, 26, 27, 28],))], resumed=["a"], counts={"a": 14})
    (job,) = meta.store_jobs.values()
    assert job.gpu_spec == gpu(6, 7, index=1)
    assert [*manager.storing] == keys(a, 3)[1:]
    a.num_computed_tokens = 14
    connector.request_finished(a, [25, 26, 27, 28])
    pool.next, pool.hashed = [27, 26, 25], {25, 26, 27}
    assert stored(go_on(connector)) == [[25]]


def test_what_a_request_left_twice_is_stored_under_two_ids(late):
    """It may come up at once, and a medium may know a request by its id."""
    connector, manager, pool = late(offload_prompt_only=False)
    a = arrive(connector, Request("a", range(14), prompt=8))
    run(connector, a, [5, 6, 7, 8])
    a.num_computed_tokens = 0
    go_on(connector, preempted=["a"])
    connector.get_num_new_matched_tokens(a, 0)
    connector.update_state_after_alloc(a, Blocks([25, 26, 27, 28]), 0)
    go_on(connector, more=[("a", ([25, 26, 27, 28],))], resumed=["a"], counts={"a": 14})
    a.num_computed_tokens = 14
    connector.request_finished(a, [25, 26, 27, 28])
    begun = []
    manager.on_new_request = lambda context, real=manager.on_new_request: begun.append(context) or real(context)
    pool.next, pool.hashed = [7, 25], {7, 25}
    assert stored(go_on(connector)) == [[7], [25]]
    assert [context.req_id for context in begun] == ["a, left 1", "a, left 2"]
    assert manager.finished[1:] == begun


def test_who_is_loading_leaves_nothing(late):
    connector, manager, pool = late()
    a = Request("a", range(13))
    assert ask(connector, manager, a, 3) == (12, True)
    connector.update_state_after_alloc(a, Blocks([5, 6, 7]), 12)
    go_on(connector)
    manager.resident.clear()
    manager.pins.clear()
    connector.request_finished(a, [5, 6, 7])
    pool.next = [7, 6, 5]
    assert stored(go_on(connector)) == []


def test_what_was_loaded_is_stored_again_if_the_medium_has_it_no_more(late):
    connector, manager, pool = late()
    a = Request("a", range(13))
    ask(connector, manager, a, 3)
    connector.update_state_after_alloc(a, Blocks([5, 6, 7, 8]), 12)
    go_on(connector)
    report(connector, done=[0])
    go_on(connector, new=[("a", ([5, 6, 7, 8],))], counts={"a": 1})
    a.num_computed_tokens = 13
    connector.request_finished(a, [5, 6, 7, 8])
    del manager.resident[key(a, 1)]
    pool.next = [7, 6, 5]
    assert stored(go_on(connector)) == [[6]]


@pytest.mark.parametrize(
    ("params", "options", "count"),
    [(None, {}, 2), (None, {"offload_prompt_only": False}, 3), ({"max_offload_tokens": 7}, {}, 1)],
)
def test_what_is_not_to_be_stored_is_not_left(late, params, options, count):
    connector, _, pool = late(**options)
    leave(connector, count=13, prompt=8, params=params)
    pool.next = [7, 6, 5]
    assert stored(go_on(connector)) == [[5, 6, 7][:count]]


def test_whoever_gets_a_block_that_is_being_stored_waits(late):
    connector, manager, pool = late()
    leave(connector)
    pool.next = [7, 6]
    assert stored(go_on(connector)) == [[6, 7]]
    b = arrive(connector, Request("b", range(20, 28)))
    assert run(connector, b, [20, 21]).jobs_to_flush == set()
    c = arrive(connector, Request("c", range(30, 34)))
    assert run(connector, c, [7]).jobs_to_flush == {0}
    report(connector, done=[0])
    assert len(manager.resident) == 2


def test_what_finds_no_room_is_lost(late):
    connector, manager, pool = late()
    leave(connector)
    manager.capacity = 1
    pool.next = [7, 6, 5]
    assert stored(go_on(connector)) == [[5]]
    assert connector.get_kv_connector_stats().reduce()[ALLOCATION_FAILURE] == 1
    manager.capacity = 9
    assert stored(go_on(connector)) == []


def test_of_what_is_found_on_the_gpu_again_the_last_who_had_it_tells(late):
    connector, manager, pool = late()
    leave(connector)
    b = arrive(connector, Request("b", [*range(13), 98, 97, 96, 95]))
    run(connector, b, [5, 6, 7, 8], local=12)
    pool.next = [40]
    assert stored(go_on(connector)) == []
    connector.request_finished(b, [5, 6, 7, 8])
    pool.next = [8, 7, 6, 5]
    (job,) = go_on(connector).store_jobs.values()
    assert (job.req_id, job.gpu_spec) == ("b, left 1", gpu(5, 6, 7, 8))
    assert [*manager.storing] == keys(b, 4)


def test_a_reset_forgets_what_was_left(late):
    connector, _, pool = late()
    leave(connector)
    connector.reset_cache()
    pool.next = [7, 6, 5]
    assert stored(go_on(connector)) == []


@pytest.mark.parametrize(("invalid", "found"), [(6, ["b"]), (7, ["b"]), (8, ["b"]), (16, ["a"]), (40, ["b", "a"])])
def test_what_rests_on_a_block_that_was_not_filled_is_forgotten(late, invalid, found):
    """All that its request left, and nothing of others."""
    connector, _, pool = late()
    leave(connector, table=(5, 6, 7, 8))
    leave(connector, "b", (15, 16, 17), first=50)
    report(connector, invalid=[invalid])
    pool.next = [17, 16, 15, 7, 6, 5]
    told = [job.req_id for job in go_on(connector).store_jobs.values()]
    assert told == [f"{name}, left {number}" for number, name in enumerate(found, 1)]


@pytest.mark.parametrize("describes", [False, True])
def test_the_engines_request_is_kept_for_events_alone(late, describes):
    """It may have all images of a prompt, and what it left may lie on the GPU for hours."""
    connector, _, _ = late(self_describing_kv_events=describes)
    a = weakref.ref(leave(connector))
    gc.collect()
    assert (a() is not None) == describes


def test_events_tell_of_what_was_left(late):
    connector, _, pool = late(self_describing_kv_events=True)
    a = leave(connector)
    pool.next = [6]
    go_on(connector)
    report(connector, done=[0])
    h, kind = a.block_hashes, {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    assert connector.take_events() == [
        BlockStored([h[1]], h[0], [4, 5, 6, 7], 4, None, "CPU", None, [None], **kind)
    ]


def test_without_a_prefix_cache_chunks_are_stored_at_once(manager):
    config = vllm_config(hold_blocks="never", store_when="evicted")
    config.cache_config.enable_prefix_caching = False
    connector = OffloadingConnector(config, KVConnectorRole.SCHEDULER, kv_cache_config())
    connector.bind_gpu_block_pool(Pool())
    a = arrive(connector, Request("a", range(8)))
    assert stored(run(connector, a, [1, 2])) == [[1, 2]]


@pytest.mark.parametrize("more", [{"save": False}, {"role": "kv_consumer"}])
def test_who_stores_nothing_needs_no_queue(late, more):
    connector, _, _ = late(Pool(), **more)
    leave(connector)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            {"hold_blocks": "always"},
            "hold_blocks keeps blocks until they are stored, so they have to be stored at once; set hold_blocks "
            "to 'never'",
        ),
        (
            {"cache": kv_cache_config(((FULL, 4, 0), (WINDOW, 4, 8)))},
            "the engine frees single blocks of a sliding window or of states while their request runs; set "
            "store_when to 'computed'",
        ),
        (
            {"cache": kv_cache_config(((FULL, 4, 0), (STATE, 4, 0)))},
            "the engine frees single blocks of a sliding window or of states while their request runs; set "
            "store_when to 'computed'",
        ),
    ],
)
def test_where_blocks_cannot_be_waited_for_it_is_refused(manager, config, why):
    with pytest.raises(ConfigError) as refused:
        make(**{"hold_blocks": "never", "store_when": "evicted", **config})
    assert str(refused.value) == f"kv_connector_extra_config.store_when: got 'evicted', but {why}"


@pytest.mark.parametrize("queue", [None, object()])
def test_an_engine_whose_pool_has_no_queue_is_refused(fenced, queue):
    connector, _ = fenced(store_when="evicted")
    pool = Pool()
    if queue is not None:
        pool.free_block_queue = queue
    with pytest.raises(ConfigError) as refused:
        connector.bind_gpu_block_pool(pool)
    assert str(refused.value) == (
        "kv_connector_extra_config.store_when: got 'evicted', but the engine's Pool doesn't say which blocks it "
        "evicts next; choose 'computed'"
    )


def test_an_engine_that_tells_no_pool_is_refused_when_something_was_left(fenced):
    connector, _ = fenced(store_when="evicted")
    go_on(connector)
    leave(connector)
    with pytest.raises(
        ConfigError, match=r"got 'evicted', but the engine has bound no block pool \(bind_gpu_block_pool\)"
    ):
        go_on(connector)


def test_a_chunk_that_was_left_for_another_block_is_found_by_a_recount(late):
    connector, _, _ = late()
    leave(connector)
    evictions = connector.side._books.evictions
    evictions._left[33] = evictions._left.pop(5)
    with pytest.raises(AssertionError, match=r"block 33 is left as one of chunk 0, which lies in \[5\]"):
        connector.side.check()
    evictions._left.clear()
