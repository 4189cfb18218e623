"""A child that raises is switched off, or, where that can't be done without corruption, it isn't survived."""

import logging
import pickle
from functools import partial

import pytest
from kv_multi_scripted import Blocks, Count, Meta, child, request

from kv_api import KVConnectorOutput, KVConnectorRole, KVConnectorTransferResults
from kv_multi import MultiKVConnectorMetadata, MultiKVConnectorWorkerMetadata

R = request()
ON = {"on_child_error": "quarantine"}
OUTPUT = KVConnectorOutput
REASON = "request_finished raised OSError: broken"

SCHEDULER_CALLS = {
    "on_new_request": ((R,), None),
    "get_num_new_matched_tokens": ((R, 0), (8, False)),
    "update_state_after_alloc": ((R, Blocks([1, 2]), 0), None),
    "build_connector_meta": (("output",), None),
    "take_events": ((), None),
    "request_finished": ((R, [1]), None),
    "register_finished_partial_tail": ((R, ([1],), []), False),
    "has_pending_push_work": ((), True),
    "has_pending_block_frees": ((), False),
    "reset_cache": ((), None),
}
WORKER_CALLS = {
    "handle_preemptions": ((MultiKVConnectorMetadata((Meta(), Meta())),), None),
    "bind_connector_metadata": ((MultiKVConnectorMetadata((Meta(), Meta())),), None),
    "start_load_kv": (("context",), None),
    "wait_for_layer_load": (("layer",), None),
    "save_kv_layer": (("layer", "tensor", "attention"), None),
    "finish_forward": ((), None),
    "reset_capture_state": ((), None),
    "wait_for_save": ((), None),
    "get_transfer_results": (({"r"},), KVConnectorTransferResults()),
    "get_block_ids_with_load_errors": ((), set()),
    "get_kv_connector_kv_cache_events": ((), None),
    "clear_connector_metadata": ((), None),
}


@pytest.mark.parametrize("answer", [None, 4, (4,), (4, False, 0), "ab"])
def test_a_child_that_answers_no_pair_is_told_by_its_name(make, answer):
    said = (
        f"connector 'bad': get_num_new_matched_tokens answered {answer!r}, expected a pair: the number of "
        "tokens, or None, and whether the load is asynchronous"
    )
    strict = make([child(name="bad"), child(name="good")])
    strict.sub_connectors[0].answers["get_num_new_matched_tokens"] = answer
    with pytest.raises(TypeError) as caught:
        strict.get_num_new_matched_tokens(R, 0)
    assert str(caught.value) == said
    lenient = make([child(name="bad"), child(name="good")], **ON)
    bad, good = lenient.sub_connectors
    bad.answers["get_num_new_matched_tokens"] = answer
    good.answers["get_num_new_matched_tokens"] = [8, False]
    assert lenient.get_num_new_matched_tokens(R, 0) == (8, False)
    reason = f"get_num_new_matched_tokens raised TypeError: {said}"
    assert lenient.get_kv_connector_stats().reduce() == {"quarantined": {"bad": reason}}


@pytest.mark.parametrize(
    ("role", "method", "arguments", "answer"),
    [(KVConnectorRole.SCHEDULER, name, *rest) for name, rest in SCHEDULER_CALLS.items()]
    + [(KVConnectorRole.WORKER, name, *rest) for name, rest in WORKER_CALLS.items()],
)
def test_a_child_that_raises_is_switched_off(make, caplog, role, method, arguments, answer):
    multi = make([child(name="bad"), child(name="good")], role, **ON)
    bad, good = multi.sub_connectors
    good.answers["get_num_new_matched_tokens"] = (8, False)
    bad.raises[method] = OSError("broken")
    with caplog.at_level(logging.ERROR, "kv_multi"):
        first = getattr(multi, method)(*arguments)
        bad.raises.clear()
        getattr(multi, method)(*arguments)
    if answer is not None:
        assert first == answer
    assert [name for name, *_ in bad.calls] == [method, "shutdown"], "stopped at once, and never called again"
    assert len(good.asked(method)) == 2
    assert [(record.name, record.message) for record in caplog.records] == [
        ("kv_multi", f"connector 'bad' is switched off: {method} raised OSError: broken")
    ]
    assert caplog.records[0].exc_info[1].args == ("broken",)
    stats = multi.get_kv_connector_stats()
    assert stats.reduce() == {"quarantined": {"bad": f"{method} raised OSError: broken"}}
    multi.shutdown()
    assert len(bad.asked("shutdown")) == len(good.asked("shutdown")) == 1


def test_a_child_whose_events_break_off_is_switched_off_and_none_of_them_is_told(make):
    def breaking():
        yield 1
        raise OSError("broken")

    answers = [{"take_events": breaking()}, {"take_events": [2]}]
    multi = make([child(name="bad", answers=answers[0]), child(name="good", answers=answers[1])], **ON)
    assert list(multi.take_events()) == [2]
    assert multi.get_kv_connector_stats().reduce() == {
        "quarantined": {"bad": "take_events raised OSError: broken"}
    }


def test_a_method_that_has_no_name_is_told_without(make, caplog):
    multi = make([child(name="bad")], **ON)
    [bad] = multi.sub_connectors
    bad.raises["on_new_request"] = OSError("broken")
    bad.on_new_request = partial(bad.on_new_request)
    multi.on_new_request(R)
    assert [record.message for record in caplog.records] == [
        "connector 'bad' is switched off: a method raised OSError: broken"
    ]


@pytest.mark.parametrize(
    "method", ["get_finished_count", "bind_kv_cache_manager", "set_xfer_handshake_metadata", "shutdown"]
)
def test_start_and_end_are_never_guarded(make, method):
    multi = make([child()], **ON)
    multi.sub_connectors[0].raises[method] = OSError("broken")
    arguments = {"bind_kv_cache_manager": ("manager",), "set_xfer_handshake_metadata": ({},)}.get(method, ())
    with pytest.raises(OSError, match="broken"):
        getattr(multi, method)(*arguments)


def test_a_child_that_cannot_be_stopped_is_not_survived(make):
    """Its copies may still run, into blocks that would be given to others."""
    multi = make([child(name="bad")], KVConnectorRole.WORKER, **ON)
    [bad] = multi.sub_connectors
    bad.raises.update(wait_for_save=OSError("broken"), shutdown=KeyError("stuck"))
    with pytest.raises(KeyError, match="stuck") as caught:
        multi.wait_for_save()
    assert caught.value.__notes__ == [
        "while switching off connector 'bad', because wait_for_save raised OSError: broken"
    ]
    assert caught.value.__context__.args == ("broken",)


def test_a_report_of_every_worker_is_needed(make):
    """A stopped child's transfers are reported by every worker, which a smaller number would count twice."""
    multi = make([child(answers={"get_finished_count": 1})], **ON)
    with pytest.raises(ValueError, match="quarantine") as caught:
        multi.get_finished_count()
    assert str(caught.value) == (
        "on_child_error: 'quarantine' needs reports from all workers, but get_finished_count of the connectors "
        "is 1; choices: raise"
    )


def test_stats_of_the_living_go_on_and_survive_a_pickle(make):
    multi = make([child(name="bad"), child(answers={"get_kv_connector_stats": Count({"n": 1})})], **ON)
    multi.sub_connectors[0].raises["reset_cache"] = OSError("broken")
    multi.reset_cache()
    stats = pickle.loads(pickle.dumps(multi.get_kv_connector_stats()))
    stats.aggregate(type(multi).build_kv_connector_stats(stats.to_dict()))
    assert set(stats.reduce()) == {"quarantined", "Scripted1"}
    assert stats.reduce()["quarantined"] == {"bad": "reset_cache raised OSError: broken"}
    stats.reset()
    assert not stats.is_empty()


def test_a_child_that_is_off_has_forgotten(make):
    """It serves nothing any more, also if it was the reset that broke it."""
    multi = make([child(name="bad"), child(answers={"reset_cache": True})], **ON)
    multi.sub_connectors[0].raises["reset_cache"] = OSError("broken")
    assert [multi.reset_cache() for _ in range(2)] == [True, True]


def test_sleeping_children_that_are_off_are_let_lie(make):
    worker = make([child(name="bad"), child(name="good")], KVConnectorRole.WORKER, **ON)
    bad, good = worker.sub_connectors
    bad.raises["wait_for_save"] = OSError("broken")
    worker.wait_for_save()
    worker.unregister_kv_caches()
    worker.restore_kv_caches()
    assert bad.asked("unregister_kv_caches") == bad.asked("restore_kv_caches") == []
    assert good.asked("unregister_kv_caches") == good.asked("restore_kv_caches") == [()]


def test_why_another_process_switched_a_child_off_is_kept(make, caplog):
    multi = make([child(name="bad"), child(name="good")], KVConnectorRole.WORKER, **ON)
    with caplog.at_level(logging.ERROR, "kv_multi"):
        for _ in range(2):
            multi.bind_connector_metadata(MultiKVConnectorMetadata((Meta(), Meta()), quarantined={"bad": REASON}))
            multi.clear_connector_metadata()
    assert [(record.message, record.exc_info) for record in caplog.records] == [
        (f"connector 'bad' is switched off: {REASON}", None)
    ]
    assert multi.get_kv_connector_stats().reduce() == {"quarantined": {"bad": REASON}}


# -- from side to side -----------------------------------------------------------------------------


def test_what_the_scheduler_switches_off_the_workers_switch_off(make):
    multi, worker = make([child(), child()], **ON), make([child(), child()], KVConnectorRole.WORKER, **ON)
    bad, _ = multi.sub_connectors
    bad.raises["on_new_request"] = OSError("broken")
    multi.on_new_request(R)
    assert multi.has_pending_push_work(), "the workers don't know yet, and an idle engine wouldn't tell them"
    metadata = multi.build_connector_meta("output")
    assert not multi.has_pending_push_work()
    assert metadata.metadata == (None, Meta())
    assert metadata.quarantined == {"Scripted0": "on_new_request raised OSError: broken"}
    worker.handle_preemptions(metadata)
    assert [one.calls for one in worker.sub_connectors] == [[("shutdown",)], [("handle_preemptions", Meta())]]
    worker.bind_connector_metadata(metadata)
    assert worker.sub_connectors[0].calls == [("shutdown",)]
    assert worker.build_connector_worker_meta() is None, "the scheduler knows"


def test_what_a_step_was_told_of_children_that_are_off_stays_so(make):
    """Its workers may read it when a later one is planned already."""
    multi = make([child(), child()], **ON)
    told = []
    for request_id, one in zip("rs", multi.sub_connectors, strict=True):
        one.raises["on_new_request"] = OSError("broken")
        multi.on_new_request(request(request_id))
        told.append(multi.build_connector_meta("output"))
    assert [list(metadata.quarantined) for metadata in told] == [["Scripted0"], ["Scripted0", "Scripted1"]]


def test_what_a_worker_switches_off_the_scheduler_switches_off(make):
    multi, worker = make([child(), child()], **ON), make([child(), child()], KVConnectorRole.WORKER, **ON)
    worker.sub_connectors[0].raises["start_load_kv"] = OSError("broken")
    worker.start_load_kv("context")
    other = MultiKVConnectorWorkerMetadata((None, None))
    news = other.aggregate(worker.build_connector_worker_meta())
    assert news.quarantined == {"Scripted0": "start_load_kv raised OSError: broken"}
    first, _second = multi.sub_connectors
    multi.update_connector_output(OUTPUT(kv_connector_worker_meta=news))
    assert [name for name, *_ in first.calls] == ["shutdown"]
    first.answers["get_num_new_matched_tokens"] = (8, False)
    assert multi.get_num_new_matched_tokens(R, 0) == (0, False)
    assert multi.build_connector_meta("output").metadata == (None, Meta())
