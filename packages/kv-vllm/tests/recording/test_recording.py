"""The recorder: what it writes of each call, and that the connector behind it is asked everything."""

import json
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import pytest
from kv_vllm_configs import OFFLOADING, config_of
from kv_vllm_full_disk import Full

from kv_api import ConfigError, KVConnectorOutput

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

BEHIND = {**OFFLOADING, "kv_connector_module_path": "kv_vllm"}


@pytest.fixture
def module():
    pytest.importorskip("vllm")
    from kv_vllm.recording import connector as recording

    return recording


@pytest.fixture
def before():
    pytest.importorskip("vllm")
    from kv_vllm.recording import before

    return before


def request_of(name, status="FINISHED_STOPPED", **more):
    from vllm.v1.request import RequestStatus

    return SimpleNamespace(
        **{
            "request_id": name,
            "num_prompt_tokens": 9,
            "max_tokens": 3,
            "block_hashes": [b"0123456789", b"abcdefghij"],
            "skip_reading_prefix_cache": None,
            "status": getattr(RequestStatus, status),
            "num_output_tokens": 2,
            **more,
        }
    )


@pytest.fixture
def log(module, tmp_path):
    made = module.CallLog(tmp_path / "new" / "er" / "some.jsonl", {"the": "world"})
    yield made
    made._file.close()


@pytest.fixture
def recorder(module, log):
    """One before a connector that says what it is told to."""
    made = object.__new__(module.RecordingConnector)
    made._log, made.inner = log, MagicMock()
    return made


def written(log):
    lines = [json.loads(line) for line in log.calls.read_text().splitlines()]
    assert lines[0] == {"the": "world"}
    return lines[1:]


def told(call_name, **arguments):
    return {"call": call_name, **arguments}


def test_the_calls_of_an_engine_before_are_put_aside(module, tmp_path):
    schedule = tmp_path / "some.jsonl"
    schedule.with_name("some.calls.jsonl").touch()  # of that one there is nothing
    for header in ({"a": 1}, {"b": 2}, {"c": 3}):
        module.CallLog(schedule, header)._file.close()
    kept = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert kept == {"some.1.calls.jsonl": {"a": 1}, "some.2.calls.jsonl": {"b": 2}, "some.calls.jsonl": {"c": 3}}


def test_a_disk_that_is_full_ends_the_recording_and_not_the_engine(recorder, log, caplog):
    recorder.inner.reset_cache.return_value = True
    recorder.on_new_request(request_of("x"))
    log._file = Full(log._file, 20)
    recorder.on_new_request(request_of("y"))
    recorder.reset_cache()
    before, end, rest = log.calls.read_text().rpartition("\n")
    assert (before.count("\n"), end, rest) == (1, "\n", "")
    recorder.shutdown()
    recorder.shutdown()
    schedule = log.calls.with_name("some.jsonl")
    assert caplog.messages == [
        f"{log.calls}: the recording ends here: [Errno 28] disk full",
        f"{schedule}: the schedule was not written: {log.calls}: line 1: expected the header of 'kv-vllm calls', "
        "version 1",
    ]
    assert [record.name for record in caplog.records] == ["kv_vllm"] * 2
    assert [asked for asked, _, _ in recorder.inner.mock_calls] == [
        *("on_new_request", "on_new_request", "reset_cache", "shutdown", "shutdown")
    ]


def test_of_a_request_there_is_a_number_and_what_it_wants(log, tmp_path):
    assert log.calls == tmp_path / "new" / "er" / "some.calls.jsonl"
    for name, skips in (("x", None), ("y", True)):
        log.arrive(request_of(name, skip_reading_prefix_cache=skips))
    wanted = {"prompt_tokens": 9, "max_tokens": 3, "hashes": [b"01234567".hex(), b"abcdefgh".hex()]}
    assert written(log) == [
        told("arrive", request="r0", **wanted, skips=False),
        told("arrive", request="r1", **wanted, skips=True),
    ]
    assert [log.number(name) for name in "xyz"] == ["r0", "r1", "?"]


@pytest.mark.parametrize("jobs", [{7: 2, 3: 2}, {}, None])
def test_what_the_workers_report(log, jobs):
    for name in ("x", "y", "z"):
        log.arrive(request_of(name))
    meta = None if jobs is None else SimpleNamespace(completed_jobs=jobs, metadata=7)  # of nobody's children
    output = KVConnectorOutput({"z", "x"}, {"y", "x"}, invalid_block_ids={8, 1}, failed_recving={"z", "y"})
    output.kv_connector_worker_meta = meta
    log.report(output)
    log.report(KVConnectorOutput())
    assert written(log)[3:] == [
        told(
            "report",
            loads=["r0", "r1"],
            stores=["r0", "r2"],
            failed=["r1", "r2"],
            bad_blocks=[1, 8],  # of a set that gives the 8 first
            jobs=sorted(jobs or ()),
        ),
        told("report", loads=[], stores=[], failed=[], bad_blocks=[], jobs=[]),
    ]


def test_the_jobs_of_several_connectors_are_those_of_each(log):
    one, other = SimpleNamespace(completed_jobs={7: 2}), SimpleNamespace(completed_jobs={3: 1, 9: 1})
    several = SimpleNamespace(metadata=(one, None, SimpleNamespace(metadata=(other,))))
    log.report(KVConnectorOutput(kv_connector_worker_meta=several))
    assert written(log) == [told("report", loads=[], stores=[], failed=[], bad_blocks=[], jobs=[3, 7, 9])]


def test_ends_and_when_their_numbers_are_forgotten(log, module, monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED", 2)
    for name in "abca":
        log.arrive(request_of(name))
        log.end(request_of(name), name != "c")
    log.end(request_of("d", "FINISHED_ABORTED"), is_held=False)
    ends = [line for line in written(log) if line["call"] == "end"]
    assert ends == [
        told("end", request=number, aborted=number == "?", output_tokens=2, held=number not in ("r2", "?"))
        for number in ("r0", "r1", "r2", "r3", "?")
    ]
    assert [log.number(name) for name in "abcd"] == ["r3", "r1", "?", "?"]
    log.arrive(request_of("e"))
    log.end(request_of("e"), is_held=True)
    assert [log.number(name) for name in "abe"] == ["r3", "?", "r4"]
    log.report(KVConnectorOutput(finished_sending={"a", "e"}))
    assert not log._numbers and not log._ended


@pytest.mark.parametrize(("later", "tokens", "kept"), [(True, 4, True), (True, 0, False), (False, 4, False)])
def test_who_ends_while_it_loads_keeps_its_number_until_the_load_is_reported(log, later, tokens, kept):
    log.arrive(request_of("a"))
    log.match("a", 0, (4, later))
    log.allocate("a", tokens, [[1]])
    log.report(KVConnectorOutput())
    log.end(request_of("a", "FINISHED_ABORTED"), is_held=False)
    assert log.number("a") == ("r0" if kept else "?")
    log.report(KVConnectorOutput(failed_recving={"a"}))
    assert [line["failed"] for line in written(log) if line["call"] == "report"] == [[], ["r0" if kept else "?"]]
    assert not (log._numbers or log._ended or log._later or log._loading)


def test_who_fails_is_not_aborted(log):
    log.end(request_of("x", "FINISHED_ERROR"), is_held=False)
    assert [line["aborted"] for line in written(log)] == [False]


def test_an_id_that_came_back_keeps_its_number(log, module, monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED", 1)
    log.end(request_of("nobody announced it"), is_held=False)
    log.arrive(request_of("a"))
    log.end(request_of("a"), is_held=True)
    log.arrive(request_of("a"))
    log.arrive(request_of("b"))
    log.end(request_of("b"), is_held=True)
    assert [log.number(name) for name in "ab"] == ["r1", "r2"]


def test_the_schedule_is_made_once(log, module, monkeypatch):
    made = []
    monkeypatch.setattr(module, "write_schedule_of", lambda *paths: made.append(paths))
    log.close()
    log.close()
    assert made == [(log.calls, log._schedule)]


def test_a_schedule_that_cannot_be_written_is_a_warning(log, module, monkeypatch, caplog):
    monkeypatch.setattr(module, "write_schedule_of", MagicMock(side_effect=OSError("disk full")))
    log.close()
    assert caplog.messages == [f"{log._schedule}: the schedule was not written: disk full"]


def test_each_call_is_written_and_handed_on(recorder, log):
    asked, inner = request_of("x"), recorder.inner
    blocks = SimpleNamespace(get_block_ids=lambda: ((1, 2), (3,)))
    step = SimpleNamespace(num_scheduled_tokens={"x": 5, "?": 1}, preempted_req_ids=("x", "?"))
    quiet, output = SimpleNamespace(num_scheduled_tokens={}, preempted_req_ids=None), KVConnectorOutput()
    inner.get_num_new_matched_tokens.return_value = (8, True)
    inner.request_finished.return_value = (True, None)
    inner.reset_cache.return_value = False
    recorder.on_new_request(asked)
    assert recorder.get_num_new_matched_tokens(asked, 4) == (8, True)
    recorder.update_state_after_alloc(asked, blocks, 8)
    assert recorder.build_connector_meta(step) is inner.build_connector_meta.return_value
    recorder.build_connector_meta(quiet)
    recorder.update_connector_output(output)
    inner.get_num_new_matched_tokens.return_value = (None, False)
    assert recorder.get_num_new_matched_tokens(asked, 0) == (None, False)
    assert recorder.request_finished(asked, [1, 2]) == (True, None)
    assert recorder.reset_cache() is False
    assert recorder.start_load_kv("context", more=1) is inner.start_load_kv.return_value
    assert inner.mock_calls == [
        call.on_new_request(asked),
        call.get_num_new_matched_tokens(asked, 4),
        call.update_state_after_alloc(asked, blocks, 8),
        call.build_connector_meta(step),
        call.build_connector_meta(quiet),
        call.update_connector_output(output),
        call.get_num_new_matched_tokens(asked, 0),
        call.request_finished(asked, [1, 2]),
        call.reset_cache(),
        call.start_load_kv("context", more=1),
    ]
    assert written(log)[1:] == [
        told("match", request="r0", local=4, tokens=8, later=True),
        told("allocate", request="r0", tokens=8, blocks=[[1, 2], [3]]),
        told("step", scheduled={"r0": 5, "?": 1}, preempted=["?", "r0"]),
        told("step", scheduled={}, preempted=[]),
        told("report", loads=[], stores=[], failed=[], bad_blocks=[], jobs=[]),
        told("match", request="r0", local=0, tokens=None, later=False),
        told("end", request="r0", aborted=False, output_tokens=2, held=True),
        told("reset", answer=False),
    ]


def test_jobs_are_written_before_the_one_behind_it_takes_them_out(recorder, log):
    """As a MultiConnector does."""

    def takes_out(output):
        output.kv_connector_worker_meta = None

    recorder.inner.update_connector_output.side_effect = takes_out
    output = KVConnectorOutput(kv_connector_worker_meta=SimpleNamespace(completed_jobs={7: 1}))
    recorder.update_connector_output(output)
    assert [line["jobs"] for line in written(log)] == [[7]]
    assert output.kv_connector_worker_meta is None


def test_the_call_that_ends_an_engine_is_the_last_one_written(recorder, log):
    inner, blocks = recorder.inner, SimpleNamespace(get_block_ids=lambda: ((1,),))
    step = SimpleNamespace(num_scheduled_tokens={}, preempted_req_ids=None)
    for asked in (inner.on_new_request, inner.update_state_after_alloc, inner.build_connector_meta):
        asked.side_effect = KeyError
    with pytest.raises(KeyError):
        recorder.on_new_request(request_of("x"))
    with pytest.raises(KeyError):
        recorder.update_state_after_alloc(request_of("x"), blocks, 0)
    with pytest.raises(KeyError):
        recorder.build_connector_meta(step)
    assert [line["call"] for line in written(log)] == ["arrive", "allocate", "step"]


@pytest.mark.parametrize("knows_groups", [True, False])
def test_the_end_of_all_groups(recorder, log, before, monkeypatch, knows_groups):
    monkeypatch.setattr(before, "supports_hma", lambda connector: knows_groups)
    inner = recorder.inner
    inner.request_finished.return_value = inner.request_finished_all_groups.return_value = (True, None)
    asked = request_of("x")
    assert recorder.request_finished_all_groups(asked, ([1], [2])) == (True, None)
    of_all, of_one = call.request_finished_all_groups(asked, ([1], [2])), call.request_finished(asked, [1])
    assert inner.mock_calls == [of_all if knows_groups else of_one]
    assert [line["held"] for line in written(log)] == [True]


def test_whatever_becomes_of_the_one_behind_it_the_schedule_is_made(recorder, module, monkeypatch):
    made = []
    monkeypatch.setattr(module, "write_schedule_of", lambda *paths: made.append(paths))
    recorder.inner.shutdown.side_effect = OSError("gone")
    with pytest.raises(OSError, match="gone"):
        recorder.shutdown()
    assert len(made) == 1
    recorder._log = None  # a worker's side
    recorder.inner.shutdown.side_effect = None
    recorder.shutdown()


@pytest.fixture
def config(module, tmp_path):
    return config_of("RecordingConnector", {"connector": BEHIND, "record_path": str(tmp_path / "some.jsonl")})


@pytest.mark.parametrize("role", ["SCHEDULER", "WORKER"])
def test_it_is_made_before_another(module, config, base, cache, tmp_path, role):
    made = module.RecordingConnector(config, base.KVConnectorRole[role], cache)
    assert type(made.inner).__module__ == "kv_vllm.connectors.offloading"
    assert (made.role.name, (tmp_path / "some.calls.jsonl").exists()) == (role, role == "SCHEDULER")
    if role == "SCHEDULER":
        header = json.loads(made.log.calls.read_text())
        assert header["subject"]["kv_connector"] == "TimedOffloadingConnector"
        assert header["world"]["groups"] == [{"kind": "sliding", "window": 40}]
        made.shutdown()
    else:
        with pytest.raises(AssertionError, match=r"a call of the scheduler's side, and the role is .*WORKER"):
            made.log  # noqa: B018


@pytest.mark.parametrize(("hash_tokens", "path"), [(8, "some.jsonl"), (16, "")])
def test_what_cannot_be_recorded_is_refused_before_another_is_made(
    module,
    before,
    base,
    cache,
    tmp_path,
    monkeypatch,
    hash_tokens,
    path,
):
    monkeypatch.setattr(before.KVConnectorFactory, "create_connector", MagicMock(side_effect=AssertionError))
    cache.hash_block_size = hash_tokens
    config = config_of("RecordingConnector", {"connector": BEHIND, "record_path": path and str(tmp_path / path)})
    with pytest.raises(ConfigError, match="hash_block_size: got 8" if path else "record_path: expected the path"):
        module.RecordingConnector(config, base.KVConnectorRole.SCHEDULER, cache)
    assert not [*tmp_path.iterdir()]


def test_a_block_that_ranks_share_is_as_long_as_all_their_parts(module, config, base, cache):
    [group] = cache.kv_cache_groups
    group.kv_cache_spec = replace(group.kv_cache_spec, dcp_sharded=True)
    config.parallel_config.decode_context_parallel_size = 2
    made = module.RecordingConnector(config, base.KVConnectorRole.SCHEDULER, cache)
    assert json.loads(made.log.calls.read_text())["world"]["block_size"] == 32
    made.shutdown()


def test_one_that_knows_several_groups(module, config, base, cache):
    cache.kv_cache_groups *= 2
    made = module.RecordingConnector(config, base.KVConnectorRole.SCHEDULER, cache)
    assert len(json.loads(made.log.calls.read_text())["world"]["groups"]) == 2
    made.shutdown()
