"""What vLLM's requests become in a trace, and that an engine does what it does without."""

import inspect
import json
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import ANY, MagicMock, call

import pytest
from kv_vllm_configs import OFFLOADING, config_of

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def connector():
    pytest.importorskip("vllm")
    from kv_vllm import TraceConnector

    return TraceConnector


@pytest.fixture
def path(tmp_path):
    return tmp_path / "traffic.jsonl"


@pytest.fixture
def config(path):
    return config_of("TraceConnector", {"trace_path": str(path)})


def request_of(name, output_tokens=2):
    hashes = [bytes([number]) * 32 for number in range(3)]
    return SimpleNamespace(
        request_id=name, num_prompt_tokens=40, num_output_tokens=output_tokens, block_hashes=hashes
    )


def lengths(path):
    records = map(json.loads, path.read_text().splitlines())
    return [(record["input_length"], record["output_length"], len(record["hash_ids"])) for record in records]


def test_alone_it_does_what_an_engine_without_a_connector_does(connector, config, base, cache):
    made = connector(config, base.KVConnectorRole.SCHEDULER, cache)
    asked = request_of("x")
    made.on_new_request(asked)
    assert made.get_num_new_matched_tokens(asked, 16) == (0, False)
    assert made.update_state_after_alloc(asked, None, 0) is None
    assert isinstance(made.build_connector_meta(None), base.KVConnectorMetadata)
    assert made.request_finished_all_groups(asked, ([1], [2])) == (False, None)
    assert (made.requires_kv_delivery, made.has_pending_push_work()) == (False, False)
    assert connector.get_required_kvcache_layout(config) is None
    assert connector.supports_sleep_mode(config.kv_transfer_config) is True
    made.shutdown()
    worker = connector(config, base.KVConnectorRole.WORKER, cache)
    for hook in ("start_load_kv", "wait_for_layer_load", "save_kv_layer", "wait_for_save"):
        count = len(inspect.signature(getattr(worker.inner, hook)).parameters)
        assert getattr(worker, hook)(*["x"] * (count - (hook in ("start_load_kv", "save_kv_layer")))) is None
    assert worker.get_finished({"x"}) == (None, None)
    worker.shutdown()


def test_a_request_is_written_when_it_has_ended(connector, config, base, cache, path):
    made = connector(config, base.KVConnectorRole.SCHEDULER, cache)
    one, other = request_of("x"), request_of("y", 5)
    for asked in (one, other):
        made.on_new_request(asked)
    made.request_finished_all_groups(other, ([1], [2]))
    assert lengths(path) == []
    made.request_finished(one, [1])
    assert lengths(path) == [(40, 2, 2), (40, 5, 2)]
    made.traffic.check()
    made.on_new_request(one)
    made.shutdown()
    assert lengths(path)[2:] == [(40, 2, 2)], "what has not ended is written when the engine ends"


def test_only_the_schedulers_half_writes(connector, config, base, cache, path):
    worker = connector(config, base.KVConnectorRole.WORKER, cache)
    assert worker.traffic is None and not path.exists()
    worker.shutdown()


def test_the_one_behind_it_is_asked_all_the_same(connector, path):
    made = object.__new__(connector)
    made.inner = inner = MagicMock()
    made.traffic = MagicMock()
    inner.request_finished.return_value = inner.request_finished_all_groups.return_value = (True, None)
    inner.get_num_new_matched_tokens.return_value = (16, True)
    made.on_new_request("x")
    assert made.get_num_new_matched_tokens("x", 32) == (16, True)
    blocks = SimpleNamespace(get_block_ids=lambda: ([7, 8, 9],))
    made.update_state_after_alloc("x", blocks, 16)
    told = SimpleNamespace(invalid_block_ids={8}, finished_recving={"x"}, kv_connector_stats=None)
    made.update_connector_output(told)
    nothing = SimpleNamespace(invalid_block_ids=set(), finished_recving=None, kv_connector_stats=None)
    made.update_connector_output(nothing)
    made.update_state_after_alloc("y", SimpleNamespace(get_block_ids=lambda: ([7], [8])), 16)
    assert made.request_finished("x", [1]) == (True, None)
    inner.shutdown.side_effect = OSError("gone")
    with pytest.raises(OSError, match="gone"):
        made.shutdown()
    assert inner.mock_calls == [
        call.on_new_request("x"),
        call.get_num_new_matched_tokens("x", 32),
        call.update_state_after_alloc("x", blocks, 16),
        call.update_connector_output(told),
        call.update_connector_output(nothing),
        call.update_state_after_alloc("y", ANY, 16),
        call.request_finished("x", [1]),
        call.shutdown(),
    ]
    assert made.traffic.mock_calls == [
        call.arrive("x"),
        call.look_up("x", 32),
        call.begin("x", 16, [7, 8, 9]),
        call.fail({8}),
        call.loaded({"x"}),
        call.fail(set()),
        call.loaded(()),
        call.begin("y", 16, ()),
        call.end("x"),
        call.close(),
    ]


@pytest.mark.parametrize(("told", "of_cache", "tokens"), [(8, None, 8), (None, 4, 4), (None, None, 16)])
def test_a_block_has_as_many_tokens_as_a_hash_stands_for(
    connector,
    config,
    base,
    cache,
    path,
    told,
    of_cache,
    tokens,
):
    cache.hash_block_size = told
    config.cache_config.hash_block_size = of_cache
    made = connector(config, base.KVConnectorRole.SCHEDULER, cache)
    asked = request_of("x")
    made.on_new_request(asked)
    made.request_finished(asked, [1])
    made.shutdown()
    record = json.loads(path.read_text())
    assert (record["block_size"], len(record["hash_ids"])) == (tokens, min(3, 40 // tokens))


def about(connector, config, base, cache, path):
    """What a line says of the engine."""
    made = connector(config, base.KVConnectorRole.SCHEDULER, cache)
    made.on_new_request(request_of("x"))
    made.shutdown()
    record = json.loads(path.read_text())
    path.unlink()
    return [record.get(name) for name in ("block_size", "block_bytes", "gpu_blocks")]


@pytest.mark.parametrize("has_strides", [True, False])
def test_what_blocks_are_is_told_where_all_are_alike_and_kept(
    connector,
    config,
    base,
    cache,
    path,
    has_strides,
):
    """On two workers. Not of windows, of several groups, or where a hash stands for a part of a block."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    config.parallel_config.world_size = 2
    [group] = cache.kv_cache_groups
    assert about(connector, config, base, cache, path) == [16, None, None]
    dtype = group.kv_cache_spec.dtype
    group.kv_cache_spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=dtype)
    page = group.kv_cache_spec.page_size_bytes
    strides = {"block_stride": 2 * page} if has_strides else {}
    size = (2 if has_strides else 1) * 8 * page
    cache.kv_cache_tensors = [SimpleNamespace(size=size, shared_by=[name], **strides) for name in "ab"]
    assert about(connector, config, base, cache, path) == [16, 2 * 2 * page, 7]
    cache.kv_cache_tensors, tensors = [], cache.kv_cache_tensors
    group.layer_names = ["a", "b", "c"]
    assert about(connector, config, base, cache, path) == [16, 2 * 3 * page, 7]
    cache.kv_cache_tensors = tensors
    config.cache_config.hash_block_size = 8
    assert about(connector, config, base, cache, path) == [8, None, None]
    config.cache_config.hash_block_size = None
    one, config.parallel_config.decode_context_parallel_size = group.kv_cache_spec, 2
    group.kv_cache_spec = replace(one, dcp_sharded=True)
    assert [about(connector, config, base, cache, path)[place] for place in (0, 2)] == [32, 7]
    group.kv_cache_spec, config.parallel_config.decode_context_parallel_size = one, 1
    cache.kv_cache_groups *= 2
    assert about(connector, config, base, cache, path) == [16, None, None]


def test_that_the_trace_ends_early_is_a_warning(connector, config, base, cache, caplog):
    made = connector(config, base.KVConnectorRole.SCHEDULER, cache)
    made.traffic._say_that_it_ends(OSError("disk full"))
    assert [one.levelname for one in caplog.records if one.name == "kv_vllm"] == ["WARNING"]
    made.shutdown()


def test_each_replica_has_a_trace_of_its_own(connector, config, base, cache, path):
    config.parallel_config.data_parallel_index = 3
    connector(config, base.KVConnectorRole.SCHEDULER, cache).shutdown()
    assert [file.name for file in path.parent.iterdir()] == ["traffic.3.jsonl"]


def test_what_the_one_behind_it_keeps_is_told(connector, base, cache, path):
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    [group] = cache.kv_cache_groups
    group.kv_cache_spec = FullAttentionSpec(
        block_size=16, num_kv_heads=1, head_size=8, dtype=group.kv_cache_spec.dtype
    )
    behind = {**OFFLOADING, "kv_connector_module_path": "kv_vllm"}
    config = config_of("TraceConnector", {"trace_path": str(path), "connector": behind})
    made = connector(config, base.KVConnectorRole.SCHEDULER, cache)
    made.traffic.arrive(request_of("x"))
    made.shutdown()
    line = json.loads(path.read_text())
    assert (line["host_bytes"], line["policy"], "disk_bytes" in line) == (1 << 20, "lru", False)
