"""Which blocks a load is to fill, so that they can be named when the load is lost; and a table without any."""

from typing import TypeVar

from kv_api import BlockIds, KVCacheBlocks, VllmConfig

Ids = TypeVar("Ids", list[int], BlockIds)
"""Block ids as ``request_finished`` gets them, or as its form for all groups does."""


def blocks_to_load(
    vllm_config: VllmConfig, blocks: KVCacheBlocks, num_computed_tokens: int, num_external_tokens: int
) -> tuple[int, ...] | None:
    """The blocks of the tokens behind the GPU's own. None with several groups: an id may be of any of them."""
    tables = blocks.get_block_ids()
    if len(tables) != 1:
        return None
    size = _tokens_per_block(vllm_config)
    end = num_computed_tokens + num_external_tokens
    return tuple(tables[0][num_computed_tokens // size : -(-end // size)])


def none_of(block_ids: Ids) -> Ids:
    """The same table without blocks."""
    if isinstance(block_ids, list):
        return []
    return tuple([] for _ in block_ids)


def _tokens_per_block(vllm_config: VllmConfig) -> int:
    """Under context parallelism, which not every engine has, one block id stands for a block of every rank."""
    parallel = vllm_config.parallel_config
    ranks: int = getattr(parallel, "decode_context_parallel_size", 1)
    ranks *= getattr(parallel, "prefill_context_parallel_size", 1)
    return vllm_config.cache_config.block_size * ranks
