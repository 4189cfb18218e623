"""The spec under vLLM's own connector: each call reaches ours as it is, and the answers are of vLLM's classes."""

import inspect
from dataclasses import fields, replace
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import pytest

import kv_api

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def module():
    pytest.importorskip("vllm")
    from kv_vllm.connectors import host_spec

    return host_spec


def handed_on(method):
    """The arguments of a method, in words that nobody takes for others; by name from where a name is needed."""
    given = [value for name, value in inspect.signature(method).parameters.items() if name != "self"]
    return [value.name for value in given if value.kind is not value.KEYWORD_ONLY]


MANAGERS = [
    "complete_load",
    "complete_store",
    "config_info",
    "has_pending_work",
    "on_request_finished",
    "on_reset_flushed",
    "on_schedule_end",
    "prepare_load",
    "reset_cache",
    "shutdown",
    "touch",
]


@pytest.mark.parametrize("name", MANAGERS)
def test_a_call_of_the_manager_is_handed_on(name, module):
    ours = MagicMock()
    arguments = handed_on(getattr(module.HostManager, name))
    answer = getattr(module.HostManager(ours, {}), name)(*arguments)
    assert ours.mock_calls == [getattr(call, name)(*arguments)]
    if answer is not None:
        assert answer is getattr(ours, name).return_value


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("lookup", kv_api.LookupResult.HIT_PENDING),
        ("get_load_source", kv_api.CacheHitSource.HOST),
        ("prepare_store", kv_api.PrepareStoreOutput([b"k"], "a spec", [])),
        ("prepare_store", None),
        ("on_new_request", kv_api.RequestOffloadingContext(kv_api.OffloadPolicy.REQUEST_LEVEL)),
    ],
)
def test_an_answer_of_the_manager_is_vllms(name, ours, module):
    manager = MagicMock(**{f"{name}.return_value": ours})
    arguments = handed_on(getattr(module.HostManager, name))
    answer, expected = getattr(module.HostManager(manager, {}), name)(*arguments), module.to_vllm(ours)
    assert (type(answer), answer) == (type(expected), expected)
    assert manager.mock_calls == [getattr(call, name)(*arguments)]


def test_the_places_that_a_load_reads_are_vllms(module):
    theirs = pytest.importorskip("vllm.v1.kv_offload.cpu.common").CPULoadStoreSpec
    slots = pytest.importorskip("kv_offload_cpu").CPULoadStoreSpec(pytest.importorskip("numpy").array([4, 2]))
    made = module.HostManager(MagicMock(**{"prepare_load.return_value": slots}), {}).prepare_load(["k"], "request")
    assert (type(made), made.block_ids.tolist()) == (theirs, [4, 2])


def test_without_a_word_a_store_has_succeeded(module):
    ours = MagicMock()
    module.HostManager(ours, {}).complete_store(["k"], "request")
    module.HostManager(ours, {}).complete_store(["k"], "request", False)
    assert ours.mock_calls == [call.complete_store(["k"], "request", given) for given in (True, False)]


def test_events_that_others_need_not_know_are_left_out(module):
    one, moved, other = (
        kv_api.OffloadingEvent([key], kv_api.Medium.CPU, False, metadata_only=key == b"moved")
        for key in (b"one", b"moved", b"other")
    )
    manager = module.HostManager(SimpleNamespace(take_events=lambda: [one, moved, other]), {})
    assert manager.take_events() == [module.to_vllm(one), module.to_vllm(other)]


def test_what_is_counted_is_in_vllms_form(module):
    counted, declared = kv_api.KVConnectorStats({"a": 2}), {"a": kv_api.OffloadingGaugeMetadata("how many")}
    manager = module.HostManager(MagicMock(**{"get_stats.side_effect": [counted, counted, None]}), declared)
    told = manager.get_stats()
    assert told.aggregate(manager.get_stats()).reduce() == {"a": 2}, "a gauge isn't added up"
    assert manager.get_stats() is None


def test_a_call_of_the_worker_is_handed_on(module):
    ours = MagicMock()
    ours.get_finished.return_value = iter(["ended"])
    worker = module.HostWorker(ours)
    assert worker.submit_store(1, "from", "to") is ours.submit_store.return_value
    assert worker.submit_load(2, "from", "to") is ours.submit_load.return_value
    worker.submit_load(3, "from", "to", expedited=True)
    assert worker.get_finished() == ["ended"]
    worker.wait({4})
    worker.shutdown()
    assert ours.mock_calls == [
        call.submit_store(1, "from", "to"),
        call.submit_load(2, "from", "to", expedited=False),
        call.submit_load(3, "from", "to", expedited=True),
        call.get_finished(),
        call.wait({4}),
        call.shutdown(),
    ]


@pytest.fixture
def config():
    """What vLLM tells a medium."""
    theirs = pytest.importorskip("vllm.v1.kv_offload.config")
    values = {
        "groups": (theirs.OffloadingGroupConfig(16, ("a", "b"), 0),),
        "worker_kv_bytes_per_block": 4096,
        "enable_kv_cache_events": True,
        "extra_config": {"cpu_bytes_to_use": 1 << 20},
        "engine_id": "e",
        "model": theirs.OffloadingModelConfig(name="m", dtype="float16"),
        "cache": theirs.OffloadingCacheConfig(16, 2),
        "parallel": theirs.OffloadingParallelConfig(0, 2, 2, 1, 1, 1, 0, 1, None, False),
        "replicated_layout": True,
    }
    names = {field.name for field in fields(theirs.OffloadingConfig)}  # an older one has fewer
    return theirs.OffloadingConfig(**{name: value for name, value in values.items() if name in names})


def test_the_spec_makes_what_ours_makes(module, config, monkeypatch):
    judged = []
    monkeypatch.setattr(module, "require_version", lambda: judged.append("vLLM"))
    spec = module.HostOffloadingSpec(config)
    assert judged == ["vLLM"]
    assert isinstance(spec, module.VllmCPUOffloadingSpec)
    assert spec.extra_config == config.extra_config
    assert spec.ours.config == module.offloading_config_of(config)
    assert spec.replicated_layout is spec.ours.replicated_layout is getattr(config, "replicated_layout", False)
    manager = spec.get_manager()
    assert type(manager) is module.HostManager
    assert type(manager.ours) is type(spec.ours.get_manager())
    assert manager.lock is manager.ours.lock
    monkeypatch.setattr(spec.ours, "get_worker", lambda kv_caches: ("a worker", kv_caches))
    assert spec.get_worker("caches").ours == ("a worker", "caches")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        *(
            (f"{key}s", key)
            for key in ("blocks_per_chunk", "block_size", "canonical_layout", "offload_prompt_only")
        ),
        *((key[:-1], key) for key in ("self_describing_kv_events", "spec_module_path", "spec_name")),
        ("checksums", "checksum"),
    ],
)
def test_a_misspelt_key_is_refused_in_vllms_place(module, config, key, meant):
    """Of its connector's, and of ours."""
    extra = {"cpu_bytes_to_use": 1 << 20, **dict.fromkeys(module.KEYS_OF_VLLMS_CONNECTOR), "secondary_tiers": []}
    module.HostOffloadingSpec(replace(config, extra_config=extra))
    with pytest.raises(kv_api.ConfigError, match=f"unknown key '{key}'; .* did you mean '{meant}'"):
        module.HostOffloadingSpec(replace(config, extra_config={**extra, key: 1}))


def test_a_vendors_medium_names_its_keys(module, config):
    class Vendors(module.CPUOffloadingSpec):
        extra_keys = module.CPUOffloadingSpec.extra_keys | {"block_sizes"}

    class VendorsHost(module.HostOffloadingSpec):
        our_spec = Vendors

    extra = {"cpu_bytes_to_use": 1 << 20, "block_size": 32, "block_sizes": [16, 32]}
    assert type(VendorsHost(replace(config, extra_config=extra)).ours) is Vendors


def test_a_vendors_medium_may_count_what_it_was_told_to(module, config):
    class Vendors(module.CPUOffloadingSpec):
        extra_keys = module.CPUOffloadingSpec.extra_keys | {"counted"}

        @classmethod
        def build_metric_definitions(cls, extra_config):
            return {extra_config["counted"]: kv_api.OffloadingCounterMetadata("what it counts")}

    class VendorsHost(module.HostOffloadingSpec):
        our_spec = Vendors

    extra = {"cpu_bytes_to_use": 1 << 20, "counted": "c"}
    assert [*VendorsHost.build_metric_definitions(extra)] == ["c"]
    assert [*VendorsHost(replace(config, extra_config=extra)).get_manager()._declared] == ["c"]


def test_metrics_are_declared_in_vllms_classes(module):
    offload = pytest.importorskip("vllm.v1.kv_offload.base")
    assert module.HostManager.medium is offload.Medium.CPU
    ours, extra = module.CPUOffloadingSpec, {"cpu_bytes_to_use": 1 << 20}
    declared = module.HostOffloadingSpec.build_metric_definitions(extra)
    assert {name: metric.documentation for name, metric in declared.items()} == {
        name: metric.documentation for name, metric in ours.build_metric_definitions(extra).items()
    }
    assert all(isinstance(metric, offload.OffloadingMetricMetadata) for metric in declared.values())
    assert module.HostOffloadingSpec.config_info_keys(extra) == ours.config_info_keys(extra)


@pytest.fixture
def stages(config):
    """The same for the two stages of a pipeline, of which the second holds more."""
    parallel = [replace(config.parallel, rank=rank, tp_size=1, pp_size=2) for rank in range(2)]
    return [
        replace(config, parallel=one, worker_kv_bytes_per_block=4096 * (2 + one.rank), replicated_layout=False)
        for one in parallel
    ]


def test_stages_that_hold_other_layers_are_refused_at_the_start(module, stages, tmp_path):
    """vLLM's connector asks no worker for how many chunks it has room."""
    specs = []
    for one in stages:
        extra = {**one.extra_config, "shared_memory_dir": str(tmp_path)}
        specs.append(module.HostOffloadingSpec(replace(one, extra_config=extra)).ours)
        assert specs[-1].shares_memory
    assert len({spec.num_chunks for spec in specs}) == 2
    memory = specs[0].make_memory(specs[0].worker_layout())
    with pytest.raises(kv_api.ConfigError, match="the workers hold different layers"):
        specs[1].make_memory(specs[1].worker_layout())
    memory.release()


def test_memory_of_their_own_would_hide_it(module, stages):
    extra = {**stages[0].extra_config, "host_memory": "private"}
    with pytest.raises(kv_api.ConfigError) as caught:
        module.HostOffloadingSpec(replace(stages[0], extra_config=extra))
    assert str(caught.value) == (
        "host_memory: got 'private' with pipeline_parallel_size 2; vLLM's OffloadingConnector can't see whether "
        "all stages have room for the same chunks: choose 'shared', which does, or the "
        "OffloadingConnector of kv_vllm"
    )


def test_of_a_pipeline_too_it_is_said_where_memory_cannot_lie(module, stages):
    with pytest.raises(kv_api.ConfigError, match="unknown host_memory 'privat'"):
        module.HostOffloadingSpec(
            replace(stages[0], extra_config={"cpu_bytes_to_use": 1, "host_memory": "privat"})
        )


def test_vllms_own_spec_gives_each_stage_another_number_of_chunks(module, stages):
    """And its scheduler has the first one's. Should this fail, vLLM has mended it."""
    first, second = (module.VllmCPUOffloadingSpec(one) for one in stages)
    assert first.num_chunks > second.num_chunks > 0
