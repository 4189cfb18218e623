"""What an operator can configure, and what is said about what they can't."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest
from kv_offload_configs import FULL, STATE, WINDOW, hold_the_same, kv_cache_config, vllm_config

import kv_factory
from kv_api import (
    ConfigError,
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from kv_offload import GroupDescription, HoldBlocks, OffloadingConnector, Options, describe_group, parse_options
from kv_offload.describe import describe_engine

WHERE = "kv_connector_extra_config"

WRONG = [
    ({"block_size": 0}, f"{WHERE}.block_size: expected a whole number of at least 1, got 0"),
    ({"block_size": "32"}, f"{WHERE}.block_size: expected a whole number of at least 1, got '32'"),
    ({"blocks_per_chunk": True}, f"{WHERE}.blocks_per_chunk: expected a whole number of at least 1, got True"),
    ({"offload_prompt_only": 1}, f"{WHERE}.offload_prompt_only: expected true or false, got 1"),
    ({"save": "no"}, f"{WHERE}.save: expected true or false, got 'no'"),
    ({"canonical_layout": "false"}, f"{WHERE}.canonical_layout: expected true or false, got 'false'"),
    (
        {"sync_load_budget_bytes": -1},
        f"{WHERE}.sync_load_budget_bytes: expected a whole number of at least 0, got -1",
    ),
    ({"hold_blocks": "maybe"}, f"{WHERE}.hold_blocks: expected one of auto, always, never, got 'maybe'"),
    ({"store_when": "later"}, f"{WHERE}.store_when: expected one of computed, evicted, got 'later'"),
    ({"store_when": True}, f"{WHERE}.store_when: expected one of computed, evicted, got True"),
    ({"hold_blocks": ["auto"]}, f"{WHERE}.hold_blocks: expected one of auto, always, never, got ['auto']"),
    (
        {"load_timeout_seconds": -1},
        f"{WHERE}.load_timeout_seconds: expected a number of seconds, or 0 for never, got -1",
    ),
    (
        {"load_timeout_seconds": "5"},
        f"{WHERE}.load_timeout_seconds: expected a number of seconds, or 0 for never, got '5'",
    ),
    (
        {"load_timeout_seconds": float("inf")},
        f"{WHERE}.load_timeout_seconds: expected a number of seconds, or 0 for never, got inf",
    ),
    (
        {"store_timeout_seconds": True},
        f"{WHERE}.store_timeout_seconds: expected a number of seconds, or 0 for never, got True",
    ),
    (
        {"max_deferred_lookups": 1.5},
        f"{WHERE}.max_deferred_lookups: expected a whole number of at least 0, got 1.5",
    ),
    (
        {"block_size": 32, "blocks_per_chunk": 2},
        f"{WHERE}: block_size 32 and blocks_per_chunk 2 say the same thing; give one of them",
    ),
]


@pytest.mark.parametrize(("extra", "message"), WRONG)
def test_wrong_values(extra, message):
    with pytest.raises(ConfigError) as raised:
        parse_options(extra)
    assert str(raised.value) == message


def test_what_is_set_where_nothing_is():
    assert asdict(parse_options({})) == {
        "block_size": None,
        "blocks_per_chunk": None,
        "offload_prompt_only": True,
        "self_describing_kv_events": False,
        "sync_load_budget_bytes": 0,
        "hold_blocks": "auto",
        "store_when": "computed",
        "load_timeout_seconds": 0.0,
        "store_timeout_seconds": None,
        "max_deferred_lookups": 50,
        "save": True,
    }


SCRIPTED = {"spec_name": "ScriptedSpec", "spec_module_path": "kv_offload_medium"}
NAMES_ITS_KEYS = {**SCRIPTED, "spec_name": "SpecWithSettings"}
OWN = {*asdict(Options()), "spec_name", "spec_module_path", "canonical_layout", "name"}


def refused(extra):
    with pytest.raises(ConfigError) as raised:
        parse_options(extra)
    return str(raised.value)


def unknown(key, known, meant):
    return f"{WHERE}: unknown key {key!r}; known: {', '.join(sorted(known))}; did you mean {meant!r}?"


@pytest.mark.parametrize("key", sorted(OWN))
def test_a_key_that_is_nearly_ours_is_told_apart_from_a_foreign_one(key):
    for wrong in (f"{key}s", key[:-1], key.upper()):
        hint = "; a key of the medium's own belongs into ScriptedSpec.extra_keys"
        assert refused({**SCRIPTED, wrong: 1}) == unknown(wrong, OWN, key) + hint
    assert parse_options({**SCRIPTED, f"my_own_{key}": 1}) == Options()


def test_a_medium_names_its_keys():
    """Those pass that are nearly ours, and what is nearly one of them is refused."""
    extra = {"block_sizes": [4], "names": [], "read_timeout_seconds": 3, "tier_poll_interval_ms": 10}
    others = {"max_load_timeout_seconds": 4, "name": "near", "block_size": None}
    assert parse_options({**NAMES_ITS_KEYS, **extra, **others}) == Options()
    known = {*OWN, *extra}
    assert refused({**NAMES_ITS_KEYS, "tier_poll_interval_s": 1}) == unknown(
        "tier_poll_interval_s", known, "tier_poll_interval_ms"
    )
    assert refused({**NAMES_ITS_KEYS, "hold_block": "auto"}) == unknown("hold_block", known, "hold_blocks")


@pytest.mark.parametrize("spec", [SCRIPTED, {"spec_name": "NoSuch"}, {"spec_name": 3}, {"spec_module_path": 3}])
def test_what_is_not_ours_passes(spec):
    """Whatever the medium: what is wrong with that is said when it is made."""
    vllms = {"backpressure": {}, "secondary_tiers": [], "tier_poll_interval_s": 1, "store_threshold": 2}
    extra = {"host_slots": 4, "store_threads": 2, "name": "near", "save": None, **vllms}
    with kv_factory.isolated():
        assert parse_options({**spec, **extra}) == Options()
        assert refused({**spec, "blocks_size": 4}).startswith(unknown("blocks_size", OWN, "block_size"))


def test_a_class_that_is_not_of_kv_api_has_named_nothing(monkeypatch):
    """Such as vLLM's specs."""
    theirs = type("Theirs", (), {})
    monkeypatch.setattr("kv_factory.OffloadingSpecFactory.get_spec_cls", lambda extra: theirs)
    assert parse_options({"host_slots": 4}) == Options()
    assert refused({"saved": 1}).endswith("a key of the medium's own belongs into Theirs.extra_keys")


@pytest.mark.parametrize("keys", ["slots", None, 3])
def test_what_names_no_keys_is_refused(keys, monkeypatch):
    mine = type("Mine", (), {"extra_keys": keys})
    monkeypatch.setattr("kv_factory.OffloadingSpecFactory.get_spec_cls", lambda extra: mine)
    assert refused({"slots": 4}) == f"Mine.extra_keys: expected a set of names, got {keys!r}"


def test_values_are_read():
    extra = {"blocks_per_chunk": 3, "hold_blocks": "never", "load_timeout_seconds": 5, "save": False}
    assert parse_options(extra) == Options(
        blocks_per_chunk=3, hold_blocks=HoldBlocks.NEVER, load_timeout_seconds=5.0, save=False
    )


def engine(groups=((FULL, 4, 0),), tokens_per_hash=None, **extra):
    return describe_engine(vllm_config(**extra), kv_cache_config(groups, tokens_per_hash=tokens_per_hash))


def test_what_a_medium_is_told():
    config = engine(((FULL, 4, 0), (WINDOW, 4, 9), (STATE, 8, 0)), blocks_per_chunk=2).config
    assert config.groups == (
        OffloadingGroupConfig(4, ("layer0",), 0, None),
        OffloadingGroupConfig(4, ("layer1",), 1, 2),
        OffloadingGroupConfig(8, ("layer2",), 2, 1),
    )
    assert (config.cache.tokens_per_hash, config.cache.blocks_per_chunk) == (4, 2)
    assert config.worker_kv_bytes_per_block == 32 + 32 + 64
    assert config.enable_kv_cache_events


def test_all_that_a_medium_is_told():
    config = vllm_config(world_size=6, rank=1, blocks_per_chunk=2, canonical_layout=True)
    config.model_config = SimpleNamespace(model="m", dtype="torch.bfloat16", max_model_len=99)
    config.cache_config.kv_cache_layout = "HND"
    config.parallel_config = SimpleNamespace(
        tensor_parallel_size=2,
        pipeline_parallel_size=3,
        prefill_context_parallel_size=4,
        decode_context_parallel_size=5,
        data_parallel_index=7,
        data_parallel_size=9,
        data_parallel_rank_local=8,
        cp_kv_cache_interleave_size=16,
        world_size=6,
        rank=1,
    )
    cache = kv_cache_config(((FULL, 4, 0), (WINDOW, 4, 9)))
    cache.kv_cache_groups[0].layer_names = ["a", "b"]
    assert describe_engine(config, cache).config == OffloadingConfig(
        groups=(OffloadingGroupConfig(4, ("a", "b"), 0), OffloadingGroupConfig(4, ("layer1",), 1, 2)),
        worker_kv_bytes_per_block=64,
        enable_kv_cache_events=True,
        extra_config=config.kv_transfer_config.kv_connector_extra_config,
        engine_id="e",
        model=OffloadingModelConfig("m", "bfloat16", 99),
        cache=OffloadingCacheConfig(4, 2),
        parallel=OffloadingParallelConfig(1, 6, 2, 3, 4, 5, 7, 9, 8, False, 16),
        canonical_layout=True,
        kv_cache_layout="HND",
    )


def is_replicated(ranks=4, **changed):
    """Of an engine whose workers all hold the same bytes, but for what is ``changed``."""
    config, cache = vllm_config(world_size=ranks), kv_cache_config()
    hold_the_same(config, cache)
    for path, value in changed.items():
        place, name = path.split("__")
        setattr({"cache": cache}.get(place) or getattr(config, place), name, value)
    return describe_engine(config, cache).config.replicated_layout


def test_workers_that_hold_the_same_bytes_need_one_copy():
    assert is_replicated() is True
    assert is_replicated(ranks=2) is True


@pytest.mark.parametrize(
    "changed",
    [
        {"ranks": 1},
        {"model_config__use_mla": False},
        {"parallel_config__world_size": 8},
        {"parallel_config__decode_context_parallel_size": 2},
        {"parallel_config__distributed_executor_backend": "ray"},
        {"parallel_config__nnodes_within_dp": 2},
        {"cache__kv_tp_replicas": 2},
    ],
)
def test_workers_that_do_not_or_can_not_get_at_the_first_ones_copy_keep_one_each(changed):
    assert is_replicated(**changed) is False


def test_an_engine_that_knows_no_other_parallelism_has_one_copy_too():
    config, cache = vllm_config(world_size=2), kv_cache_config()
    hold_the_same(config, cache)
    del config.parallel_config.decode_context_parallel_size, config.parallel_config.nnodes_within_dp
    assert describe_engine(config, cache).config.replicated_layout is True


def test_what_a_small_engine_need_not_have():
    config = vllm_config()
    del config.kv_events_config, config.parallel_config.decode_context_parallel_size
    config.kv_transfer_config.engine_id = None
    assert describe_engine(config, kv_cache_config()).config == OffloadingConfig(
        groups=(OffloadingGroupConfig(4, ("layer0",), 0),),
        worker_kv_bytes_per_block=32,
        enable_kv_cache_events=False,
        extra_config=config.kv_transfer_config.kv_connector_extra_config,
        engine_id="",
        model=OffloadingModelConfig("", "auto", 0),
        cache=OffloadingCacheConfig(4, 1),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
    )


@pytest.mark.parametrize(("of_cache", "dtype"), [("auto", "float16"), ("torch.float8_e5m2", "float8_e5m2")])
def test_the_type_of_what_is_stored(of_cache, dtype):
    config = vllm_config()
    config.cache_config.cache_dtype = of_cache
    config.model_config = SimpleNamespace(model="m", dtype="torch.float16", max_model_len=None)
    assert describe_engine(config, kv_cache_config()).config.model == OffloadingModelConfig("m", dtype, 0)


def test_two_models_of_one_path_have_two_names():
    config = vllm_config()
    names = []
    for said in ({}, {"revision": "v2"}, {"revision": "v3"}, {"hf_overrides": {"rope_theta": 9}}):
        config.model_config = SimpleNamespace(model="m", dtype="torch.float16", max_model_len=None, **said)
        names.append(describe_engine(config, kv_cache_config()).config.model.name)
    assert names == ["m", "m (revision=v2)", "m (revision=v3)", 'm (hf_overrides={"rope_theta": 9})']


@pytest.mark.parametrize("prefill", [1, 2])
@pytest.mark.parametrize("decode", [1, 2])
def test_when_workers_share_the_tokens_of_a_block(prefill, decode):
    config = vllm_config(context_parallel=decode)
    config.parallel_config.prefill_context_parallel_size = prefill
    assert describe_engine(config, kv_cache_config()).layout.shares_tokens is (prefill + decode > 2)


def test_a_block_that_workers_share_is_as_long_as_all_their_parts():
    config, cache = vllm_config(context_parallel=2), kv_cache_config(((FULL, 4, 0), (FULL, 4, 0)))
    cache.kv_cache_groups[0].kv_cache_spec.dcp_sharded = True
    engine = describe_engine(config, cache)
    assert [group.tokens_per_block for group in engine.layout.groups] == [8, 4]
    assert [group.tokens_per_block for group in engine.config.groups] == [8, 4]
    assert engine.config.worker_kv_bytes_per_block == 32 + 32, "what one worker has"
    assert (engine.layout.tokens_per_hash, engine.layout.grain_tokens) == (4, 8)
    config.kv_transfer_config.kv_connector_extra_config["block_size"] = 16
    with pytest.raises(ConfigError, match=r"the KV cache groups have blocks of \[8, 4\] tokens"):
        describe_engine(config, cache)


def test_a_window_of_layers_that_read_everything_is_none():
    for describe in (describe_group, OffloadingConnector.describe_group):
        described = describe(SimpleNamespace(block_size=4, kind=FULL, sliding_window=64))
        assert described == GroupDescription(FULL, 4)


def test_one_allocation_is_counted_once():
    cache = kv_cache_config(((FULL, 4, 0), (FULL, 4, 0)))
    cache.kv_cache_tensors = [SimpleNamespace(size=64 * 96, block_stride=96) for _ in range(2)]
    assert describe_engine(vllm_config(), cache).config.worker_kv_bytes_per_block == 96
    cache.kv_cache_tensors = []
    assert describe_engine(vllm_config(), cache).config.worker_kv_bytes_per_block == 32
    cache.kv_cache_groups[1].layer_names = ["a", "b", "c"]
    assert describe_engine(vllm_config(), cache).config.worker_kv_bytes_per_block == 96
    cache = kv_cache_config(num_blocks=0)
    assert describe_engine(vllm_config(), cache).config.worker_kv_bytes_per_block == 32


def test_the_size_of_chunks():
    assert engine().layout.groups[0].tokens_per_chunk == 4
    assert engine(block_size=12).layout.groups[0].tokens_per_chunk == 12
    alike = engine(((FULL, 4, 0), (WINDOW, 4, 6)), block_size=12).layout
    assert [group.tokens_per_chunk for group in alike.groups] == [12, 12]
    fine = engine(((FULL, 8, 0), (WINDOW, 4, 6)), tokens_per_hash=2, blocks_per_chunk=3).layout
    assert [group.hashes_per_chunk for group in fine.groups] == [12, 6]
    assert (fine.grain_tokens, fine.tokens_per_hash) == (8, 2)


@pytest.mark.parametrize(("of_cache", "of_config", "tokens"), [(None, 4, 4), (2, 4, 2), (None, None, 8)])
def test_tokens_of_a_hash(of_cache, of_config, tokens):
    config, cache = vllm_config(), kv_cache_config(((FULL, 8, 0), (FULL, 16, 0)), tokens_per_hash=of_cache)
    config.cache_config.hash_block_size = of_config
    assert describe_engine(config, cache).layout.tokens_per_hash == tokens


def spec(**attributes):
    return SimpleNamespace(block_size=4, page_size_bytes=1, **attributes)


class FullAttentionSpec:
    block_size = 4


REFUSED = [
    (
        {"block_size": 6},
        f"{WHERE}.block_size: got 6, which is not a multiple of the GPU's block size 4; the next multiple is 8",
    ),
    (
        {"block_size": 8, "groups": ((FULL, 4, 0), (FULL, 8, 0))},
        f"{WHERE}.block_size: got 8, but the KV cache groups have blocks of [4, 8] tokens; set blocks_per_chunk "
        "instead",
    ),
    (
        {"retention": -1},
        "cache_config.prefix_cache_retention_interval: got -1; expected a number of tokens, 0 for the ends of "
        "prompts alone, or None for all",
    ),
    (
        {"retention": True},
        "cache_config.prefix_cache_retention_interval: got True; expected a number of tokens, 0 for the ends of "
        "prompts alone, or None for all",
    ),
    (
        {"tokens_per_hash": 3},
        "kv_cache_config.hash_block_size: got 3, which doesn't divide a group's block of 4 tokens",
    ),
    (
        {"spec": FullAttentionSpec()},
        "kv_cache_spec FullAttentionSpec has no attribute 'kind', which connectors of this interface read; "
        "inside vLLM use the connector class of kv-vllm",
    ),
    (
        {"spec": spec(kind="linear")},
        "kv_cache_spec.kind: got 'linear'; choices: full_attention, sliding_window, state_space",
    ),
    (
        {"spec": spec(kind=WINDOW, sliding_window=None)},
        "kv_cache_spec.sliding_window: expected at least 1 token, got 0",
    ),
    (
        {"groups": ((FULL, 4, 0), (FULL, 4, 0)), "host": 1},
        "kv_cache_config.kv_cache_groups[1]: its blocks are in host memory already (host_resident, as with "
        "HiSparse); OffloadingConnector supports blocks of the GPU's pool only",
    ),
    (
        {"none": True},
        "kv_cache_config: no KV cache group takes part in prefix caching, so there is nothing to offload",
    ),
]


@pytest.mark.parametrize(("case", "message"), REFUSED)
def test_what_is_refused(case, message):
    case = {**case}
    cache = kv_cache_config(case.pop("groups", ((FULL, 4, 0),)), tokens_per_hash=case.pop("tokens_per_hash", None))
    if "spec" in case:
        cache.kv_cache_groups[0].kv_cache_spec = case.pop("spec")
    if "host" in case:
        cache.kv_cache_groups[case.pop("host")].host_resident = True
    if case.pop("none", False):
        cache.prefix_cacheable_group_ids = ()
    with pytest.raises(ConfigError) as raised:
        describe_engine(vllm_config(**case), cache)
    assert str(raised.value) == message


def test_without_a_config():
    with pytest.raises(ConfigError) as raised:
        describe_engine(vllm_config(), None)
    assert str(raised.value) == "OffloadingConnector needs a kv_cache_config, and there is none"
    with pytest.raises(ConfigError) as raised:
        describe_engine(SimpleNamespace(kv_transfer_config=None), kv_cache_config())
    assert str(raised.value) == "OffloadingConnector needs a kv_transfer_config, and there is none"


def test_groups_that_hashes_do_not_find_are_left_alone():
    cache = kv_cache_config(((FULL, 4, 0), (STATE, 8, 0)))
    cache.prefix_cacheable_group_ids = (1,)
    cache.kv_cache_groups[0].host_resident = True
    found = describe_engine(vllm_config(), cache)
    assert [group.group_id for group in found.layout.groups] == [1]
    assert found.fails_requests


@pytest.mark.parametrize(
    ("runner", "zeroes", "groups", "per_hash", "holds"),
    [
        (None, None, ((FULL, 4, 0),), None, True),  # nothing is known
        (False, None, ((STATE, 4, 0),), None, False),  # runner V1
        (True, None, ((FULL, 4, 0),), None, True),
        (True, False, ((FULL, 4, 0), (WINDOW, 4, 8)), None, False),  # nothing is zeroed or copied
        (None, False, ((FULL, 4, 0),), None, False),
        (True, True, ((FULL, 4, 0),), None, True),
        (True, False, ((STATE, 4, 0),), None, True),  # states are copied on write
        (True, False, ((FULL, 4, 0), (STATE, 4, 0)), None, True),
        (True, False, ((FULL, 4, 0),), 2, True),  # hits may end inside a block, which is copied on write
    ],
)
def test_when_blocks_are_held(runner, zeroes, groups, per_hash, holds):
    config, cache = vllm_config(), kv_cache_config(groups, tokens_per_hash=per_hash)
    if runner is not None:
        config.use_v2_model_runner = runner
    if zeroes is not None:
        cache.needs_kv_cache_zeroing = zeroes
    assert describe_engine(config, cache).holds_blocks is holds
    for choice, held in (("always", True), ("never", False)):
        config.kv_transfer_config.kv_connector_extra_config["hold_blocks"] = choice
        assert describe_engine(config, cache).holds_blocks is held


@pytest.mark.parametrize(("groups", "offloaded"), [(1, (0,)), (2, (0,)), (2, (0, 1))])
def test_failed_loads_are_told_by_request_where_a_block_may_be_of_another_group(groups, offloaded):
    cache = kv_cache_config(((FULL, 4, 0),) * groups)
    cache.prefix_cacheable_group_ids = offloaded
    assert describe_engine(vllm_config(), cache).fails_requests is (groups > 1)
