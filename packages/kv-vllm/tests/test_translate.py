"""The table of boundary values: with it vLLM understands ours, and without it vLLM fails or looks away."""

import dataclasses
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

import kv_api
import kv_vllm
from kv_api import ConfigError, make_offload_key

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
KEY = make_offload_key(b"h" * 32, 0)


@pytest.fixture
def translate():
    pytest.importorskip("vllm")
    from kv_vllm import translate

    return translate


@pytest.fixture
def offload():
    return pytest.importorskip("vllm.v1.kv_offload.base")


@pytest.mark.parametrize("name", ["LookupResult", "OffloadPolicy", "Medium", "Locality"])
def test_members_become_vllms(name, translate, offload):
    theirs = getattr(offload, name)
    ours = list(getattr(kv_api, name))
    assert [translate.to_vllm(member) for member in ours] == [theirs[member.name] for member in ours]
    assert not [member for member in ours if member in list(theirs)], "vLLM would do without the table"


def test_hits_of_ours_are_none_in_vllms_lookup(translate):
    scheduler = pytest.importorskip(f"{V1}.offloading.scheduler")
    look_up = scheduler.OffloadingConnectorScheduler._maximal_prefix_lookup

    def hits(answer):
        manager = SimpleNamespace(lookup=lambda key, context: answer)
        side = SimpleNamespace(manager=manager, _events_tracker=MagicMock())
        return look_up(side, [KEY] * 3, MagicMock(), MagicMock(), MagicMock(), 0)

    assert (hits(translate.to_vllm(kv_api.LookupResult.HIT)), hits(kv_api.LookupResult.HIT)) == (3, 0)


def test_a_policy_of_ours_is_another(translate, offload):
    ours = kv_api.RequestOffloadingContext(kv_api.OffloadPolicy.REQUEST_LEVEL)
    assert ours.policy != offload.OffloadPolicy.REQUEST_LEVEL
    made = translate.to_vllm(ours)
    assert isinstance(made, offload.RequestOffloadingContext)
    assert made.policy is offload.OffloadPolicy.REQUEST_LEVEL


def test_events_of_a_manager(translate, offload):
    ours = kv_api.OffloadingEvent([KEY], kv_api.Medium.CPU, False, kv_api.Locality.LOCAL, "tier")
    made = translate.to_vllm(ours)
    assert isinstance(made, offload.OffloadingEvent)
    assert (made.keys, made.removed, made.ownership) == ([KEY], False, "tier")
    assert (made.medium, made.locality) == (offload.Medium.CPU, offload.Locality.LOCAL)


def test_vllm_knows_no_medium_of_ours():
    events = pytest.importorskip(f"{V1}.offloading.events")
    assert kv_api.Medium.CPU not in events._MEDIUM_TO_EVENT_STR


@pytest.mark.parametrize("kind", ["Counter", "Gauge", "Histogram"])
def test_metadata_of_metrics(kind, translate, offload):
    name = f"Offloading{kind}Metadata"
    ours = getattr(kv_api, name)("what it is", ("label",))
    made = translate.to_vllm(ours)
    assert type(made) is getattr(offload, name)
    assert (made.documentation, made.labelnames) == ("what it is", ("label",))
    assert not isinstance(ours, offload.OffloadingMetricMetadata)


def test_vllm_registers_no_metric_of_ours(translate):
    metrics = pytest.importorskip(f"{V1}.offloading.metrics")
    made = []
    kinds = {
        f"_{kind}_cls": lambda **given: made.append(given["name"]) for kind in ("counter", "gauge", "histogram")
    }
    prom = SimpleNamespace(_labelnames=[], **kinds)
    ours = kv_api.OffloadingCounterMetadata("what it is")
    metrics.OffloadPromMetrics._create_metric(prom, "a", translate.to_vllm(ours))
    with pytest.raises(AssertionError):
        metrics.OffloadPromMetrics._create_metric(prom, "b", ours)
    assert made == ["a"]


def test_stats(translate):
    metrics = pytest.importorskip(f"{V1}.offloading.metrics")
    from kv_offload import OffloadingConnectorStats

    ours = OffloadingConnectorStats()
    ours.increase("vllm:kv_offload_load_bytes", 5)
    total = metrics.OffloadingConnectorStats()
    with pytest.raises(AssertionError):
        total.aggregate(ours)
    total.aggregate(translate.to_vllm(ours)).aggregate(translate.to_vllm(ours))
    assert total.reduce() == {"vllm:kv_offload_load_bytes": 10}


def test_sources(translate):
    theirs = pytest.importorskip("vllm.v1.metrics.cache_hit_source").CacheHitSource
    for source in kv_api.CacheHitSource:
        assert translate.to_vllm(source) is theirs(source.value)
        assert source not in [id(member) for member in theirs]


def test_kv_events_are_encoded_as_vllms(translate):
    msgspec = pytest.importorskip("msgspec")
    kv_events = pytest.importorskip("vllm.distributed.kv_events")
    ours = kv_api.BlockStored(
        [b"h" * 32], None, [1, 2], 2, None, "CPU", None, kv_cache_spec_kind="state_space", group_idx=1
    )
    gone = kv_api.BlockRemoved([b"h" * 32], "CPU", 1)
    told = translate.events_to_vllm([ours, gone, kv_api.AllBlocksCleared()], ("full_attention", "mamba"))
    batch = kv_events.KVEventBatch(ts=0.0, events=told)
    heard = msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=kv_events.KVEventBatch).events
    assert [type(event).__name__ for event in heard] == ["BlockStored", "BlockRemoved", "AllBlocksCleared"]
    assert (heard[0].kv_cache_spec_kind, heard[0].token_ids, heard[0].group_idx) == ("mamba", [1, 2], 1)
    assert heard[0].block_hashes == heard[1].block_hashes
    (of_no_group,) = translate.events_to_vllm([dataclasses.replace(ours, kv_cache_spec_kind=None)], ("mamba",))
    assert of_no_group.kv_cache_spec_kind is None
    wrong = msgspec.msgpack.encode(kv_events.KVEventBatch(ts=0.0, events=[ours]))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(wrong, type=kv_events.KVEventBatch)


def test_whatever_vllm_knows_of_an_event_is_told(translate):
    about = {"group_idx": 3, "locality": "LOCAL", "ownership": "tier"}
    stored = {**about, "lora_id": 4, "lora_name": "l", "extra_keys": [("k",)], "kv_cache_spec_sliding_window": 5}
    stored |= {"kv_cache_spec_kind": "mamba", "session_id": "s"}
    for event, more in (
        (kv_api.BlockStored([b"h" * 32], b"p" * 32, [1, 2], 2, None, "CPU", None), stored),
        (kv_api.BlockRemoved([b"h" * 32], "CPU"), about),
    ):
        made = translate.to_vllm(dataclasses.replace(event, **more))
        known = {name: value for name, value in more.items() if name in made.__struct_fields__}
        assert {name: getattr(made, name) for name in known} == known
        assert {"group_idx", "ownership"} <= {*known}


def test_block_hashes_in_events_are_numbers_if_vllms_are(translate, monkeypatch):
    from vllm import envs

    monkeypatch.setattr(envs, "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", True, raising=False)
    seven, eight = (b"\0" * 31 + last for last in (b"\7", b"\x08"))
    made = translate.to_vllm(kv_api.BlockRemoved([seven], "CPU", 0))
    assert made.block_hashes == [7]
    made = translate.to_vllm(kv_api.BlockStored([eight], seven, [1], 1, None, "CPU", None))
    assert (made.block_hashes, made.parent_block_hash) == ([8], 7)


def test_events_of_vllms_own_connectors_pass_unchanged(translate):
    kv_events = pytest.importorskip("vllm.distributed.kv_events")
    theirs = kv_events.BlockStored([1], None, [1, 2], 2, None, "CPU", None, kv_cache_spec_kind="mamba")
    assert translate.events_to_vllm([theirs], ("full_attention",)) == [theirs]
    assert theirs.kv_cache_spec_kind == "mamba"


def test_what_a_medium_is_told(translate):
    from kv_vllm.translate import offloading_config_of

    theirs = pytest.importorskip("vllm.v1.kv_offload.config")
    values = {
        "groups": (theirs.OffloadingGroupConfig(16, ("a", "b"), 0), theirs.OffloadingGroupConfig(8, ("c",), 1)),
        "model": theirs.OffloadingModelConfig(name="m", dtype="float16"),
        "cache": theirs.OffloadingCacheConfig(16, 2),
        "parallel": theirs.OffloadingParallelConfig(0, 2, 2, 1, 1, 1, 0, 1, None, False),
        "worker_kv_bytes_per_block": 64,
        "enable_kv_cache_events": True,
        "extra_config": {"a": 1},
        "engine_id": "e",
    }
    names = {field.name for field in dataclasses.fields(theirs.OffloadingConfig)}
    ours = offloading_config_of(theirs.OffloadingConfig(**{k: v for k, v in values.items() if k in names}))
    assert ours == kv_api.OffloadingConfig(
        groups=(kv_api.OffloadingGroupConfig(16, ("a", "b"), 0), kv_api.OffloadingGroupConfig(8, ("c",), 1)),
        worker_kv_bytes_per_block=64,
        enable_kv_cache_events=True,
        extra_config={"a": 1},
        engine_id="e",
        model=kv_api.OffloadingModelConfig("m", "float16", 0),
        cache=kv_api.OffloadingCacheConfig(16, 2),
        parallel=kv_api.OffloadingParallelConfig(0, 2, 2, 1, 1, 1, 0, 1, None, False),
    )


def test_kinds_of_groups(translate):
    specs = pytest.importorskip("vllm.v1.kv_cache_interface")
    torch = pytest.importorskip("torch")
    size = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
    full = specs.FullAttentionSpec(**size, sliding_window=64)
    assert translate.group_kind(full) == "full_attention"
    assert translate.reads_all(full) and not translate.has_states(full)
    for connector in (kv_vllm.OffloadingConnector, kv_vllm.P2PConnector):
        assert connector.describe_group(full) == translate.describe_group(full)
    full = translate.describe_group(full)
    assert (full.kind, full.tokens_per_block, full.window_tokens) == ("full_attention", 16, 0)
    sliding = translate.describe_group(specs.SlidingWindowSpec(**size, sliding_window=40))
    assert (sliding.kind, sliding.window_tokens, sliding.page_size_bytes) == ("sliding_window", 40, 1024)
    lagging = translate.describe_group(specs.SlidingWindowSpec(**size, sliding_window=40, extra_retained_tokens=3))
    assert (lagging.window_tokens, lagging.restart_tokens) == (43, 0)
    latent = translate.describe_group(specs.SlidingWindowMLASpec(**size, sliding_window=40))
    assert (latent.kind, latent.window_tokens, latent.page_size_bytes) == ("sliding_window", 40, 512)
    layers = {name: specs.MLAAttentionSpec(**{**size, "head_size": 8 + (name > "a")}) for name in "abc"}
    several = translate.describe_group(specs.UniformTypeKVCacheSpecs.from_specs(layers))
    assert (several.kind, several.page_size_bytes) == ("full_attention", 555)  # of 512, 576 and 576
    local = translate.describe_group(specs.ChunkedLocalAttentionSpec(**size, attention_chunk_size=32))
    assert (local.kind, local.window_tokens, local.restart_tokens) == ("sliding_window", 32, 32)
    with pytest.raises(ConfigError) as refused:
        translate.describe_group(specs.CrossAttentionSpec(**size))
    assert str(refused.value) == (
        "a KV cache group of CrossAttentionSpec (cross_attention) is of a kind that these connectors don't "
        "support; choices: chunked_local_attention, full_attention, mamba, mla_attention, sliding_window, "
        "sliding_window_mla"
    )
    states = {"block_size": 16, "shapes": ((4, 8), (2,)), "dtypes": (torch.float32, torch.float32)}
    handed = translate.describe_group(specs.MambaSpec(**states, page_size_padded=1024, mamba_cache_mode="align"))
    assert (handed.kind, handed.tokens_per_block, handed.page_size_bytes) == ("state_space", 16, 1024)
    assert handed.is_handed_over and not full.is_handed_over
    states_spec = specs.MambaSpec(**states, mamba_cache_mode="align")
    assert translate.has_states(states_spec) and not translate.reads_all(states_spec)
    with pytest.raises(ConfigError) as refused:
        translate.describe_group(specs.MambaSpec(**states, mamba_cache_mode="all"))
    assert str(refused.value) == (
        "a KV cache group of MambaSpec has mamba_cache_mode 'all', in which vLLM doesn't cache states by "
        "prefix; choices: align (--mamba-cache-mode align, with prefix caching)"
    )


def test_groups_of_layers_that_differ(translate):
    specs = pytest.importorskip("vllm.v1.kv_cache_interface")
    torch = pytest.importorskip("torch")
    size = {"block_size": 16, "num_kv_heads": 1, "dtype": torch.float32}
    states = {"block_size": 16, "dtypes": (torch.float32,), "mamba_cache_mode": "align"}
    kinds = {
        "full_attention": [specs.FullAttentionSpec(**size, head_size=head) for head in (8, 24)],
        "sliding_window": [specs.SlidingWindowSpec(**size, head_size=head, sliding_window=40) for head in (8, 24)],
        "state_space": [specs.MambaSpec(**states, shapes=((count,),)) for count in (256, 768)],
    }
    for kind, layers in kinds.items():
        group = specs.UniformTypeKVCacheSpecs(16, dict(zip("ab", layers, strict=True)))
        described = translate.describe_group(group)
        assert (described.kind, described.tokens_per_block, described.page_size_bytes) == (kind, 16, 2048)
        assert described.window_tokens == (40 if kind == "sliding_window" else 0)
        assert described.is_handed_over is (kind == "state_space")
    lost = specs.MambaSpec(**{**states, "mamba_cache_mode": "all"}, shapes=((256,),))
    with pytest.raises(ConfigError, match="group of UniformTypeKVCacheSpecs has mamba_cache_mode 'all'"):
        translate.describe_group(specs.UniformTypeKVCacheSpecs(16, {"a": lost}))


def test_metadata_counts_as_vllms(translate):
    base = pytest.importorskip(f"{V1}.base")
    from kv_offload import OffloadingConnectorMetadata, OffloadingWorkerMetadata

    assert isinstance(OffloadingConnectorMetadata(), base.KVConnectorMetadata)
    assert isinstance(OffloadingWorkerMetadata(), base.KVConnectorWorkerMetadata)
    assert issubclass(kv_api.KVConnectorHandshakeMetadata, base.KVConnectorHandshakeMetadata)


def test_roles(translate):
    theirs = pytest.importorskip(f"{V1}.base").KVConnectorRole
    assert [translate.to_vllm(role) for role in kv_api.KVConnectorRole] == [*theirs]
    for roles in (kv_api.KVConnectorRole, theirs):
        assert [translate.role_of(role) for role in roles] == [*kv_api.KVConnectorRole]


def test_what_is_to_be_stored_and_where(translate, offload):
    numpy, cpu = pytest.importorskip("numpy"), pytest.importorskip("kv_offload_cpu")
    theirs = pytest.importorskip("vllm.v1.kv_offload.cpu.common").CPULoadStoreSpec
    slots = cpu.CPULoadStoreSpec(numpy.array([4, 2]))
    made = translate.to_vllm(kv_api.PrepareStoreOutput([KEY], slots, [b"gone"]))
    assert isinstance(made, offload.PrepareStoreOutput)
    assert (made.keys_to_store, made.evicted_keys) == ([KEY], [b"gone"])
    assert (type(made.store_spec), made.store_spec.block_ids.tolist()) == (theirs, [4, 2])
