"""Who waits for whom, and whose blocks are held."""

from types import SimpleNamespace

import pytest
from kv_offload_calls import arrive, ask, begin_load, fill, gpu, keys, plan, report, run
from kv_offload_configs import FULL, WINDOW, Blocks, Request, kv_cache_config, step
from kv_offload_medium import Slots

from kv_api import (
    GPULoadStoreSpec,
    LookupResult,
)
from kv_offload import TransferJob
from kv_offload.scheduler.state.fresh import fresh_blocks, tables_of_step
from kv_offload.shape.layout import Group, Layout


class TestFences:
    def begin(self, connector, name="a", table=(1, 2), first_token=0):
        a = arrive(connector, Request(name, range(first_token, first_token + 8)))
        run(connector, a, list(table))
        return a

    def test_who_gets_a_block_waits_for_its_store(self, fenced):
        connector, _ = fenced()
        a = self.begin(connector)
        assert not connector.has_pending_block_frees()  # nothing is held for it
        connector.request_finished(a, [1, 2])
        b = arrive(connector, Request("b", [9] * 9))
        meta = run(connector, b, [7, 2, 8], count=1)
        assert meta == plan(flush={0})

    def test_a_store_may_be_new_and_flushed(self, fenced):
        connector, _ = fenced(offload_prompt_only=False)
        a = arrive(connector, Request("a", range(9), prompt=2))
        run(connector, a, [1, 2, 3], count=3)
        a.num_computed_tokens = 8
        connector.request_finished(a, [1, 2, 3])
        b = arrive(connector, Request("b", [9]))
        assert run(connector, b, [2]) == plan(
            stores={0: TransferJob("a", gpu(1, 2), Slots([0, 1]), is_computed=True)}, flush={0}
        )

    def test_a_hit_does_not_wait(self, fenced):
        connector, _ = fenced()
        connector.request_finished(self.begin(connector), [1, 2])
        b = arrive(connector, Request("b", [*range(8), 99]))
        assert run(connector, b, [1, 2, 3], local=8).jobs_to_flush == set()

    def test_blocks_of_other_loads_copies_and_more_tokens_count(self, fenced):
        connector, _ = fenced()
        a = self.begin(connector)
        b = self.begin(connector, "b", [3, 4], first_token=10)
        c = self.begin(connector, "c", [5, 6], first_token=20)
        untouched = self.begin(connector, "z", [9, 10], first_token=30)
        for request, table in ((a, [1, 2]), (b, [3, 4]), (c, [5, 6]), (untouched, [9, 10])):
            connector.request_finished(request, table)
        d = arrive(connector, Request("d", [9] * 8))
        connector.get_num_new_matched_tokens(d, 0)
        connector.update_state_after_alloc(d, Blocks([1, 8]), 0)
        output = step(more=[("e", ([3],))])
        output.kv_cache_block_copies = [SimpleNamespace(src_block_id=5, dst_block_id=6)]
        arrive(connector, Request("e", [1]))
        assert connector.build_connector_meta(output).jobs_to_flush == {0, 1, 2}

    def test_who_was_never_announced_waits_too(self, fenced):
        connector, _ = fenced()
        connector.request_finished(self.begin(connector), [1, 2])
        connector.update_state_after_alloc(Request("unknown", [9]), Blocks([2, 8]), 0)
        assert connector.build_connector_meta(step()).jobs_to_flush == {0}

    def test_who_is_preempted_or_replaced_frees_its_blocks_in_the_same_step(self, fenced):
        for output in (
            step(new=[("b", ([2],))], counts={"b": 1}, preempted="a"),
            step(new=[("b", ([2],)), ("a", ([3, 4],))], counts={"b": 1, "a": 8}),
        ):
            connector, manager = fenced()
            manager.storing.clear()
            self.begin(connector)
            connector.on_new_request(Request("b", [9]))
            assert connector.build_connector_meta(output).jobs_to_flush == {0}

    def test_who_is_matched_again_has_lost_its_blocks(self, fenced):
        connector, _ = fenced()
        a = self.begin(connector)
        connector.get_num_new_matched_tokens(a, 0)
        b = arrive(connector, Request("b", [9]))
        assert run(connector, b, [1]).jobs_to_flush == {0}

    def test_who_goes_on_after_a_pause_waits_for_none_of_its_own_blocks(self, fenced):
        connector, _ = fenced()
        a = self.begin(connector)
        connector.build_connector_meta(step())  # a session: it waits for its next input, and keeps its blocks
        a.tokens += [90, 91, 92, 93]
        a.num_prompt_tokens = 12
        connector.update_state_after_alloc(a, Blocks([1, 2, 3]), 0)
        meta = connector.build_connector_meta(step(new=[("a", ([1, 2, 3],))], counts={"a": 4}))
        assert meta == plan(stores={1: TransferJob("a", gpu(3, index=2), Slots([2]))})
        connector.side.check()

    def test_a_session_waits_for_what_slid_out_of_its_window_and_is_its_again(self, make):
        connector = make(hold_blocks="never", cache=kv_cache_config(((WINDOW, 4, 4),)))
        a = arrive(connector, Request("a", range(16)))
        connector.get_num_new_matched_tokens(a, 0)
        assert connector.build_connector_meta(step(new=[("a", ([1, 2],))], counts={"a": 8})).store_jobs
        a.num_computed_tokens = 8
        more = connector.build_connector_meta(step(more=[("a", ([3, 4],))], counts={"a": 8}))
        assert (len(more.store_jobs), more.jobs_to_flush) == (1, set())
        a.num_computed_tokens = 16
        a.tokens += [90, 91, 92, 93]
        a.num_prompt_tokens = 20
        connector.update_state_after_alloc(a, Blocks([0, 0, 0, 4, 2]), 0)
        output = step(new=[("a", ([0, 0, 0, 4, 2],))], counts={"a": 4})
        assert connector.build_connector_meta(output).jobs_to_flush == {0}

    def test_a_store_that_has_ended_makes_nobody_wait(self, fenced):
        connector, _ = fenced()
        a = self.begin(connector)
        report(connector, done=[0])
        connector.request_finished(a, [1, 2])
        b = arrive(connector, Request("b", [9]))
        assert run(connector, b, [1]).jobs_to_flush == set()

    def test_a_window_may_lose_what_is_being_stored(self, make, manager):
        connector = make(hold_blocks="never", cache=kv_cache_config(((WINDOW, 4, 4),)))
        a, b = Request("a", range(16)), Request("b", [99] * 4)
        connector.on_new_request(a)
        connector.get_num_new_matched_tokens(a, 0)
        connector.build_connector_meta(step(new=[("a", ([1, 2],))], counts={"a": 8}))
        a.num_computed_tokens = 8
        connector.on_new_request(b)
        output = step(new=[("b", ([1],))], more=[("a", ([3],))], counts={"b": 1, "a": 1})
        assert connector.build_connector_meta(output).jobs_to_flush == {0}

    def test_check_sees_a_store_whose_blocks_are_lost(self, fenced):
        connector, _ = fenced()
        self.begin(connector)
        table = connector.side._books.states["a"].progress.groups[0].table
        lost = table.pop()
        with pytest.raises(AssertionError, match="its request has lost blocks to others"):
            connector.side.check()
        table.append(lost)

    def test_check_sees_what_is_wrong_with_others_books(self, fenced):
        connector, _ = fenced(offload_prompt_only=False)
        self.begin(connector)
        books = connector.side._books
        books._awaits_room[books.states["a"]] = None
        with pytest.raises(AssertionError, match="waits for room"):
            connector.side.check()
        books._awaits_room.clear()
        step = books.agenda.step_of("a")
        books.agenda.remove("a")
        books.agenda.put("a", step + 9)
        with pytest.raises(AssertionError, match=f"a is looked at in step {step + 9} instead of"):
            connector.side.check()
        books.agenda.put("a", step)
        books.pins._blocks_of[7] = []
        with pytest.raises(AssertionError, match="jobs \\[7\\] have ended, and their blocks are pinned"):
            connector.side.check()
        del books.pins._blocks_of[7]
        progress = books.states["a"].progress.groups[0]
        cursor, progress.cursor = progress.cursor, 99
        with pytest.raises(AssertionError, match="group 0: cursor 99 of 2 keys"):
            connector.side.check()
        progress.cursor = cursor
        for jobs in (books.meta.load_jobs, books.meta.store_jobs):
            jobs[9] = TransferJob("a", gpu(1), Slots([0]))
            with pytest.raises(AssertionError, match="jobs \\[9\\] are planned and not in the book"):
                connector.side.check()
            del jobs[9]

    @pytest.mark.parametrize("knows_of_them", [True, False])
    def test_an_engine_that_tells_no_copies(self, fenced, knows_of_them):
        connector, _ = fenced()
        a = self.begin(connector)
        connector.request_finished(a, [1, 2])
        connector.on_new_request(Request("b", [9]))
        output = step(new=[("b", ([2],))], counts={"b": 1}, preempted=["nobody"])
        if knows_of_them:
            output.kv_cache_block_copies = None
        else:
            del output.kv_cache_block_copies
        assert connector.build_connector_meta(output).jobs_to_flush == {0}

    def test_preemption_alone_makes_nobody_wait(self, fenced):
        connector, _ = fenced()
        a = self.begin(connector)
        assert connector.build_connector_meta(step(preempted="a")) == plan()
        assert connector.side._books.states["a"].progress.groups[0].table == []
        assert connector.request_finished(a, []) == (False, None)

    def test_resumed_by_either_runner(self, fenced):
        for resumed in ((), ("a",)):
            connector, manager = fenced()
            manager.resident.clear()
            manager.storing.clear()
            a = self.begin(connector)
            report(connector, done=[0], failed=[0])
            connector.get_num_new_matched_tokens(a, 0)
            connector.update_state_after_alloc(a, Blocks([4, 5]), 0)
            a.num_computed_tokens = 0
            if resumed:
                output = step(more=[("a", ([4, 5],))], counts={"a": 8}, preempted="a", resumed="a")
            else:
                output = step(new=[("a", ([4, 5],))], counts={"a": 8}, preempted="a")
            assert connector.build_connector_meta(output).store_jobs[1].src_spec == gpu(4, 5)

    def test_a_window_leaves_blocks_behind(self, make, manager):
        connector = make(hold_blocks="never", cache=kv_cache_config(((FULL, 4, 0), (WINDOW, 4, 4))))
        a = arrive(connector, Request("a", range(16)))
        connector.get_num_new_matched_tokens(a, 0)
        meta = connector.build_connector_meta(step(new=[("a", ([1, 2], [3, 4]))], counts={"a": 7}))
        assert meta.store_jobs[0].src_spec == GPULoadStoreSpec([1, 3], (1, 1), (0, 0))
        a.num_computed_tokens = 7
        arrive(connector, Request("b", [99] * 4))
        # the window's blocks 3 and 4 slid out; 4 is given to b before it was stored
        meta = connector.build_connector_meta(
            step(new=[("b", ([8], [4]))], more=[("a", ([5, 6], [7, 9]))], counts={"b": 1, "a": 9})
        )
        assert meta.store_jobs[1].src_spec == GPULoadStoreSpec([2, 5, 6, 7, 9], (3, 2), (1, 2))
        assert meta.jobs_to_flush == set()


class TestHolds:
    def test_a_request_is_stored_when_it_has_ended(self, held):
        connector, manager = held
        a = arrive(connector, Request("a", range(9), prompt=8))
        assert run(connector, a, [1, 2, 3]) == plan()
        assert connector.request_finished_all_groups(a, ([1, 2, 3],)) == (True, None)
        assert connector.has_pending_block_frees()
        assert connector.build_connector_meta(step(finished="a")) == plan(
            stores={0: TransferJob("a", gpu(1, 2), Slots([0, 1]), is_held=True, is_computed=True)}
        )
        report(connector, done=[0])
        assert len(manager.resident) == 2
        assert not connector.has_pending_block_frees()
        assert not connector.has_pending_push_work()

    def test_what_is_held_is_freed_when_it_was_reported_also_after_a_reset(self, held):
        connector, _ = held
        a = arrive(connector, Request("a", range(9)))
        run(connector, a, [1, 2, 3])
        assert connector.request_finished(a, [1, 2, 3]) == (True, None)
        connector.reset_cache()
        assert connector.has_pending_block_frees()
        connector.build_connector_meta(step(finished="a"))
        report(connector, done=[0])
        assert not connector.has_pending_block_frees()

    def test_nothing_to_store_holds_nothing(self, held):
        connector, manager = held
        a, b = Request("a", range(8)), Request("b", range(8))
        fill(manager, a, 2)
        manager.answers = dict.fromkeys(keys(a, 2), LookupResult.MISS)
        connector.on_new_request(a)
        run(connector, a, [1, 2])
        assert connector.request_finished(a, [1, 2]) == (False, None)
        manager.capacity = 2
        manager.pins.update(keys(a, 2))
        connector.on_new_request(b)
        b.tokens[0] = 7
        run(connector, b, [3, 4])
        assert connector.request_finished(b, [3, 4]) == (False, None)

    @pytest.mark.parametrize("reset", [False, True])
    def test_never_while_a_load_is_in_flight(self, held, reset):
        connector, manager = held
        a = Request("a", range(9))
        assert ask(connector, manager, a, 1) == (4, True)
        begin_load(connector, a, [1], 4)
        if reset:
            connector.reset_cache()
        a.num_computed_tokens = 8
        assert connector.request_finished(a, [1, 2]) == (False, None)
        report(connector, done=[0])

    def test_an_end_before_anything(self, held):
        connector, _ = held
        a = arrive(connector, Request("a", range(9)))
        assert connector.request_finished(a, []) == (False, None)
        assert connector.request_finished(a, []) == (False, None)


def test_which_blocks_of_a_table_may_be_written():
    layout = Layout((Group(0, FULL, 4, 1, 1), Group(2, WINDOW, 8, 1, 2, 9)), 4, 8)
    tables = [1, 2, 3, 4], [5, 6], [0, 7, 8]  # nobody knows how far the second one's were hit
    for local, blocks in ((0, {1, 2, 3, 4, 5, 6, 7, 8}), (8, {3, 4, 5, 6, 7, 8}), (16, {5, 6, 8})):
        assert fresh_blocks(layout, tables, local) == blocks


def test_a_block_in_which_a_hit_ends_is_written_after_it():
    layout = Layout((Group(0, FULL, 4, 1, 2), Group(1, WINDOW, 4, 1, 2, 9)), 2, 4)
    assert fresh_blocks(layout, ([1, 2, 3], [4, 5, 6]), 6) == {2, 3, 5, 6}


def test_who_is_told_all_of_its_blocks_and_who_got_more():
    output = step(
        new=[("a", ([1],)), ("unknown", ([2],))],
        more=[("b", ([3],)), ("c", ([4, 5],)), ("d", None), ("gone", ([6],)), ("unknown too", ([7],))],
        resumed=["c", "unknown too"],
    )
    states = {name: name.upper() for name in "abcd"}
    told = tables_of_step(output, states)
    assert told.whole == [("A", ([1],)), ("C", ([4, 5],))]
    assert told.more == [("b", ([3],)), ("gone", ([6],))]
