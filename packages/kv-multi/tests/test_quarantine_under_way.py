"""What a child that is switched off was loading and storing: told as failed and as done, or not survived."""

import pytest
from kv_multi_scripted import Blocks, Meta, child, request

from kv_api import KVConnectorOutput, KVConnectorRole, KVConnectorTransferResults
from kv_multi import LoadLostError, MultiKVConnectorMetadata, PlannedLoad

R = request()
ON = {"on_child_error": "quarantine"}
OUTPUT = KVConnectorOutput
REASON = "request_finished raised OSError: broken"


# -- on a worker's side ----------------------------------------------------------------------------


def make_worker(make, **metadata):
    worker = make([child(name="bad"), child(name="good")], KVConnectorRole.WORKER, **ON)
    worker.bind_connector_metadata(MultiKVConnectorMetadata((Meta(), Meta()), **metadata))
    return worker, *worker.sub_connectors


def test_stores_that_are_waited_for_count_as_reported(make):
    worker, bad, good = make_worker(make, async_saves={"r": (0, 1), "s": (0,), "t": (1,)})
    bad.raises["get_transfer_results"] = OSError("broken")
    assert worker.get_transfer_results(set()).finished_sending == {"s"}
    good.answers["get_transfer_results"] = KVConnectorTransferResults({"r", "t"})
    assert worker.get_transfer_results(set()).finished_sending == {"r", "t"}


def test_loads_that_are_waited_for_have_failed(make):
    loads = {"r": PlannedLoad(0, True, (4, 5)), "s": PlannedLoad(1, True, (6,)), "t": PlannedLoad(0, True)}
    worker, bad, _ = make_worker(make, loads=loads)
    bad.raises["start_load_kv"] = OSError("broken")
    worker.start_load_kv("context")
    results = worker.get_transfer_results(set())
    assert (results.finished_recving, results.failed_recving) == ({"r", "t"}, {"r", "t"})
    assert worker.get_block_ids_with_load_errors() == {4, 5}
    assert worker.get_transfer_results(set()) == KVConnectorTransferResults()
    assert worker.get_block_ids_with_load_errors() == set()


@pytest.mark.parametrize("method", ["start_load_kv", "wait_for_layer_load", "get_block_ids_with_load_errors"])
def test_blocks_of_a_load_within_the_step_are_reported_in_that_step(make, method):
    loads = {"r": PlannedLoad(0, False, (4, 5)), "s": PlannedLoad(1, False, (6,))}
    worker, bad, good = make_worker(make, loads=loads)
    bad.raises[method] = OSError("broken")
    good.answers["get_block_ids_with_load_errors"] = {6}
    if method != "get_block_ids_with_load_errors":
        getattr(worker, method)("argument")
    assert worker.get_transfer_results(set()) == KVConnectorTransferResults()
    assert worker.get_block_ids_with_load_errors() == {4, 5, 6}


def test_a_load_of_several_groups_within_the_step_is_not_survived(make):
    worker, bad, _ = make_worker(make, loads={"r": PlannedLoad(0, False, None)})
    bad.raises["start_load_kv"] = OSError("broken")
    with pytest.raises(LoadLostError) as caught:
        worker.start_load_kv("context")
    assert str(caught.value) == (
        "requests r load within the step; with several KV cache groups, or a window, the engine can't recompute "
        "such a load when it fails"
    )
    assert caught.value.__context__.args == ("broken",)
    assert len(bad.asked("shutdown")) == 1, "nothing that is lost is still written"


def test_after_the_verdict_it_is(make):
    """The step's blocks were asked for and good, so the load is over."""
    worker, bad, _ = make_worker(make, loads={"r": PlannedLoad(0, False, None)})
    worker.get_block_ids_with_load_errors()
    bad.raises["get_kv_connector_stats"] = OSError("broken")
    assert worker.get_kv_connector_stats().reduce()["quarantined"]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_loads_for_a_child_that_was_switched_off_here(make, asynchronous):
    """The scheduler doesn't know yet, and still tells it to load."""
    worker, bad, _ = make_worker(make)
    bad.raises["wait_for_save"] = OSError("broken")
    worker.wait_for_save()
    loads = {"r": PlannedLoad(0, asynchronous, (4,))}
    worker.bind_connector_metadata(
        MultiKVConnectorMetadata((Meta(), Meta()), async_saves={"s": (0,)}, loads=loads)
    )
    results = worker.get_transfer_results(set())
    expected = {"r"} if asynchronous else set()
    assert results == KVConnectorTransferResults({"s"}, expected, expected)
    assert worker.get_block_ids_with_load_errors() == {4}


# -- on the scheduler's side -----------------------------------------------------------------------

ONE_GROUP, GROUPS = Blocks([1, 2, 3, 4, 5]), Blocks([1, 2, 3], [4, 5, 6])


def match(multi, n=8, asynchronous=True, computed=4, blocks=ONE_GROUP):
    multi.sub_connectors[0].answers["get_num_new_matched_tokens"] = (n, asynchronous)
    multi.get_num_new_matched_tokens(R, computed)
    multi.update_state_after_alloc(R, blocks, n)


@pytest.mark.parametrize(
    ("n", "computed", "blocks", "expected"),
    [
        (8, 4, ONE_GROUP, (2, 3)),
        (7, 4, ONE_GROUP, (2, 3)),
        (5, 0, ONE_GROUP, (1, 2)),
        (8, 4, GROUPS, None),
    ],
)
def test_blocks_of_a_load(make, n, computed, blocks, expected):
    multi = make([child()], **ON)
    match(multi, n, computed=computed, blocks=blocks)
    assert multi.build_connector_meta("output").loads == {"r": PlannedLoad(0, True, expected)}


def test_blocks_of_a_load_of_less_than_was_found(make):
    """An engine may load fewer tokens than a child has; blocks after them are the request's own to compute."""
    multi = make([child()], **ON)
    multi.sub_connectors[0].answers["get_num_new_matched_tokens"] = (12, True)
    multi.get_num_new_matched_tokens(R, 4)
    multi.update_state_after_alloc(R, ONE_GROUP, 8)
    assert multi.build_connector_meta("output").loads == {"r": PlannedLoad(0, True, (2, 3))}


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_loader_that_raises_at_allocation(make, asynchronous):
    """The load is told all the same: the workers know that the child is off, and report it as failed."""
    multi = make([child(), child()], **ON)
    multi.sub_connectors[0].raises["update_state_after_alloc"] = OSError("broken")
    match(multi, asynchronous=asynchronous)
    metadata = multi.build_connector_meta("output")
    assert metadata.metadata[0] is None
    assert metadata.loads == {"r": PlannedLoad(0, asynchronous, (2, 3))}
    worker = make([child(), child()], KVConnectorRole.WORKER, **ON)
    worker.handle_preemptions(metadata)
    worker.bind_connector_metadata(metadata)
    assert worker.get_transfer_results(set()).failed_recving == ({"r"} if asynchronous else set())
    assert worker.get_block_ids_with_load_errors() == {2, 3}


def test_several_groups_within_the_step_are_not_survived(make):
    multi = make([child("ScriptedHMA")], **ON)
    multi.sub_connectors[0].raises["update_state_after_alloc"] = OSError("broken")
    with pytest.raises(LoadLostError):
        match(multi, asynchronous=False, blocks=GROUPS)
    multi = make([child("ScriptedHMA")], **ON)
    match(multi, asynchronous=False, blocks=GROUPS)
    multi.sub_connectors[0].raises["build_connector_meta"] = OSError("broken")
    with pytest.raises(LoadLostError):
        multi.build_connector_meta("output")
    multi = make([child("ScriptedHMA")], **ON)
    multi.sub_connectors[0].answers["get_num_new_matched_tokens"] = (8, False)
    multi.get_num_new_matched_tokens(R, 4)
    multi.sub_connectors[0].raises["reset_cache"] = OSError("broken")
    multi.reset_cache()
    with pytest.raises(LoadLostError):
        multi.update_state_after_alloc(R, GROUPS, 8)


def test_a_load_within_the_step_is_not_in_flight_after_it(make):
    multi = make([child(), child(answers={"request_finished": (True, None)})], **ON)
    match(multi, asynchronous=False)
    multi.build_connector_meta("output")
    assert multi.request_finished(R, [1]) == (True, None)


def test_one_that_loads_nothing_may_go(make):
    multi = make([child("ScriptedHMA"), child("ScriptedHMA")], **ON)
    multi.sub_connectors[1].raises["update_state_after_alloc"] = OSError("broken")
    match(multi, asynchronous=False, blocks=GROUPS)


def test_blocks_are_held_until_the_workers_know(make):
    """Its worker side may be reading them: whether it holds them can't be asked any more."""
    multi, worker = make([child()], **ON), make([child()], KVConnectorRole.WORKER, **ON)
    multi.sub_connectors[0].raises["request_finished"] = OSError("broken")
    assert multi.request_finished(R, [1]) == (True, None)
    assert multi.request_finished(request("s"), [2]) == (True, None)
    metadata = multi.build_connector_meta("output")
    assert metadata.async_saves == {"r": (0,), "s": (0,)}
    assert metadata.quarantined == {"Scripted0": REASON}
    worker.handle_preemptions(metadata)
    worker.bind_connector_metadata(metadata)
    assert worker.get_transfer_results({"r", "s"}).finished_sending == {"r", "s"}
    assert multi.request_finished(request("t"), [3]) == (False, None), "now they do"


def test_groups_and_sources_of_a_chosen_one_that_is_off(make):
    multi = make([child()], **ON)
    multi.sub_connectors[0].answers["get_num_new_matched_tokens"] = (8, True)
    multi.get_num_new_matched_tokens(R, 0)
    multi.sub_connectors[0].raises["get_loaded_kv_cache_group_ids"] = OSError("broken")
    assert multi.get_loaded_kv_cache_group_ids(R) == (), "every block is zeroed"
    assert sum(multi.get_external_cache_hit_sources(R, 8).values()) == 8
