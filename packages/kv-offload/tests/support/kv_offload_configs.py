"""Configurations and small engine objects for tests."""

from hashlib import blake2b
from types import SimpleNamespace

import numpy as np

from kv_api import AttentionKind, KVConnectorRole, KVTransferConfig
from kv_offload import OffloadingConnector

FULL, WINDOW, STATE = AttentionKind.FULL, AttentionKind.SLIDING_WINDOW, AttentionKind.STATE_SPACE


def vllm_config(
    role="kv_both", world_size=1, rank=0, events=True, retention=None, context_parallel=1, stages=1, **extra
):
    extra = {"spec_name": "ScriptedSpec", "spec_module_path": "kv_offload_medium", **extra}
    return SimpleNamespace(
        kv_transfer_config=KVTransferConfig(
            "OffloadingConnector", engine_id="e", kv_role=role, kv_connector_extra_config=extra
        ),
        cache_config=SimpleNamespace(
            block_size=4, enable_prefix_caching=True, prefix_cache_retention_interval=retention
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=world_size // stages,
            pipeline_parallel_size=stages,
            decode_context_parallel_size=context_parallel,
            world_size=world_size,
            rank=rank,
        ),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        kv_events_config=SimpleNamespace(enable_kv_cache_events=events),
    )


def hold_the_same(config, cache):
    """Let all workers of an engine hold the same bytes, in processes of one machine."""
    config.model_config = SimpleNamespace(model="m", dtype="bf16", max_model_len=9, use_mla=True)
    config.parallel_config.distributed_executor_backend = "mp"
    config.parallel_config.nnodes_within_dp = 1
    cache.kv_tp_replicas = config.parallel_config.world_size


def kv_cache_config(groups=((FULL, 4, 0),), num_blocks=64, tokens_per_hash=None, hands_over=False):
    """`groups`: (kind, tokens of a block, window). `hands_over`: the engine hands over states."""
    specs = [
        SimpleNamespace(
            kind=kind,
            block_size=size,
            sliding_window=window or None,
            page_size_bytes=size * 8,
            hands_over_states=hands_over,
        )
        for kind, size, window in groups
    ]
    config = SimpleNamespace(
        num_blocks=num_blocks,
        kv_cache_groups=[
            SimpleNamespace(layer_names=[f"layer{index}"], kv_cache_spec=spec) for index, spec in enumerate(specs)
        ],
        kv_cache_tensors=[
            SimpleNamespace(size=num_blocks * spec.page_size_bytes, shared_by=[f"layer{index}"])
            for index, spec in enumerate(specs)
        ],
    )
    if tokens_per_hash:
        config.hash_block_size = tokens_per_hash
    return config


def caches(config):
    return {
        name: np.zeros((config.num_blocks, group.kv_cache_spec.block_size), dtype=np.uint64)
        for group in config.kv_cache_groups
        for name in group.layer_names
    }


def make(
    side=KVConnectorRole.SCHEDULER,
    *,
    cache=None,
    replicated=False,
    connector_class=OffloadingConnector,
    **config,
):
    cache, config = cache or kv_cache_config(), vllm_config(**config)
    if replicated:
        hold_the_same(config, cache)
    connector = connector_class(config, side, cache)
    if side is KVConnectorRole.WORKER:
        connector.register_kv_caches(caches(cache))
    return connector


class Request:
    """Fits `kv_api.Request`."""

    def __init__(self, name, tokens, prompt=None, per_hash=4, params=None):
        self.request_id = name
        self.tokens = list(tokens)
        self.num_prompt_tokens = len(self.tokens) if prompt is None else prompt
        self.num_computed_tokens = 0
        self.per_hash = per_hash
        self.cache_salt = self.lora_request = None
        self.kv_transfer_params = params

    @property
    def num_tokens(self):
        return len(self.tokens)

    @property
    def all_token_ids(self):
        return self.tokens

    @property
    def block_hashes(self):
        ends = range(self.per_hash, len(self.tokens) + 1, self.per_hash)
        return [blake2b(repr(self.tokens[:end]).encode(), digest_size=8).digest() for end in ends]


class Blocks:
    """Fits `kv_api.KVCacheBlocks`."""

    def __init__(self, *tables):
        self.tables = tuple(list(table) for table in tables)

    def get_block_ids(self):
        return tuple(list(table) for table in self.tables)


def step(new=(), more=(), counts=None, finished=(), preempted=(), resumed=(), offers=None, copies=None):
    """A step: `new` are (id, tables), `more` are (id, new tables or None), `offers` are states by request.

    `copies` are blocks by the block that they are copied into.
    """
    return SimpleNamespace(
        kv_cache_block_copies=[
            SimpleNamespace(src_block_id=source, dst_block_id=target) for target, source in (copies or {}).items()
        ],
        kv_connector_block_state=SimpleNamespace(boundary_state_offloads=offers or {}),
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, block_ids=tables, num_computed_tokens=0, prompt_token_ids=[])
            for name, tables in new
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[name for name, _ in more],
            new_block_ids=[tables for _, tables in more],
            resumed_req_ids=set(resumed),
            num_computed_tokens=[0 for _ in more],
        ),
        num_scheduled_tokens=dict(counts or {}),
        total_num_scheduled_tokens=sum((counts or {}).values()),
        finished_req_ids=set(finished),
        preempted_req_ids=set(preempted),
    )
