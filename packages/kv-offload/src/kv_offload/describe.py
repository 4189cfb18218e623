"""Reads from an engine's configuration what this connector needs to know of the engine.

What is not in ``kv_api``'s protocols is read with ``getattr`` and a default, so that a small engine need not have
it. What kind of layers a KV cache group has is for ``kv_api.groups`` to say, and what blocks are for
``kv_api.blocks``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from kv_api import (
    AttentionKind,
    ConfigError,
    KVCacheConfig,
    KVCacheGroupSpec,
    OffloadingConfig,
    VllmConfig,
)
from kv_api.blocks import HashExtras, hash_extras, tokens_per_hash
from kv_api.groups import DescribeGroup, GroupDescription, describe_group
from kv_api.groups import described as described_group
from kv_offload.medium_config import medium_config, parallel_config
from kv_offload.options import HoldBlocks, Options, StoreWhen, parse_options
from kv_offload.shape.layout import Group, Layout


@dataclass(frozen=True)
class EngineDescription:
    """The engine, as both sides of the connector know it."""

    options: Options
    layout: Layout
    config: OffloadingConfig
    can_load: bool
    can_store: bool
    holds_blocks: bool
    """True: the blocks of ended requests are held until they are stored. False: stores are fenced."""
    stores_late: bool
    """True: chunks are stored when the engine is about to give their blocks away. False: at once, or when the
    request ends."""
    fails_requests: bool
    """Whether failed loads are reported by request: with several groups, offloaded or not, with windows and with
    states. If they were reported by block, an engine would go on at the first failed block; but of a window a load
    fills only the end, and no state may be there."""
    world_size: int
    has_stages: bool
    """Whether ranks may hold different layers. Then the scheduler's side knows only the layers of the first rank.
    """
    hash_extras: HashExtras


def describe_engine(
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig | None,
    describe: DescribeGroup = describe_group,
    extras: HashExtras = hash_extras,
) -> EngineDescription:
    """Read everything once, and refuse what can't work."""
    transfer = vllm_config.kv_transfer_config
    if transfer is None:
        raise ConfigError("OffloadingConnector needs a kv_transfer_config, and there is none")
    if kv_cache_config is None:
        raise ConfigError("OffloadingConnector needs a kv_cache_config, and there is none")
    options = parse_options(transfer.kv_connector_extra_config)
    group_ids = _group_ids(kv_cache_config)
    specs = [kv_cache_config.kv_cache_groups[group_id].kv_cache_spec for group_id in group_ids]
    described = [described_group(vllm_config, spec, describe) for spec in specs]
    block_sizes = [group.tokens_per_block for group in described]
    blocks_per_chunk = _blocks_per_chunk(options, block_sizes)
    hash_tokens = tokens_per_hash(vllm_config, kv_cache_config, block_sizes)
    groups = tuple(
        _group(group_id, kv_cache_config.kv_cache_groups[group_id], group, blocks_per_chunk, hash_tokens)
        for group_id, group in zip(group_ids, described, strict=True)
    )
    grain = lcm(*(group.tokens_per_block for group in groups))
    parallel = parallel_config(vllm_config)
    shares = parallel.dcp_size > 1 or parallel.pcp_size > 1
    layout = Layout(groups, hash_tokens, grain, _retention_tokens(vllm_config), shares)
    holds_blocks = _must_hold(options, vllm_config, kv_cache_config, layout)
    return EngineDescription(
        options,
        layout,
        medium_config(vllm_config, kv_cache_config, layout),
        can_load=transfer.is_kv_consumer,
        can_store=transfer.is_kv_producer and options.save,
        holds_blocks=holds_blocks,
        stores_late=_stores_late(options, vllm_config, layout, holds_blocks=holds_blocks),
        fails_requests=len(kv_cache_config.kv_cache_groups) > 1 or not layout.reads_back_only,
        world_size=vllm_config.parallel_config.world_size,
        has_stages=parallel.pp_size > 1,
        hash_extras=extras,
    )


def _group(
    group_id: int, told: KVCacheGroupSpec, described: GroupDescription, blocks_per_chunk: int, hash_tokens: int
) -> Group:
    """A group, of what the engine tells of it and what its layers are."""
    return Group(
        group_id=group_id,
        kind=described.kind,
        tokens_per_block=described.tokens_per_block,
        blocks_per_chunk=blocks_per_chunk,
        hashes_per_chunk=described.tokens_per_block * blocks_per_chunk // hash_tokens,
        window_tokens=described.window_tokens,
        restart_tokens=described.restart_tokens,
        bytes_per_block=described.page_size_bytes * len(told.layer_names),
        is_handed_over=described.is_handed_over,
        is_draft=bool(getattr(told, "is_eagle_group", False)),
    )


def _group_ids(kv_cache_config: KVCacheConfig) -> tuple[int, ...]:
    ids: Sequence[int] | None = getattr(kv_cache_config, "prefix_cacheable_group_ids", None)
    if ids is None:
        ids = range(len(kv_cache_config.kv_cache_groups))
    if not ids:
        raise ConfigError(
            "kv_cache_config: no KV cache group takes part in prefix caching, so there is nothing to offload"
        )
    for group_id in ids:
        if getattr(kv_cache_config.kv_cache_groups[group_id], "host_resident", False):
            raise ConfigError(
                f"kv_cache_config.kv_cache_groups[{group_id}]: its blocks are in host memory already "
                "(host_resident, as with HiSparse); OffloadingConnector supports blocks of the GPU's pool only"
            )
    return tuple(ids)


def _blocks_per_chunk(options: Options, block_sizes: list[int]) -> int:
    if options.block_size is None:
        return options.blocks_per_chunk or 1
    if len(set(block_sizes)) > 1:
        raise ConfigError(
            f"kv_connector_extra_config.block_size: got {options.block_size}, but the KV cache groups have "
            f"blocks of {block_sizes} tokens; set blocks_per_chunk instead"
        )
    if options.block_size % block_sizes[0]:
        above = -(-options.block_size // block_sizes[0]) * block_sizes[0]
        raise ConfigError(
            f"kv_connector_extra_config.block_size: got {options.block_size}, which is not a multiple of the "
            f"GPU's block size {block_sizes[0]}; the next multiple is {above}"
        )
    return options.block_size // block_sizes[0]


def _retention_tokens(vllm_config: VllmConfig) -> int | None:
    """How often the engine keeps what a window needs."""
    tokens = getattr(vllm_config.cache_config, "prefix_cache_retention_interval", None)
    if tokens is None or (type(tokens) is int and tokens >= 0):
        return tokens
    raise ConfigError(
        f"cache_config.prefix_cache_retention_interval: got {tokens!r}; expected a number of tokens, 0 for the "
        "ends of prompts alone, or None for all"
    )


def _must_hold(options: Options, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, layout: Layout) -> bool:
    """Whether somebody may write a freed block before ``handle_preemptions`` can wait for its copy (a fence).

    Runner V1 zeroes and copies blocks after that call, runner V2 before it. It makes no difference where no block
    is zeroed or copied on write (no states, and hashes as long as blocks). If the runner isn't known, the answer
    is yes.

    Blocks of states that are handed over can't be held, since their request lets go of them while it runs: where
    others are held, these are pinned (``handed_states``).
    """
    if options.hold_blocks is not HoldBlocks.AUTO:
        return options.hold_blocks is HoldBlocks.ALWAYS
    if getattr(vllm_config, "use_v2_model_runner", None) is False:
        return False
    never_zeroes = getattr(kv_cache_config, "needs_kv_cache_zeroing", None) is False
    copies = any(
        group.kind is AttentionKind.STATE_SPACE or group.tokens_per_block != layout.tokens_per_hash
        for group in layout.groups
    )
    return copies or not never_zeroes


def _stores_late(options: Options, vllm_config: VllmConfig, layout: Layout, *, holds_blocks: bool) -> bool:
    """Whether chunks are stored when their blocks are given away.

    It needs fences: the new owner waits for the copy.

    Without a prefix cache nothing stays on the GPU when its request has ended, and there is nothing to wait for.
    """
    if options.store_when is not StoreWhen.EVICTED:
        return False
    if holds_blocks:
        why = (
            "hold_blocks keeps blocks until they are stored, so they have to be stored at once; set hold_blocks "
            "to 'never'"
        )
    elif not layout.reads_back_only:
        why = (
            "the engine frees single blocks of a sliding window or of states while their request runs; set "
            "store_when to 'computed'"
        )
    else:
        return bool(getattr(vllm_config.cache_config, "enable_prefix_caching", True))
    raise ConfigError(f"kv_connector_extra_config.store_when: got 'evicted', but {why}")
