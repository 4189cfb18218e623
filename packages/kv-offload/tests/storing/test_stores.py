"""Stores, call by call: what is stored when, and what becomes of it."""

import pytest
from kv_offload_calls import arrive, ask, gpu, key, keys, plan, report, run
from kv_offload_configs import FULL, STATE, WINDOW, Blocks, Request, kv_cache_config, step
from kv_offload_medium import Slots

from kv_api import (
    GPULoadStoreSpec,
)
from kv_offload import TransferJob
from kv_offload.metrics import ALLOCATION_FAILURE, STORE_FAILURE


def three_that_come_together(connector):
    """Requests a, b and c, each with two blocks; and the steps in which they come and take two more tokens."""
    requests = [Request(name, [number, *range(4)]) for number, name in enumerate("abc")]
    tables = [[1, 2], [3, 4], [5, 6]]
    for request, table in zip(requests, tables, strict=True):
        connector.on_new_request(request)
        connector.get_num_new_matched_tokens(request, 0)
        connector.update_state_after_alloc(request, Blocks(table), 0)
    new = [(name, (table,)) for name, table in zip("abc", tables, strict=True)]
    one_more = step(counts=dict.fromkeys("abc", 1))
    return requests, [step(new=new, counts=dict.fromkeys("abc", 5)), one_more, one_more]


class TestStores:
    def test_as_chunks_become_complete(self, fenced):
        connector, manager = fenced(blocks_per_chunk=2)
        a = arrive(connector, Request("a", range(20)))
        assert run(connector, a, [5, 6, 7], count=10) == plan(stores={0: TransferJob("a", gpu(5, 6), Slots([0]))})
        meta = connector.build_connector_meta(step(more=[("a", ([9, 8],))], counts={"a": 10}))
        assert meta == plan(stores={1: TransferJob("a", gpu(7, 9, index=2), Slots([1]))})
        report(connector, done=[1, 0])
        assert {*manager.resident} == {*keys(a, 2, 2)}

    def test_run_ahead_stores_known_tokens_only(self, fenced):
        connector, _ = fenced(offload_prompt_only=False)
        a = arrive(connector, Request("a", range(6)))
        run(connector, a, [1, 2, 3])
        a.num_computed_tokens = 8  # two steps ahead, with drafts: tokens 6 and 7 are not known
        assert connector.build_connector_meta(step(more=[("a", None)], counts={"a": 1})) == plan()
        a.tokens += [6, 7]
        meta = connector.build_connector_meta(step(more=[("a", None)], counts={"a": 1}))
        assert meta.store_jobs[1].src_spec == gpu(2, index=1)

    @pytest.mark.parametrize("limit", [None, 12])
    @pytest.mark.parametrize("is_draft", [False, True])
    def test_a_draft_models_last_chunk_waits_for_the_token_after_it(self, fenced, is_draft, limit):
        cache = kv_cache_config()
        cache.kv_cache_groups[0].is_eagle_group = is_draft
        connector, _ = fenced(cache=cache, offload_prompt_only=False)
        a = arrive(connector, Request("a", range(8), params={"max_offload_tokens": limit}))
        assert run(connector, a, [1, 2, 3, 4]).store_jobs[0].src_spec == gpu(1, 2)  # a prompt's is there already
        stored = []
        for known in (9, 10, 11, 12, 13):
            a.tokens.append(known - 1)
            a.num_computed_tokens = known - 1
            meta = connector.build_connector_meta(step(more=[("a", None)], counts={"a": 1}))
            stored += [(known, job.src_spec) for job in meta.store_jobs.values()]
        assert stored == [(13 if is_draft else 12, gpu(3, index=2))]

    def test_a_draft_models_last_chunk_waits_for_more_than_a_draft_of_the_token_after_it(self, fenced):
        cache = kv_cache_config()
        cache.kv_cache_groups[0].is_eagle_group = True
        connector, _ = fenced(cache=cache, offload_prompt_only=False)
        a = arrive(connector, Request("a", range(8)))
        run(connector, a, [1, 2, 3, 4])
        stored = []
        for known, drafts in ((9, 0), (10, 0), (11, 0), (12, 2), (13, 2)):
            a.tokens.append(known - 1)
            a.num_computed_tokens = known - 1
            meta = connector.build_connector_meta(step(more=[("a", None)], counts={"a": 1 + drafts}))
            stored += [(known, job.src_spec) for job in meta.store_jobs.values()]
        assert stored == [(13, gpu(3, index=2))]

    def test_at_the_end_a_draft_models_last_chunk_waits_for_nothing(self, fenced):
        cache = kv_cache_config()
        cache.kv_cache_groups[0].is_eagle_group = True
        connector, _ = fenced(cache=cache, offload_prompt_only=False)
        a = arrive(connector, Request("a", range(11), prompt=4))
        run(connector, a, [1, 2, 3])
        a.tokens += [11, 12]
        a.num_computed_tokens = 12
        connector.request_finished(a, [1, 2, 3])
        meta = connector.build_connector_meta(step(finished="a"))
        assert [job.src_spec for job in meta.store_jobs.values()] == [gpu(3, index=2)]

    def test_at_the_end_what_drafts_computed_is_left_out(self, fenced):
        connector, manager = fenced(offload_prompt_only=False)
        a = arrive(connector, Request("a", range(7)))
        run(connector, a, [1, 2, 3])
        a.tokens.append(7)  # sampled, and computed with a draft after it that was rejected
        a.num_computed_tokens = 9
        connector.request_finished(a, [1, 2, 3])
        assert connector.build_connector_meta(step(finished="a")) == plan()
        assert [*manager.storing] == keys(a, 1)

    def test_the_prompt_only(self, fenced):
        connector, manager = fenced()
        a = arrive(connector, Request("a", range(12), prompt=8))
        assert run(connector, a, [1, 2, 3]).store_jobs[0].src_spec == gpu(1, 2)
        assert connector.request_finished(a, [1, 2, 3]) == (False, None)
        assert connector.build_connector_meta(step(finished="a")) == plan()
        assert manager.finished

    def test_a_step_that_completes_no_chunk_looks_at_nothing(self, fenced, monkeypatch):
        connector, _ = fenced(offload_prompt_only=False)
        a = arrive(connector, Request("a", range(8)))
        run(connector, a, [1, 2, 3])
        a.num_computed_tokens, hashes = 8, a.block_hashes
        looked = []
        monkeypatch.setattr(Request, "block_hashes", property(lambda request: looked.append(request) or hashes))
        for known in (9, 10, 11):
            a.tokens.append(known - 1)
            a.num_computed_tokens = known - 1
            for count in (1, 12 - known):  # a draft more, as long as no chunk is complete with it
                assert connector.build_connector_meta(step(more=[("a", None)], counts={"a": count})) == plan()
                assert not looked
        a.tokens.append(11)
        a.num_computed_tokens = 11
        connector.build_connector_meta(step(more=[("a", None)], counts={"a": 1}))
        assert looked

    def test_steps_that_went_by_untold_count(self, fenced):
        connector, _ = fenced(offload_prompt_only=False)
        a = arrive(connector, Request("a", range(8)))
        run(connector, a, [1, 2, 3])
        connector.side.skip_steps(3)
        a.tokens += range(8, 12)
        a.num_computed_tokens = 11
        meta = connector.build_connector_meta(step(more=[("a", None)], counts={"a": 1}))
        assert meta.store_jobs[1].src_spec == gpu(3, index=2)

    def decode(self, connector, request, block):
        """A step in which a request gets a block and computes a token there."""
        request.num_computed_tokens = len(request.tokens)
        request.tokens.append(0)
        return connector.build_connector_meta(step(more=[(request.request_id, ([block],))], counts={"a": 1}))

    def test_after_its_prompt_a_request_costs_a_step_nothing(self, fenced, monkeypatch):
        connector, _ = fenced()
        a = arrive(connector, Request("a", range(8)))
        run(connector, a, [1, 2])
        table = connector.side._books.states["a"].progress.groups[0].table
        monkeypatch.delattr(Request, "block_hashes")
        for block in range(3, 9):
            assert self.decode(connector, a, block) == plan()
            connector.side.check()
        assert table == [1, 2]

    def test_after_its_prompt_it_still_waits_for_who_uses_a_block(self, fenced):
        connector, _ = fenced()
        a, b = (arrive(connector, Request(name, [*name.encode() * 8])) for name in "ab")
        run(connector, a, [1, 2])
        report(connector, done=[0])
        run(connector, b, [3, 4])
        connector.request_finished(b, [3, 4])
        assert self.decode(connector, a, 4) == plan(flush={1})

    def test_after_its_prompt_it_is_offered_again_after_a_reset(self, fenced):
        connector, _ = fenced()
        a = arrive(connector, Request("a", range(8)))
        run(connector, a, [1, 2])
        assert self.decode(connector, a, 3) == plan()
        report(connector, done=[0])
        assert connector.reset_cache()
        assert self.decode(connector, a, 4).store_jobs[1].src_spec == gpu(1, 2)

    @pytest.mark.parametrize("table", [[1, 2, 3, 4, 5], [6, 7, 3, 4, 5]])
    def test_a_prompt_that_grows_is_stored_from_where_it_was(self, fenced, table):
        connector, _ = fenced()
        a = arrive(connector, Request("a", range(8)))
        run(connector, a, [1, 2])
        assert self.decode(connector, a, 3) == plan()
        report(connector, done=[0])
        a.tokens += range(9, 20)
        a.num_computed_tokens, a.num_prompt_tokens = 9, 20
        meta = connector.build_connector_meta(step(new=[("a", (table,))], counts={"a": 11}))
        assert meta.store_jobs[1].src_spec == gpu(*table[2:], index=2)

    def test_a_long_prompt_waits_for_an_eighth_of_what_it_offered(self, fenced):
        connector, _ = fenced(offload_prompt_only=False)
        a = arrive(connector, Request("a", range(4 * 40)))
        waiting = [0, 2] * 4 + [0, 0, 3] * 3 + [0, 0, 0, 4]
        assert self.chunk_by_chunk(connector, a, 40) == [1] * 16 + waiting + [0, 0, 3], "the last ones wait less"
        a.tokens += range(8)
        assert self.chunk_by_chunk(connector, a, 42, first=40, goes_on=True) == [1, 1], (
            "what it samples it offers at once"
        )

    def test_what_was_loaded_was_not_offered(self, fenced):
        connector, manager = fenced()
        a = Request("a", range(4 * 40))
        assert ask(connector, manager, a, 20) == (80, True)
        connector.update_state_after_alloc(a, Blocks([*range(1, 21)]), 80)
        loading = connector.build_connector_meta(step())
        report(connector, done=loading.load_jobs)
        a.num_computed_tokens = 80
        assert self.chunk_by_chunk(connector, a, 40, first=20) == [1] * 16 + [0, 2] * 2

    @pytest.mark.parametrize("tokens", [4 * 19, 4 * 19 + 3])
    def test_the_last_chunk_that_its_sender_wants_waits_for_no_other(self, fenced, tokens):
        connector, _ = fenced()
        a = arrive(connector, Request("a", range(4 * 40), params={"max_offload_tokens": tokens}))
        assert self.chunk_by_chunk(connector, a, 40) == [1] * 16 + [0, 2, 1] + [0] * 21

    def test_a_prompt_that_loses_blocks_one_by_one_waits_for_nothing(self, fenced):
        connector, _ = fenced(cache=kv_cache_config(((FULL, 4, 0), (WINDOW, 4, 200))))
        a = arrive(connector, Request("a", range(4 * 40)))
        assert self.chunk_by_chunk(connector, a, 40) == [2] * 40

    def test_a_long_prompt_without_room_for_all_it_offers_waits_for_nothing_more(self, fenced):
        connector, manager = fenced()
        manager.capacity = 17
        a = arrive(connector, Request("a", range(4 * 40)))
        assert self.chunk_by_chunk(connector, a, 18) == [1] * 16 + [0, 1]
        manager.capacity = 99
        report(connector, done=[0])
        meta = connector.build_connector_meta(step(more=[("a", None)], counts={"a": 1}))
        assert [job.src_spec for job in meta.store_jobs.values()] == [gpu(18, index=17)]

    def test_what_a_long_prompt_has_not_offered_it_offers_when_it_ends(self, fenced):
        connector, _ = fenced()
        a = arrive(connector, Request("a", range(4 * 40)))
        assert self.chunk_by_chunk(connector, a, 17) == [1] * 16 + [0]
        connector.request_finished(a, [*range(1, 18)])
        meta = connector.build_connector_meta(step(finished="a"))
        assert [job.src_spec for job in meta.store_jobs.values()] == [gpu(17, index=16)]

    @staticmethod
    def chunk_by_chunk(connector, request, stop, first=0, goes_on=False):
        """Each step computes one chunk of a request; returns how many blocks each stores."""
        stored, groups = [], len(connector.side._books.layout.groups)
        for chunk in range(first, stop):
            is_told_whole = chunk == first and not goes_on
            blocks = range(1 if is_told_whole else chunk + 1, chunk + 2)
            tables = tuple([100 * group + block for block in blocks] for group in range(groups))
            if chunk == 0:
                connector.get_num_new_matched_tokens(request, 0)
                connector.update_state_after_alloc(request, Blocks(*tables), 0)
            told = {"new" if is_told_whole else "more": [(request.request_id, tables)]}
            meta = connector.build_connector_meta(step(**told, counts={request.request_id: 4}))
            request.num_computed_tokens += 4
            connector.side.check()
            stored.append(sum(len(job.src_spec.block_ids) for job in meta.store_jobs.values()))
        return stored

    @pytest.mark.parametrize(
        ("params", "stored"), [({"max_offload_tokens": 7}, 1), ({"max_offload_tokens": 0}, 0)]
    )
    def test_as_far_as_its_sender_wants(self, fenced, params, stored):
        connector, manager = fenced()
        a = arrive(connector, Request("a", range(12), params=params))
        run(connector, a, [1, 2, 3])
        assert len(manager.storing) == stored

    def test_what_there_was_no_room_for_is_offered_again(self, fenced):
        connector, manager = fenced()
        manager.capacity = 1
        a = arrive(connector, Request("a", range(13)))
        assert run(connector, a, [1, 2, 3, 4]).store_jobs[0].src_spec == gpu(1)
        assert manager.log == [("refused", 3)]
        manager.capacity = 2
        a.tokens.append(13)
        skipped = connector.build_connector_meta(step(more=[("a", None)], counts={"a": 1}))
        again = connector.build_connector_meta(step(more=[("a", None)], counts={"a": 1}))
        assert (skipped, again.store_jobs[1].src_spec) == (plan(), gpu(2, index=1))
        manager.capacity = 3
        connector.request_finished(a, [1, 2, 3, 4])
        assert connector.build_connector_meta(step(finished="a")).store_jobs == {
            2: TransferJob("a", gpu(3, index=2), Slots([2]), is_computed=True)
        }
        stats = connector.get_kv_connector_stats()
        assert stats.data["data"][ALLOCATION_FAILURE] == {(): 2}

    def test_every_refusal_of_the_medium_is_counted(self, fenced):
        connector, manager = fenced()
        manager.capacity = 1
        a = arrive(connector, Request("a", range(17)))
        run(connector, a, [1, 2, 3, 4, 5])
        assert manager.log == [("refused", 4), ("refused", 2)]
        assert connector.get_kv_connector_stats().data["data"][ALLOCATION_FAILURE] == {(): 2}

    def test_stores_of_a_step_are_offered_together_until_one_has_no_room(self, fenced):
        connector, manager = fenced()
        manager.capacity = 5
        asked, together = [], manager.prepare_stores
        manager.prepare_stores = lambda stores: asked.append([len(keys) for keys, _ in stores]) or together(stores)
        requests = [
            Request(name, [number, *range(4 * chunks - 1)])
            for number, (name, chunks) in enumerate(zip("abcd", (3, 3, 1, 1), strict=True))
        ]
        tables = [[1, 2, 3], [4, 5, 6], [7], [8]]
        for request, table in zip(requests, tables, strict=True):
            connector.on_new_request(request)
            connector.get_num_new_matched_tokens(request, 0)
            connector.update_state_after_alloc(request, Blocks(table), 0)
        counts = {request.request_id: request.num_tokens for request in requests}
        new = [(request.request_id, (table,)) for request, table in zip(requests, tables, strict=True)]
        meta = connector.build_connector_meta(step(new=new, counts=counts))
        # b has room for one of its three, and c for its one, as if each had been offered by itself
        assert meta.store_jobs == {
            0: TransferJob("a", gpu(1, 2, 3), Slots([0, 1, 2])),
            1: TransferJob("b", gpu(4), Slots([3])),
            2: TransferJob("c", gpu(7), Slots([4])),
        }
        assert (asked, manager.log) == ([[3, 3, 1, 1]], [("refused", 3), ("refused", 1)])
        assert connector.get_kv_connector_stats().data["data"][ALLOCATION_FAILURE] == {(): 2}
        manager.capacity = 8
        for request in requests:
            request.num_computed_tokens = request.num_tokens
            request.tokens.append(0)
        assert connector.build_connector_meta(step(counts=dict.fromkeys("abcd", 1))).store_jobs == {}
        again = connector.build_connector_meta(step(counts=dict.fromkeys("abcd", 1))).store_jobs
        assert [(job.req_id, job.src_spec) for job in again.values()] == [("b", gpu(5, 6, index=1)), ("d", gpu(8))]
        assert asked[1:] == [[2, 1]]

    def test_retries_get_rarer(self, fenced):
        connector, manager = fenced()
        manager.capacity = 0
        a = arrive(connector, Request("a", range(12)))
        run(connector, a, [1, 2, 3])
        for _ in range(200):
            connector.build_connector_meta(step(more=[("a", None)], counts={"a": 1}))
        assert len(manager.log) == 2 * 8  # three chunks, then one; in steps 1, 2, 4, …

    def test_each_job_that_ends_has_who_waits_longest_for_room_offer_again(self, fenced):
        connector, manager = fenced()
        manager.capacity = 1
        requests = [Request(name, [number, *range(4)]) for number, name in enumerate("abcd")]
        counts = dict.fromkeys("abcd", 1)
        for number, request in enumerate(requests):
            connector.on_new_request(request)
            connector.get_num_new_matched_tokens(request, 0)
            connector.update_state_after_alloc(request, Blocks([2 * number + 1, 2 * number + 2]), 0)
        new = [(name, ([2 * number + 1, 2 * number + 2],)) for number, name in enumerate("abcd")]
        meta = connector.build_connector_meta(step(new=new, counts=dict.fromkeys("abcd", 5)))

        def stored(meta):
            connector.side.check()
            return {job_id: job.req_id for job_id, job in meta.store_jobs.items()}

        def step_all():
            for request in requests:
                request.num_computed_tokens = request.num_tokens
                request.tokens.append(0)
            return stored(connector.build_connector_meta(step(counts=counts)))

        assert stored(meta) == {0: "a"}
        assert (step_all(), step_all()) == ({}, {}), "the second time they are refused they pass over two steps"
        manager.capacity = 9
        report(connector, done=[0])
        assert step_all() == {1: "b"}
        connector.request_finished(requests[2], [5, 6])
        report(connector, done=[1])
        assert step_all() == {2: "c", 3: "d"}, "c offered a last time when it ended"

    def test_who_asked_in_vain_meanwhile_keeps_its_place(self, fenced):
        connector, manager = fenced()
        manager.capacity = 1
        here = []

        def stored(*new):
            """What is stored in a step that these come in, and all others go on in."""
            for name, table in new:
                here.append(request := Request(name, [ord(name), *range(4)]))
                connector.on_new_request(request)
                connector.get_num_new_matched_tokens(request, 0)
                connector.update_state_after_alloc(request, Blocks(table), 0)
            counts = {request.request_id: 1 for request in here} | {name: 5 for name, _ in new}
            meta = connector.build_connector_meta(
                step(new=[(name, (table,)) for name, table in new], counts=counts)
            )
            for request in here:
                request.num_computed_tokens = request.num_tokens
                request.tokens.append(0)
            return {job_id: job.req_id for job_id, job in meta.store_jobs.items()}

        assert stored(("z", [1, 2]), ("a", [3, 4])) == {0: "z"}
        assert (stored(("b", [5, 6])), stored()) == ({}, {}), "then a asks once more"
        manager.capacity = 9
        report(connector, done=[0])
        assert stored() == {1: "a", 2: "b"}, "b would have asked by itself, a not before two steps"

    def test_who_lost_its_blocks_without_room_takes_nobodys_turn(self, fenced):
        connector, manager = fenced()
        manager.capacity = 1
        requests, outputs = three_that_come_together(connector)
        for output in outputs:
            connector.build_connector_meta(output)
            for request in requests:
                request.num_computed_tokens = request.num_tokens
                request.tokens.append(0)
        requests[1].num_computed_tokens = 0
        connector.build_connector_meta(step(preempted=["b"], counts={"c": 1}))
        manager.capacity = 9
        report(connector, done=[0])
        meta = connector.build_connector_meta(step(counts={"a": 1, "c": 1}))
        assert [job.req_id for job in meta.store_jobs.values()] == ["c"]

    def test_a_load_that_ends_has_who_waits_for_room_offer_again(self, fenced):
        connector, manager = fenced()
        manager.capacity = 1
        a, b = Request("a", range(5)), Request("b", range(10, 15))
        assert ask(connector, manager, a, 1) == (4, True)
        connector.update_state_after_alloc(a, Blocks([1, 2]), 4)
        connector.on_new_request(b)
        meta = run(connector, b, [3, 4])
        assert ([*meta.load_jobs], meta.store_jobs) == ([0], {}), "what is loaded keeps its room"
        for _ in range(2):
            b.tokens.append(0)
            assert not connector.build_connector_meta(step(counts={"b": 1})).store_jobs
            b.num_computed_tokens += 1
        report(connector, done=[0])
        b.tokens.append(0)
        meta = connector.build_connector_meta(step(counts={"b": 1}))
        assert [job.req_id for job in meta.store_jobs.values()] == ["b"], "else after two more steps"

    def test_who_ended_without_room_takes_nobodys_turn(self, fenced):
        connector, manager = fenced()
        manager.capacity = 1
        requests, outputs = three_that_come_together(connector)
        for output in outputs:
            meta = connector.build_connector_meta(output)
            for request in requests:
                request.num_computed_tokens = request.num_tokens
                request.tokens.append(0)
        assert not meta.store_jobs
        connector.request_finished(requests[1], [3, 4])
        manager.capacity = 9
        report(connector, done=[0])
        meta = connector.build_connector_meta(step(counts=dict.fromkeys("ac", 1)))
        assert [job.req_id for job in meta.store_jobs.values()] == ["c"]

    def test_however_often_there_was_no_room_it_is_tried_again(self, fenced):
        connector, _ = fenced()
        connector.on_new_request(Request("a", range(12)))
        state, steps = connector.side._books.states["a"], []
        for _ in range(20):
            state.refuse_store(5)
            steps.append(state.retry_step)
        assert steps == [5 + min(2**refusals, 65536) for refusals in range(20)]

    def test_a_prompt_without_room_is_not_offered_with_each_piece(self, fenced):
        connector, manager = fenced()
        manager.capacity = 0
        a = arrive(connector, Request("a", range(4 * 40)))
        run(connector, a, list(range(1, 41)), count=4)
        steps = [0]
        for number in range(1, 40):
            before = len(manager.log)
            connector.build_connector_meta(step(more=[("a", None)], counts={"a": 4}))
            a.num_computed_tokens += 4
            steps += [number] * (len(manager.log) > before)
        assert steps == [0, 2, 5, 10, 19, 36]  # 1, 2, 4, 8, 16 steps are passed over

    def test_once_there_was_room_it_is_offered_again_soon(self, fenced):
        connector, manager = fenced()
        manager.capacity = 0
        a = arrive(connector, Request("a", range(4 * 40)))
        run(connector, a, list(range(1, 41)), count=4)
        steps = [0]
        for number in range(1, 40):
            before = len(manager.log)
            manager.capacity = 1000 if number == 10 else len(manager.storing)
            connector.build_connector_meta(step(more=[("a", None)], counts={"a": 4}))
            a.num_computed_tokens += 4
            steps += [number] * (len(manager.log) > before)
        assert len(manager.storing) == 11
        assert steps == [0, 2, 5, 11, 13, 16, 21, 30]  # 1, 2, 4 steps are passed over, and again from 1 on

    def test_after_a_reset_it_is_offered_again_at_once(self, fenced):
        connector, manager = fenced()
        manager.capacity = 0
        a = arrive(connector, Request("a", range(4 * 40)))
        run(connector, a, list(range(1, 41)), count=4)
        for _ in range(3):  # in the second it is offered again, and then two steps are passed over
            connector.build_connector_meta(step(more=[("a", None)], counts={"a": 4}))
            a.num_computed_tokens += 4
        connector.reset_cache()
        manager.capacity = 1000
        connector.build_connector_meta(step(more=[("a", None)], counts={"a": 4}))
        assert len(manager.storing) == 5

    def test_what_is_there_is_left_out(self, fenced):
        connector, manager = fenced()
        a = Request("a", range(12))
        manager.resident[key(a, 1)] = 77
        connector.on_new_request(a)
        assert run(connector, a, [1, 2, 3]).store_jobs[0] == TransferJob("a", gpu(1, 3), Slots([0, 1]))

    def test_who_never_arrived_is_passed_over(self, fenced):
        connector, _ = fenced()
        arrive(connector, Request("a", range(8)))
        output = step(new=[("x", ([7, 8],)), ("a", ([1, 2],))], counts={"x": 8, "a": 8})
        assert [job.src_spec for job in connector.build_connector_meta(output).store_jobs.values()] == [gpu(1, 2)]

    def test_local_hits_are_offered(self, fenced):
        connector, _ = fenced()
        a = arrive(connector, Request("a", range(12)))
        assert run(connector, a, [1, 2, 3], local=8).store_jobs[0].src_spec == gpu(1, 2, 3)

    def test_of_a_chunk_of_states_the_last(self, make, manager):
        groups = ((FULL, 4, 0), (STATE, 4, 0))
        connector = make(hold_blocks="never", blocks_per_chunk=2, cache=kv_cache_config(groups))
        a = arrive(connector, Request("a", range(16)))
        connector.get_num_new_matched_tokens(a, 0)
        meta = connector.build_connector_meta(step(new=[("a", ([1, 2, 3, 4], [5, 6, 0, 7]))], counts={"a": 16}))
        assert [job.src_spec for job in meta.store_jobs.values()] == [
            GPULoadStoreSpec([1, 2, 3, 4], (4, 0), (0, 0)),
            GPULoadStoreSpec([6], (0, 1), (0, 1)),
            GPULoadStoreSpec([7], (0, 1), (0, 3)),
        ]

    def test_what_slid_out_of_a_window_is_stored_from_where_it_was(self, fenced):
        connector, manager = fenced(cache=kv_cache_config(((FULL, 4, 0), (WINDOW, 4, 5))))
        manager.capacity = 0
        a = arrive(connector, Request("a", range(13)))
        connector.get_num_new_matched_tokens(a, 0)
        connector.build_connector_meta(step(new=[("a", ([1, 2, 3, 4], [5, 6, 7, 8]))], counts={"a": 13}))
        a.num_computed_tokens = 13
        manager.capacity = 6
        connector.request_finished_all_groups(a, ([1, 2, 3, 4], [0, 0, 7, 8]))
        (job,) = connector.build_connector_meta(step(finished="a")).store_jobs.values()
        assert job.src_spec == GPULoadStoreSpec([1, 2, 3, 5, 6, 7], (3, 3), (0, 0))

    @pytest.mark.parametrize(
        ("size", "retention", "limit", "stored"),
        [
            (16, None, None, [12, 14, 15]),  # from 8 on, where full attention's chunk ends, and from 19 on
            (16, None, 12, [12, 13]),  # from 8 and from 11 on
            (4, 0, None, [12, 13]),  # where those go on who have the prompt
            (4, 0, 8, [11, 12]),
        ],
    )
    def test_of_a_window_what_is_read_where_the_tokens_end(self, make, manager, size, retention, limit, stored):
        prompt = 9 if retention is None else 12
        extra = {"hold_blocks": "always", "offload_prompt_only": False, "retention": retention}
        connector = make(cache=kv_cache_config(((FULL, size, 0), (WINDOW, 4, 5)), tokens_per_hash=4), **extra)
        a = Request("a", range(21), prompt, params={"max_offload_tokens": limit})
        tables = [1, 2, 3, 4, 5, 6][: -(-24 // size)], [11, 12, 13, 14, 15, 16]
        connector.on_new_request(a)
        connector.get_num_new_matched_tokens(a, 0)
        connector.build_connector_meta(step(new=[("a", tables)], counts={"a": 21}))
        a.num_computed_tokens = 21
        connector.request_finished_all_groups(a, tables)
        (job,) = connector.build_connector_meta(step(finished="a")).store_jobs.values()
        assert job.src_spec.block_ids[-job.src_spec.group_sizes[1] :].tolist() == stored

    def test_a_failed_store_is_dropped(self, fenced):
        connector, manager = fenced()
        a = arrive(connector, Request("a", range(8)))
        run(connector, a, [1, 2])
        report(connector, done=[0], failed=[0])
        assert (manager.resident, manager.storing) == ({}, {})
        assert connector.get_kv_connector_stats().data["data"][STORE_FAILURE] == {(): 1}

    def test_a_store_that_was_given_up_stays_in_its_place_until_it_ends(self, fenced):
        connector, manager = fenced()
        a = arrive(connector, Request("a", range(4)))
        run(connector, a, [1])
        report(connector, done=[0], failed=[0], unended=[0])
        assert manager.fenced == {key(a, 0): "store"}
        assert not connector.has_pending_push_work()
        report(connector, late=[0])
        assert not manager.fenced

    def test_ranks_are_counted(self, fenced):
        connector, manager = fenced(world_size=3)
        a = arrive(connector, Request("a", range(4)))
        run(connector, a, [1])
        report(connector, done=[0])
        report(connector, done=[0], failed=[0])
        assert manager.storing
        report(connector, done=[0])
        assert not (manager.storing or manager.resident)
        report(connector, done=[0, 5])

    def test_a_consumer_stores_nothing(self, fenced):
        connector, _manager = fenced(role="kv_consumer")
        a = arrive(connector, Request("a", range(8)))
        assert run(connector, a, [1, 2]) == plan()
        assert connector.request_finished(a, [1, 2]) == (False, None)
        assert connector.build_connector_meta(step(finished="a")) == plan()
