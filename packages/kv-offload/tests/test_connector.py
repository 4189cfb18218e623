"""The class: how it is found, what an engine asks of it, and how another engine's specs are described."""

import pickle
from types import SimpleNamespace

import pytest
from kv_offload_calls import arrive
from kv_offload_configs import kv_cache_config, vllm_config

from kv_api import AttentionKind, ConfigError, KVConnectorRole, WrongSideError, supports_hma
from kv_factory import KVConnectorFactory
from kv_offload import GroupDescription, OffloadingConnector


def test_it_is_registered():
    assert KVConnectorFactory.get_connector_class_by_name("OffloadingConnector") is OffloadingConnector


def test_what_an_engine_asks_of_the_class():
    config = vllm_config()
    assert supports_hma(OffloadingConnector)
    assert OffloadingConnector.get_required_kvcache_layout(config) == "LBHNC"
    config.attention_config = SimpleNamespace(hisparse_config=object())
    assert OffloadingConnector.get_required_kvcache_layout(config) == "BLHNC"


def test_it_has_the_half_of_its_role(make):
    connector = make()
    assert connector.requires_kv_delivery is False
    assert connector.get_finished_count() is None
    assert connector.get_loaded_kv_cache_group_ids(SimpleNamespace(request_id="a")) == (0,)
    with pytest.raises(WrongSideError):
        connector.wait_for_save()
    assert OffloadingConnector.scheduler_class is type(connector.side)


class Vendor:
    """A spec of somebody else's engine."""

    tokens = 16


class VendorConnector(OffloadingConnector):
    """Knows it."""

    @classmethod
    def describe_group(cls, kv_cache_spec):
        return GroupDescription(AttentionKind.SLIDING_WINDOW, kv_cache_spec.tokens, 32, 128)


def test_specs_of_another_engine():
    cache = kv_cache_config()
    cache.kv_cache_groups[0].kv_cache_spec = Vendor()
    connector = VendorConnector(vllm_config(), KVConnectorRole.SCHEDULER, cache)
    (group,) = connector.side._books.layout.groups
    assert (group.kind, group.tokens_per_block, group.window_tokens) == (AttentionKind.SLIDING_WINDOW, 16, 32)
    with pytest.raises(ConfigError, match="Vendor has no attribute 'kind'"):
        OffloadingConnector(vllm_config(), KVConnectorRole.SCHEDULER, cache)


def test_without_a_config_there_are_no_metrics():
    with pytest.raises(ConfigError) as raised:
        OffloadingConnector.build_prom_metrics(SimpleNamespace(kv_transfer_config=None), {}, [], {})
    assert str(raised.value) == "OffloadingConnector needs a kv_transfer_config, and there is none"


def test_metadata_pickles(make):
    from kv_offload_configs import Blocks, Request, step

    connector = make(hold_blocks="never")
    a = arrive(connector, Request("a", range(8)))
    connector.get_num_new_matched_tokens(a, 0)
    connector.update_state_after_alloc(a, Blocks([1, 2]), 0)
    meta = connector.build_connector_meta(step(new=[("a", ([1, 2],))], counts={"a": 8}))
    assert meta.store_jobs
    assert pickle.loads(pickle.dumps(meta)) == meta


def test_tiers_a_sender_wants(make, caplog):
    from kv_offload_configs import Request

    from kv_api import Locality, Medium, TierFilter, TierMatcher

    connector = make()

    def wish(tiers):
        arrive(connector, Request("a", range(8), params={"kv_load_tiers": tiers}))
        return connector.side._books.states["a"].context.load_tier_filter

    assert wish([{"medium": "cpu", "locality": "Remote"}]) == TierFilter(
        (TierMatcher(Medium.CPU, Locality.REMOTE),)
    )
    assert wish([]) == TierFilter(())
    assert wish([{"locality": "local"}]) == TierFilter((TierMatcher(None, Locality.LOCAL),))
    assert wish(["cpu"]) == TierFilter.ALL
    assert wish("cpu") == wish(3) == wish(None) == TierFilter.ALL
    assert wish([{"medium": "tape"}, {"medium": "storage"}]) == TierFilter((TierMatcher(Medium.STORAGE),))
    assert wish("tape" * 40) == TierFilter.ALL
    for count in (1, 1000):
        assert wish(["a", {"medium": "cpu"}, *range(count)]) == TierFilter((TierMatcher(Medium.CPU),))
    no_entry = "expected {{medium: CPU or STORAGE, locality: LOCAL or REMOTE}}, got {!r}"
    problems = [no_entry.format("cpu"), "expected a list, got 'cpu'", "expected a list, got 3"]
    problems += [no_entry.format({"medium": "tape"}), "expected a list, got '" + 24 * "tape" + "tap"]
    problems += [f"{no_entry.format('a')} and {count} more" for count in (1, 1000)]
    assert [record.message for record in caplog.records] == [
        f"request a: kv_transfer_params.kv_load_tiers: {problem}; it is ignored" for problem in problems
    ]


@pytest.mark.parametrize("sent", ["x", [1], 7])
def test_params_that_are_no_object_are_ignored(sent, make, caplog):
    """A client can send them in ``vllm_xargs``; whether they come so far is up to the engine."""
    from kv_offload_configs import Request

    from kv_api import TierFilter

    connector = make()
    connector.on_new_request(Request("a", range(8), params=sent))
    context = connector.side._books.states["a"].context
    assert (context.kv_transfer_params, context.load_tier_filter) == (None, TierFilter.ALL)
    said = f"request a: kv_transfer_params: expected an object, got {sent!r}; it is ignored"
    assert [record.message for record in caplog.records] == [said]
