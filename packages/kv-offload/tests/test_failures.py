"""Loads that fail, ids that come back, resets, schedules that break off."""

import pytest
from kv_offload_calls import arrive, ask, begin_load, fill, gpu, keys, report, run
from kv_offload_configs import Blocks, Request, step

from kv_offload.metrics import LOAD_FAILURE, STORE_FAILURE


class TestFailures:
    def begin(self, connector, manager, tokens=13, chunks=3, n=12, **wish):
        a = Request("a", range(tokens), **wish)
        fill(manager, a, chunks)
        connector.on_new_request(a)
        connector.get_num_new_matched_tokens(a, 0)
        connector.update_state_after_alloc(a, Blocks(range(1, 1 + -(-n // 4))), n)
        return a

    @pytest.mark.parametrize("can_drop", [True, False])
    def test_a_failed_load_is_not_promised_again(self, fenced, can_drop):
        connector, manager = fenced()
        manager.can_drop = can_drop
        a = self.begin(connector, manager)
        connector.build_connector_meta(step())
        report(connector, done=[0], failed=[0])
        assert not manager.pins.total()
        assert len(manager.resident) == (0 if can_drop else 3)
        assert connector.get_num_new_matched_tokens(a, 0) == (0, False)
        connector.update_state_after_alloc(a, Blocks([4, 5, 6, 7]), 0)
        meta = connector.build_connector_meta(step(new=[("a", ([4, 5, 6, 7],))], counts={"a": 13}))
        assert len(meta.store_jobs) == can_drop  # everything is offered again
        assert connector.get_kv_connector_stats().data["data"][LOAD_FAILURE] == {(): 1}

    def test_dropped_with_the_first_report(self, fenced):
        connector, manager = fenced(world_size=2)
        self.begin(connector, manager)
        connector.build_connector_meta(step())
        report(connector, done=[0], failed=[0])
        assert not manager.resident
        assert manager.pins.total() == 3
        report(connector, done=[0])
        assert not manager.pins.total()

    def test_who_has_not_reported_yet_has_not_failed(self, fenced):
        connector, manager = fenced(world_size=2)
        a = self.begin(connector, manager)
        connector.build_connector_meta(step())
        for left in (3, 0):
            report(connector, done=[0])
            assert (manager.pins.total(), len(manager.resident)) == (left, 3)
        assert LOAD_FAILURE not in connector.get_kv_connector_stats().data["data"]
        assert connector.get_num_new_matched_tokens(a, 0) == (12, True)
        connector.build_connector_meta(step())

    def test_jobs_of_one_report_fail_by_themselves(self, fenced):
        connector, manager = fenced()
        a, b, c = Request("a", range(4)), Request("b", range(10, 14)), Request("c", range(20, 29))
        for request in (a, b, c):
            connector.on_new_request(request)
        fill(manager, c, 2)
        run(connector, a, [1])
        run(connector, b, [2])
        assert connector.get_num_new_matched_tokens(c, 0) == (8, True)
        begin_load(connector, c, [3, 4], 8)
        report(connector, done=[0, 1, 2], failed=[1])
        assert {*manager.resident} == {*keys(a, 1), *keys(c, 2)}
        counted = connector.get_kv_connector_stats().data["data"]
        assert (counted.get(STORE_FAILURE), counted.get(LOAD_FAILURE)) == ({(): 1}, None)

    def test_given_up_and_ended_later(self, fenced):
        connector, manager = fenced()
        a = self.begin(connector, manager)
        connector.build_connector_meta(step())
        report(connector, done=[0], failed=[0], unended=[0])
        assert manager.pins.total() == 3
        assert not manager.resident
        # its blocks are somebody else's before that
        connector.request_finished(a, [])
        b = arrive(connector, Request("b", [9]))
        assert run(connector, b, [2]).jobs_to_flush == {0}
        report(connector, late=[0])
        assert not manager.pins.total()

    def test_stores_on_a_failed_load_are_spoilt(self, fenced):
        connector, manager = fenced(sync_load_budget_bytes=1 << 20)
        a = self.begin(connector, manager, tokens=16, chunks=2, n=8)
        a.num_computed_tokens = 8
        meta = connector.build_connector_meta(step(new=[("a", ([1, 2, 3, 4],))], counts={"a": 8}))
        assert (meta.load_jobs[0].sync, meta.store_jobs[1].src_spec) == (True, gpu(3, 4, index=2))
        report(connector, done=[0], failed=[0], invalid=[1, 2])
        assert connector.build_connector_meta(step()).jobs_to_flush == {1}
        report(connector, done=[1])
        assert not (manager.resident or manager.storing)

    def test_what_was_stored_before_a_failed_load_is_kept(self, fenced):
        connector, manager = fenced()
        a = arrive(connector, Request("a", range(13)))
        run(connector, a, [1], count=4)
        connector.build_connector_meta(step(preempted="a"))
        fill(manager, a, 3)
        del manager.resident[keys(a, 1)[0]]
        assert connector.get_num_new_matched_tokens(a, 4) == (8, True)
        begin_load(connector, a, [1, 2, 3], 8)
        report(connector, done=[1], failed=[1])
        assert connector.build_connector_meta(step()).jobs_to_flush == set()
        report(connector, done=[0])
        assert {*manager.resident} == {*keys(a, 1)}

    def test_what_was_not_loaded_is_stored_when_it_was_computed(self, fenced):
        connector, manager = fenced()
        a = self.begin(connector, manager)
        connector.build_connector_meta(step())
        report(connector, done=[0], failed=[0], invalid=[2, 3])
        # the engine keeps the request's first block, and does not ask again
        connector.update_state_after_alloc(a, Blocks([1, 2, 3, 4]), 0)
        a.num_computed_tokens = 4
        meta = connector.build_connector_meta(step(new=[("a", ([1, 2, 3, 4],))], counts={"a": 9}))
        assert meta.store_jobs[1].src_spec == gpu(1, 2, 3)

    def test_stores_on_a_failed_load_are_spoilt_after_a_preemption(self, fenced):
        connector, manager = fenced(sync_load_budget_bytes=1 << 20)
        a = self.begin(connector, manager, tokens=16, chunks=2, n=8)
        a.num_computed_tokens = 8
        connector.build_connector_meta(step(new=[("a", ([1, 2, 3, 4],))], counts={"a": 8}))
        connector.build_connector_meta(step(preempted="a"))  # scheduled before the first step came back
        report(connector, done=[0], failed=[0], invalid=[1, 2])
        report(connector, done=[1])
        assert not (manager.resident or manager.storing)

    def test_stores_on_somebody_elses_failed_load_are_spoilt(self, fenced):
        connector, manager = fenced()
        a = arrive(connector, Request("a", range(16)))
        connector.get_num_new_matched_tokens(a, 0)
        connector.update_state_after_alloc(a, Blocks([1, 2, 3, 4]), 0)
        a.num_computed_tokens = 8  # loaded by another connector, in this step
        b = arrive(connector, Request("b", [7] * 8))
        connector.build_connector_meta(
            step(new=[("a", ([1, 2, 3, 4],)), ("b", ([5, 6],))], counts={"a": 8, "b": 8})
        )
        report(connector, invalid=[2])
        assert connector.build_connector_meta(step()).jobs_to_flush == {0}
        report(connector, done=[0, 1])
        assert {*manager.resident} == {*keys(b, 2)}

    @pytest.mark.parametrize(("invalid", "kept"), [([2], 1), ([2, 3], 1), ([3], 2), ([4], 3), ([1, 3], 0)])
    def test_what_ends_before_the_block_that_was_not_filled_is_kept(self, fenced, invalid, kept):
        connector, manager = fenced()
        a = arrive(connector, Request("a", range(12)))
        run(connector, a, [1], count=4)
        for block in (2, 3):
            connector.build_connector_meta(step(more=[("a", ([block],))], counts={"a": 4}))
            a.num_computed_tokens += 4
        report(connector, invalid=invalid)
        assert connector.build_connector_meta(step()).jobs_to_flush == {*range(kept, 3)}
        report(connector, done=[0, 1, 2])
        assert {*manager.resident} == {*keys(a, kept)}

    def test_who_has_ended_is_not_kept_either(self, fenced):
        connector, manager = fenced()
        a = arrive(connector, Request("a", range(8)))
        run(connector, a, [1, 2])
        connector.request_finished(a, [1, 2])
        report(connector, invalid=[2])
        assert connector.build_connector_meta(step()).jobs_to_flush == {0}
        report(connector, done=[0])
        assert not (manager.resident or manager.storing)

    def test_what_the_medium_had_is_offered_again(self, fenced):
        """It is as good as what is computed now, but nobody knows whether it is still there."""
        connector, manager = fenced()
        a = Request("a", range(9))
        fill(manager, a, 2)
        connector.on_new_request(a)
        assert run(connector, a, [1, 2, 3], count=8).store_jobs == {}
        manager.resident.clear()
        connector.on_new_request(Request("b", [7] * 8))  # which has no such block
        report(connector, invalid=[1])
        a.num_computed_tokens = 0
        meta = connector.build_connector_meta(step(more=[("a", None)], counts={"a": 9}))
        assert [job.src_spec for job in meta.store_jobs.values()] == [gpu(1, 2)]

    def test_a_load_from_before_a_reset_spoils_nothing_that_was_stored_since(self, fenced):
        connector, manager = fenced()
        self.begin(connector, manager)
        connector.build_connector_meta(step())
        connector.reset_cache()
        b = arrive(connector, Request("b", range(13)))
        run(connector, b, [5, 6, 7, 8])
        report(connector, done=[1])
        report(connector, done=[0], failed=[0])
        assert {*manager.resident} == {*keys(b, 3)}

    def test_a_load_from_before_a_reset_says_nothing_of_what_is_there_since(self, fenced):
        connector, manager = fenced()
        a = self.begin(connector, manager)
        connector.build_connector_meta(step())
        connector.reset_cache()
        report(connector, done=[0], failed=[0])
        fill(manager, a, 3)
        assert connector.get_num_new_matched_tokens(a, 0) == (12, True)
        connector.build_connector_meta(step())

    def test_a_load_from_before_a_reset_spoils_what_its_request_stored_since(self, fenced):
        connector, manager = fenced(sync_load_budget_bytes=1 << 20)
        a = self.begin(connector, manager, tokens=16, chunks=2, n=8)
        a.num_computed_tokens = 8
        connector.build_connector_meta(step(new=[("a", ([1, 2, 3, 4],))], counts={"a": 8}))
        connector.reset_cache()
        a.num_computed_tokens = 16
        a.tokens.append(16)
        # before the first step came back
        meta = connector.build_connector_meta(step(more=[("a", ([5],))], counts={"a": 1}))
        assert meta.store_jobs[2].src_spec == gpu(1, 2, 3, 4)
        report(connector, done=[0], failed=[0])
        report(connector, done=[1, 2])
        assert not (manager.resident or manager.storing)


class TestLives:
    def test_an_id_comes_back_while_its_jobs_run(self, fenced):
        connector, manager = fenced()
        old, new = Request("a", range(8)), Request("a", [5] * 8)
        connector.on_new_request(old)
        run(connector, old, [1, 2])
        connector.request_finished(old, [1, 2])
        connector.on_new_request(new)
        connector.get_num_new_matched_tokens(new, 0)
        connector.update_state_after_alloc(new, Blocks([3, 4]), 0)
        output = step(new=[("a", ([3, 4],))], counts={"a": 8}, finished="a")
        assert connector.build_connector_meta(output).store_jobs[1].src_spec == gpu(3, 4)
        report(connector, done=[0])
        assert {*manager.resident} == {*keys(old, 2)}
        assert "a" in connector.side._books.states

    def test_a_reset_with_jobs_in_flight(self, fenced):
        connector, manager = fenced()
        a = arrive(connector, Request("a", range(8)))
        run(connector, a, [1, 2])
        assert connector.reset_cache() is True
        assert manager.resets == ["reset"]
        assert connector.has_pending_push_work()
        # everything is stored anew, and after what was in flight
        a.tokens.append(8)
        meta = connector.build_connector_meta(step(more=[("a", None)], counts={"a": 1}))
        assert (meta.jobs_to_end, meta.jobs_to_flush, [*meta.store_jobs]) == ({0}, set(), [1])
        report(connector, done=[0])
        assert (manager.resets, manager.resident) == (["reset", "flushed"], {})
        report(connector, done=[1])
        assert len(manager.resident) == 2

    def test_a_second_reset_waits_for_the_jobs_of_the_first(self, fenced):
        connector, manager = fenced()
        a = arrive(connector, Request("a", range(8)))
        run(connector, a, [1, 2])
        assert (connector.reset_cache(), connector.reset_cache()) == (True, True)
        assert connector.build_connector_meta(step()).jobs_to_end == {0}
        report(connector, done=[0])
        assert manager.resets == ["reset", "reset", "flushed"]

    def test_a_reset_waits_for_every_rank(self, fenced):
        connector, manager = fenced(world_size=2)
        a = arrive(connector, Request("a", range(8)))
        run(connector, a, [1, 2])
        connector.reset_cache()
        report(connector, done=[0])
        assert manager.resets == ["reset"]
        assert connector.has_pending_push_work() is True
        report(connector, done=[0])
        assert manager.resets == ["reset", "flushed"]

    def test_a_reset_waits_for_copies_that_were_given_up(self, fenced):
        connector, manager = fenced()
        a = arrive(connector, Request("a", range(8)))
        run(connector, a, [1, 2])
        connector.reset_cache()
        connector.build_connector_meta(step())
        report(connector, done=[0], failed=[0], unended=[0])
        assert (manager.resets, connector.has_pending_push_work()) == (["reset"], False)
        report(connector, late=[0])
        assert manager.resets == ["reset", "flushed"]

    def test_there_is_work_while_a_job_of_before_a_reset_is_awaited(self, fenced):
        connector, manager = fenced()
        manager.has_pending_work = lambda: False
        a = arrive(connector, Request("a", range(8)))
        run(connector, a, [1, 2])
        connector.reset_cache()
        assert connector.build_connector_meta(step()).jobs_to_end == {0}
        assert connector.has_pending_push_work()
        report(connector, done=[0])
        assert not connector.has_pending_push_work()

    def test_there_is_work_while_a_job_or_a_fence_is(self, fenced):
        connector, manager = fenced()
        manager.has_pending_work = lambda: False
        a = arrive(connector, Request("a", range(8)))
        assert not connector.has_pending_push_work()
        run(connector, a, [1, 2])
        assert connector.has_pending_push_work()
        report(connector, invalid=[1])
        report(connector, done=[0])
        assert connector.has_pending_push_work()  # the fence of the spoilt store
        connector.build_connector_meta(step())
        assert not connector.has_pending_push_work()
        manager.has_pending_work = lambda: True
        assert connector.has_pending_push_work()

    def test_a_reset_at_rest(self, fenced):
        connector, manager = fenced()
        connector.reset_cache()
        report(connector)
        assert manager.resets == ["reset", "flushed"]
        assert not connector.has_pending_push_work()

    def test_after_a_reset_what_could_not_be_loaded_may_be(self, fenced):
        connector, manager = fenced()
        a = Request("a", range(9))
        assert ask(connector, manager, a, 2) == (8, True)
        begin_load(connector, a, [1, 2], 8)
        report(connector, done=[0], failed=[0])
        fill(manager, a, 2)
        assert connector.get_num_new_matched_tokens(a, 0) == (0, False)
        connector.build_connector_meta(step())
        connector.reset_cache()
        fill(manager, a, 2)
        assert connector.get_num_new_matched_tokens(a, 0) == (8, True)

    def test_a_reset_at_rest_is_over_at_once(self, fenced):
        connector, manager = fenced()
        connector.reset_cache()
        assert manager.resets == ["reset", "flushed"]

    def test_a_schedule_that_was_not_finished(self, fenced, caplog):
        connector, manager = fenced()
        a = arrive(connector, Request("a", range(8)))
        connector.get_num_new_matched_tokens(a, 0)
        assert manager.is_locked
        connector.request_finished(a, [])
        connector.on_new_request(a)
        assert [(record.name, record.filename, record.getMessage()) for record in caplog.records] == [
            (
                "kv_offload",
                "books.py",
                "the previous step was begun but never built (build_connector_meta); unlocking the offloading "
                "manager",
            )
        ]
        assert not manager.is_locked

    def test_a_step_that_can_not_be_planned_unlocks_the_manager(self, fenced, monkeypatch):
        connector, manager = fenced()
        arrive(connector, Request("a", range(8)))

        def fail(context):
            raise OSError("the medium is gone")

        monkeypatch.setattr(manager, "on_schedule_end", fail)
        with pytest.raises(OSError, match="is gone"):
            connector.build_connector_meta(step())
        assert not manager.is_locked

    def test_shutdown_unlocks_the_manager_and_ends_it(self, fenced, monkeypatch):
        connector, manager = fenced()
        was_locked = []
        monkeypatch.setattr(manager, "shutdown", lambda: was_locked.append(manager.is_locked))
        connector.get_num_new_matched_tokens(Request("a", range(8)), 0)
        connector.shutdown()
        assert was_locked == [False]
