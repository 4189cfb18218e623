"""When the medium's manager is called, and with what: as its contract has it."""

import kv_offload_medium
import pytest
from kv_offload_calls import arrive, ask, gpu, keys, report, run
from kv_offload_configs import Blocks, Request, step
from kv_offload_medium import ScriptedSpec, StrictManager

from kv_api import KVConnectorStats, OffloadingCounterMetadata, OffloadingGaugeMetadata
from kv_offload.metrics import COUNTER, GAUGE


def test_a_reset_has_its_end_told_once_and_nobody_else(fenced):
    connector, manager = fenced()
    a = arrive(connector, Request("a", range(4)))
    run(connector, a, [1])
    report(connector)
    report(connector, done=[0])
    assert manager.resets == []
    connector.reset_cache()
    report(connector)
    assert manager.resets == ["reset", "flushed"]


def test_who_watches_the_manager_takes_its_place(fenced):
    connector, manager = fenced()
    assert connector.side.manager is manager
    connector.side.manager = watcher = StrictManager()
    a = arrive(connector, Request("a", range(4)))
    run(connector, a, [1])
    report(connector, done=[0])
    assert ({*watcher.resident}, manager.resident) == ({*keys(a, 1)}, {})


def test_a_manager_hears_last_in_a_step_who_arrived_and_who_was_preempted(fenced):
    connector, manager = fenced()
    heard = []
    manager.on_schedule_end = lambda context: heard.append(
        (manager.is_locked, len(manager.storing), [*context.new_req_ids], [*context.preempted_req_ids])
    )
    a, b = Request("a", range(8)), Request("b", range(8, 16))
    connector.on_new_request(a)
    connector.on_new_request(b)
    run(connector, a, [1, 2])
    new, more = [("b", ([3, 4],))], [("a", ([5],))]
    connector.build_connector_meta(step(new=new, more=more, counts={"a": 1, "b": 8}))
    connector.build_connector_meta(step(more=[("b", None)], counts={"b": 1}, preempted=["a"]))
    assert heard == [(True, 2, ["a"], []), (True, 4, ["b"], []), (True, 4, [], ["a"])]
    assert not manager.is_locked


def test_events_may_be_made_while_they_are_taken(fenced):
    connector, manager = fenced()
    a = arrive(connector, Request("a", range(4)))
    run(connector, a, [1])
    report(connector, done=[0])
    take = manager.take_events

    def one_by_one():
        for event in take():
            assert manager.is_locked
            yield event
        assert manager.is_locked

    manager.take_events = one_by_one
    assert [event.block_hashes for event in connector.take_events()] == [a.block_hashes]
    assert [*connector.take_events()] == []


@pytest.mark.parametrize("place", range(3))
def test_whichever_chunk_of_a_promise_is_gone_is_not_promised_again(fenced, place):
    connector, manager = fenced()
    a = Request("a", range(13))
    assert ask(connector, manager, a, 3) == (12, True)
    gone = keys(a, 3)[place]
    slot = manager.resident.pop(gone)
    connector.update_state_after_alloc(a, Blocks([1, 2, 3]), 12)
    (job,) = connector.build_connector_meta(step()).load_jobs.values()
    assert (job.src_spec, job.gpu_spec) == (None, gpu(1, 2, 3))
    assert not manager.pins.total()
    report(connector, done=[0], failed=[0], invalid=[1, 2, 3])
    manager.resident[gone] = slot
    assert connector.get_num_new_matched_tokens(a, 0) == (4 * place, place > 0)


class TieredSpec(ScriptedSpec):
    """Declares what its settings name."""

    extra_keys = frozenset({"gauges"})

    @classmethod
    def build_metric_definitions(cls, extra_config):
        kinds = {True: OffloadingGaugeMetadata, False: OffloadingCounterMetadata}
        return {name: kinds[name in extra_config["gauges"]](name) for name in ("level", "passed")}


def test_a_spec_that_can_not_declare_its_metrics_has_made_no_manager(make, monkeypatch):
    """Nobody could shut it down, and it may have locked its medium."""
    made = []

    def declare(cls, extra):
        raise KeyError("threshold")

    monkeypatch.setattr(ScriptedSpec, "build_metric_definitions", classmethod(declare))
    monkeypatch.setattr(ScriptedSpec, "get_manager", lambda spec: made.append(spec))
    with pytest.raises(KeyError, match="threshold"):
        make()
    assert not made


@pytest.mark.parametrize("gauges", [["level"], ["passed"], []])
def test_the_kind_of_a_metric_is_what_the_spec_declares_for_its_settings(make, manager, monkeypatch, gauges):
    monkeypatch.setattr(kv_offload_medium, "TieredSpec", TieredSpec, raising=False)
    manager.get_stats = lambda: KVConnectorStats({"level": 3, "passed": 2})
    connector = make(spec_name="TieredSpec", gauges=gauges)
    told = connector.get_kv_connector_stats().data
    assert told["data"] == {"level": {(): 3}, "passed": {(): 2}}
    assert told["types"] == {name: GAUGE if name in gauges else COUNTER for name in ("level", "passed")}
