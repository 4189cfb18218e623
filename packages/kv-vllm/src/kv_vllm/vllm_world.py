"""vLLM's own configurations, sized like a world of the testbed.

There is no model, no weights and no network. Values that vLLM derives from hardware or from options that a world
doesn't have (the number of concurrent steps, the runner, the number of drafts, zeroing) are set from the world;
all others are vLLM's own.
"""

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVEventsConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
    SlidingWindowSpec,
)

from kv_sim.config import STATE, WORD_BYTES, Drafter, GroupConfig, WorldConfig

VOCABULARY: Final = 60_000
"""The size of the vocabulary: more than the testbed's tokens."""

HEAD_SIZE: Final = 1
KV_HEADS: Final = 1
DTYPE: Final = torch.float32
"""Key and value of a token in a layer are one word of the testbed's."""

LAYOUT: Final = "LBHNC"
"""vLLM's word for the layout in which each layer's pages are together."""

MODEL: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2,
    "intermediate_size": 2,
    "head_dim": HEAD_SIZE,
    "num_attention_heads": KV_HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 1,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}


class WorldVllmConfig(VllmConfig):  # type: ignore[misc]
    """A configuration with values of a world that vLLM would derive otherwise. ``world`` is set after a copy."""

    world: WorldConfig

    @property
    def max_concurrent_batches(self) -> int:
        return self.world.max_concurrent_steps

    @property
    def use_v2_model_runner(self) -> bool:
        return self.world.runner == 2


@contextmanager
def _model_folder() -> Iterator[str]:
    """The folder of the smallest model."""
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        yield folder


@cache
def _base() -> VllmConfig:
    """A configuration of the smallest model; made once, since vLLM is slow to make it."""
    with _model_folder() as folder:
        return VllmConfig(
            model_config=ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", seed=1),
            scheduler_config=SchedulerConfig(
                max_num_seqs=4,
                max_num_batched_tokens=64,
                max_model_len=MODEL["max_position_embeddings"],
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                async_scheduling=False,
            ),
            cache_config=CacheConfig(block_size=4, cache_dtype="auto", enable_prefix_caching=True),
            device_config=DeviceConfig("cpu"),
        )


@cache
def _drafting(tokens: int, drafter: Drafter) -> SpeculativeConfig | None:
    """How a world drafts: from earlier tokens, without a draft model, or by a draft model like the target."""
    if not tokens:
        return None
    target = {"target_model_config": _base().model_config, "target_parallel_config": _base().parallel_config}
    if drafter == "text":
        return SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=tokens,
            prompt_lookup_min=1,
            prompt_lookup_max=tokens,
            **target,
        )
    with _model_folder() as folder:
        method = "draft_model" if drafter == "model" else "eagle"
        config = SpeculativeConfig(model=folder, method=method, num_speculative_tokens=tokens, **target)
    if drafter == "mtp":
        config.method = "mtp"  # set here, since vLLM's constructor allows it only for models that have it
    return config


def vllm_config(
    world: WorldConfig, transfer: KVTransferConfig, rank: int = 0, sharing_ranks: int = 1
) -> WorldVllmConfig:
    """The configuration for vLLM and its connectors; each ``rank``'s worker gets its own.

    ``sharing_ranks`` ranks share the tokens of a block (decode context parallelism).
    """
    base = _base()
    config = object.__new__(WorldVllmConfig)
    config.__dict__.update(base.__dict__)
    config.world = world
    config.model_config = copy.copy(base.model_config)
    config.model_config.max_model_len = world.max_model_len
    config.model_config.dtype = numbers_of(world)[0]
    config.model_config.model_arch_config = arch = copy.copy(base.model_config.model_arch_config)
    arch.total_num_hidden_layers = len(world.groups) * world.layers
    arch.total_num_attention_heads = arch.total_num_kv_heads = KV_HEADS * world.world_size  # each rank has its own
    config.scheduler_config = scheduler = copy.copy(base.scheduler_config)
    scheduler.max_num_seqs = world.max_running
    scheduler.max_num_batched_tokens = scheduler.max_num_scheduled_tokens = world.max_step_tokens
    scheduler.async_scheduling = world.async_scheduling
    scheduler.disable_hybrid_kv_cache_manager = len(world.groups) == 1
    config.cache_config = copy.copy(base.cache_config)
    config.cache_config.block_size = world.block_size // sharing_ranks
    config.cache_config.enable_prefix_caching = world.prefix_caching
    config.cache_config.kv_cache_layout = LAYOUT
    if world.has_tails:
        config.cache_config.hash_block_size = config.cache_config.prefix_match_unit = hash_tokens(world)
    config.cache_config.num_gpu_blocks = world.num_blocks
    config.cache_config.prefix_cache_retention_interval = _retention_tokens(world)
    if STATE in world.groups:
        config.cache_config.mamba_cache_mode = "align"
    config.speculative_config = _drafting(world.spec_tokens, world.drafter)
    config.kv_transfer_config = transfer
    config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    config.parallel_config = parallel = copy.copy(base.parallel_config)
    # For vLLM all ranks are tensor parallel: what it does only for pipelines doesn't concern connectors.
    parallel.tensor_parallel_size = parallel.world_size = world.world_size
    parallel.decode_context_parallel_size = sharing_ranks
    parallel.rank = rank
    config.compilation_config = copy.copy(base.compilation_config)
    config.compilation_config.static_forward_context = {}
    return config


class WorldKVCacheConfig(KVCacheConfig):  # type: ignore[misc]
    """A cache whose new blocks are zeroed if the world says so; vLLM derives that from the kinds of layers."""

    is_zeroed = False

    @property
    def needs_kv_cache_zeroing(self) -> bool:
        return self.is_zeroed


def sharing_ranks_of(world: WorldConfig) -> int:
    """How many ranks share the tokens of a block, in a world whose connector supports that: in some worlds all.

    vLLM and connectors notice it only by the size of blocks. States aren't shared, nor are windows in vLLM.
    """
    ranks = world.world_size
    shares = world.groups == (GroupConfig(),) and world.block_size % ranks == 0
    return ranks if shares and (world.num_blocks + world.max_running) % 2 == 0 else 1


def kv_cache_config(world: WorldConfig, sharing_ranks: int = 1) -> WorldKVCacheConfig:
    """Groups and their layers; a page of a layer is as large as the testbed's. All groups share the memory."""
    names = [[layer_name(group, layer) for layer in range(world.layers)] for group in range(len(world.groups))]
    layer_bytes = world.num_blocks * world.page_bytes
    config = WorldKVCacheConfig(
        num_blocks=world.num_blocks,
        kv_cache_tensors=[
            KVCacheTensor(
                size=world.layers * layer_bytes,
                layers=layers,
                layer_stride=layer_bytes,
                block_stride=world.page_bytes,
            )
            for layers in names
        ],
        kv_cache_groups=[
            KVCacheGroupSpec(
                layers,
                _spec(world, number, sharing_ranks),
                is_eagle_group=world.marks_drafts and number == world.draft_group,
            )
            for number, (layers, group) in enumerate(zip(names, world.groups, strict=True))
        ],
    )
    config.prefix_cache_retention_interval = _retention_tokens(world)
    config.is_zeroed = world.zero_new_blocks
    return config


def _retention_tokens(world: WorldConfig) -> int | None:
    """Every how many tokens vLLM keeps a state, and the part of a window that it keeps.

    Without states, vLLM is compared with the testbed's engine, which keeps everything; so None then.
    """
    if STATE not in world.groups:
        return None
    return (None, 0, 2 * world.block_size)[(world.num_blocks + world.max_running) % 3]


def _spec(world: WorldConfig, number: int, sharing_ranks: int) -> Any:
    group = world.groups[number]
    if group == STATE:
        words = world.page_bytes // WORD_BYTES
        return MambaSpec(
            block_size=world.block_size,
            shapes=((words,),),
            dtypes=(torch.int64,),
            mamba_cache_mode="align",
            num_speculative_blocks=world.spec_tokens,
        )
    # Smaller blocks, and a rank's part of those that ranks share, have a page that is as large as the testbed's.
    tokens, (dtype, head_size) = world.tokens_of(number) // sharing_ranks, numbers_of(world)
    wider = group.parts * sharing_ranks
    size = {"block_size": tokens, "num_kv_heads": KV_HEADS, "head_size": head_size * wider, "dtype": dtype}
    return SlidingWindowSpec(**size, sliding_window=group.window) if group.window else FullAttentionSpec(**size)


def numbers_of(world: WorldConfig) -> tuple[torch.dtype, int]:
    """The type of the numbers of a key or value, and how many a head has, so that their bytes are the same."""
    dtype: torch.dtype = getattr(torch, world.dtype)
    return dtype, HEAD_SIZE * DTYPE.itemsize // dtype.itemsize


def layer_name(group: int, layer: int) -> str:
    """The name of a layer of a group."""
    return f"group{group}.layers.{layer}"


def hashes_per_block(world: WorldConfig) -> int:
    """Hashes of a block of the largest size. vLLM has several only for states, and for smaller blocks."""
    return world.hashes_per_block if world.is_unequal else world.hit_ends_per_block


def hash_tokens(world: WorldConfig) -> int:
    """Tokens of a block hash."""
    return world.block_size // hashes_per_block(world)
