"""Tails: which are stored, what keeps their bytes, how they are loaded, told of and lost."""

from types import SimpleNamespace

import pytest
from kv_offload_calls import plan, report
from kv_offload_configs import FULL, STATE, WINDOW, Blocks, Request, kv_cache_config, step
from kv_offload_medium import Slots
from kv_offload_pool import Pool

from kv_api import BlockRemoved, BlockStored, CacheHitSource, GPULoadStoreSpec, OffloadPolicy, make_offload_key
from kv_offload import TransferJob
from kv_offload.metrics import ALLOCATION_FAILURE

CACHE = kv_cache_config(((FULL, 8, 0), (STATE, 8, 0), (STATE, 8, 0)), tokens_per_hash=2, hands_over=True)
TABLES = ([1, 2], [0, 4], [0, 5])
"""Of a request with up to 16 tokens."""
TAIL = [(1, 14, 12), (2, 15, 12)]
COPIES = {14: 4, 15: 5}


@pytest.fixture
def tails(make, manager):
    """A scheduler's side for tokens and two groups of states, with fences."""

    def make_one(cache=CACHE, **extra):
        return make(**{"hold_blocks": "never", "cache": cache, **extra}), manager

    return make_one


def request(name="a", count=13, **more):
    return Request(name, range(count), per_hash=2, **more)


def tail(asked, end=12):
    """The keys of a tail."""
    return [make_offload_key(asked.block_hashes[end // 2 - 1], group) for group in range(3)]


def begin(connector, asked, count=12, tables=TABLES, local=0):
    """The request is new in a step that computes `count` tokens."""
    connector.on_new_request(asked)
    connector.get_num_new_matched_tokens(asked, local)
    connector.update_state_after_alloc(asked, Blocks(*tables), 0)
    asked.num_computed_tokens = local
    name = asked.request_id
    meta = connector.build_connector_meta(step(new=[(name, tables)], counts={name: count}))
    asked.num_computed_tokens += count
    return meta


def go_on(connector, asked, offers=TAIL, copies=COPIES, count=1, **more):
    """It computes more, and makes offers."""
    name = asked.request_id
    output = step(more=[(name, None)], counts={name: count}, offers={name: offers}, copies=copies, **more)
    meta = connector.build_connector_meta(output)
    asked.num_computed_tokens += count
    return meta


def tail_jobs(meta):
    return [
        (job.gpu_spec.block_ids.tolist(), tuple(job.gpu_spec.group_sizes), tuple(job.gpu_spec.block_indices))
        for job in meta.store_jobs.values()
        if sum(job.gpu_spec.group_sizes[1:])
    ]


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


class TestAtTheEnd:
    """A request that is aborted where its tail ends."""

    OFFERS = ((1, 4, 12), (2, 5, 12))

    def test_who_gets_its_blocks_waits(self, tails):
        connector, _ = tails()
        a, b = request(), request("b", 3)
        begin(connector, a)
        assert connector.register_finished_partial_tail(a, TABLES, self.OFFERS) is False
        assert connector.request_finished_all_groups(a, TABLES) == (False, None)
        connector.on_new_request(b)
        connector.get_num_new_matched_tokens(b, 0)
        meta = connector.build_connector_meta(step(new=[("b", ([9], [5], [8]))], counts={"b": 3}))
        assert meta.jobs_to_flush == {1}
        source = GPULoadStoreSpec([2, 4, 5], (1, 1, 1), (1, 1, 1))
        assert meta.store_jobs == {1: TransferJob("a", source, Slots([1, 2, 3]), is_computed=True)}

    def test_where_fences_come_too_late_its_blocks_are_held(self, tails):
        connector, _ = tails(hold_blocks="always")
        a = request()
        begin(connector, a)
        assert connector.register_finished_partial_tail(a, TABLES, self.OFFERS) is True
        assert connector.request_finished_all_groups(a, TABLES) == (True, None)
        jobs = connector.build_connector_meta(step(finished=["a"])).store_jobs
        assert [(job.is_held, job.is_computed, job.gpu_spec.block_ids.tolist()) for job in jobs.values()] == [
            (True, True, [2, 4, 5]),
            (True, True, [1]),
        ]

    def test_what_finds_no_room_is_not_waited_for(self, tails):
        connector, manager = tails(hold_blocks="always")
        a = request()
        begin(connector, a)
        manager.capacity = 0
        assert connector.register_finished_partial_tail(a, TABLES, self.OFFERS) is False
        assert connector.request_finished_all_groups(a, TABLES) == (False, None)
        assert connector.build_connector_meta(step(finished=["a"])) == plan()

    def test_the_blocks_are_held_for_any_of_its_tails(self, tails):
        connector, manager = tails(hold_blocks="always")
        a = request()
        begin(connector, a)
        manager.capacity = 3
        offers = [(1, 4, 10), (2, 5, 10), *self.OFFERS]
        assert connector.register_finished_partial_tail(a, TABLES, offers) is True
        assert manager.log == [("refused", 3)]

    def test_events_tell_of_it(self, tails):
        connector, _ = tails(self_describing_kv_events=True)
        a = request()
        begin(connector, a)
        connector.register_finished_partial_tail(a, TABLES, self.OFFERS)
        connector.build_connector_meta(step())
        report(connector, done=[0, 1])
        told = [(event.group_idx, event.block_hashes, event.token_ids) for event in connector.take_events()]
        hashes = a.block_hashes
        assert told == [
            (0, hashes[3:4], [*range(8)]),
            (0, hashes[4:6], [8, 9, 10, 11]),
            (1, hashes[5:6], []),
            (2, hashes[5:6], []),
        ]

    def test_the_workers_report_it_once(self, tails, worker):
        connector, _ = tails(hold_blocks="always")
        a = request()
        begin(connector, a)
        connector.register_finished_partial_tail(a, TABLES, self.OFFERS)
        connector.request_finished_all_groups(a, TABLES)
        rank, copies = worker(cache=CACHE, hold_blocks="always")
        meta = connector.build_connector_meta(step(finished=["a"]))
        rank.handle_preemptions(meta)
        reported = []
        for job_id in list(copies.running):
            copies.end(job_id)
            reported.append(rank.get_transfer_results(set()).finished_sending)
        assert reported == [set(), {"a"}]

    @pytest.mark.parametrize(
        ("offers", "why"),
        [
            (OFFERS[:1], "a group's is missing"),
            ([(1, 4, 12), (2, 6, 12)], "not where the table has it"),
            ([(1, 4, 8), (2, 5, 8)], "it ends a block"),
        ],
    )
    def test_what_is_not_taken(self, tails, offers, why):
        connector, _ = tails(hold_blocks="always")
        a = request()
        begin(connector, a)
        assert connector.register_finished_partial_tail(a, TABLES, offers) is False
        connector.request_finished_all_groups(a, TABLES)
        assert tail_jobs(connector.build_connector_meta(step())) == [], why

    def test_what_it_still_loads_is_nothing_of_its_own(self, tails):
        connector, manager = tails(hold_blocks="always")
        a = request()
        manager.resident.update({key: slot for slot, key in enumerate(tail(a, 8))})
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (8, True)
        connector.update_state_after_alloc(a, Blocks([1], [4], [5]), 8)
        assert connector.register_finished_partial_tail(a, TABLES, self.OFFERS) is False

    def test_nobody_and_nothing(self, tails):
        connector, _ = tails()
        assert connector.register_finished_partial_tail(request(), TABLES, self.OFFERS) is False
        coarse, _ = tails(kv_cache_config(((FULL, 8, 0), (STATE, 8, 0)), hands_over=True))
        a = request()
        coarse.on_new_request(a)
        assert coarse.register_finished_partial_tail(a, TABLES, self.OFFERS) is False


class TestLoads:
    def resident(self, manager, asked):
        """The first block of the tokens, and the tail."""
        manager.resident[make_offload_key(asked.block_hashes[3], 0)] = 30
        manager.resident.update({key: 40 + place for place, key in enumerate(tail(asked))})

    def load(self, connector, asked, local=0, tables=TABLES, answer=None):
        connector.on_new_request(asked)
        found, is_async = connector.get_num_new_matched_tokens(asked, local)
        assert is_async is (found > 0)
        connector.update_state_after_alloc(asked, Blocks(*tables), found if answer is None else answer)
        (job,) = connector.build_connector_meta(step()).load_jobs.values()
        return found, job

    def test_a_block_more_of_each_group(self, tails):
        connector, manager = tails()
        a = request(count=15)
        self.resident(manager, a)
        assert self.load(connector, a) == (
            12,
            TransferJob("a", Slots([30, 40, 41, 42]), GPULoadStoreSpec([1, 2, 4, 5], (2, 1, 1), (0, 1, 1))),
        )
        assert connector.get_external_cache_hit_sources(a, 12) == {CacheHitSource.HOST: 12}
        assert connector.side._books.states["a"].progress.loaded_tail == 12

    def test_after_several_blocks(self, tails):
        connector, manager = tails()
        a = request(count=31)
        manager.resident.update({make_offload_key(a.block_hashes[4 * end - 1], 0): 30 + end for end in (1, 2, 3)})
        manager.resident.update({key: 40 + place for place, key in enumerate(tail(a, 28))})
        tables = [1, 2, 3, 6], [0, 0, 0, 4], [0, 0, 0, 5]
        assert self.load(connector, a, tables=tables) == (
            28,
            TransferJob(
                "a",
                Slots([31, 32, 33, 40, 41, 42]),
                GPULoadStoreSpec([1, 2, 3, 6, 4, 5], (4, 1, 1), (0, 3, 3)),
            ),
        )

    def test_on_what_the_request_has(self, tails):
        connector, manager = tails()
        a = request(count=15)
        self.resident(manager, a)
        assert self.load(connector, a, local=8) == (
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
    def test_as_far_as_it_may(self, tails, count, params, found):
        connector, manager = tails()
        a = request(count=count, params=params)
        self.resident(manager, a)
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (found, found > 0)

    def test_what_was_sampled_is_no_prompt(self, tails):
        connector, manager = tails()
        a = request(count=15, prompt=12)
        self.resident(manager, a)
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (0, False)

    def test_it_waits_for_a_tail_that_is_being_stored(self, tails):
        connector, manager = tails(max_deferred_lookups=2)
        a = request(count=15)
        self.resident(manager, a)
        manager.storing[tail(a)[2]] = manager.resident.pop(tail(a)[2])
        connector.on_new_request(a)
        answers = [connector.get_num_new_matched_tokens(a, 0) for _ in range(3)]
        assert answers == [(None, False), (None, False), (0, False)]

    def test_it_does_not_wait_for_one_that_this_engine_is_storing(self, tails):
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

    def test_an_answer_that_the_engine_shortened_has_no_state(self, tails):
        connector, manager = tails()
        a = request(count=15)
        self.resident(manager, a)
        manager.resident.update(dict.fromkeys(tail(a, 10), 50))
        _, job = self.load(connector, a, answer=11)
        assert job.src_spec is None

    def test_no_block_for_a_state(self, tails):
        connector, manager = tails()
        a = request(count=15)
        self.resident(manager, a)
        _, job = self.load(connector, a, tables=([1, 2], [0, 4], [0]))
        assert job.src_spec is None

    @pytest.mark.parametrize("policy", OffloadPolicy)
    def test_what_was_loaded_is_not_stored_again_unless_the_medium_wants_it(self, tails, policy):
        connector, manager = tails()
        manager.policy = policy
        a = request(count=15)
        self.resident(manager, a)
        self.load(connector, a)
        report(connector, done=[0])
        manager.resident.clear()
        a.num_computed_tokens = 12
        name = {"a": 1}
        output = step(new=[("a", TABLES)], counts=name, offers={"a": TAIL}, copies=COPIES)
        assert bool(tail_jobs(connector.build_connector_meta(output))) is (policy is OffloadPolicy.REQUEST_LEVEL)

    def test_its_block_is_stored_when_it_is_complete(self, tails):
        connector, manager = tails()
        a = request(count=18)
        self.resident(manager, a)
        self.load(connector, a)
        report(connector, done=[0])
        a.num_computed_tokens = 12
        meta = connector.build_connector_meta(step(new=[("a", TABLES)], counts={"a": 4}))
        assert [job.gpu_spec for job in meta.store_jobs.values()] == [GPULoadStoreSpec([2], (1, 0, 0), (1, 0, 0))]

    def test_a_failed_load_is_not_tried_again_and_spoils_what_came_of_it(self, tails):
        connector, manager = tails()
        a = request(count=15)
        self.resident(manager, a)
        self.load(connector, a)
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


def test_a_load_tells_what_a_store_of_another_engine_could_not(tails):
    connector, manager = tails(self_describing_kv_events=True)
    a = request(count=15)
    TestLoads().resident(manager, a)
    TestLoads().load(connector, a)
    payload = connector.side._books.events._payloads[tail(a)[0]]
    assert (payload.block_hashes, payload.token_ids) == (a.block_hashes[4:6], [8, 9, 10, 11])


F, S = (FULL, 8, 0), (STATE, 8, 0)


@pytest.mark.parametrize(
    ("cache", "extra", "why"),
    [
        (CACHE, {}, None),
        (kv_cache_config((S,), tokens_per_hash=2, hands_over=True), {}, None),
        (kv_cache_config((F,), tokens_per_hash=2, hands_over=True), {}, "the engine hands over no states"),
        (kv_cache_config((F, S), tokens_per_hash=2), {}, "the engine hands over no states"),
        (CACHE, {"blocks_per_chunk": 2}, "chunks have several blocks"),
        (
            kv_cache_config(((FULL, 4, 0), S), tokens_per_hash=2, hands_over=True),
            {},
            "groups have blocks of [4, 8] tokens",
        ),
        (kv_cache_config((F, S), tokens_per_hash=8, hands_over=True), {}, "a block has one hash"),
        (
            kv_cache_config((F, (WINDOW, 8, 5), S), tokens_per_hash=2, hands_over=True),
            {},
            "a group has a window, whose blocks before the boundary may be missing",
        ),
        (CACHE, {"context_parallel": 2}, "workers share the tokens of a block"),
    ],
)
def test_which_layouts_have_none_and_why(make, cache, extra, why):
    connector = make(cache=cache, **extra)
    layout = connector.side._books.layout
    assert (layout.why_no_tails, layout.has_tails) == (why, why is None)
    assert (connector.side._tails is None) is (why is not None)


def test_all_states_must_be_handed_over(make):
    cache = kv_cache_config((F, S, S), tokens_per_hash=2, hands_over=True)
    cache.kv_cache_groups[2].kv_cache_spec.hands_over_states = False
    assert make(cache=cache).side._books.layout.why_no_tails == "the engine hands over no states"


def test_where_there_are_none_nobody_asks_for_one(make, manager):
    connector = make(cache=kv_cache_config((F,), tokens_per_hash=2))
    a = request(count=15)
    manager.resident[make_offload_key(a.block_hashes[3], 0)] = 0
    asked, lookup = set(), manager.lookup
    manager.lookup = lambda key, context: asked.add(key) or lookup(key, context)
    connector.on_new_request(a)
    assert connector.get_num_new_matched_tokens(a, 0) == (8, True)
    assert asked == {*manager.resident}
    connector.build_connector_meta(step())


def test_a_draft_models_layers(make):
    cache = kv_cache_config((F, S), tokens_per_hash=2, hands_over=True)
    cache.kv_cache_groups[0] = SimpleNamespace(**vars(cache.kv_cache_groups[0]), is_eagle_group=True)
    layout = make(cache=cache).side._books.layout
    assert layout.why_no_tails == (
        "a group is of a draft model, which keeps of a token what depends on the token after it"
    )


def test_a_failed_load_of_states_is_told_by_request(make, worker):
    """By block an engine goes on where the first failed one begins, and that needs a state, too."""
    only = kv_cache_config((S,), tokens_per_hash=2, hands_over=True)
    assert make(cache=only, sync_load_budget_bytes=1 << 20).side._books.engine.fails_requests
    assert not make(cache=kv_cache_config((F,))).side._books.engine.fails_requests
