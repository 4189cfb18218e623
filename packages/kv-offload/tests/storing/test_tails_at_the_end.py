"""Tails of a request that is aborted where its tail ends."""

import pytest
from kv_offload_calls import arrive, plan, report
from kv_offload_configs import FULL, STATE, Blocks, kv_cache_config, step
from kv_offload_medium import Slots
from kv_offload_tails import CACHE, TABLES, begin, request, tail, tail_jobs

from kv_api import GPULoadStoreSpec
from kv_offload import TransferJob

OFFERS = ((1, 4, 12), (2, 5, 12))


def test_who_gets_its_blocks_waits(tails):
    connector, _ = tails()
    a, b = request(), request("b", 3)
    begin(connector, a)
    assert connector.register_finished_partial_tail(a, TABLES, OFFERS) is False
    assert connector.request_finished_all_groups(a, TABLES) == (False, None)
    connector.on_new_request(b)
    connector.get_num_new_matched_tokens(b, 0)
    meta = connector.build_connector_meta(step(new=[("b", ([9], [5], [8]))], counts={"b": 3}))
    assert meta.jobs_to_flush == {1}
    source = GPULoadStoreSpec([2, 4, 5], (1, 1, 1), (1, 1, 1))
    assert meta.store_jobs == {1: TransferJob("a", source, Slots([1, 2, 3]), is_computed=True)}


def test_where_fences_come_too_late_its_blocks_are_held(tails):
    connector, _ = tails(hold_blocks="always")
    a = request()
    begin(connector, a)
    assert connector.register_finished_partial_tail(a, TABLES, OFFERS) is True
    assert connector.request_finished_all_groups(a, TABLES) == (True, None)
    jobs = connector.build_connector_meta(step(finished=["a"])).store_jobs
    assert [(job.is_held, job.is_computed, job.gpu_spec.block_ids.tolist()) for job in jobs.values()] == [
        (True, True, [2, 4, 5]),
        (True, True, [1]),
    ]


def test_what_finds_no_room_is_not_waited_for(tails):
    connector, manager = tails(hold_blocks="always")
    a = request()
    begin(connector, a)
    manager.capacity = 0
    assert connector.register_finished_partial_tail(a, TABLES, OFFERS) is False
    assert connector.request_finished_all_groups(a, TABLES) == (False, None)
    assert connector.build_connector_meta(step(finished=["a"])) == plan()


def test_the_blocks_are_held_for_any_of_its_tails(tails):
    connector, manager = tails(hold_blocks="always")
    a = request()
    begin(connector, a)
    manager.capacity = 3
    offers = [(1, 4, 10), (2, 5, 10), *OFFERS]
    assert connector.register_finished_partial_tail(a, TABLES, offers) is True
    assert manager.log == [("refused", 3)]


def test_events_tell_of_it(tails):
    connector, _ = tails(self_describing_kv_events=True)
    a = request()
    begin(connector, a)
    connector.register_finished_partial_tail(a, TABLES, OFFERS)
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


def test_the_workers_report_it_once(tails, worker):
    connector, _ = tails(hold_blocks="always")
    a = request()
    begin(connector, a)
    connector.register_finished_partial_tail(a, TABLES, OFFERS)
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
def test_what_is_not_taken(tails, offers, why):
    connector, _ = tails(hold_blocks="always")
    a = request()
    begin(connector, a)
    assert connector.register_finished_partial_tail(a, TABLES, offers) is False
    connector.request_finished_all_groups(a, TABLES)
    assert tail_jobs(connector.build_connector_meta(step())) == [], why


def test_what_it_still_loads_is_nothing_of_its_own(tails):
    connector, manager = tails(hold_blocks="always")
    a = request()
    manager.resident.update({key: slot for slot, key in enumerate(tail(a, 8))})
    connector.on_new_request(a)
    assert connector.get_num_new_matched_tokens(a, 0) == (8, True)
    connector.update_state_after_alloc(a, Blocks([1], [4], [5]), 8)
    assert connector.register_finished_partial_tail(a, TABLES, OFFERS) is False


def test_nobody_and_nothing(tails):
    connector, _ = tails()
    assert connector.register_finished_partial_tail(request(), TABLES, OFFERS) is False
    coarse, _ = tails(kv_cache_config(((FULL, 8, 0), (STATE, 8, 0)), hands_over=True))
    a = arrive(coarse, request())
    assert coarse.register_finished_partial_tail(a, TABLES, OFFERS) is False
