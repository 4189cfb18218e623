"""States that the engine hands over: which are stored, and what keeps their bytes."""

from types import SimpleNamespace

import pytest
from kv_offload_calls import fill, key, plan, report
from kv_offload_configs import FULL, STATE, Blocks, Request, kv_cache_config, step
from kv_offload_medium import Slots
from kv_offload_pool import Pool

from kv_api import GPULoadStoreSpec, KVError, OffloadPolicy
from kv_offload import TransferJob
from kv_offload.scheduler.state.pins import Pins

STATES = kv_cache_config(((FULL, 4, 0), (STATE, 4, 0), (STATE, 4, 0)), hands_over=True)


@pytest.fixture
def states(make, manager):
    """A scheduler's side for tokens and two groups of states, with fences."""

    def make_one(cache=STATES, **extra):
        return make(**{"hold_blocks": "never", "cache": cache, **extra}), manager

    return make_one


def begin(connector, request, offers=None, count=None, tables=None):
    """The request is new in a step that computes `count` tokens and makes offers."""
    connector.on_new_request(request)
    connector.get_num_new_matched_tokens(request, 0)
    tables = tables or ([1, 2, 3], [0, 0, 4], [0, 0, 5])
    connector.update_state_after_alloc(request, Blocks(*tables), 0)
    count = count or request.num_tokens
    name = request.request_id
    output = step(new=[(name, tables)], counts={name: count}, offers={name: offers or []})
    meta = connector.build_connector_meta(output)
    request.num_computed_tokens += count
    return meta.store_jobs


def state_jobs(jobs):
    """Jobs that copy states: where in the request, and which blocks."""
    return [
        (job.gpu_spec.block_ids.tolist(), tuple(job.gpu_spec.group_sizes), tuple(job.gpu_spec.block_indices))
        for job in jobs.values()
        if sum(job.gpu_spec.group_sizes[1:])
    ]


class TestWhatIsTaken:
    def test_all_groups_of_a_boundary_are_one_job_and_the_tables_are_not_read(self, states):
        connector, manager = states()
        a = Request("a", range(12))
        jobs = begin(connector, a, [(2, 5, 12), (1, 4, 12)])
        assert jobs == {
            0: TransferJob("a", GPULoadStoreSpec([1, 2, 3], (3, 0, 0), (0, 0, 0)), Slots([0, 1, 2])),
            1: TransferJob("a", GPULoadStoreSpec([4, 5], (0, 1, 1), (0, 2, 2)), Slots([3, 4])),
        }
        assert [*manager.storing][-2:] == [key(a, 2, group=1), key(a, 2, group=2)]

    def test_boundaries_are_stored_in_their_order(self, states):
        connector, _ = states()
        tables = ([1, 2, 3], [6, 8, 4], [7, 9, 5])
        offers = [(1, 4, 12), (2, 7, 4), (2, 5, 12), (1, 8, 8), (1, 6, 4), (2, 9, 8)]
        assert state_jobs(begin(connector, Request("a", range(12)), offers, tables=tables)) == [
            ([6, 7], (0, 1, 1), (0, 0, 0)),
            ([8, 9], (0, 1, 1), (0, 1, 1)),
            ([4, 5], (0, 1, 1), (0, 2, 2)),
        ]

    def test_nothing_else_of_them_is_stored_when_the_request_ends(self, states):
        connector, _ = states(offload_prompt_only=False)
        a = Request("a", range(13))
        begin(connector, a, count=8, tables=([1, 2], [6, 4], [7, 5]))
        a.num_computed_tokens = 12
        assert connector.request_finished_all_groups(a, ([1, 2, 3], [6, 4, 8], [7, 5, 9])) == (False, None)
        jobs = connector.build_connector_meta(step()).store_jobs
        assert [tuple(job.gpu_spec.group_sizes) for job in jobs.values()] == [(1, 0, 0)]

    @pytest.mark.parametrize(
        ("offer", "why"),
        [
            ((1, 4, 10), "within a chunk"),
            ((1, 4, 16), "there are no hashes so far"),
            ((1, 9, 12), "not where the table has that boundary"),
            ((1, 4, 8), "where the table has another one"),
            ((1, 0, 4), "no block"),
            ((1, 4, 0), "no tokens"),
            ((0, 3, 12), "no states"),
            ((7, 4, 12), "no group"),
        ],
    )
    def test_what_is_not(self, states, offer, why):
        connector, _ = states()
        assert state_jobs(begin(connector, Request("a", range(14)), [offer])) == [], why

    @pytest.mark.parametrize(
        ("extra", "params", "prompt", "taken"),
        [
            ({}, None, 12, True),
            ({}, None, 11, False),
            ({"offload_prompt_only": False}, None, 11, True),
            ({}, {"max_offload_tokens": 12}, 12, True),
            ({}, {"max_offload_tokens": 11}, 12, False),
            ({}, {"max_offload_tokens": 0}, 12, False),
            ({"save": False}, None, 12, False),
        ],
    )
    def test_no_more_than_may_be_stored(self, states, extra, params, prompt, taken):
        connector, _ = states(**extra)
        a = Request("a", range(12), prompt=prompt, params=params)
        assert bool(state_jobs(begin(connector, a, [(1, 4, 12)]))) is taken

    def test_of_a_chunk_of_several_blocks_it_is_the_last(self, states):
        connector, _ = states(blocks_per_chunk=2)
        a = Request("a", range(17))
        tables = ([1, 2, 3, 4, 5], [0, 0, 0, 6, 7], [0, 0, 0, 8, 9])
        assert state_jobs(begin(connector, a, [(1, 6, 16), (2, 8, 16)], tables=tables)) == [
            ([6, 8], (0, 1, 1), (0, 3, 3))
        ]
        b = Request("b", range(17, 34))
        tables = ([11, 12, 13, 14, 15], [0, 0, 16, 17, 18], [0, 0, 19, 20, 21])
        assert state_jobs(begin(connector, b, [(1, 16, 12)], tables=tables)) == []  # it is in the middle of one

    def test_what_somebody_else_got_in_the_step_is_gone(self, states):
        connector, _ = states(offload_prompt_only=False)
        a, b = Request("a", range(13)), Request("b", [9] * 4)
        begin(connector, a, count=12)
        connector.on_new_request(b)
        connector.get_num_new_matched_tokens(b, 0)
        output = step(
            new=[("b", ([6], [4], [7]))], counts={"a": 1, "b": 4}, offers={"a": [(1, 4, 12), (2, 5, 12)]}
        )
        assert state_jobs(connector.build_connector_meta(output).store_jobs) == [([5], (0, 0, 1), (0, 0, 2))]

    def test_an_offer_that_finds_no_room_is_not_made_again(self, states):
        connector, manager = states()
        a = Request("a", range(13))
        manager.capacity = 3
        assert state_jobs(begin(connector, a, [(1, 4, 12), (2, 5, 12)], count=12)) == []
        assert connector.get_kv_connector_stats().data["data"]["vllm:kv_offload_allocation_failure"]
        manager.capacity = 100
        meta = connector.build_connector_meta(step(more=[("a", None)], counts={"a": 1}))
        assert state_jobs(meta.store_jobs) == []

    @pytest.mark.parametrize("policy", OffloadPolicy)
    def test_what_was_loaded_is_not_stored_again_unless_the_medium_wants_it(self, states, policy):
        connector, manager = states()
        manager.policy = policy
        a = Request("a", range(13))
        manager.resident.update({key(a, chunk): chunk for chunk in range(3)})
        manager.resident.update({key(a, 2, group=group): 2 + group for group in (1, 2)})
        tables = ([1, 2, 3], [0, 0, 4], [0, 0, 5])
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (12, True)
        connector.update_state_after_alloc(a, Blocks(*tables), 12)
        (load,) = connector.build_connector_meta(step()).load_jobs.values()
        assert load.gpu_spec == GPULoadStoreSpec([1, 2, 3, 4, 5], (3, 1, 1), (0, 2, 2))
        report(connector, done=[0])
        manager.resident.clear()
        a.num_computed_tokens = 12
        output = step(new=[("a", tables)], counts={"a": 1}, offers={"a": [(1, 4, 12), (2, 5, 12)]})
        stored = state_jobs(connector.build_connector_meta(output).store_jobs)
        assert bool(stored) is (policy is OffloadPolicy.REQUEST_LEVEL)

    @pytest.mark.parametrize("told", [None, SimpleNamespace(), SimpleNamespace(boundary_state_offloads=None)])
    def test_a_step_that_hands_over_nothing(self, states, told):
        connector, _ = states()
        output = step()
        output.kv_connector_block_state = told
        assert connector.build_connector_meta(output) == plan()
        del output.kv_connector_block_state
        assert connector.build_connector_meta(output) == plan()

    def test_an_unknown_request_is_passed_over(self, states):
        connector, _ = states()
        assert connector.build_connector_meta(step(offers={"x": [(1, 4, 12)]})) == plan()


class TestWhatKeepsTheBytes:
    def test_who_gets_the_block_waits_while_its_request_still_runs(self, states):
        connector, _ = states()
        a, b = Request("a", range(13)), Request("b", [9] * 3)
        begin(connector, a, [(1, 4, 12), (2, 5, 12)], count=12)
        connector.on_new_request(b)
        connector.get_num_new_matched_tokens(b, 0)
        output = step(new=[("b", ([6], [4], [7]))], counts={"b": 3})
        assert connector.build_connector_meta(output).jobs_to_flush == {1}

    def test_where_fences_come_too_late_blocks_are_pinned(self, states):
        connector, _ = states(hold_blocks="always")
        pool = Pool()
        connector.bind_gpu_block_pool(pool)
        a = Request("a", range(12))
        jobs = begin(connector, a, [(1, 4, 12), (2, 5, 12)])
        assert jobs == {0: TransferJob("a", GPULoadStoreSpec([4, 5], (0, 1, 1), (0, 2, 2)), Slots([0, 1]))}
        assert pool.held == {"block 4": 1, "block 5": 1}
        assert connector.has_pending_block_frees()
        report(connector, done=[0])
        assert not pool.held and not connector.has_pending_block_frees()

    def test_then_their_request_is_not_held_for_them(self, states):
        connector, manager = states(hold_blocks="always")
        connector.bind_gpu_block_pool(Pool())
        a = Request("a", range(12))
        fill(manager, a, 3)
        assert len(begin(connector, a, [(1, 4, 12)])) == 1
        assert connector.request_finished_all_groups(a, ([1, 2, 3], [0, 0, 4], [0, 0, 5])) == (False, None)

    def test_then_blocks_of_tokens_are_not_taken(self, states):
        connector, _ = states(hold_blocks="always")
        connector.bind_gpu_block_pool(Pool())
        assert begin(connector, Request("a", range(12)), [(0, 3, 12)]) == {}

    def test_then_states_after_the_prompt_are_taken(self, states):
        connector, _ = states(hold_blocks="always", offload_prompt_only=False)
        connector.bind_gpu_block_pool(Pool())
        a = Request("a", range(9))
        begin(connector, a)
        a.tokens += [9, 10, 11]
        a.num_computed_tokens = 11
        output = step(more=[("a", None)], counts={"a": 1}, offers={"a": [(1, 4, 12)]})
        assert state_jobs(connector.build_connector_meta(output).store_jobs) == [([4], (0, 1, 0), (0, 2, 0))]

    def test_a_pin_ends_with_the_last_workers_report(self, states):
        connector, _ = states(hold_blocks="always", world_size=2)
        pool = Pool()
        connector.bind_gpu_block_pool(pool)
        begin(connector, Request("a", range(12)), [(1, 4, 12)])
        held = []
        for _ in range(2):
            report(connector, done=[0])
            held.append([*pool.held])
        assert held == [["block 4"], []]

    @pytest.mark.parametrize("end", ["failed", "unended", "reset"])
    def test_a_pin_ends_with_its_job_however_that_ends(self, states, end):
        connector, _ = states(hold_blocks="always")
        pool = Pool()
        connector.bind_gpu_block_pool(pool)
        begin(connector, Request("a", range(12)), [(1, 4, 12)])
        if end == "reset":
            connector.reset_cache()
            assert pool.held
        report(connector, done=[0], **({} if end == "reset" else {"failed": [0], end: [0]}))
        assert not pool.held
        if end == "unended":
            report(connector, late=[0])

    def test_shutdown_leaves_nothing_pinned_in_a_pool_that_others_go_on_with(self, states):
        connector, _ = states(hold_blocks="always")
        pool = Pool()
        connector.bind_gpu_block_pool(pool)
        begin(connector, Request("a", range(12)), [(1, 4, 12), (2, 5, 12)])
        assert pool.held
        connector.shutdown()
        assert not pool.held

    @pytest.mark.parametrize("pool", [None, SimpleNamespace(num_gpu_blocks=64)])
    def test_without_a_pool_that_pins_nothing_is_stored(self, states, pool):
        connector, _ = states(hold_blocks="always")
        if pool is not None:
            connector.bind_gpu_block_pool(pool)
        assert begin(connector, Request("a", range(12)), [(1, 4, 12)]) == {}

    def test_a_load_that_fails_spoils_the_states_that_were_computed_on_it(self, states):
        connector, manager = states(offload_prompt_only=False)
        a = Request("a", range(17), prompt=17)
        manager.resident.update({key(a, chunk): chunk for chunk in range(2)})
        manager.resident.update({key(a, 1, group=group): 2 + group for group in (1, 2)})
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (8, True)
        tables = ([1, 2], [0, 4], [0, 5])
        connector.update_state_after_alloc(a, Blocks(*tables), 8)
        connector.build_connector_meta(step())
        connector.update_state_after_alloc(a, Blocks([1, 2, 3], [0, 4, 6], [0, 5, 7]), 0)
        a.num_computed_tokens = 8
        output = step(
            new=[("a", ([1, 2, 3], [0, 4, 6], [0, 5, 7]))], counts={"a": 4}, offers={"a": [(1, 6, 12), (2, 7, 12)]}
        )
        jobs = connector.build_connector_meta(output).store_jobs
        assert state_jobs(jobs) == [([6, 7], (0, 1, 1), (0, 2, 2))]
        report(connector, done=[0], failed=[0])
        report(connector, done=list(jobs))
        assert not manager.resident


def test_a_block_that_was_not_filled_spoils_the_state_after_it(make, manager):
    only = kv_cache_config(((STATE, 4, 0),), hands_over=True)
    connector = make(hold_blocks="never", cache=only)
    assert begin(connector, Request("a", range(12)), [(0, 4, 12)], tables=([6, 0, 4],)).keys() == {0}
    report(connector, invalid=[6])
    report(connector, done=[0])
    assert not manager.resident


def test_nothing_is_pinned_without_a_pool():
    pins = Pins()
    pins.unpin(3)
    with pytest.raises(
        KVError,
        match=r"blocks \[4, 5\] can't be pinned: the engine has bound no block pool that can pin",
    ):
        pins.pin(3, [4, 5])
    pins.check(())
    pins.bind(Pool())
    pins.unpin(3)
    pins.pin(3, [4])
    with pytest.raises(AssertionError, match="jobs \\[3\\] have ended, and their blocks are pinned"):
        pins.check([2])


def test_at_a_shutdown_every_job_lets_go_of_its_blocks():
    pins, pool = Pins(), Pool()
    pins.bind(pool)
    pins.pin(3, [4])
    pins.pin(5, [4, 6])
    pins.unpin_all()
    assert not pool.held
    pins.check(())
