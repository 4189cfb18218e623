"""What workers send back: each child sees its own, and nobody else's."""

import pickle

import pytest
from kv_multi_scripted import (
    Blocks,
    Count,
    Events,
    Handshake,
    Meta,
    OtherEvents,
    WorkerMeta,
    child,
    request,
)

from kv_api import BlockRemoved, KVConnectorOutput, KVOutputAggregator
from kv_multi import (
    MultiKVConnectorHandshakeMetadata,
    MultiKVConnectorMetadata,
    MultiKVConnectorStats,
    MultiKVConnectorWorkerMetadata,
    PlannedLoad,
)
from kv_multi.events import MultiKVConnectorKVEvents

A, B, C = (BlockRemoved([word], "GPU") for word in (b"a", b"b", b"c"))


def multi_meta(*slots, **quarantined):
    return MultiKVConnectorWorkerMetadata(slots, quarantined)


# -- worker metadata -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "joined"),
    [
        ((None, None), None),
        ((None, WorkerMeta(("b",))), multi_meta(None, WorkerMeta(("b",)))),
        ((WorkerMeta(), None), multi_meta(WorkerMeta(), None)),
    ],
)
def test_worker_metadata_has_slots(worker, slots, joined):
    multi, *_ = worker(*[child(answers={"build_connector_worker_meta": slot}) for slot in slots])
    assert multi.build_connector_worker_meta() == joined


def test_worker_metadata_is_joined_by_slot():
    mine = multi_meta(WorkerMeta(("a",)), None, WorkerMeta(), None)
    theirs = multi_meta(WorkerMeta(("d",)), WorkerMeta(("e",)), None, None)
    joined = mine.aggregate(pickle.loads(pickle.dumps(theirs)))
    assert joined == multi_meta(WorkerMeta(("a", "d")), WorkerMeta(("e",)), WorkerMeta(), None)


def test_worker_metadata_of_others_is_refused():
    with pytest.raises(TypeError) as caught:
        multi_meta(None).aggregate(WorkerMeta())
    assert str(caught.value) == "worker metadata: expected MultiKVConnectorWorkerMetadata, got WorkerMeta"
    with pytest.raises(ValueError, match="children") as caught:
        multi_meta(None).aggregate(multi_meta(None, None))
    assert str(caught.value) == "worker metadata: one worker has 1 children, another 2"


def test_who_any_worker_has_switched_off_is_told_for_its_first_reason():
    joined = multi_meta(None, a="first", b="only one's").aggregate(multi_meta(None, a="later", c="the other's"))
    assert joined == multi_meta(None, a="first", b="only one's", c="the other's")


@pytest.mark.parametrize("method", ["handle_preemptions", "bind_connector_metadata"])
def test_metadata_of_others_is_refused(worker, method):
    multi, *_ = worker()
    with pytest.raises(TypeError) as caught:
        getattr(multi, method)(Meta())
    assert str(caught.value) == "connector metadata: expected MultiKVConnectorMetadata, got Meta"
    with pytest.raises(ValueError, match="slots") as caught:
        getattr(multi, method)(MultiKVConnectorMetadata((Meta(),)))
    assert str(caught.value) == (
        "connector metadata: it has 1 slots, but the children are 2: Scripted0, Scripted1"
    )


def test_the_scheduler_refuses_them_too(scheduler):
    multi, *_ = scheduler()
    with pytest.raises(TypeError) as caught:
        multi.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=WorkerMeta()))
    assert str(caught.value) == (
        "kv_connector_worker_meta: expected MultiKVConnectorWorkerMetadata, got WorkerMeta"
    )
    with pytest.raises(ValueError, match="slots") as refused:
        multi.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=multi_meta(None)))
    assert str(refused.value) == (
        "kv_connector_worker_meta: it has 1 slots, but the children are 2: Scripted0, Scripted1"
    )


def test_metadata_says_the_same_in_another_process(scheduler, worker):
    multi, _first, second = scheduler()
    second.answers["get_num_new_matched_tokens"] = (4, True)
    second.answers["request_finished"] = (True, None)
    multi.get_num_new_matched_tokens(request("a"), 0)
    multi.update_state_after_alloc(request("a"), Blocks([1]), 4)
    multi.request_finished(request("b"), [2])
    metadata = pickle.loads(pickle.dumps(multi.build_connector_meta("output")))
    assert metadata == MultiKVConnectorMetadata(
        (Meta(), Meta()), None, {"b": (1,)}, {"a": PlannedLoad(1, True)}, {}
    )


# -- update_connector_output -----------------------------------------------------------------------


def seen(one):
    [[output]] = one.asked("update_connector_output")
    return output


def test_each_sees_its_own_payloads(scheduler):
    multi, first, second = scheduler()
    output = KVConnectorOutput(
        kv_connector_worker_meta=multi_meta(None, WorkerMeta(("b",))),
        kv_connector_stats=MultiKVConnectorStats({"Scripted0": Count({"n": 1})}),
        kv_cache_events=MultiKVConnectorKVEvents({"Scripted1": Events(A)}),
        invalid_block_ids={7},
    )
    before = dict(vars(output))
    multi.update_connector_output(output)
    assert vars(output) == before
    assert (seen(first).kv_connector_worker_meta, seen(second).kv_connector_worker_meta) == (
        None,
        WorkerMeta(("b",)),
    )
    assert (seen(first).kv_connector_stats, seen(second).kv_connector_stats) == (Count({"n": 1}), None)
    assert seen(first).kv_cache_events is None
    assert seen(second).kv_cache_events.get_all_events() == [A]
    assert seen(first).invalid_block_ids == seen(second).invalid_block_ids == {7}


def test_each_sees_the_blocks_that_nobody_filled_whosever_load_it_was(scheduler):
    multi, loader, storer = scheduler()
    loader.answers["get_num_new_matched_tokens"] = (4, True)
    multi.get_num_new_matched_tokens(request(), 0)
    multi.update_state_after_alloc(request(), Blocks([7]), 4)
    multi.build_connector_meta("output")
    multi.update_connector_output(KVConnectorOutput(set(), {"r"}, failed_recving={"r"}, invalid_block_ids={7}))
    told = [(s.finished_recving, s.failed_recving, s.invalid_block_ids) for s in map(seen, (loader, storer))]
    assert told == [({"r"}, {"r"}, {7}), (None, set(), {7})]


def test_the_engines_output_survives_an_error(scheduler):
    multi, _, second = scheduler()
    second.raises["update_connector_output"] = OSError("broken")
    output = KVConnectorOutput(kv_connector_worker_meta=multi_meta(None, None))
    with pytest.raises(OSError, match="broken"):
        multi.update_connector_output(output)
    assert output.kv_connector_worker_meta == multi_meta(None, None)


def test_each_sees_its_own_transfers(scheduler):
    multi, first, second = scheduler()
    first.answers["get_num_new_matched_tokens"] = (4, True)
    second.answers["request_finished"] = (True, None)
    multi.get_num_new_matched_tokens(request("a"), 0)
    multi.update_state_after_alloc(request("a"), Blocks([1]), 4)
    multi.request_finished(request("b"), [2])
    multi.build_connector_meta("output")
    output = KVConnectorOutput(finished_sending={"b"}, finished_recving={"a"}, failed_recving={"a"})
    multi.update_connector_output(output)
    assert (seen(first).finished_sending, seen(second).finished_sending) == (None, {"b"})
    assert (seen(first).finished_recving, seen(second).finished_recving) == ({"a"}, None)
    assert (seen(first).failed_recving, seen(second).failed_recving) == ({"a"}, set())
    assert (output.finished_sending, output.finished_recving) == ({"b"}, {"a"})


def test_the_end_of_a_load_that_nobody_is_known_to_do_is_told_to_all(scheduler):
    multi, *children = scheduler()
    multi.update_connector_output(KVConnectorOutput(finished_recving={"a", "b"}, failed_recving={"a"}))
    assert [(seen(one).finished_recving, seen(one).failed_recving) for one in children] == [
        ({"a", "b"}, {"a"})
    ] * 2


# -- handshakes ------------------------------------------------------------------------------------


def test_handshakes_go_to_their_own(worker, scheduler):
    multi, *_ = worker(
        child(),
        child(answers={"get_handshake_metadata": Handshake("b")}),
        child(answers={"get_handshake_metadata": Handshake("c")}),
    )
    given = pickle.loads(pickle.dumps(multi.get_handshake_metadata()))
    assert given == MultiKVConnectorHandshakeMetadata({"Scripted1": Handshake("b"), "Scripted2": Handshake("c")})
    multi, first, second, third = scheduler(child(), child(), child())
    multi.set_xfer_handshake_metadata({0: given})
    multi.set_xfer_handshake_metadata_pp_aware({(0, 0): given, (1, 0): given})
    assert first.asked("set_xfer_handshake_metadata") == [({},)]
    assert second.asked("set_xfer_handshake_metadata") == [({0: Handshake("b")},)]
    assert first.asked("set_xfer_handshake_metadata_pp_aware") == [({},)]
    assert third.asked("set_xfer_handshake_metadata_pp_aware") == [
        ({(0, 0): Handshake("c"), (1, 0): Handshake("c")},)
    ]


def test_where_nobody_has_a_handshake_each_child_is_told_so(worker, scheduler):
    assert worker()[0].get_handshake_metadata() is None
    multi, *children = scheduler()
    multi.set_xfer_handshake_metadata_pp_aware({})
    assert [one.asked("set_xfer_handshake_metadata_pp_aware") for one in children] == [[({},)]] * 2


def test_a_foreign_handshake_is_refused(scheduler):
    multi, *_ = scheduler()
    with pytest.raises(TypeError) as caught:
        multi.set_xfer_handshake_metadata({0: Handshake("alone")})
    assert str(caught.value) == ("handshake metadata: expected MultiKVConnectorHandshakeMetadata, got Handshake")


# -- KV events -------------------------------------------------------------------------------------


def output_of(**containers):
    return KVConnectorOutput(kv_cache_events=MultiKVConnectorKVEvents(containers))


def test_events_are_collected_by_child(worker):
    multi, *_ = worker(child(), child(answers={"get_kv_connector_kv_cache_events": Events(A, B)}))
    events = multi.get_kv_connector_kv_cache_events()
    assert set(events.containers) == {"Scripted1"}
    assert events.get_all_events() == [A, B]
    assert worker()[0].get_kv_connector_kv_cache_events() is None


def test_a_worker_without_events_counts():
    """Or what one of two workers saw would be what all of them saw."""
    reports = [output_of(x=Events(A)), output_of(x=Events())]
    joined = KVOutputAggregator(2).aggregate_reports(reports).kv_cache_events
    assert joined.aggregate().get_all_events() == []


def test_a_container_without_events_is_one(worker):
    multi, *_ = worker(child(answers={"get_kv_connector_kv_cache_events": Events()}), child())
    assert set(multi.get_kv_connector_kv_cache_events().containers) == {"Scripted0"}


def test_what_events_are_made_of_and_what_they_were_stay_as_they_are():
    given = {"a": Events(A)}
    events = MultiKVConnectorKVEvents(given)
    before = events.get_all_events()
    events.add_events(MultiKVConnectorKVEvents({"b": Events(B)}).get_all_events())
    assert (set(given), set(before.containers), set(events.containers)) == ({"a"}, {"a"}, {"a", "b"})


def test_events_of_all_workers_are_joined_by_child():
    reports = [output_of(x=Events(A, B)), output_of(y=Events(A), x=Events(A, C)), output_of(y=Events(A))]
    reports = pickle.loads(pickle.dumps(reports))
    joined = KVOutputAggregator(3).aggregate_reports(reports).kv_cache_events
    joined.check()
    assert joined.get_number_of_workers() == 3
    assert {name: c.get_number_of_workers() for name, c in joined.containers.items()} == {"x": 2, "y": 2}
    assert joined.get_all_events() == [A, A, B, C, A, A]
    assert joined.aggregate().get_all_events() == [A, A]
    assert set(joined.containers) == {"x", "y"}
    joined.clear_events()
    assert joined.get_all_events() == []


def test_events_of_two_workers_are_merged_by_child():
    first, second = MultiKVConnectorKVEvents({"x": Events(A)}), MultiKVConnectorKVEvents({"x": Events(B)})
    assert first.merge(second) is first
    assert first.get_all_events() == [A, B]
    first.increment_workers()
    assert first.get_number_of_workers() == 2


def test_events_that_do_not_fit_are_refused():
    events = MultiKVConnectorKVEvents({"x": Events(A)})
    with pytest.raises(TypeError) as caught:
        events.add_events([A])
    assert str(caught.value) == (
        "events: expected a MultiKVConnectorKVEvents, got a plain list, which doesn't say which child each "
        "event is from"
    )
    with pytest.raises(TypeError) as caught:
        MultiKVConnectorKVEvents({"x": OtherEvents(A)}).merge(events)
    assert str(caught.value) == "events of connector 'x': can't add Events to OtherEvents"
