"""What stands before another connector: what is asked of that one, and what is refused before it is made."""

from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import pytest
from kv_vllm_configs import OFFLOADING, config_of

from kv_api import ConfigError

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

BEHIND = {**OFFLOADING, "kv_connector_module_path": "kv_vllm"}
KEYS = {"RecordingConnector": "record_path", "TraceConnector": "trace_path"}
"""What stands before others, and under which key each is told its file."""


@pytest.fixture
def module():
    pytest.importorskip("vllm")
    from kv_vllm.recording import before

    return before


@pytest.fixture(params=KEYS)
def name(request):
    return request.param


@pytest.fixture
def before(name, module):
    import kv_vllm

    return getattr(kv_vllm, name)


@pytest.fixture
def told(name, tmp_path):
    """Its own extra config, with a connector behind it."""
    return lambda behind: {"connector": behind, KEYS[name]: str(tmp_path / "some.jsonl")}


@pytest.fixture
def config(name, told):
    return config_of(name, told(BEHIND))


@pytest.mark.parametrize("answer", [True, False])
def test_what_is_asked_of_the_one_behind_it(before, answer):
    made = object.__new__(before)
    made.inner = MagicMock(requires_kv_delivery=answer, supports_divergent_local_hybrid_hits=not answer)
    assert (made.requires_kv_delivery, made.supports_divergent_local_hybrid_hits) == (answer, not answer)
    assert made.start_load_kv("context", more=1) is made.inner.start_load_kv.return_value
    made.inner.start_load_kv.assert_called_once_with("context", more=1)


def test_every_call_reaches_the_one_behind_it(module):
    from kv_vllm.handing_on import CALLED

    made = object.__new__(module.ConnectorBefore)
    made.inner = MagicMock()
    own = ("get_kv_connector_stats", "update_connector_output")  # what they hand on is not all that they do
    known = [name for name in CALLED if hasattr(module.KVConnectorBase_V1, name) and name not in own]
    for name in known:
        assert getattr(made, name)("given", more=1) is getattr(made.inner, name).return_value
    assert made.inner.mock_calls == [getattr(call, name)("given", more=1) for name in known]
    assert {"shutdown", "register_kv_caches"} <= {*known}


def test_what_is_asked_of_the_class_behind_it(before, config):
    transfer = config.kv_transfer_config
    assert before.get_required_kvcache_layout(config) == "LBHNC"
    assert before.requires_piecewise_for_cudagraph(transfer.kv_connector_extra_config) is False
    assert before.supports_sleep_mode(transfer) is True
    inner = before.transfer_behind(transfer)
    known = (inner.kv_connector, inner.kv_role, inner.engine_id)
    assert known == ("OffloadingConnector", "kv_both", transfer.engine_id)


def test_the_class_behind_it_is_asked_of_its_own_configuration(before, module, config, monkeypatch):
    behind = MagicMock()
    monkeypatch.setattr(module.KVConnectorFactory, "get_connector_class", lambda transfer: behind)
    assert before.get_required_kvcache_layout(config) is behind.get_required_kvcache_layout.return_value
    (given,) = behind.get_required_kvcache_layout.call_args.args
    assert before.supports_sleep_mode(config.kv_transfer_config) is True
    (transfer,) = behind.supports_sleep_mode.call_args.args
    assert (given.kv_transfer_config.kv_connector, transfer.kv_connector) == ("OffloadingConnector",) * 2


def test_it_sleeps_only_if_the_one_behind_it_may(name, before, told):
    """Others may read what a P2PConnector holds."""
    config = config_of(name, told({**BEHIND, "kv_connector": "P2PConnector", "kv_connector_extra_config": {}}))
    assert before.supports_sleep_mode(config.kv_transfer_config) is False


def test_what_the_one_behind_it_does_not_say_is_that_of_the_one_before(name, before, module):
    own = {"kv_role": "kv_producer", "engine_id": "e", "kv_buffer_device": "cuda"}
    own["kv_load_failure_policy"] = "recompute"  # nothing of it is the default
    other = {"kv_role": "kv_consumer", "engine_id": "f", "kv_load_failure_policy": "fail"}
    for said in ({}, other):
        behind = {"kv_connector": "ExampleConnector", "kv_connector_extra_config": {"a": 1}, **said}
        inner = before.transfer_behind(
            module.KVTransferConfig(name, **own, kv_connector_extra_config={"connector": behind})
        )
        assert {name: getattr(inner, name) for name in own} == {**own, **said}
        assert (inner.kv_connector, inner.kv_connector_extra_config) == ("ExampleConnector", {"a": 1})


def test_its_metrics_are_those_of_the_one_behind_it(name, before, module, config, monkeypatch):
    behind = MagicMock()
    monkeypatch.setattr(module.KVConnectorFactory, "get_connector_class", lambda transfer: behind)
    made = before.build_prom_metrics(config, "types", ["engine"], {0: ["0"]})
    assert made.metrics is behind.build_prom_metrics.return_value
    made.observe({"kv_connector": "x", "kv_connector_module_path": None, "data": {"a": 1}}, 3)
    made.metrics.observe.assert_called_once_with({"a": 1}, 3)
    (given, *others), _ = behind.build_prom_metrics.call_args
    assert (given.kv_transfer_config.kv_connector, others) == (
        "OffloadingConnector",
        ["types", ["engine"], {0: ["0"]}],
    )
    assert config.kv_transfer_config.kv_connector == name


def test_who_has_no_metrics_has_none_behind_it_either(before, module, config, monkeypatch):
    behind = MagicMock(**{"build_prom_metrics.return_value": None})
    monkeypatch.setattr(module.KVConnectorFactory, "get_connector_class", lambda transfer: behind)
    assert before.build_prom_metrics(config, "types", ["engine"], {0: ["0"]}) is None


def counted(before, stats):
    """What one half tells, if the one behind it has counted this."""
    made = object.__new__(before)
    made.inner = MagicMock(**{"get_kv_connector_stats.return_value": stats})
    made._behind = "OffloadingConnector", "kv_vllm"
    return made.get_kv_connector_stats()


def offloading_stats(store_bytes):
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

    stats = OffloadingConnectorStats()
    stats.increase_counter("vllm:kv_offload_store_bytes", store_bytes)
    return stats


def test_what_the_one_behind_it_counts_reaches_the_log(before, config):
    """By way of two ranks and the scheduler, as vLLM adds them up, to the process that logs."""
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorLogging

    both = counted(before, offloading_stats(5)).aggregate(counted(before, offloading_stats(7)))
    payload = both.aggregate(counted(before, offloading_stats(1))).to_dict()
    own = {"kv_connector": "OffloadingConnector", "kv_connector_module_path": "kv_vllm"}
    assert payload == {**own, "data": offloading_stats(13).to_dict()}
    logging, lines = KVConnectorLogging(config.kv_transfer_config), []
    for _ in range(2):
        logging.observe(payload)
    logging.log(log_fn=lambda text, *values: lines.append(text % values))
    assert lines == ["KV Transfer metrics: vllm:kv_offload_store_bytes=26"]
    assert counted(before, None) is None


def test_its_stats_name_the_module_of_the_one_behind_it(before, module, start, behind_it, monkeypatch):
    behind_it.return_value.get_kv_connector_stats.return_value = offloading_stats(5)
    payload = start().get_kv_connector_stats().to_dict()
    own = {"kv_connector": "OffloadingConnector", "kv_connector_module_path": "kv_vllm"}
    assert payload == {**own, "data": offloading_stats(5).to_dict()}
    find = MagicMock(wraps=module.KVConnectorFactory.get_connector_class)
    monkeypatch.setattr(module.KVConnectorFactory, "get_connector_class", find)
    assert before.build_kv_connector_stats(payload).to_dict() == payload
    (transfer,) = find.call_args.args
    assert {key: getattr(transfer, key) for key in own} == own


def test_stats_that_are_added_up_in_another_object(before):
    both = counted(before, MagicMock(**{"aggregate.return_value": offloading_stats(12)}))
    assert both.aggregate(counted(before, offloading_stats(7))) is both
    assert both.reduce() == offloading_stats(12).reduce()


def test_what_was_told_may_be_forgotten(before):
    stats = counted(before, offloading_stats(5))
    assert not stats.is_empty() and stats.reduce() == offloading_stats(5).reduce()
    stats.reset()
    assert stats.is_empty() and stats.stats.is_empty()


def test_what_counts_and_can_not_be_built_again_is_not_logged(before):
    payload = {"kv_connector": "ExampleConnector", "kv_connector_module_path": None, "data": {"a": 1}}
    assert before.build_kv_connector_stats(payload) is None
    assert before.build_kv_connector_stats() is None


def test_other_stats_are_not_added(before):
    mine = counted(before, offloading_stats(5))
    with pytest.raises(TypeError, match="expected StatsBehind, got OffloadingConnectorStats"):
        mine.aggregate(offloading_stats(5))


@pytest.mark.parametrize("raises", [False, True])
def test_the_one_behind_it_sees_its_own_stats_in_the_engines_object(name, before, raises):
    stats, seen = offloading_stats(5), []

    def update(output):
        seen.append(output.kv_connector_stats)
        output.finished_sending = {"left"}
        if raises:
            raise OSError("gone")

    made = object.__new__(before)
    made.inner = MagicMock(**{"update_connector_output.side_effect": update})
    made._log = MagicMock()
    told = counted(before, stats)
    output = SimpleNamespace(
        **dict.fromkeys(("finished_sending", "finished_recving", "kv_connector_worker_meta")),
        **{"failed_recving": set(), "invalid_block_ids": set(), "kv_connector_stats": told},
    )
    with pytest.raises(OSError, match="gone") if raises else nullcontext():
        made.update_connector_output(output)
    assert seen == [stats] and output.kv_connector_stats is told and output.finished_sending == {"left"}


@pytest.mark.parametrize("answer", [True, False])
def test_it_needs_the_graphs_that_the_one_behind_it_needs(before, module, monkeypatch, answer):
    behind = MagicMock(**{"requires_piecewise_for_cudagraph.return_value": answer})
    monkeypatch.setattr(module.KVConnectorFactory, "get_connector_class", lambda transfer: behind)
    for extra in ({}, {"kv_connector_extra_config": {"a": 1}}):
        given = {"connector": {"kv_connector": "ExampleConnector", **extra}}
        assert before.requires_piecewise_for_cudagraph(given) is answer
        behind.requires_piecewise_for_cudagraph.assert_called_with(extra.get("kv_connector_extra_config", {}))


@pytest.mark.parametrize("knows_groups", [True, False])
def test_the_end_of_all_groups(before, module, monkeypatch, knows_groups):
    monkeypatch.setattr(module, "supports_hma", lambda connector: knows_groups)
    made = object.__new__(before)
    made.inner = MagicMock()
    answers = made.inner.request_finished_all_groups, made.inner.request_finished
    asked, ignored = answers if knows_groups else answers[::-1]
    asked.return_value = (True, {"a": 1})
    assert super(before, made).request_finished_all_groups("x", ([1], [2])) == (True, {"a": 1})
    asked.assert_called_once_with("x", ([1], [2]) if knows_groups else [1])
    ignored.assert_not_called()


def test_a_vllm_that_has_drifted_is_refused(before, module, config, base, cache, monkeypatch):
    monkeypatch.setattr(module, "require_version", MagicMock(side_effect=ConfigError("drifted")))
    with pytest.raises(ConfigError, match="drifted"):
        before(config, base.KVConnectorRole.SCHEDULER, cache)


def test_between_two_multi_connectors_it_hides_neither(name, told, base, cache):
    """The inner one takes both reports of a request that is aborted while it loads, as from a parent."""
    from kv_multi.children import is_outermost
    from kv_vllm import MultiConnector

    def multi_over(behind):
        extra = {"connectors": [behind]}
        return {**BEHIND, "kv_connector": "MultiConnector", "kv_connector_extra_config": extra}

    stands_before = {**BEHIND, "kv_connector": name, "kv_connector_extra_config": told(multi_over(BEHIND))}
    config = config_of("MultiConnector", multi_over(stands_before)["kv_connector_extra_config"])
    outer = MultiConnector(config, base.KVConnectorRole.SCHEDULER, cache)
    inner = outer.sub_connectors[0].inner.inner
    assert type(inner) is MultiConnector
    assert [is_outermost(multi._vllm_config) for multi in (outer, inner)] == [True, False]
    outer.shutdown()


def test_before_one_that_knows_one_group_only(name, before, told, base, cache):
    config = config_of(name, told({"kv_connector": "ExampleConnector", "kv_role": "kv_both"}))
    config.scheduler_config.disable_hybrid_kv_cache_manager = True
    connector = before(config, base.KVConnectorRole.SCHEDULER, cache)
    assert type(connector.inner).__name__ == "ExampleConnector"
    connector.shutdown()
    cache.kv_cache_groups *= 2
    with pytest.raises(ConfigError) as refused:
        before(config, base.KVConnectorRole.SCHEDULER, cache)
    assert str(refused.value) == (
        "ExampleConnector supports one KV cache group only, but there are 2; set --disable-hybrid-kv-cache-manager"
    )


IN = "kv_connector_extra_config"


def test_a_wrong_connector_is_refused(name, before, module):
    """Also when vLLM asks the class something, which it does before it makes one."""
    key = KEYS[name]
    wrong = f"{IN}.connector: expected the kv_transfer_config of a connector, got "
    known = f"known: connector, {key}; did you mean"
    for extra, message in (
        ({"connector": "Some"}, f"{wrong}'Some'"),
        ({"connector": None}, f"{wrong}None"),
        ({"connector": {"kv_role": "kv_both"}}, f"{wrong}{{'kv_role': 'kv_both'}}"),
        ({"conector": BEHIND}, f"{IN}: unknown key 'conector'; {known} 'connector'?"),
        ({"connector": BEHIND, f"{key[:-2]}ht": ""}, f"{IN}: unknown key '{key[:-2]}ht'; {known} '{key}'?"),
    ):
        config = module.KVTransferConfig(name, kv_role="kv_both", kv_connector_extra_config=extra)
        for asked, given in (
            (before.transfer_behind, config),
            (before.supports_sleep_mode, config),
            (before.requires_piecewise_for_cudagraph, extra),
        ):
            with pytest.raises(ConfigError) as refused:
                asked(given)
            assert str(refused.value) == message


@pytest.mark.parametrize("given", [None, "", 3])
def test_it_needs_a_path(name, before, base, cache, given):
    config = config_of(name, {"connector": BEHIND, **({} if given is None else {KEYS[name]: given})})
    with pytest.raises(ConfigError) as refused:
        before(config, base.KVConnectorRole.SCHEDULER, cache)
    assert str(refused.value) == f"{IN}.{KEYS[name]}: expected the path of a file, got {given!r}"


@pytest.mark.parametrize("path", ["~/there", "~me/there"])
def test_a_path_is_written_whole(name, before, base, cache, path):
    config = config_of(name, {"connector": BEHIND, KEYS[name]: path})
    with pytest.raises(ConfigError) as refused:
        before(config, base.KVConnectorRole.SCHEDULER, cache)
    assert str(refused.value) == f"{IN}.{KEYS[name]}: {path!r}: ~ is not expanded here; write the full path"


@pytest.fixture
def behind_it(module, monkeypatch):
    """What makes the connector behind it."""
    made = MagicMock()
    monkeypatch.setattr(module.KVConnectorFactory, "create_connector", made)
    return made


@pytest.fixture
def start(before, config, base, cache):
    """Makes the scheduler's side."""
    return lambda: before(config, base.KVConnectorRole.SCHEDULER, cache)


def test_an_engine_that_does_not_start_leaves_files_as_they_were(start, behind_it, tmp_path):
    behind_it.side_effect = OSError("no memory")
    older = {"some.jsonl": '{"timestamp":1}\n', "some.calls.jsonl": "{}\n"}
    for file, text in older.items():
        (tmp_path / file).write_text(text)
    with pytest.raises(OSError, match="no memory"):
        start()
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == older


def test_a_file_that_cannot_be_opened_ends_the_one_behind_it(name, start, behind_it, tmp_path):
    opened = {"RecordingConnector": "some.calls.jsonl", "TraceConnector": "some.jsonl"}[name]
    (tmp_path / opened).mkdir()
    with pytest.raises(ConfigError, match=rf"^{IN}\.{KEYS[name]}: .*Is a directory.*{opened}"):
        start()
    behind_it.return_value.shutdown.assert_called_once_with()


def test_whatever_keeps_it_from_opening_ends_the_one_behind_it(before, start, behind_it, monkeypatch):
    monkeypatch.setattr(before, "_open", MagicMock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        start()
    behind_it.return_value.shutdown.assert_called_once_with()


def test_a_recorder_needs_a_connector_behind_it(module):
    from kv_vllm import RecordingConnector

    config = module.KVTransferConfig("RecordingConnector", kv_role="kv_both")
    with pytest.raises(ConfigError) as refused:
        RecordingConnector.transfer_behind(config)
    assert str(refused.value) == f"{IN}.connector: expected the kv_transfer_config of a connector, got None"
