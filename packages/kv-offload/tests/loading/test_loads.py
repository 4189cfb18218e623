"""Loads, call by call: promises, and what the engine makes of them."""

import pytest
from kv_offload_calls import arrive, ask, begin_load, fill, gpu, key, plan, report, run
from kv_offload_configs import FULL, STATE, WINDOW, Blocks, Request, kv_cache_config, step
from kv_offload_medium import Slots

from kv_api import (
    CacheHitSource,
    GPULoadStoreSpec,
    KVError,
    LookupResult,
    OffloadPolicy,
)
from kv_offload import OffloadingSchedulerSide, TransferJob
from kv_offload.metrics import LOOKUP_ASYNC_DELAY, LOOKUP_SYNC_DELAY


def asked_of(manager):
    """The keys that it is asked for from now on, one by one and as prefixes."""
    asked, lookup, lookup_prefix = [], manager.lookup, manager.lookup_prefix
    manager.lookup = lambda key, context: asked.append(key) or lookup(key, context)
    manager.lookup_prefix = lambda keys, context: asked.extend(keys) or lookup_prefix(keys, context)
    return asked


class TestLoads:
    def test_the_answer_is_not_the_load(self, fenced):
        connector, manager = fenced(blocks_per_chunk=2)
        a = Request("a", range(25))
        fill(manager, a, 3, per_chunk=2)
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (24, True)
        assert not manager.pins.total()
        assert connector.get_num_new_matched_tokens(a, 23) == (1, True)  # however little it is
        assert connector.get_num_new_matched_tokens(a, 4) == (20, True)  # begins inside a chunk
        connector.update_state_after_alloc(a, Blocks([1, 2, 3, 4, 5]), 15)  # shortened, and ends inside one
        assert connector.get_external_cache_hit_sources(a, 15) == {CacheHitSource.HOST: 15}
        assert connector.build_connector_meta(step()) == plan(
            loads={0: TransferJob("a", Slots([0, 1, 2]), gpu(2, 3, 4, 5, index=1))}
        )
        assert manager.pins.total() == 3
        report(connector, done=[0])
        assert not manager.pins.total()
        connector.update_state_after_alloc(a, Blocks([1, 2, 3, 4, 5, 6, 7]), 0)
        a.num_computed_tokens = 19
        meta = connector.build_connector_meta(step(new=[("a", ([1, 2, 3, 4, 5, 6, 7],))], counts={"a": 6}))
        assert meta == plan()  # nothing that was loaded is stored again

    def test_who_only_loads_lets_go_of_what_it_loaded(self, fenced):
        connector, manager = fenced(role="kv_consumer")
        a = Request("a", range(9))
        assert ask(connector, manager, a, 2) == (8, True)
        connector.update_state_after_alloc(a, Blocks([1, 2, 3]), 8)
        assert list(connector.build_connector_meta(step()).load_jobs) == [0]
        assert manager.pins.total() == 2
        report(connector, done=[0])
        assert not manager.pins.total()

    def test_what_lies_before_and_after_a_load_is_stored(self, fenced):
        connector, manager = fenced()
        a = Request("a", range(24))
        manager.resident.update({key(a, 2): 0, key(a, 3): 1})
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 8) == (8, True)
        connector.update_state_after_alloc(a, Blocks([1, 2, 3, 4]), 8)
        assert list(connector.build_connector_meta(step()).load_jobs) == [0]
        report(connector, done=[0])
        connector.update_state_after_alloc(a, Blocks([1, 2, 3, 4, 5, 6]), 0)
        a.num_computed_tokens = 16
        meta = connector.build_connector_meta(step(new=[("a", ([1, 2, 3, 4, 5, 6],))], counts={"a": 8}))
        assert meta == plan(stores={1: TransferJob("a", gpu(1, 2, 5, 6), Slots([0, 1, 2, 3]))})
        assert list(manager.storing) == [key(a, chunk) for chunk in (0, 1, 4, 5)]

    def test_what_was_loaded_before_a_preemption_is_stored_where_it_is_gone_and_computed_after_it(self, fenced):
        connector, manager = fenced()
        a = Request("a", range(12))
        assert ask(connector, manager, a, 2) == (8, True)
        begin_load(connector, a, [1, 2], 8)
        report(connector, done=[0])
        connector.update_state_after_alloc(a, Blocks([1, 2, 3]), 0)
        a.num_computed_tokens = 8
        connector.build_connector_meta(step(new=[("a", ([1, 2, 3],))], counts={"a": 4}))
        report(connector, done=[1])
        connector.build_connector_meta(step(preempted=["a"]))
        manager.resident.clear()
        assert connector.get_num_new_matched_tokens(a, 0) == (0, False)
        connector.update_state_after_alloc(a, Blocks([4, 5, 6]), 0)
        a.num_computed_tokens = 0
        again = step(more=[("a", ([4, 5, 6],))], resumed=["a"], counts={"a": 12})
        (job,) = connector.build_connector_meta(again).store_jobs.values()
        assert job.src_spec == gpu(4, 5, 6)

    def test_nothing_is_stored_beyond_what_its_sender_wants_when_more_was_loaded(self, fenced):
        connector, manager = fenced()
        a = Request("a", range(20), params={"max_offload_tokens": 4})
        manager.resident[key(a, 2)] = 0
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 8) == (4, True)
        connector.update_state_after_alloc(a, Blocks([1, 2, 3]), 4)
        assert list(connector.build_connector_meta(step()).load_jobs) == [0]
        report(connector, done=[0])
        connector.update_state_after_alloc(a, Blocks([1, 2, 3, 4, 5]), 0)
        a.num_computed_tokens = 12
        meta = connector.build_connector_meta(step(new=[("a", ([1, 2, 3, 4, 5],))], counts={"a": 8}))
        assert meta == plan(stores={1: TransferJob("a", gpu(1), Slots([0]))})

    def test_all_but_the_last_token(self, fenced):
        connector, manager = fenced()
        a = Request("a", range(8))
        assert ask(connector, manager, a, 2) == (7, True)
        assert connector.get_num_new_matched_tokens(a, 4) == (3, True)

    def test_chunks_are_named_once_somebody_needs_them(self, fenced):
        connector, manager = fenced(offload_prompt_only=False)
        a, b = Request("a", range(40)), Request("b", range(100, 140))
        connector.on_new_request(a)
        (progress,) = connector.side._books.states["a"].progress.groups
        assert connector.get_num_new_matched_tokens(a, 0) == (0, False)
        assert progress.keys == [key(a, 0)]  # it isn't there
        assert connector.get_num_new_matched_tokens(a, 8) == (0, False)
        assert progress.keys == [key(a, 0), key(a, 1), key(a, 2)]
        run(connector, a, [*range(1, 11)], count=20)
        assert progress.keys == [key(a, chunk) for chunk in range(5)]
        connector.build_connector_meta(step(more=[("a", None)], counts={"a": 1}))
        assert len(progress.keys) == 5
        connector.on_new_request(b)
        manager.resident[key(b, 0)] = 0
        assert connector.get_num_new_matched_tokens(b, 0) == (4, True)
        (progress,) = connector.side._books.states["b"].progress.groups
        assert progress.keys == [key(b, chunk) for chunk in range(10)]

    def test_the_first_chunk_decides_where_it_is_needed(self, fenced):
        connector, manager = fenced()
        a = arrive(connector, Request("a", range(17), params={"max_load_tokens": 0}))
        asked, manager.lookup = [], lambda key, context: asked.append(key) or LookupResult.MISS
        assert connector.get_num_new_matched_tokens(a, 4) == (0, False)
        assert asked == []  # nothing may be loaded
        b = arrive(connector, Request("b", range(6)))
        assert connector.get_num_new_matched_tokens(b, 4) == (0, False)
        assert asked == []  # b doesn't fill its second chunk
        c = arrive(connector, Request("c", range(17)))
        assert connector.get_num_new_matched_tokens(c, 4) == (0, False)
        assert asked == [key(c, 1)]

    @pytest.mark.parametrize(("kind", "window"), [(WINDOW, 4), (STATE, 0)])
    def test_it_decides_nothing_where_only_the_last_is_read(self, make, manager, kind, window):
        connector = make(cache=kv_cache_config(((kind, 4, window),)))
        a = Request("a", range(17))
        manager.resident[key(a, 3)] = 0
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (16, True)

    @pytest.mark.parametrize(
        ("wish", "found", "found_after_8"),
        [
            (15, 15, 7),
            (11, 8, 7),
            (8, 8, 7),
            (7, 4, 7),
            (4, 4, 4),
            (3, 0, 0),
            (0, 0, 0),
            (-1, 15, 7),
            ("4", 15, 7),
            (True, 15, 7),
            (100, 15, 7),
        ],
    )
    def test_as_far_as_its_sender_wants(self, fenced, caplog, wish, found, found_after_8):
        connector, manager = fenced()
        a = Request("a", range(16), params={"max_load_tokens": wish})
        assert ask(connector, manager, a, 4) == (found, found > 0)
        assert connector.get_num_new_matched_tokens(a, 8) == (found_after_8, found_after_8 > 0)
        ignored = f"expected a whole number of at least 0, got {wish!r}; it is ignored"
        said = (
            [f"request a: kv_transfer_params.max_load_tokens: {ignored}"]
            if wish in (-1, "4") or wish is True
            else []
        )
        assert [record.message for record in caplog.records] == said, "of what isn't there nothing is said"

    def test_what_is_not_wanted_is_not_looked_for(self, fenced, make):
        connector, manager = fenced()
        a = Request("a", range(16))
        fill(manager, a, 4)
        a.skip_reading_prefix_cache = True
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (0, False)
        del a.skip_reading_prefix_cache
        producer = make(role="kv_producer")
        connector.build_connector_meta(step())
        producer.on_new_request(a)
        assert producer.get_num_new_matched_tokens(a, 0) == (0, False)

    @pytest.mark.parametrize("budget", [2 * 32, 4 * 32 - 1])
    def test_within_the_budget_of_a_step(self, fenced, budget):
        connector, manager = fenced(sync_load_budget_bytes=budget)
        a, b = Request("a", range(9)), Request("b", range(9))
        fill(manager, a, 2)
        for request in (a, b):
            connector.on_new_request(request)
        assert connector.get_num_new_matched_tokens(a, 0) == (8, False)
        connector.update_state_after_alloc(a, Blocks([1, 2, 3]), 8)
        assert connector.get_num_new_matched_tokens(b, 0) == (8, True)
        meta = connector.build_connector_meta(step(new=[("a", ([1, 2, 3],))], counts={"a": 1}))
        assert meta == plan(loads={0: TransferJob("a", Slots([0, 1]), gpu(1, 2), sync=True)})
        assert connector.get_num_new_matched_tokens(b, 0) == (8, False)
        connector.build_connector_meta(step())

    def test_one_token_alone_may_be_loaded_in_the_step(self, fenced):
        connector, manager = fenced(sync_load_budget_bytes=1 << 30, cache=kv_cache_config(((FULL, 1, 0),)))
        a = Request("a", range(2), per_hash=1)
        fill(manager, a, 1)
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (1, False)
        connector.build_connector_meta(step())

    def test_all_loads_of_a_step_share_its_budget(self, fenced):
        connector, manager = fenced(sync_load_budget_bytes=3 * 32)
        requests = [Request(name, range(5)) for name in "abcd"]
        fill(manager, requests[0], 1)
        for request, is_async in zip(requests, (False, False, False, True), strict=True):
            connector.on_new_request(request)
            assert connector.get_num_new_matched_tokens(request, 0) == (4, is_async)
        connector.build_connector_meta(step())

    def test_what_is_too_much_for_a_step_takes_nothing_of_its_budget(self, fenced):
        connector, manager = fenced(sync_load_budget_bytes=2 * 32)
        a, b = Request("a", range(17)), Request("b", range(9))
        fill(manager, a, 4)
        for request, expected in ((a, (16, True)), (b, (8, False))):
            connector.on_new_request(request)
            assert connector.get_num_new_matched_tokens(request, 0) == expected
        connector.build_connector_meta(step())

    def test_never_in_the_step_with_several_groups(self, make, manager):
        connector = make(sync_load_budget_bytes=1 << 30, cache=kv_cache_config(((FULL, 4, 0), (FULL, 4, 0))))
        a = Request("a", range(9))
        manager.resident.update({key(a, chunk, group=group): chunk for chunk in range(2) for group in range(2)})
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (8, True)
        connector.build_connector_meta(step())

    def test_windows_and_states_load_what_they_read(self, make, manager):
        groups = ((FULL, 4, 0), (WINDOW, 4, 6), (STATE, 4, 0))
        connector = make(blocks_per_chunk=2, cache=kv_cache_config(groups))
        a = Request("a", range(30))
        for group in range(3):
            for chunk in range(3):
                manager.resident[key(a, chunk, 2, group)] = 10 * group + chunk
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (24, True)
        tables = Blocks([1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 7, 8], [0, 0, 0, 0, 0, 9])
        connector.update_state_after_alloc(a, tables, 24)
        assert connector.build_connector_meta(step()).load_jobs == {
            0: TransferJob(
                "a",
                Slots([0, 1, 2, 12, 22]),
                GPULoadStoreSpec([1, 2, 3, 4, 5, 6, 7, 8, 9], (6, 2, 1), (0, 4, 5)),
            )
        }
        assert connector.get_external_cache_hit_sources(a, 24) == {CacheHitSource.HOST: 24}

    def test_tokens_that_no_group_reads_come_from_nowhere(self, make, manager):
        connector = make(blocks_per_chunk=2, cache=kv_cache_config(((WINDOW, 4, 4),)))
        a = Request("a", range(20))
        manager.resident[key(a, 1, 2)] = 0
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (16, True)
        connector.update_state_after_alloc(a, Blocks([0, 0, 0, 4]), 16)  # the second half of its chunk
        assert connector.get_external_cache_hit_sources(a, 16) == {
            CacheHitSource.EXTERNAL_UNSPECIFIED: 12,
            CacheHitSource.HOST: 4,
        }
        connector.build_connector_meta(step())

    def test_an_engine_may_need_less_of_a_window(self, make, manager):
        connector = make(cache=kv_cache_config(((WINDOW, 4, 6),)))
        a = Request("a", range(20))
        manager.resident.update({key(a, 2): 0, key(a, 3): 1})
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (16, True)
        connector.update_state_after_alloc(a, Blocks([0, 0, 0, 4]), 16)
        (job,) = connector.build_connector_meta(step()).load_jobs.values()
        assert job == TransferJob("a", Slots([1]), gpu(4, index=3))

    def test_an_engine_may_need_nothing_of_a_window(self, make, manager):
        connector = make(cache=kv_cache_config(((FULL, 4, 0), (WINDOW, 4, 4))))
        a = Request("a", range(9))
        manager.resident.update({key(a, 0): 0, key(a, 1): 1, key(a, 1, group=1): 2})
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (8, True)
        connector.update_state_after_alloc(a, Blocks([1, 2], [0, 0]), 8)
        (job,) = connector.build_connector_meta(step()).load_jobs.values()
        assert (job.src_spec, job.gpu_spec) == (Slots([0, 1]), GPULoadStoreSpec([1, 2], (2, 0), (0, 2)))

    @pytest.mark.parametrize(("table", "job"), [((1, 0, 3), gpu(1, 3)), ((1, 2), gpu(1, 2))])
    def test_a_table_without_a_block_for_it(self, fenced, table, job):
        connector, manager = fenced()
        a = Request("a", range(13))
        assert ask(connector, manager, a, 3) == (12, True)
        connector.update_state_after_alloc(a, Blocks(table), 12)
        assert connector.build_connector_meta(step()) == plan(loads={0: TransferJob("a", None, job)})
        assert not manager.pins.total()
        report(connector, done=[0], failed=[0], invalid=job.block_ids)
        assert connector.get_num_new_matched_tokens(a, 0) == (0, False), "else it would be so for ever"

    @pytest.mark.parametrize(("tokens", "source"), [(16, Slots([0])), (14, None), (13, None), (12, None)])
    def test_a_state_is_loaded_where_it_was_promised_and_nowhere_before(self, make, manager, tokens, source):
        """An engine that shortens the answer would go on from a state that has seen later tokens."""
        connector = make(cache=kv_cache_config(((STATE, 4, 0),)))
        a = Request("a", range(17))
        manager.resident[key(a, 3)] = 0
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (16, True)
        connector.update_state_after_alloc(a, Blocks([0, 0, 3, 4]), tokens)
        (job,) = connector.build_connector_meta(step()).load_jobs.values()
        assert job.src_spec == source

    def test_chunks_that_are_being_stored_are_waited_for_and_not_for_ever(self, fenced):
        connector, manager = fenced(max_deferred_lookups=3)
        a = Request("a", range(13))
        fill(manager, a, 1)
        manager.answers[key(a, 1)] = LookupResult.HIT_PENDING
        manager.answers[key(a, 2)] = LookupResult.RETRY
        connector.on_new_request(a)
        answers = [connector.get_num_new_matched_tokens(a, 0) for _ in range(5)]
        assert answers == [(None, False)] * 3 + [(4, True)] * 2
        assert connector.get_num_new_matched_tokens(a, 12) == (0, False)
        manager.answers[key(a, 2)] = LookupResult.HIT_PENDING
        connector.update_state_after_alloc(a, Blocks([1]), 0)
        answers = [connector.get_num_new_matched_tokens(a, 4) for _ in range(4)]
        assert answers == [(None, False)] * 3 + [(0, False)], "as often as before"
        connector.request_finished(a, [])

    def test_who_waits_asks_for_the_last_chunk_that_is_on_its_way_and_for_no_other(self, fenced):
        connector, manager = fenced()
        a = Request("a", range(17))
        fill(manager, a, 1)
        manager.answers.update({key(a, chunk): LookupResult.HIT_PENDING for chunk in (1, 3)})
        manager.resident[key(a, 2)] = 2
        connector.on_new_request(a)
        asked = asked_of(manager)
        assert connector.get_num_new_matched_tokens(a, 0) == (None, False)
        assert {*asked} == {key(a, chunk) for chunk in range(4)}
        for _ in range(2):
            asked.clear()
            assert connector.get_num_new_matched_tokens(a, 0) == (None, False)
            assert asked == [key(a, 3)]
        manager.resident[key(a, 3)] = 3
        del manager.answers[key(a, 3)]
        assert connector.get_num_new_matched_tokens(a, 0) == (None, False)  # for the other one
        asked.clear()
        assert connector.get_num_new_matched_tokens(a, 0) == (None, False)
        assert asked == [key(a, 1)]
        manager.resident[key(a, 1)] = 1
        manager.answers.clear()
        assert connector.get_num_new_matched_tokens(a, 0) == (16, True)
        connector.build_connector_meta(step())

    def test_who_waits_is_answered_when_what_it_waits_for_is_gone(self, fenced):
        connector, manager = fenced()
        a = Request("a", range(13))
        fill(manager, a, 1)
        manager.answers[key(a, 1)] = LookupResult.HIT_PENDING
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (None, False)
        manager.answers.clear()  # the store failed
        assert connector.get_num_new_matched_tokens(a, 0) == (4, True)
        connector.build_connector_meta(step())

    @pytest.mark.parametrize("local", [4, 8])
    def test_who_has_more_than_when_it_began_to_wait_asks_anew(self, fenced, local):
        """The engine has found more of its tokens on the GPU, perhaps all that it waited for."""
        connector, manager = fenced()
        a = Request("a", range(13))
        manager.answers.update({key(a, chunk): LookupResult.HIT_PENDING for chunk in (0, 1)})
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (None, False)
        assert connector.get_num_new_matched_tokens(a, local) == ((None, False) if local == 4 else (0, False))
        connector.build_connector_meta(step())

    def test_who_has_less_than_when_it_began_to_wait_asks_anew(self, fenced):
        """The engine has lost some of its tokens, and the medium never had them."""
        connector, manager = fenced()
        a = Request("a", range(13))
        manager.answers[key(a, 1)] = LookupResult.HIT_PENDING
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 4) == (None, False)
        assert connector.get_num_new_matched_tokens(a, 0) == (0, False)
        connector.build_connector_meta(step())

    def test_nobody_waits_for_what_it_waited_for_before_it_was_answered(self, fenced):
        connector, manager = fenced(max_deferred_lookups=1)
        a = Request("a", range(13))
        fill(manager, a, 3)
        manager.answers[key(a, 2)] = LookupResult.HIT_PENDING
        connector.on_new_request(a)
        assert connector.get_num_new_matched_tokens(a, 0) == (None, False)
        assert connector.get_num_new_matched_tokens(a, 0) == (8, True)  # it has waited long enough
        connector.update_state_after_alloc(a, Blocks([1]), 0)
        del manager.resident[key(a, 0)]
        asked = asked_of(manager)
        assert connector.get_num_new_matched_tokens(a, 0) == (0, False)
        assert asked == [key(a, 0)]
        connector.build_connector_meta(step())

    @pytest.mark.parametrize("how", ["answered", "finished"])
    def test_lookups_and_waiting_are_timed(self, fenced, monkeypatch, how):
        times = iter([10, 11, 20, 22, 30, 33, 40, 44])
        monkeypatch.setattr(OffloadingSchedulerSide, "clock", staticmethod(lambda: next(times)))
        connector, manager = fenced()
        a = Request("a", range(13))
        manager.answers[key(a, 0)] = LookupResult.HIT_PENDING
        connector.on_new_request(a)
        assert [connector.get_num_new_matched_tokens(a, 0) for _ in range(2)] == [(None, False)] * 2
        if how == "answered":
            fill(manager, a, 1)
            manager.answers.clear()
            assert [connector.get_num_new_matched_tokens(a, 0) for _ in range(2)] == [(4, True)] * 2
        else:
            connector.request_finished(a, [])
        counted = connector.get_kv_connector_stats().data["data"]
        lookups, waits = ([1, 2, 3, 4], [23]) if how == "answered" else ([1, 2], [20])
        assert (counted[LOOKUP_SYNC_DELAY], counted[LOOKUP_ASYNC_DELAY]) == ({(): lookups}, {(): waits})
        connector.build_connector_meta(step())

    def test_nothing_comes_from_nowhere(self, fenced):
        connector, _ = fenced()
        assert connector.get_external_cache_hit_sources(Request("nobody", range(4)), 0) == {}

    def test_what_was_promised_is_gone(self, fenced):
        connector, manager = fenced()
        a = Request("a", range(13))
        assert ask(connector, manager, a, 3) == (12, True)
        del manager.resident[key(a, 1)]
        assert begin_load(connector, a, [1, 2, 3], 12) == plan(loads={0: TransferJob("a", None, gpu(1, 2, 3))})
        assert not manager.pins.total()
        report(connector, done=[0], failed=[0])
        manager.resident[key(a, 1)] = 1
        assert connector.get_num_new_matched_tokens(a, 0) == (4, True)
        connector.build_connector_meta(step())

    def test_while_it_loads_nothing_more_is_promised(self, fenced):
        connector, manager = fenced()
        a = Request("a", range(13))
        assert ask(connector, manager, a, 3) == (12, True)
        begin_load(connector, a, [1, 2, 3], 12)
        assert connector.get_num_new_matched_tokens(a, 0) == (0, False)
        connector.build_connector_meta(step())

    def test_only_the_last_answer_counts(self, fenced):
        connector, manager = fenced()
        a = Request("a", range(13))
        assert ask(connector, manager, a, 3) == (12, True)
        manager.answers[key(a, 1)] = LookupResult.HIT_PENDING
        assert connector.get_num_new_matched_tokens(a, 0) == (None, False)
        with pytest.raises(
            KVError, match=r"^request a: the engine loads 12 tokens, but get_num_new_matched_tokens promised 0"
        ):
            connector.update_state_after_alloc(a, Blocks([1, 2, 3]), 12)
        connector.build_connector_meta(step())

    def test_nobody_promised(self, fenced):
        connector, _manager = fenced()
        a = Request("a", range(13))
        with pytest.raises(
            KVError,
            match=r"^request a: the engine loads 4 tokens, but never called get_num_new_matched_tokens",
        ):
            connector.update_state_after_alloc(a, Blocks([1]), 4)
        connector.on_new_request(a)
        with pytest.raises(
            KVError, match=r"^request a: the engine loads 4 tokens, but get_num_new_matched_tokens promised 0"
        ):
            connector.update_state_after_alloc(a, Blocks([1]), 4)
        connector.build_connector_meta(step())

    def test_a_request_level_policy_offers_what_was_loaded(self, fenced):
        for policy, offered in ((OffloadPolicy.CHUNK_LEVEL, 1), (OffloadPolicy.REQUEST_LEVEL, 3)):
            connector, manager = fenced()
            manager.policy = policy
            a = Request("a", range(12))
            ask(connector, manager, a, 2)
            begin_load(connector, a, [1, 2], 8)
            report(connector, done=[0])
            seen = []
            manager.prepare_store = lambda ks, ctx, seen=seen: seen.extend(ks)
            a.num_computed_tokens = 8
            connector.build_connector_meta(step(new=[("a", ([1, 2, 3],))], counts={"a": 4}))
            assert len({*seen}) == offered
