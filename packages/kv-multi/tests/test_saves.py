"""Who still stores: a finished request is reported once, after the last child that holds it, in each worker."""

import pytest
from kv_multi_scripted import Meta, child, request

from kv_api import KVConnectorOutput, KVConnectorTransferResults
from kv_multi import MultiKVConnectorMetadata
from kv_multi.saves import Holds, SaveReports

R = request()


def sent(*request_ids):
    return KVConnectorTransferResults(finished_sending=set(request_ids))


def told(saves):
    return MultiKVConnectorMetadata((Meta(), Meta(), Meta()), async_saves=saves)


def report(multi, children, *per_child):
    for one, ids in zip(children, per_child, strict=True):
        one.answers["get_transfer_results"] = sent(*ids)
    return multi.get_transfer_results(set()).finished_sending


@pytest.mark.parametrize(
    ("holds", "held", "extra", "saves"),
    [
        ((False, False, False), False, None, {}),
        ((False, True, False), True, None, {"r": (1,)}),
        ((True, False, True), True, {"r": 1}, {"r": (0, 2)}),
        ((True, True, True), True, {"r": 2}, {"r": (0, 1, 2)}),
    ],
)
def test_who_holds_is_told_once(scheduler, holds, held, extra, saves):
    multi, *_ = scheduler(*[child(answers={"request_finished": (hold, None)}) for hold in holds])
    assert multi.request_finished(R, [1]) == (held, None)
    metadata = multi.build_connector_meta("output")
    assert (metadata.extra_async_saves, metadata.async_saves) == (extra, saves)
    metadata = multi.build_connector_meta("output")
    assert (metadata.extra_async_saves, metadata.async_saves) == (None, {})


def test_reported_once_after_the_last(worker):
    multi, *children = worker(child(), child(), child())
    multi.bind_connector_metadata(told({"r": (0, 2)}))
    assert report(multi, children, ["r"], [], []) == set()
    assert report(multi, children, ["r"], ["r"], []) == set(), "twice, and from one that doesn't hold it"
    assert report(multi, children, [], [], ["r"]) == {"r"}
    assert report(multi, children, ["r"], ["r"], ["r"]) == set(), "late"


def test_all_in_one_step(worker):
    multi, *children = worker(child(), child(), child())
    multi.bind_connector_metadata(told({"r": (0, 1, 2), "s": (1,)}))
    assert report(multi, children, ["r"], ["r", "s"], ["r"]) == {"r", "s"}


def test_an_unknown_request_changes_nothing(worker):
    multi, *children = worker(child(), child(), child())
    assert report(multi, children, ["r"], [], []) == set()
    multi.bind_connector_metadata(told({"r": (0, 1)}))
    assert report(multi, children, [], ["r"], []) == set(), "the early report doesn't count"
    assert report(multi, children, ["r"], [], []) == {"r"}


def test_another_life_of_an_id(worker):
    multi, *children = worker(child(), child(), child())
    multi.bind_connector_metadata(told({"r": (0, 1)}))
    assert report(multi, children, ["r"], ["r"], []) == {"r"}
    multi.bind_connector_metadata(told({"r": (1, 2)}))
    assert report(multi, children, ["r"], ["r"], []) == set(), "child 0 belongs to the first life"
    assert report(multi, children, [], [], ["r"]) == {"r"}


def test_another_life_is_not_reported_with_the_end_of_the_one_before():
    reports = SaveReports()
    reports.expect({"r": (0,), "s": (0,)})
    reports.abandon(0)
    reports.expect({"r": (1,)})
    reports.check(2)
    assert reports.take() == {"s"}
    reports.report(1, ["r"])
    assert reports.take() == {"r"}


def test_nobody_of_a_life_that_was_never_reported_is_waited_for_in_the_next():
    reports = SaveReports()
    reports.expect({"r": (0, 1)})
    reports.expect({"r": (1, 2)})
    for place, done in ((1, set()), (2, {"r"})):
        reports.report(place, ["r"])
        reports.check(3)
        assert reports.take() == done


def test_a_life_begins_with_clean_books(scheduler):
    """The engine gave up on the first life of the id without a report."""
    multi, first, second = scheduler()
    first.answers["request_finished"] = (True, None)
    multi.request_finished(R, [1])
    multi.on_new_request(R)
    first.answers["request_finished"], second.answers["request_finished"] = (False, None), (True, None)
    multi.request_finished(R, [1])
    assert multi.build_connector_meta("output").async_saves == {"r": (1,)}


def test_get_finished_says_none_for_nothing(worker):
    multi, first, _ = worker()
    assert multi.get_finished({"r"}) == (None, None)
    multi.bind_connector_metadata(MultiKVConnectorMetadata((Meta(), Meta()), async_saves={"r": (0,)}))
    first.answers["get_transfer_results"] = sent("r")
    assert multi.get_finished({"r"}) == ({"r"}, None)


def test_partial_tails_are_waited_for(scheduler):
    multi, first, second = scheduler()
    first.answers["request_finished"] = (True, None)
    second.answers["register_finished_partial_tail"] = True
    assert multi.register_finished_partial_tail(R, ([1],), [(0, 0, 3)]) is True
    assert multi.request_finished(R, [1]) == (True, None)
    assert multi.build_connector_meta("output").async_saves == {"r": (0, 1)}


@pytest.mark.parametrize(
    ("tails", "finishes", "awaited"),
    [
        ((True, False), (True, False), (0,)),
        ((True, False), (False, False), (0,)),
        ((True, False), (False, True), (0, 1)),
        ((True, True), (True, False), (0, 1)),
        ((False, False), (False, False), None),
    ],
)
def test_a_child_that_holds_for_a_tail_and_for_the_rest_reports_once(scheduler, worker, tails, finishes, awaited):
    multi, *children = scheduler()
    for one, tail, finish in zip(children, tails, finishes, strict=True):
        one.answers["register_finished_partial_tail"] = tail
        one.answers["request_finished"] = (finish, None)
    assert multi.register_finished_partial_tail(R, ([1],), [(0, 1, 3)]) is any(tails)
    assert multi.request_finished(R, [1]) == (awaited is not None, None)
    meta = multi.build_connector_meta("output")
    assert meta.async_saves == ({} if awaited is None else {"r": awaited})
    assert meta.extra_async_saves == ({"r": 1} if awaited == (0, 1) else None)
    ours, *sides = worker()
    ours.bind_connector_metadata(MultiKVConnectorMetadata((Meta(), Meta()), async_saves=meta.async_saves))
    heard = []
    for place in (0, 1, 0):
        sides[place].answers["get_transfer_results"] = sent("r")
        heard.append(ours.get_finished({"r"})[0])
        sides[place].answers["get_transfer_results"] = sent()
    assert heard == {None: [None] * 3, (0,): [{"r"}, None, None], (0, 1): [None, {"r"}, None]}[awaited]


def test_what_was_reported_is_forgotten(scheduler):
    """Or a later life of the id would hide its reports from those who hold it then."""
    multi, first, second = scheduler()
    first.answers["request_finished"] = (True, None)
    multi.request_finished(R, [1])
    multi.build_connector_meta("output")
    multi.update_connector_output(KVConnectorOutput(finished_sending={"r"}))
    multi.update_connector_output(KVConnectorOutput(finished_sending={"r"}))
    heard = [view.finished_sending for (view,) in second.asked("update_connector_output")]
    assert heard == [None, {"r"}], "of an id that nobody holds everybody hears"


# -- save: false -----------------------------------------------------------------------------------


def test_a_child_that_must_not_save_is_not_offered_data(worker, scheduler):
    multi, silent, loud = worker(child(save=False), child())
    multi.save_kv_layer("layer", "tensor", "attention")
    assert (silent.calls, len(loud.calls)) == ([], 1)
    multi, silent, loud = scheduler(child(save=False), child())
    assert multi.register_finished_partial_tail(R, ([1],), []) is False
    assert (silent.calls, len(loud.calls)) == ([], 1)


def test_but_keeps_its_books(worker):
    multi, silent, _ = worker(child(save=False), child())
    multi.bind_connector_metadata(MultiKVConnectorMetadata((Meta("a"), Meta("b"))))
    multi.start_load_kv("context")
    multi.wait_for_layer_load("layer")
    multi.wait_for_save()
    multi.get_transfer_results({"r"})
    multi.clear_connector_metadata()
    assert [call[0] for call in silent.calls] == [
        "bind_connector_metadata",
        "start_load_kv",
        "wait_for_layer_load",
        "wait_for_save",
        "get_transfer_results",
        "clear_connector_metadata",
    ]


def test_and_is_believed_when_it_holds_blocks(scheduler):
    """It copies although it was told not to: freeing the blocks under it would store garbage."""
    multi, *_ = scheduler(child(save=False, answers={"request_finished": (True, None)}), child())
    assert multi.request_finished(R, [1]) == (True, None)
    assert multi.build_connector_meta("output").async_saves == {"r": (0,)}


def test_who_holds_is_told_in_the_order_of_the_children():
    holds = Holds()
    holds.add("r", [8])
    holds.add("r", [0])
    holds.check(9)
    assert holds.tell() == {"r": (0, 8)}
    holds.add("r", [4])
    assert (holds.holders("r"), holds.tell()) == ((0, 4, 8), {"r": (0, 4, 8)})


def test_what_another_life_did_is_not_told():
    holds = Holds()
    holds.add("r", [0, 1])
    holds.add("s", [1])
    holds.forget("r")
    holds.check(2)
    assert (holds.holders("r"), holds.tell(), holds.tell()) == ((), {"s": (1,)}, {})


def test_check_recounts():
    holds = Holds()
    holds.add("r", [0, 1])
    holds.check(2)
    with pytest.raises(AssertionError, match=r"r: held by \(0, 1\) of 1 children"):
        holds.check(1)
    reports = SaveReports()
    reports.expect({"r": (0,)})
    reports.report(0, ["r"])
    reports.check(1)
    reports._waiting["r"] = {0}
    with pytest.raises(AssertionError, match=r"r: reported, and still waiting for \[0\]"):
        reports.check(1)
