"""Tails: which are stored, what keeps their bytes, and what is told of them."""

import pytest
from kv_offload_calls import plan, report
from kv_offload_configs import FULL, STATE, Request, kv_cache_config, step
from kv_offload_medium import Slots
from kv_offload_pool import Pool
from kv_offload_tails import COPIES, TABLES, TAIL, begin, go_on, request, tail, tail_jobs

from kv_api import BlockRemoved, BlockStored, GPULoadStoreSpec
from kv_offload import TransferJob
from kv_offload.metrics import ALLOCATION_FAILURE


class TestWhatIsTaken:
    def test_a_block_of_each_group_is_one_job(self, tails):
        connector, manager = tails()
        a = request()
        assert tail_jobs(begin(connector, a)) == []
        meta = go_on(connector, a)
        assert meta.store_jobs == {
            1: TransferJob("a", GPULoadStoreSpec([2, 14, 15], (1, 1, 1), (1, 1, 1)), Slots([1, 2, 3]))
        }
        assert [*manager.storing][-3:] == tail(a)
        assert connector.side._books.states["a"].context.get_offload_key_position(tail(a)[1]) == 12
        assert ALLOCATION_FAILURE not in connector.get_kv_connector_stats().data["data"]

    @pytest.mark.parametrize(
        ("offers", "copies", "why"),
        [
            (TAIL[:1], COPIES, "a group's is missing"),
            ([(1, 14, 11), (2, 15, 11)], COPIES, "no hash ends there"),
            ([(1, 14, 14), (2, 15, 14)], COPIES, "beyond the prompt"),
            ([(1, 14, 20), (2, 15, 20)], COPIES, "beyond the hashes"),
            ([(1, 14, 0), (2, 15, 0)], COPIES, "no tokens"),
            ([(1, 0, 12), (2, 15, 12)], COPIES, "no block"),
            (TAIL, {14: 4, 15: 6}, "somebody else's state is copied into the block"),
            ([(1, 14, 6), (2, 15, 6)], {14: 4, 15: 5}, "another state is copied into the block"),
            ([*TAIL[:1], (0, 15, 12)], COPIES, "no states"),
            ([*TAIL[:1], (7, 15, 12)], COPIES, "no group"),
        ],
    )
    def test_what_is_not(self, tails, offers, copies, why):
        connector, _ = tails()
        a = request()
        begin(connector, a)
        assert tail_jobs(go_on(connector, a, offers, copies)) == [], why

    def test_boundaries_are_stored_in_their_order(self, tails):
        connector, _ = tails()
        a = request(count=15)
        begin(connector, a, count=14)
        offers = [(1, 16, 14), (2, 15, 12), (2, 17, 14), (1, 14, 12)]
        assert tail_jobs(go_on(connector, a, offers, {14: 4, 15: 5, 16: 4, 17: 5})) == [
            ([2, 14, 15], (1, 1, 1), (1, 1, 1)),
            ([2, 16, 17], (1, 1, 1), (1, 1, 1)),
        ]

    @pytest.mark.parametrize("end", [2, 4, 6])
    def test_one_hash_is_enough(self, tails, end):
        connector, _ = tails()
        a, tables = request(count=7), ([1], [4], [5])
        begin(connector, a, count=6, tables=tables)
        offers = [(1, 14, end), (2, 15, end)]
        assert tail_jobs(go_on(connector, a, offers)) == [([1, 14, 15], (1, 1, 1), (0, 0, 0))]

    @pytest.mark.parametrize("copies", [[], None])
    @pytest.mark.parametrize(("taken_by", "stored"), [(9, True), (15, False)])
    def test_an_engine_that_tells_no_copies(self, tails, taken_by, stored, copies):
        """Then nobody may have got the block in this step."""
        connector, _ = tails()
        a, b = request(), request("b", 3)
        begin(connector, a)
        connector.on_new_request(b)
        connector.get_num_new_matched_tokens(b, 0)
        new = [("b", ([6], [7], [taken_by]))]
        output = step(new, [("a", None)], {"a": 1, "b": 3}, offers={"a": TAIL})
        output.kv_cache_block_copies = copies
        assert bool(tail_jobs(connector.build_connector_meta(output))) is stored

    @pytest.mark.parametrize(
        ("extra", "params", "taken"),
        [
            ({}, None, True),
            ({"offload_prompt_only": False}, None, True),
            ({}, {"max_offload_tokens": 12}, True),
            ({}, {"max_offload_tokens": 11}, False),
            ({}, {"max_offload_tokens": 0}, False),
            ({"save": False}, None, False),
            ({"role": "kv_consumer"}, None, False),
        ],
    )
    def test_no_more_than_may_be_stored(self, tails, extra, params, taken):
        connector, _ = tails(**extra)
        a = request(params=params)
        begin(connector, a)
        assert bool(tail_jobs(go_on(connector, a))) is taken

    @pytest.mark.parametrize("tables", [([1], [0, 4], [0, 5]), ([1, 2], [0], [0, 5]), ([1, 2], [0, 4], [0])])
    def test_a_block_that_the_table_lacks(self, tails, tables):
        connector, _ = tails()
        a = request()
        begin(connector, a, tables=tables)
        assert tail_jobs(go_on(connector, a)) == []

    @pytest.mark.parametrize("end", [9, 10, 15])
    def test_a_hash_may_be_of_one_token(self, tails, end):
        cache = kv_cache_config(((FULL, 8, 0), (STATE, 8, 0)), tokens_per_hash=1, hands_over=True)
        connector, _ = tails(cache)
        a, b = (Request(name, range(17), prompt, per_hash=1) for name, prompt in (("a", 15), ("b", 17)))
        begin(connector, a, count=15, tables=TABLES[:2])
        meta = go_on(connector, a, [(1, 14, end)])
        assert tail_jobs(meta) == [([2, 14], (1, 1), (1, 1))]
        report(connector, done=[0, *meta.store_jobs])
        connector.on_new_request(b)
        assert connector.get_num_new_matched_tokens(b, 0) == (end, True)

    def test_an_offer_that_finds_no_room_is_not_made_again(self, tails):
        connector, manager = tails()
        a = request(count=17)
        begin(connector, a)
        manager.capacity = 3
        assert tail_jobs(go_on(connector, a)) == []
        assert connector.get_kv_connector_stats().data["data"][ALLOCATION_FAILURE] == {(): 1}
        manager.capacity = 100
        assert tail_jobs(go_on(connector, a, [])) == []

    def test_what_the_medium_has_is_not_copied_again(self, tails):
        connector, manager = tails()
        a = request()
        manager.resident[tail(a)[1]] = 7
        begin(connector, a)
        assert tail_jobs(go_on(connector, a)) == [([2, 15], (1, 0, 1), (1, 0, 1))]
        manager.resident.update(dict.fromkeys(tail(a), 7))
        assert go_on(connector, a).store_jobs == {}

    def test_an_unknown_request_is_passed_over(self, tails):
        connector, _ = tails()
        assert connector.build_connector_meta(step(offers={"x": TAIL}, copies=COPIES)) == plan()


class TestWhatKeepsTheBytes:
    @pytest.mark.parametrize("block", [2, 14, 15])
    def test_who_gets_a_block_of_it_waits(self, tails, block):
        connector, _ = tails()
        a, b = request(), request("b", 3)
        begin(connector, a)
        go_on(connector, a)
        connector.request_finished_all_groups(a, TABLES)
        connector.on_new_request(b)
        connector.get_num_new_matched_tokens(b, 0)
        output = step(new=[("b", ([block], [7], [8]))], counts={"b": 3})
        assert connector.build_connector_meta(output).jobs_to_flush == {1}

    def test_where_fences_come_too_late_all_of_it_is_pinned(self, tails):
        connector, _ = tails(hold_blocks="always")
        pool = Pool()
        connector.bind_gpu_block_pool(pool)
        a = request()
        begin(connector, a)
        assert tail_jobs(go_on(connector, a)) == [([2, 14, 15], (1, 1, 1), (1, 1, 1))]
        assert pool.held == {"block 2": 1, "block 14": 1, "block 15": 1}
        report(connector, done=[0])
        assert not pool.held

    def test_nothing_is_pinned_for_what_is_not_stored(self, tails):
        connector, manager = tails(hold_blocks="always")
        pool, a = Pool(), request()
        connector.bind_gpu_block_pool(pool)
        begin(connector, a)
        manager.capacity = 0
        assert tail_jobs(go_on(connector, a)) == []
        assert not pool.held

    def test_nor_for_what_the_medium_has(self, tails):
        connector, manager = tails(hold_blocks="always")
        pool, a = Pool(), request()
        connector.bind_gpu_block_pool(pool)
        begin(connector, a)
        manager.resident[tail(a)[1]] = 7
        go_on(connector, a)
        assert pool.held == {"block 2": 1, "block 15": 1}

    def test_without_a_pool_that_pins_nothing_is_stored(self, tails):
        connector, _ = tails(hold_blocks="always")
        a = request()
        begin(connector, a)
        assert tail_jobs(go_on(connector, a)) == []


def test_events_tell_of_each_hash_of_a_tail(tails):
    connector, _ = tails(self_describing_kv_events=True)
    a = request()
    begin(connector, a)
    report(connector, done=[0])
    [*connector.take_events()]
    go_on(connector, a)
    report(connector, done=[1])
    h, kinds = a.block_hashes, {0: "full_attention", 1: "mamba", 2: "mamba"}
    told = [*connector.take_events()]
    assert told[0] == BlockStored(
        [h[4], h[5]],
        h[3],
        [8, 9, 10, 11],
        2,
        None,
        "CPU",
        None,
        [None, None],
        group_idx=0,
        kv_cache_spec_kind=kinds[0],
    )
    assert [(event.block_hashes, event.block_size, event.group_idx) for event in told[1:]] == [
        ([h[5]], 0, 1),
        ([h[5]], 0, 2),
    ]
    connector.reset_cache()
    removed = [event for event in connector.take_events() if event.group_idx == 0]
    assert removed[-1] == BlockRemoved([h[4], h[5]], "CPU", group_idx=0)
    assert not connector.side._books.events._payloads
