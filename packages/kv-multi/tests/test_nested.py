"""A MultiConnector in a MultiConnector: to the inner one the outer is the engine."""

import pickle

import pytest
from kv_multi_scripted import Blocks, Handshake, WorkerMeta, child, engine_config, request

from kv_api import KVConnectorOutput, KVConnectorRole, KVConnectorTransferResults
from kv_multi import MultiConnector

R, BLOCKS = request(), Blocks([1, 2])
INNER = child("MultiConnector", name="inner", connectors=[child(name="b"), child(name="c")], load_policy="longest")


@pytest.fixture(params=[0, 1, 2])
def both(make, request):
    """Both sides of the two levels: (outer, a, inner, b, c) each. Between them none, one or two hand calls on."""
    behind, halves = INNER, []
    for _ in range(request.param):
        behind = child("HandsOn", connector=behind)
    for role in KVConnectorRole:
        outer = make([child(name="a"), behind], role)
        a, inner = outer.sub_connectors
        for _ in range(request.param):
            inner = inner.behind
        halves.append((outer, a, inner, *inner.sub_connectors))
    return halves


def finished(one, sending=(), recving=()):
    one.answers["get_transfer_results"] = KVConnectorTransferResults(set(sending), set(recving))


def results(worker):
    answer = worker.get_transfer_results(set())
    return answer.finished_sending, answer.finished_recving


def step(scheduler, worker):
    """Plan a step and carry its metadata to the worker."""
    worker.bind_connector_metadata(pickle.loads(pickle.dumps(scheduler.build_connector_meta("output"))))


def test_the_inner_ones_choice(both):
    (scheduler, a, _inner, b, c), (worker, wa, _, wb, wc) = both
    b.answers["get_num_new_matched_tokens"], c.answers["get_num_new_matched_tokens"] = (4, False), (8, True)
    assert scheduler.get_num_new_matched_tokens(R, 0) == (8, True)
    scheduler.update_state_after_alloc(R, BLOCKS, 8)
    told = [one.asked("update_state_after_alloc")[0][2] for one in (a, b, c)]
    assert told == [0, 0, 8]
    step(scheduler, worker)
    finished(wa, recving=["r"])
    finished(wb, recving=["r"])
    assert results(worker) == (set(), set())
    finished(wc, recving=["r"])
    assert results(worker) == (set(), {"r"})
    assert results(worker) == (set(), set())


def test_the_outer_ones_choice(both):
    (scheduler, a, _inner, b, c), _ = both
    a.answers["get_num_new_matched_tokens"] = b.answers["get_num_new_matched_tokens"] = (4, False)
    assert scheduler.get_num_new_matched_tokens(R, 0) == (4, False)
    scheduler.update_state_after_alloc(R, BLOCKS, 4)
    assert [one.asked("update_state_after_alloc")[0][2] for one in (a, b, c)] == [4, 0, 0]


def test_stores_of_three_children(both):
    (scheduler, *schedulers), (worker, wa, _, wb, wc) = both
    for one in (schedulers[0], schedulers[2], schedulers[3]):
        one.answers["request_finished"] = (True, None)
    assert scheduler.request_finished(R, [1]) == (True, None)
    step(scheduler, worker)
    reported = []
    for one in (wb, wc, wb, wa):
        for other in (wa, wb, wc):
            finished(other)
        finished(one, sending=["r"])
        reported.append(results(worker)[0])
    assert reported == [set(), set(), set(), {"r"}]


@pytest.mark.parametrize("saver", [1, 3, 4])
def test_aborted_while_the_inner_one_loads(both, saver):
    """The inner one answers True to the outer, which alone talks to an engine that takes one report."""
    (scheduler, _a, _inner, b, _c), (worker, _wa, _, wb, _wc) = both
    b.answers["get_num_new_matched_tokens"] = (8, True)
    scheduler.get_num_new_matched_tokens(R, 0)
    scheduler.update_state_after_alloc(R, BLOCKS, 8)
    step(scheduler, worker)
    both[0][saver].answers["request_finished"] = (True, None)
    assert scheduler.request_finished(R, [1]) == (False, None)
    step(scheduler, worker)
    finished(both[1][saver], sending=["r"])
    sent, _ = results(worker)
    finished(both[1][saver])
    output = KVConnectorOutput(finished_sending=sent)
    scheduler.update_connector_output(output)
    assert (sent, output.finished_sending) == ({"r"}, None)
    finished(wb, recving=["r"])
    _, received = results(worker)
    output = KVConnectorOutput(finished_recving=received)
    scheduler.update_connector_output(output)
    assert output.finished_recving == {"r"}


def test_payloads_pass_both_levels(both):
    (scheduler, *_, c), (worker, *_, wc) = both
    wc.answers["build_connector_worker_meta"] = WorkerMeta(("w",))
    wc.answers["get_handshake_metadata"] = Handshake("h")
    meta = worker.build_connector_worker_meta()
    scheduler.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=meta.aggregate(meta)))
    [[output]] = c.asked("update_connector_output")
    assert output.kv_connector_worker_meta == WorkerMeta(("w", "w"))
    scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): worker.get_handshake_metadata()})
    assert c.asked("set_xfer_handshake_metadata_pp_aware") == [({(0, 0): Handshake("h")},)]


def test_not_saving_is_passed_on(make):
    inner = child("MultiConnector", save=False, connectors=[child(), child(save=True)])
    outer = make([child(), inner], KVConnectorRole.WORKER)
    plain, inner = outer.sub_connectors
    outer.save_kv_layer("layer", "tensor", "attention")
    assert [len(one.asked("save_kv_layer")) for one in (plain, *inner.sub_connectors)] == [1, 0, 0]
    assert [one._kv_transfer_config.kv_role for one in inner.sub_connectors] == ["kv_consumer"] * 2


@pytest.mark.parametrize("deepest", ["Scripted", "ScriptedHMA"])
def test_groups_are_asked_of_the_deepest(deepest):
    inner = child("MultiConnector", connectors=[child("ScriptedHMA"), child(deepest)])
    config = engine_config([child("ScriptedHMA"), inner]).kv_transfer_config
    assert MultiConnector.all_children_support_hma(config) is (deepest == "ScriptedHMA")


def test_an_inner_mistake_is_noted_with_its_place(make):
    with pytest.raises(ValueError, match=r"^connectors\[1\]: the name 'x'") as caught:
        make([child(), child("MultiConnector", connectors=[child(name="x"), child(name="x")])])
    assert caught.value.__notes__ == ["while creating connectors[1] ('MultiConnector1') of a MultiConnector"]
