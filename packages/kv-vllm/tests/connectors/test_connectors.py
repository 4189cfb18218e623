"""Our connectors as vLLM makes them, from its own configuration; and what it asks of their classes."""

from dataclasses import replace
from functools import partial
from runpy import run_module
from types import SimpleNamespace

import pytest
from kv_vllm_configs import OFFLOADING, config_of

import kv_api
from kv_api import ConfigError
from kv_offload import OffloadingConnectorStats
from kv_p2p.pulling.groups import Group

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
EXAMPLE = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}


def multi_of(*children):
    return config_of("MultiConnector", {"connectors": [*children]})


def test_offloading(base, cache):
    from kv_vllm import OffloadingConnector

    config = config_of("OffloadingConnector", OFFLOADING["kv_connector_extra_config"])
    connector = OffloadingConnector(config, base.KVConnectorRole.SCHEDULER, cache)
    assert connector.role is base.KVConnectorRole.SCHEDULER
    (group,) = connector.side._books.layout.groups
    assert (group.tokens_per_block, group.window_tokens) == (16, 40)
    assert connector._group_kinds == ("sliding_window",)
    assert (connector._vllm_config, connector._kv_cache_config) == (config, cache)
    connector.shutdown()


def test_vllms_multi_connector_finds_who_made_the_stats():
    """It knows children by the names of their classes, also those from a module."""
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

    from kv_vllm import P2PConnector

    stats = OffloadingConnectorStats()
    stats.increase("a", 3)
    told = {P2PConnector.__name__: {"vllm:kv_p2p_held_blocks": 4}, "OffloadingConnector": stats.to_dict()}
    joined = MultiConnector.build_kv_connector_stats(told).aggregate(MultiConnector.build_kv_connector_stats(told))
    assert {name: of_one.reduce() for name, of_one in joined.data.items()} == {
        "P2PConnector": {"vllm:kv_p2p_held_blocks": 4},
        "OffloadingConnector": {"a": 6},
    }


def test_vllm_may_know_the_name_already():
    """As where our module is imported anew."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    assert "P2PConnector" in KVConnectorFactory._registry
    assert run_module("kv_vllm.connectors.p2p")["P2PConnector"].__name__ == "P2PConnector"


def test_from_engine_to_engine(base, cache):
    """Several groups, so vLLM has to know that it knows them; and nobody sleeps while others read."""
    from kv_vllm import P2PConnector

    config = config_of("P2PConnector", {"hold_seconds": 3})
    connector = P2PConnector(config, base.KVConnectorRole.SCHEDULER, cache)
    assert isinstance(connector, base.KVConnectorBase_V1)
    assert base.supports_hma(P2PConnector)
    assert P2PConnector.supports_sleep_mode(config.kv_transfer_config) is False
    assert connector.requires_kv_delivery
    assert connector.side._producer._address.port == 14579
    sources = connector.get_external_cache_hit_sources(None, 5)
    assert [(type(source).__module__, source.value, count) for source, count in sources.items()] == [
        ("vllm.v1.metrics.cache_hit_source", "p2p", 5)
    ]
    assert connector.get_kv_connector_stats() is None
    stats = P2PConnector.build_kv_connector_stats({"vllm:kv_p2p_held_blocks": 3})
    assert stats.reduce() == {"vllm:kv_p2p_held_blocks": 3}
    connector.shutdown()
    cache.kv_cache_groups *= 2
    two = P2PConnector(config, base.KVConnectorRole.SCHEDULER, cache).side
    assert two._shape.groups == (Group(16, 40), Group(16, 40))


@pytest.mark.parametrize("mode", ["none", "align", "all"])
def test_states_are_not_handed_from_engine_to_engine(base, cache, mode):
    specs = pytest.importorskip("vllm.v1.kv_cache_interface")
    torch = pytest.importorskip("torch")
    from kv_vllm import P2PConnector

    states = {"block_size": 16, "shapes": ((4, 8), (2,)), "dtypes": (torch.float32, torch.float32)}
    spec = specs.MambaSpec(**states, mamba_cache_mode=mode)
    cache.kv_cache_groups = [*cache.kv_cache_groups, SimpleNamespace(layer_names=["s"], kv_cache_spec=spec)]
    for role in base.KVConnectorRole:
        with pytest.raises(ConfigError) as refused:
            P2PConnector(config_of("P2PConnector", {}), role, cache)
        assert str(refused.value) == (
            "kv_cache_config.kv_cache_groups[1]: it is of kind state_space, which P2PConnector can't hand over; "
            "choices: full_attention, sliding_window"
        )


def test_what_nobody_knows_is_not_handed_on_either(base, cache):
    specs = pytest.importorskip("vllm.v1.kv_cache_interface")
    torch = pytest.importorskip("torch")
    from kv_vllm import P2PConnector

    spec = specs.CrossAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32)
    cache.kv_cache_groups = [*cache.kv_cache_groups, SimpleNamespace(layer_names=["c"], kv_cache_spec=spec)]
    with pytest.raises(ConfigError) as refused:
        P2PConnector(config_of("P2PConnector", {}), base.KVConnectorRole.SCHEDULER, cache)
    assert str(refused.value) == (
        "kv_cache_config.kv_cache_groups[1]: a KV cache group of CrossAttentionSpec (cross_attention) is of a "
        "kind that these connectors don't support; choices: chunked_local_attention, full_attention, mamba, "
        "mla_attention, sliding_window, sliding_window_mla"
    )


def test_what_the_smoke_test_runs_is_ours(base, cache):
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from kv_vllm import OffloadingConnector
    from kv_vllm.smoke.run import CONNECTOR

    config = config_of("OffloadingConnector", {})
    config.kv_transfer_config = KVTransferConfig(**CONNECTOR)
    assert config.kv_transfer_config.kv_load_failure_policy == "recompute"
    connector = KVConnectorFactory.create_connector(config, base.KVConnectorRole.SCHEDULER, cache)
    assert type(connector) is OffloadingConnector
    connector.shutdown()


def test_several(base, cache):
    from kv_vllm import MultiConnector, OffloadingConnector

    config = multi_of(OFFLOADING)
    connector = MultiConnector(config, base.KVConnectorRole.SCHEDULER, cache)
    assert [type(child) for child in connector.sub_connectors] == [OffloadingConnector]
    assert config.kv_transfer_config.kv_connector_extra_config == {"connectors": [OFFLOADING]}
    connector.shutdown()


def test_what_another_connector_was_to_have_is_refused_before_anything_is_made(base, cache):
    from kv_vllm import OffloadingConnector

    config = config_of("OffloadingConnector", {"cpu_bytes_to_use": -1, "hold_seconds": 3})
    for role in base.KVConnectorRole:
        with pytest.raises(ConfigError, match="hold_seconds: this key belongs to P2PConnector"):
            OffloadingConnector(config, role, cache)


def test_what_it_does_not_work_with(base, cache):
    from kv_vllm import OffloadingConnector, P2PConnector

    extra, name = OFFLOADING["kv_connector_extra_config"], "prefill_context_parallel_size"
    with pytest.raises(ConfigError) as refused:
        OffloadingConnector(
            config_of("OffloadingConnector", extra, **{name: 2}), base.KVConnectorRole.SCHEDULER, cache
        )
    assert str(refused.value) == f"parallel_config.{name}: got 2; OffloadingConnector supports only 1"
    with pytest.raises(ConfigError, match="decode_context_parallel_size: got 2; P2PConnector supports only 1"):
        P2PConnector(
            config_of("P2PConnector", {}, decode_context_parallel_size=2), base.KVConnectorRole.SCHEDULER, cache
        )


@pytest.mark.parametrize(("is_shared", "tokens"), [(True, 32), (False, 16)])
def test_a_block_that_ranks_share_has_the_tokens_of_all(base, cache, is_shared, tokens):
    from kv_vllm import OffloadingConnector

    [group] = cache.kv_cache_groups
    assert group.kv_cache_spec.block_size == 16
    group.kv_cache_spec = replace(group.kv_cache_spec, dcp_sharded=is_shared)
    config = config_of(
        "OffloadingConnector", OFFLOADING["kv_connector_extra_config"], decode_context_parallel_size=2
    )
    connector = OffloadingConnector(config, base.KVConnectorRole.SCHEDULER, cache)
    assert [group.tokens_per_block for group in connector.side._books.layout.groups] == [tokens]
    connector.shutdown()


MLA_ON_CPUS = {"use_mla": True, "is_cpu": True, "enable_prefix_caching": False, "kv_role": "kv_both"}


def with_mla(monkeypatch, **changed):
    """A configuration where vLLM passes over what is loaded, but for what is ``changed``."""
    from kv_vllm import refused

    setting = {**MLA_ON_CPUS, **changed}
    config = config_of("OffloadingConnector", OFFLOADING["kv_connector_extra_config"])
    config.model_config = SimpleNamespace(model="m", dtype="bf16", max_model_len=9, use_mla=setting["use_mla"])
    config.cache_config.enable_prefix_caching = setting["enable_prefix_caching"]
    config.kv_transfer_config.kv_role = setting["kv_role"]
    monkeypatch.setattr(refused, "current_platform", SimpleNamespace(is_cpu=lambda: setting["is_cpu"]))
    return config


def test_loads_that_vllm_passes_over_are_refused(base, cache, monkeypatch):
    from kv_vllm import OffloadingConnector

    config = with_mla(monkeypatch)
    with pytest.raises(ConfigError) as refused:
        OffloadingConnector(config, base.KVConnectorRole.SCHEDULER, cache)
    assert str(refused.value) == (
        "OffloadingConnector: on this CPU vLLM computes every prompt of an MLA model from its start (it has "
        "turned prefix caching off), so it would ignore loaded KV, and outputs would be wrong"
    )


@pytest.mark.parametrize(
    "changed",
    [{"use_mla": False}, {"is_cpu": False}, {"enable_prefix_caching": True}, {"kv_role": "kv_producer"}],
)
def test_others_are_not(base, cache, monkeypatch, changed):
    from kv_vllm import OffloadingConnector

    config = with_mla(monkeypatch, **changed)
    OffloadingConnector(config, base.KVConnectorRole.SCHEDULER, cache).shutdown()


def test_what_is_asked_of_the_classes(base):
    from kv_vllm import MultiConnector

    for children, knows_groups in (([OFFLOADING], True), ([OFFLOADING, EXAMPLE], False)):
        config = multi_of(*children)
        transfer = config.kv_transfer_config
        assert MultiConnector.all_children_support_hma(transfer) is knows_groups
        assert MultiConnector.requires_piecewise_for_cudagraph(transfer.kv_connector_extra_config) is False
        assert MultiConnector.get_required_kvcache_layout(config) == "LBHNC"
    assert MultiConnector.supports_sleep_mode(multi_of(OFFLOADING).kv_transfer_config) is True
    p2p = {"kv_connector": "P2PConnector", "kv_role": "kv_both"}
    for child in (OFFLOADING, EXAMPLE):
        assert MultiConnector.supports_sleep_mode(multi_of(child, p2p).kv_transfer_config) is False


def test_of_vllms_connectors_it_asks_what_graphs_they_need(base, monkeypatch):
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from kv_vllm import MultiConnector

    asked = KVConnectorFactory.get_connector_class_by_name("ExampleConnector")
    monkeypatch.setattr(asked, "requires_piecewise_for_cudagraph", lambda extra: extra == {"a": 1})
    for extra in ({"a": 1}, {}):
        given = multi_of(OFFLOADING, {**EXAMPLE, "kv_connector_extra_config": extra}).kv_transfer_config
        needs = MultiConnector.requires_piecewise_for_cudagraph(given.kv_connector_extra_config)
        assert needs is (extra == {"a": 1})


def test_metrics_of_both(base):
    from kv_vllm import MultiConnector, OffloadingConnector

    prometheus = pytest.importorskip("prometheus_client")
    known = (prometheus.Gauge, prometheus.Counter, prometheus.Histogram)
    extra = {**OFFLOADING["kv_connector_extra_config"], "checksum": True}
    for connector, config in (
        (OffloadingConnector, config_of("OffloadingConnector", extra)),
        (MultiConnector, multi_of({**OFFLOADING, "kv_connector_extra_config": extra})),
    ):
        registry = prometheus.CollectorRegistry()
        kinds = {kind: partial(kind, registry=registry) for kind in known}
        connector.build_prom_metrics(config, kinds, ["engine"], {0: ["0"]})
        names = {family.name for family in registry.collect()}
        assert names >= {
            "vllm:kv_offload_total_bytes",
            "vllm:kv_offload_load_bytes",
            "vllm:kv_offload_config_info",
            "vllm:kv_offload_cpu_checksum_mismatches",
        }


class Answers:
    """Stands for a connector of ours, which says what it is told to."""

    def __init__(self, vllm_config, role, kv_cache_config=None):
        self.given = vllm_config, role, kv_cache_config
        self.events, self.stats = (), None
        self.match, self.allocated = (0, False), []

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.match

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self.allocated.append((request.request_id, blocks, num_external_tokens))

    def build_connector_meta(self, scheduler_output):
        return "meta"

    def get_external_cache_hit_sources(self, request, num_external_tokens):
        return {kv_api.CacheHitSource.HOST: num_external_tokens}

    def take_events(self):
        return self.events

    def get_kv_connector_stats(self):
        return self.stats

    @classmethod
    def build_kv_connector_stats(cls, data):
        return "none" if data is None else OffloadingConnectorStats(data)


@pytest.fixture
def answers(base):
    """Such a connector inside vLLM."""
    from kv_vllm.connectors.inside import VLLM_BASES, InsideVllm

    made = type("Made", (InsideVllm, Answers, *VLLM_BASES), {})
    made.__abstractmethods__ = frozenset()
    return made


def test_answers_are_vllms(answers, base, cache):
    events = pytest.importorskip("vllm.distributed.kv_events")
    metrics = pytest.importorskip(f"{V1}.offloading.metrics")
    source = pytest.importorskip("vllm.v1.metrics.cache_hit_source").CacheHitSource
    specs, torch = pytest.importorskip("vllm.v1.kv_cache_interface"), pytest.importorskip("torch")
    full = specs.FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32)
    cache.kv_cache_groups = [*cache.kv_cache_groups, SimpleNamespace(layer_names=["f"], kv_cache_spec=full)]
    config = config_of("Some", {})
    one = answers(config, base.KVConnectorRole.WORKER, cache)
    assert one.given == (config, kv_api.KVConnectorRole.WORKER, cache)
    assert one.role is base.KVConnectorRole.WORKER
    assert one.get_external_cache_hit_sources("request", 4) == {source.HOST: 4}
    assert (one.take_events(), one.get_kv_connector_stats()) == ((), None)
    one.events = iter([kv_api.BlockRemoved([b"h" * 32], "CPU", 0)])
    assert [type(event) for event in one.take_events()] == [events.BlockRemoved]
    stored = kv_api.BlockStored([b"h" * 32], None, [1], 1, None, "CPU", None, kv_cache_spec_kind="ours")
    one.events = [replace(stored, group_idx=group) for group in (1, 0)]
    assert [event.kv_cache_spec_kind for event in one.take_events()] == ["full_attention", "sliding_window"]
    one.stats = OffloadingConnectorStats()
    one.stats.increase("a", 3)
    for stats in (one.get_kv_connector_stats(), answers.build_kv_connector_stats(one.stats.to_dict())):
        assert type(stats) is metrics.OffloadingConnectorStats
        assert stats.reduce() == {"a": 3}
    assert answers.build_kv_connector_stats() == "none"


@pytest.fixture
def one(answers, base, cache):
    return answers(config_of("Some", {}), base.KVConnectorRole.SCHEDULER, cache)


A, B = (SimpleNamespace(request_id=name) for name in "ab")


def asked(one, match, request=A):
    one.match = match
    return one.get_num_new_matched_tokens(request, 0)


def test_after_a_failed_load_between_steps_there_is_no_other(one):
    """vLLM's scheduler has the request reserve blocks against itself: see the tests of its faults."""
    for request in (A, B):
        assert asked(one, (8, True), request) == (8, True)
    assert asked(one, (8, True)) == (8, True), "it was given no blocks yet"
    one.update_state_after_alloc(A, "blocks", 8)
    for match, told in (((8, True), (0, False)), ((None, False), (0, False)), ((4, False), (4, False))):
        assert asked(one, match) == told
        assert asked(one, match, B) == match
    asked(one, (8, True))
    one.update_state_after_alloc(A, "more", 0)
    assert asked(one, (8, True)) == (8, True), "it was computed, and is asked about after a preemption"
    assert one.allocated == [("a", "blocks", 8), ("a", "more", 0)]


@pytest.mark.parametrize(("is_async", "ended", "told"), [(True, {"b"}, 0), (True, {"a"}, 8), (False, {"b"}, 8)])
def test_nor_is_it_remembered_longer_than_the_request(one, is_async, ended, told):
    asked(one, (8, is_async))
    one.update_state_after_alloc(A, "blocks", 8)
    assert one.build_connector_meta(SimpleNamespace(finished_req_ids=ended)) == "meta"
    assert asked(one, (8, True))[0] == told


def test_who_offers_a_load_that_another_one_does_may_offer_it_again(one):
    """A MultiConnector tells a child that isn't chosen of no tokens."""
    assert asked(one, (8, True)) == (8, True)
    one.update_state_after_alloc(A, "blocks", 0)
    assert asked(one, (8, True)) == (8, True)


def test_without_caches_there_are_no_groups(answers, base):
    assert answers(config_of("Some", {}), base.KVConnectorRole.SCHEDULER)._group_kinds == ()


def test_several_without_caches_have_no_groups_either(base):
    from kv_vllm import MultiConnector

    config = multi_of(EXAMPLE)
    config.scheduler_config.disable_hybrid_kv_cache_manager = True
    several = MultiConnector(config, base.KVConnectorRole.SCHEDULER)
    assert several._group_kinds == ()
    several.shutdown()
