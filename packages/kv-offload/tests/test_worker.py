"""The worker's side: when jobs are submitted, and that whatever happens to one is told once."""

import pytest
from kv_offload_configs import FULL, kv_cache_config, vllm_config
from kv_offload_medium import Slots

from kv_api import GPULoadStoreSpec, KVConnectorRole, KVConnectorTransferResults, KVError, TransferResult
from kv_offload import (
    OffloadingConnector,
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
    OffloadingWorkerSide,
    TransferJob,
)
from kv_offload.metadata import DirectionalTransferStats, TransferStats
from kv_offload.worker.running import RunningJobs


def gpu(*blocks):
    return GPULoadStoreSpec(blocks, (len(blocks),), (0,))


def store(name="a", blocks=(1, 2), **flags):
    return TransferJob(name, gpu(*blocks), Slots(range(len(blocks))), **flags)


def load(name="a", blocks=(3, 4), **flags):
    return TransferJob(name, Slots(range(len(blocks))), gpu(*blocks), **flags)


def begin(connector, meta):
    connector.handle_preemptions(meta)
    connector.bind_connector_metadata(meta)
    connector.start_load_kv(None)


def end(connector):
    connector.wait_for_save()
    results = connector.get_transfer_results(set())
    invalid = connector.get_block_ids_with_load_errors()
    meta = connector.build_connector_worker_meta()
    connector.clear_connector_metadata()
    connector.side.check()
    return results, invalid, meta


def run(connector, stores=None, loads=None, flush=()):
    begin(connector, OffloadingConnectorMetadata(loads or {}, stores or {}, set(flush)))
    return end(connector)


def results(sending=(), recving=(), failed=()):
    return KVConnectorTransferResults(set(sending), set(recving), set(failed))


def test_a_store_begins_after_the_forward_pass(worker):
    connector, medium = worker()
    meta = OffloadingConnectorMetadata({}, {7: store(), 8: store(is_computed=True), 9: store()}, {9})
    begin(connector, meta)
    assert medium.calls == [("store", 8), ("store", 9), ("let go", [9]), ("wait", [9])]
    end(connector)
    assert medium.calls[4:] == [("store", 7)]


def test_jobs_of_a_kind_begin_in_the_order_of_their_plan(worker):
    connector, medium = worker()
    earlier, stores = {3: store(is_computed=True), 4: store(is_computed=True)}, {5: store(), 6: store()}
    run(connector, earlier | stores, {1: load("b"), 2: load("c")})
    assert [job_id for _, job_id in medium.calls] == [3, 4, 1, 2, 5, 6]


def test_one_that_watches_the_mediums_worker_takes_its_place_by_either_name(worker):
    connector, medium = worker()
    side = connector.side
    assert side.medium_worker is side.medium is medium
    side.medium = watching = object()
    assert side.medium_worker is watching


def test_what_the_medium_counts_is_told_even_if_no_job_ended(worker):
    connector, medium = worker()
    told = [{"broken": 2}, {}, {"broken": 1, "odd": 4}]
    medium.take_counts = lambda: told.pop(0)
    metas = [run(connector)[2] for _ in range(3)]
    assert metas == [
        OffloadingWorkerMetadata(medium_counts={"broken": 2}),
        None,
        OffloadingWorkerMetadata(medium_counts={"broken": 1, "odd": 4}),
    ]
    both = metas[0].aggregate(metas[2])
    assert both.medium_counts == {"broken": 3, "odd": 4}


def test_a_medium_without_counts_is_not_asked(worker):
    connector, medium = worker()
    medium.take_counts = None
    assert run(connector) == (results(), set(), None)


def test_the_end_of_jobs_is_told_once(worker):
    connector, medium = worker()
    assert run(connector, {1: store()}, {2: load("b")}) == (results(), set(), None)
    medium.end(1)
    medium.end(2)
    medium.repeat(2)
    medium.repeat(99)
    told, invalid, meta = run(connector)
    assert (told, invalid) == (results(recving={"b"}), set())
    assert (meta.completed_jobs, meta.failed_jobs) == ({1: 1, 2: 1}, {})
    assert (meta.transfer_stats.load.sizes, meta.transfer_stats.store.time) == ([1000], 0.5)
    medium.repeat(1, success=False)
    assert run(connector) == (results(), set(), None)


@pytest.mark.parametrize(("size", "seconds"), [(0, 0.5), (1000, 0.0)])
def test_what_took_no_time_or_moved_nothing_is_measured_too(worker, size, seconds):
    """Only a medium that doesn't measure leaves a copy out."""
    connector, medium = worker()
    run(connector, {}, {2: load("b")})
    medium.end(2)
    medium.results = [TransferResult(2, True, size, seconds)]
    assert run(connector)[2].transfer_stats.load == DirectionalTransferStats(size, seconds, [size])


def test_blocks_are_held_until_the_last_store(worker):
    connector, medium = worker()
    run(connector, {1: store(is_held=True, is_computed=True), 2: store(is_held=True, is_computed=True)})
    medium.end(2)
    assert run(connector)[0] == results()
    medium.end(1, success=False)
    told, _, meta = run(connector)
    assert told == results(sending={"a"})
    assert (meta.completed_jobs, meta.failed_jobs) == ({1: 1}, {1: 1})


@pytest.mark.parametrize("last", [1, 2])
def test_a_store_that_holds_nothing_is_not_waited_for(worker, last):
    connector, medium = worker()
    run(connector, {1: store()})
    run(connector, {2: store(is_held=True, is_computed=True)})
    medium.end(3 - last)
    told = [run(connector)[0]]
    medium.end(last)
    told.append(run(connector)[0])
    assert told == [results(sending={"a"}), results()][:: 1 if last == 1 else -1]


@pytest.mark.parametrize(
    ("success", "size", "seconds", "stores"),
    [(True, 100, 0.5, [100]), (False, 100, 0.5, []), (True, None, 0.5, []), (True, 100, None, [])],
)
def test_a_copy_that_ended_well_is_counted_if_it_was_measured(worker, success, size, seconds, stores):
    connector, medium = worker()
    run(connector, {1: store()}, {2: load()})
    medium.results += [TransferResult(1, success, size, seconds), TransferResult(2, True, 7, 0.25)]
    stats = run(connector)[2].transfer_stats
    assert (stats.store.sizes, stats.load.sizes, stats.load.time) == (stores, [7], 0.25)


@pytest.mark.parametrize("how", ["ends", "refused", OSError, RuntimeError, "gone"])
def test_a_failed_load_of_one_group(worker, caplog, how):
    connector, medium = worker()
    medium.refuses = how == "refused"
    medium.error = how("no device") if isinstance(how, type) else None
    job = TransferJob("a", None, gpu(3, 4)) if how == "gone" else load()
    begin(connector, OffloadingConnectorMetadata({5: job}))
    medium.error = None
    if how == "ends":
        medium.end(5, success=False)
    told, invalid, meta = end(connector)
    assert (told, invalid) == (results(recving={"a"}), {3, 4})
    assert (meta.completed_jobs, meta.failed_jobs) == ({5: 1}, {5: 1})
    said = [f"job 5 could not be submitted: {how.__name__}: no device"] if isinstance(how, type) else []
    assert [record.message for record in caplog.records] == said


def test_a_failed_load_of_several_groups(worker):
    connector, medium = worker(cache=kv_cache_config(((FULL, 4, 0), (FULL, 4, 0))))
    run(connector, loads={5: load()})
    medium.end(5, success=False)
    assert run(connector)[:2] == (results(recving={"a"}, failed={"a"}), set())


def test_a_load_in_the_step_is_waited_for_and_overtakes(worker):
    connector, medium = worker()
    begin(connector, OffloadingConnectorMetadata({5: load(sync=True), 6: load("b")}))
    assert medium.calls == [("expedited", 5), ("load", 6), ("wait", [5])]
    told, invalid, meta = end(connector)
    assert (told, invalid, meta.completed_jobs) == (results(), set(), {5: 1})


def test_a_load_in_the_step_that_does_not_end_has_failed(worker):
    connector, medium = worker()
    medium.ends_when_waited_for = False
    told, invalid, meta = run(connector, loads={5: load(sync=True)})
    assert (told, invalid) == (results(), {3, 4})
    assert (meta.completed_jobs, meta.failed_jobs, meta.unended_jobs) == ({5: 1}, {5: 1}, {5: 1})
    medium.end(5)
    _, _, meta = run(connector)
    assert meta == OffloadingWorkerMetadata(late_jobs={5: 1})


def test_nobody_waits_for_what_is_not_at_work(worker):
    connector, medium = worker()
    run(connector, {1: store()})
    medium.end(1)
    run(connector)
    medium.refuses = True
    told, invalid, _ = run(connector, loads={2: load(sync=True)}, flush={1, 99})
    assert (told, invalid) == (results(), {3, 4})
    assert [call[0] for call in medium.calls] == ["store", "expedited"]


def test_a_flushed_store_that_did_not_end_is_not_trusted(worker):
    connector, medium = worker()
    run(connector, {1: store()})
    medium.ends_when_waited_for = False
    assert run(connector, flush={1})[2] is None
    medium.end(1)
    assert run(connector)[2].failed_jobs == {1: 1}


def test_a_store_that_has_let_go_of_its_blocks_goes_on(worker):
    connector, medium = worker()
    run(connector, {1: store(), 2: store()})
    medium.goes_on = {1}
    assert run(connector, {3: store()}, flush={1, 2, 3})[2].completed_jobs == {2: 1, 3: 1}
    assert medium.calls[2:] == [("store", 3), ("let go", [1, 2, 3]), ("wait", [2, 3])]
    medium.end(1)
    meta = run(connector)[2]
    assert (meta.completed_jobs, meta.failed_jobs) == ({1: 1}, {})


def test_what_must_have_ended_is_waited_for_wherever_its_bytes_are(worker):
    connector, medium = worker()
    run(connector, {1: store()})
    medium.goes_on = {1}
    begin(connector, OffloadingConnectorMetadata({}, {2: store()}, jobs_to_end={1, 2}))
    assert medium.calls[1:] == [("store", 2), ("wait", [1, 2])]
    assert end(connector)[2].completed_jobs == {1: 1, 2: 1}


@pytest.mark.parametrize("ends", [True, False])
def test_before_the_engine_sleeps_all_jobs_are_waited_for(worker, monkeypatch, ends):
    """Also one that was given up, and whatever it is for. A store that doesn't end then reads what is gone."""
    monkeypatch.setattr(OffloadingWorkerSide, "clock", iter(range(100)).__next__)
    connector, medium = worker(load_timeout_seconds=1, store_timeout_seconds=100)
    run(connector, loads={1: load("b")})
    run(connector, {2: store()})
    medium.calls.clear()
    medium.ends_when_waited_for = ends
    connector.unregister_kv_caches()
    assert medium.calls == [("wait", [1, 2])]
    if not ends:
        medium.end(1)
        medium.end(2)
    meta = run(connector)[2]
    assert (meta.completed_jobs, meta.late_jobs) == ({2: 1}, {1: 1})
    assert meta.failed_jobs == ({} if ends else {2: 1})
    medium.calls.clear()
    connector.unregister_kv_caches()
    connector.restore_kv_caches()
    assert medium.calls == []


def test_of_a_medium_that_cannot_let_go_fences_wait_for_the_end(worker, monkeypatch):
    connector, medium = worker()
    monkeypatch.setattr(type(medium), "let_go", None)
    run(connector, {1: store()})
    assert run(connector, flush={1})[2].completed_jobs == {1: 1}
    assert medium.calls[1:] == [("wait", [1])]


def test_what_a_medium_counts_adds_up_until_it_is_told():
    jobs = RunningJobs(fails_requests=False)
    jobs.count({"x": 1, "y": 2})
    jobs.count({"x": 3})
    assert jobs.take_meta() == OffloadingWorkerMetadata(medium_counts={"x": 4, "y": 2})
    assert jobs.take_meta() is None


def test_a_recount_finds_a_store_that_nobody_expected_to_hold_blocks(worker):
    connector, _ = worker()
    jobs, held = connector.side._jobs, store(is_held=True)
    jobs.expect_holds([held])
    jobs.begin_store(1, held, None)
    connector.side.check()
    jobs.begin_store(2, held, None)
    with pytest.raises(AssertionError, match=r"^held blocks of \['a'\]"):
        connector.side.check()
    jobs.expect_holds([held])


def test_what_had_ended_when_a_wait_failed_has_ended(worker, monkeypatch):
    connector, medium = worker()

    def wait(job_ids):
        medium.end(5)
        raise OSError("gone")

    monkeypatch.setattr(medium, "wait", wait)
    told, invalid, meta = run(connector, loads={5: load(sync=True)})
    assert (told, invalid, meta.completed_jobs, meta.failed_jobs) == (results(), set(), {5: 1}, {})


def test_the_blocks_of_all_failed_loads_are_told(worker):
    connector, medium = worker()
    medium.refuses = True
    assert run(connector, loads={5: load(), 6: load("b", (7, 8))})[1] == {3, 4, 7, 8}
    assert run(connector)[1] == set()


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_waiting_fails(worker, caplog, kind):
    connector, medium = worker()
    run(connector, {1: store(), 8: store()})
    medium.error = kind("gone")
    _, _, meta = run(connector, flush={8, 1})
    assert (meta.failed_jobs, meta.unended_jobs) == ({1: 1, 8: 1}, {1: 1, 8: 1})
    asked = f"asking which jobs ended: {kind.__name__}: gone"
    assert [record.message for record in caplog.records] == [
        f"waiting for jobs [1, 8]: {kind.__name__}: gone",
        asked,
        asked,
    ]
    medium.error = None
    medium.end(1)
    assert run(connector)[2].late_jobs == {1: 1}


def test_a_load_that_takes_too_long(worker, monkeypatch, caplog):
    now = [0.0]
    monkeypatch.setattr(OffloadingWorkerSide, "clock", staticmethod(lambda: now[0]))
    connector, medium = worker(load_timeout_seconds=10, store_timeout_seconds=0)
    assert run(connector, {6: store()}, {5: load()}) == (results(), set(), None)
    now[0] = 9.9
    assert run(connector) == (results(), set(), None)
    now[0] = 10.0
    told, invalid, meta = run(connector)
    assert (told, invalid) == (results(recving={"a"}), {3, 4})
    assert (meta.completed_jobs, meta.failed_jobs, meta.unended_jobs) == ({5: 1}, {5: 1}, {5: 1})
    assert [record.message for record in caplog.records] == ["load 5 of request a has not ended in time"]
    medium.end(5)
    medium.repeat(5)
    assert run(connector) == (results(), set(), OffloadingWorkerMetadata(late_jobs={5: 1}))


def test_a_job_whose_end_is_heard_of_late_is_not_given_up(worker, monkeypatch):
    """The engine was idle, or busy: its next step came when the time was over, and the copies had ended."""
    now = [0.0]
    monkeypatch.setattr(OffloadingWorkerSide, "clock", staticmethod(lambda: now[0]))
    connector, medium = worker(load_timeout_seconds=10)
    run(connector, {6: store()}, {5: load()})
    medium.end(5)
    medium.end(6)
    now[0] = 60.0
    told, invalid, meta = run(connector)
    assert (told, invalid) == (results(recving={"a"}), set())
    assert (meta.completed_jobs, meta.failed_jobs, meta.unended_jobs) == ({5: 1, 6: 1}, {}, {})


@pytest.mark.parametrize("timeouts", [{"load_timeout_seconds": 10}, {"store_timeout_seconds": 10}])
def test_a_store_that_takes_too_long_lets_go_of_its_blocks(worker, monkeypatch, caplog, timeouts):
    now = [3.0]
    monkeypatch.setattr(OffloadingWorkerSide, "clock", staticmethod(lambda: now[0]))
    connector, medium = worker(**timeouts)
    run(connector, {6: store(is_held=True, is_computed=True)})
    now[0] = 12.9
    assert run(connector) == (results(), set(), None)
    now[0] = 13.0
    told, _, meta = run(connector)
    assert (told, meta.failed_jobs, meta.unended_jobs) == (results(sending={"a"}), {6: 1}, {6: 1})
    assert [record.message for record in caplog.records] == ["store 6 of request a has not ended in time"]
    medium.end(6)
    assert run(connector) == (results(), set(), OffloadingWorkerMetadata(late_jobs={6: 1}))


def test_who_gets_the_blocks_of_a_load_that_was_given_up_waits(worker, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(OffloadingWorkerSide, "clock", staticmethod(lambda: now[0]))
    connector, medium = worker(load_timeout_seconds=1)
    run(connector, loads={5: load()})
    now[0] = 1.5
    run(connector)
    _, _, meta = run(connector, flush={5})
    assert medium.calls[-1] == ("wait", [5])
    assert meta == OffloadingWorkerMetadata(late_jobs={5: 1})


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("canonical", [True, False])
@pytest.mark.parametrize("replicated", [True, False])
def test_who_stores(worker, rank, replicated, canonical):
    connector, medium = worker(rank=rank, world_size=2, replicated=replicated, canonical_layout=canonical)
    run(connector, {1: store()})
    assert medium.calls == ([("store", 1)] if rank == 0 or canonical or not replicated else [])


def test_only_the_first_of_replicas_stores(worker):
    connector, medium = worker(rank=1, world_size=2, replicated=True)
    told, _, meta = run(connector, {1: store(is_held=True, is_computed=True), 2: store("b")}, {3: load()})
    assert (told, meta) == (results(sending={"a"}), OffloadingWorkerMetadata({1: 1, 2: 1}))
    assert medium.calls == [("load", 3)]


def test_get_finished_for_older_engines(worker):
    connector, medium = worker()
    begin(connector, OffloadingConnectorMetadata({5: load()}))
    medium.end(5)
    assert connector.get_finished(set()) == (set(), {"a"})


def test_a_step_before_the_caches():
    connector = OffloadingConnector(vllm_config(), KVConnectorRole.WORKER, kv_cache_config())
    with pytest.raises(KVError, match=r"^OffloadingConnector: a step began before register_kv_caches$"):
        connector.get_transfer_results(set())


def test_shutdown(worker):
    connector, medium = worker()
    connector.shutdown()
    assert medium.calls == [("shutdown",)]


def test_a_load_that_is_waited_for_by_others_is_trusted(worker):
    """After a reset whoever gets places in the medium waits; the request's blocks were filled all the same."""
    connector, medium = worker()
    medium.ends_when_waited_for = False
    assert run(connector, loads={5: load()}) == (results(), set(), None)
    assert run(connector, flush={5}) == (results(), set(), None)
    medium.end(5)
    told, invalid, meta = run(connector)
    assert (told, invalid) == (results(recving={"a"}), set())
    assert (meta.completed_jobs, meta.failed_jobs) == ({5: 1}, {})


def test_the_plans_of_others_are_refused(worker):
    connector, _ = worker()
    with pytest.raises(TypeError) as raised:
        connector.handle_preemptions(object())
    assert str(raised.value) == "connector metadata: expected OffloadingConnectorMetadata, got object"


def test_metadata_joins():
    moved = [
        TransferStats(DirectionalTransferStats(*load), DirectionalTransferStats(*store))
        for load, store in (
            ((3, 0.5, [3]), (7, 1.0, [7])),
            ((10, 2.0, [4, 6]), (20, 4.0, [20])),
            ((13, 2.5, [3, 4, 6]), (27, 5.0, [7, 20])),
        )
    ]
    one = OffloadingWorkerMetadata({1: 1, 2: 1}, {1: 1}, {4: 1}, {9: 1, 7: 2}, moved[0], {"odd": 1})
    two = OffloadingWorkerMetadata({1: 1, 3: 1}, {6: 1}, {3: 1}, {9: 1}, moved[1], {"odd": 2, "even": 4})
    with pytest.raises(TypeError, match=r"^worker metadata: expected OffloadingWorkerMetadata, got object$"):
        one.aggregate(object())
    reported = OffloadingWorkerMetadata({8: 1, 1: 1}).aggregate(two).completed_jobs
    assert [*reported] == [1, 3, 8]  # in the order of their beginning, whoever reports first
    assert [*two.aggregate(OffloadingWorkerMetadata({8: 1, 1: 1})).completed_jobs] == [1, 3, 8]
    assert one.aggregate(two) == OffloadingWorkerMetadata(
        {1: 2, 2: 1, 3: 1}, {1: 1, 6: 1}, {3: 1, 4: 1}, {7: 2, 9: 2}, moved[2], {"odd": 3, "even": 4}
    )
