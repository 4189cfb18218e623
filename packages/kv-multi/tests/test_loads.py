"""Who is loading: only the chosen child's report counts, once; and two reports of one request become one."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from kv_multi_scripted import Blocks, Meta, child, request

from kv_api import KVConnectorOutput, KVConnectorTransferResults
from kv_multi import MultiKVConnectorMetadata, PlannedLoad
from kv_multi.blocks import blocks_to_load
from kv_multi.loads import LoadLostError, LoadReports, LoadsInFlight

R, BLOCKS = request(), Blocks([1, 2])


def start(multi, children, loader, asynchronous=True):
    """Child ``loader`` matches r, and the engine starts the load."""
    for place, one in enumerate(children):
        one.answers["get_num_new_matched_tokens"] = (8, asynchronous) if place == loader else (0, False)
    multi.get_num_new_matched_tokens(R, 0)
    multi.update_state_after_alloc(R, BLOCKS, 8)


def told(loads):
    return MultiKVConnectorMetadata((Meta(), Meta()), loads=loads)


def report(multi, children, *per_child):
    """Let each child report ``(finished, failed)`` loads."""
    for one, (finished, failed) in zip(children, per_child, strict=True):
        one.answers["get_transfer_results"] = KVConnectorTransferResults(set(), set(finished), set(failed))
    results = multi.get_transfer_results(set())
    return results.finished_recving, results.failed_recving


def test_the_loader_is_told_to_the_workers(scheduler):
    multi, *children = scheduler()
    start(multi, children, loader=1)
    assert multi.build_connector_meta("output").loads == {"r": PlannedLoad(1, True)}
    assert multi.build_connector_meta("output").loads == {}


def test_loads_within_the_step_are_not_reported(scheduler):
    multi, *children = scheduler()
    start(multi, children, loader=1, asynchronous=False)
    assert multi.build_connector_meta("output").loads == {}


def test_older_engines_hear_of_a_load_too(worker):
    multi, first, _ = worker()
    multi.bind_connector_metadata(told({"r": PlannedLoad(0, True)}))
    assert multi.get_finished(set()) == (None, None)
    first.answers["get_transfer_results"] = KVConnectorTransferResults(finished_recving={"r"})
    assert multi.get_finished(set()) == (None, {"r"})


def test_only_the_loader_counts_and_once(worker):
    multi, *children = worker()
    multi.bind_connector_metadata(told({"r": PlannedLoad(1, True)}))
    nothing = (set(), set())
    assert report(multi, children, ("r", "r"), ("", "")) == nothing, "a loser"
    assert report(multi, children, ("", ""), ("r", "")) == ({"r"}, set())
    assert report(multi, children, ("", ""), ("r", "r")) == nothing, "twice"
    assert report(multi, children, ("r", ""), ("", "")) == nothing, "late"


def test_both_in_one_step(worker):
    multi, *children = worker()
    multi.bind_connector_metadata(told({"r": PlannedLoad(0, True)}))
    assert report(multi, children, ("r", ""), ("r", "r")) == ({"r"}, set())


def test_a_failure_is_the_loaders(worker):
    multi, *children = worker()
    multi.bind_connector_metadata(told({"r": PlannedLoad(0, True)}))
    assert report(multi, children, ("", "r"), ("", "r")) == (set(), {"r"})
    assert report(multi, children, ("r", "r"), ("", "")) == ({"r"}, {"r"})


def test_a_load_within_the_step_is_never_finished(worker):
    multi, *children = worker()
    multi.bind_connector_metadata(told({"r": PlannedLoad(0, False)}))
    assert report(multi, children, ("r", "r"), ("", "")) == (set(), set())


def test_another_life_of_an_id_is_loaded_by_another(worker):
    multi, *children = worker()
    multi.bind_connector_metadata(told({"r": PlannedLoad(0, True)}))
    assert report(multi, children, ("r", ""), ("", "")) == ({"r"}, set())
    multi.bind_connector_metadata(told({"r": PlannedLoad(1, True)}))
    assert report(multi, children, ("r", ""), ("", "")) == (set(), set())
    assert report(multi, children, ("", ""), ("r", "")) == ({"r"}, set())


def test_failed_blocks_are_those_of_all(worker):
    multi, first, second = worker()
    first.answers["get_block_ids_with_load_errors"] = {1, 2}
    second.answers["get_block_ids_with_load_errors"] = {2, 3}
    assert multi.get_block_ids_with_load_errors() == {1, 2, 3}


# -- aborted while it loads ------------------------------------------------------------------------


def aborted_while_loading(scheduler, saver):
    multi, *children = scheduler()
    start(multi, children, loader=0)
    multi.build_connector_meta("output")
    children[saver].answers["request_finished"] = (True, {"where": "here"})
    assert multi.request_finished(R, [1]) == (False, {"where": "here"}), "the engine holds the blocks already"
    assert multi.build_connector_meta("output").async_saves == {"r": (saver,)}
    return multi


def passes(multi, sending=(), recving=()):
    output = KVConnectorOutput(finished_sending=set(sending) or None, finished_recving=set(recving) or None)
    multi.update_connector_output(output)
    return output.finished_sending, output.finished_recving


@pytest.mark.parametrize("saver", [0, 1])
def test_the_last_report_frees_the_blocks(scheduler, saver):
    multi = aborted_while_loading(scheduler, saver)
    assert passes(multi, recving=["r", "x"]) == (None, {"x"})
    assert passes(multi, sending=["r"]) == ({"r"}, None)
    multi = aborted_while_loading(scheduler, saver)
    assert passes(multi, sending=["r"]) == (None, None)
    assert passes(multi, recving=["r"]) == (None, {"r"})
    multi = aborted_while_loading(scheduler, saver)
    assert passes(multi, sending=["r"], recving=["r"]) == ({"r"}, None)


def test_another_life_of_an_aborted_id_is_reported_as_it_is(scheduler):
    multi = aborted_while_loading(scheduler, 1)
    multi.on_new_request(R)
    assert passes(multi, sending="r") == ({"r"}, None)
    assert passes(multi, recving="r") == (None, {"r"})


def test_an_output_in_the_engines_hands_is_not_changed_but_for_that(scheduler):
    multi = aborted_while_loading(scheduler, 1)
    both = {"r", "x"}
    output = KVConnectorOutput(finished_recving=both)
    multi.update_connector_output(output)
    assert both == {"r", "x"}


def test_an_aborted_load_without_a_store_is_reported_as_it_is(scheduler):
    multi, *children = scheduler()
    start(multi, children, loader=0)
    multi.build_connector_meta("output")
    assert multi.request_finished(R, [1]) == (False, None)
    assert passes(multi, recving=["r"]) == (None, {"r"})


def test_a_load_that_was_reported_is_not_in_flight(scheduler):
    multi, *children = scheduler()
    start(multi, children, loader=0)
    multi.build_connector_meta("output")
    passes(multi, recving=["r"])
    children[1].answers["request_finished"] = (True, None)
    assert multi.request_finished(R, [1]) == (True, None)
    multi.build_connector_meta("output")
    assert passes(multi, sending=["r"]) == ({"r"}, None)


def test_all_loads_of_a_report_have_ended():
    loads = LoadsInFlight()
    for name in "pqr":
        loads.start(name, PlannedLoad(0, True))
    loads.finish(["q", "r"])
    assert [loads.loader(name) for name in "pqr"] == [0, None, None]


def test_the_load_of_an_aborted_request_is_still_told(scheduler):
    """Deferred loads start between steps, so an abort may come before the step that tells of them."""
    multi, *children = scheduler()
    start(multi, children, loader=1)
    multi.request_finished(R, [1])
    assert multi.build_connector_meta("output").loads == {"r": PlannedLoad(1, True)}


def test_what_another_life_loaded_is_not_told():
    loads = LoadsInFlight()
    loads.start("r", PlannedLoad(1, True))
    loads.start("s", PlannedLoad(0, False))
    loads.forget("r")
    loads.check(2)
    assert (loads.loader("r"), loads.tell(), loads.tell()) == (None, {"s": PlannedLoad(0, False)}, {})


@pytest.mark.parametrize(
    ("load", "is_lost"),
    [
        (PlannedLoad(1, False, None), True),
        (PlannedLoad(1, False, (3,)), False),  # its blocks can be reported
        (PlannedLoad(1, True, None), False),  # the request still waits for it
        (PlannedLoad(0, False, None), False),
    ],
)
def test_which_loads_can_not_be_taken_back(load, is_lost):
    loads = LoadsInFlight()
    loads.start("r", load)
    loads.start("q", load)
    with pytest.raises(LoadLostError) if is_lost else nullcontext() as caught:
        loads.check_can_lose(1)
    assert not is_lost or str(caught.value) == (
        "requests q, r load within the step; with several KV cache groups, or a window, the engine can't "
        "recompute such a load when it fails"
    )


def test_a_load_that_has_ended_is_not_lost_with_its_child():
    reports = LoadReports()
    reports.expect(
        {
            "ended": PlannedLoad(0, True, (3,)),
            "begun": PlannedLoad(0, True, (4,)),
            "s": PlannedLoad(0, False, (5,)),
        }
    )
    reports.expect({})
    assert reports.take_failed_blocks() == set()
    reports.expect(
        {"again": PlannedLoad(0, True, (6,)), "t": PlannedLoad(0, False, (7,)), "u": PlannedLoad(1, False, (8,))}
    )
    reports.report(0, ["ended", "again"], [])
    assert reports.take() == ({"ended", "again"}, set())
    reports.abandon(0)
    assert reports.take() == ({"begun"}, {"begun"})
    assert reports.take_failed_blocks() == {4, 7}
    reports.check(2)


@pytest.mark.parametrize(
    ("ranks", "computed", "external", "lost"),
    [
        ({}, 0, 8, (10, 11)),
        ({}, 4, 1, (11,)),
        ({}, 6, 3, (11, 12)),
        ({"decode_context_parallel_size": 2}, 8, 9, (11, 12)),
        ({"prefill_context_parallel_size": 3}, 12, 12, (11,)),
        ({"decode_context_parallel_size": 2, "prefill_context_parallel_size": 2}, 0, 17, (10, 11)),
    ],
)
def test_the_blocks_of_a_load(ranks, computed, external, lost):
    """Blocks of four tokens of each rank."""
    config = SimpleNamespace(cache_config=SimpleNamespace(block_size=4), parallel_config=SimpleNamespace(**ranks))
    assert blocks_to_load(config, Blocks([10, 11, 12, 13]), computed, external) == lost
    assert blocks_to_load(config, Blocks([10], [11]), computed, external) is None


@pytest.mark.parametrize(
    ("computed", "table", "lost"),
    [
        (0, [0, 0, 12, 13], None),  # the engine would go on at the third block, without the window before it
        (0, [0, 11, 12, 13], None),
        (4, [0, 11, 12, 13], (11, 12, 13)),  # what the window reads before is the engine's own
        (8, [0, 0, 12, 13], (12, 13)),
    ],
)
def test_of_a_load_that_fills_only_a_window_no_blocks_are_reported(computed, table, lost):
    config = SimpleNamespace(cache_config=SimpleNamespace(block_size=4), parallel_config=SimpleNamespace())
    assert blocks_to_load(config, Blocks(table), computed, 16 - computed) == lost


def test_check_recounts():
    loads = LoadsInFlight()
    loads.start("r", PlannedLoad(1, True))
    loads.check(2)
    loads.finish(["r"])
    with pytest.raises(AssertionError, match="is untold, but not in flight"):
        loads.check(2)
    reports = LoadReports()
    reports.expect({"r": PlannedLoad(1, True)})
    reports.check(2)
    with pytest.raises(AssertionError, match="of 1 children"):
        reports.check(1)


def test_two_loaders_of_two_requests(scheduler):
    multi, first, second = scheduler(child(), child())
    first.answers["get_num_new_matched_tokens"] = lambda r, n: (8, True) if r.request_id == "a" else (0, False)
    second.answers["get_num_new_matched_tokens"] = (8, True)
    for request_id in "ab":
        multi.get_num_new_matched_tokens(request(request_id), 0)
        multi.update_state_after_alloc(request(request_id), BLOCKS, 8)
    assert multi.build_connector_meta("output").loads == {"a": PlannedLoad(0, True), "b": PlannedLoad(1, True)}


def finish_while_loading(scheduler, kind, method, block_ids, loader=1):
    multi, *children = scheduler(child(kind), child(kind), child(kind))
    start(multi, children, loader=loader)
    getattr(multi, method)(R, block_ids)
    return [one.calls[-1] for one in children]


def test_the_blocks_of_a_load_in_flight_are_nobody_elses_to_store(scheduler):
    """They hold what the loader is writing; stored now, they would be wrong under a right key, and for good."""
    first, loader, third = finish_while_loading(scheduler, "Scripted", "request_finished", [1, 2])
    assert first == third == ("request_finished", R, [])
    assert loader == ("request_finished", R, [1, 2])
    loader, second, _ = finish_while_loading(scheduler, "Scripted", "request_finished", [1, 2], loader=0)
    assert (loader, second) == (("request_finished", R, [1, 2]), ("request_finished", R, []))
    first, loader, _ = finish_while_loading(scheduler, "ScriptedHMA", "request_finished_all_groups", ([1, 2], [3]))
    assert first == ("request_finished_all_groups", R, ([], []))
    assert loader == ("request_finished_all_groups", R, ([1, 2], [3]))


def test_after_the_load_was_reported_every_child_gets_the_blocks(scheduler):
    multi, *children = scheduler()
    start(multi, children, loader=1)
    multi.build_connector_meta("output")
    multi.update_connector_output(KVConnectorOutput(finished_recving={"r"}))
    multi.request_finished(R, [1, 2])
    assert [one.calls[-1] for one in children] == [("request_finished", R, [1, 2])] * len(children)


def test_after_another_life_began_every_child_gets_the_blocks(scheduler):
    multi, *children = scheduler()
    start(multi, children, loader=1)
    multi.on_new_request(R)
    multi.request_finished(R, [1, 2])
    assert [one.calls[-1] for one in children] == [("request_finished", R, [1, 2])] * len(children)


def test_a_load_of_another_child_or_an_earlier_step_is_not_lost_with_a_child():
    reports = LoadReports()
    reports.expect({"r": PlannedLoad(1, False, (3,))})
    loads = {place: PlannedLoad(place, False, (4 + place,)) for place in range(3)}
    reports.expect({f"r{place}": load for place, load in loads.items()})
    reports.abandon(1)
    assert reports.take_failed_blocks() == {5}
