"""Which blocks a load has to fill, so that they can be reported when the load is lost."""

from typing import TypeVar

from kv_api import BlockIds, KVCacheBlocks, VllmConfig

Ids = TypeVar("Ids", list[int], BlockIds)
"""Block ids as ``request_finished`` or ``request_finished_all_groups`` gets them."""


def blocks_to_load(
    vllm_config: VllmConfig, blocks: KVCacheBlocks, num_computed_tokens: int, num_external_tokens: int
) -> tuple[int, ...] | None:
    """The blocks of the tokens after the GPU's own.

    None with several groups, where a block id doesn't name its group; and where some are null blocks, since a
    window doesn't reach back to them. An engine would go on at the first block that wasn't filled, without the
    window.
    """
    tables = blocks.get_block_ids()
    if len(tables) != 1:
        return None
    size = _tokens_per_block(vllm_config)
    end = num_computed_tokens + num_external_tokens
    filled = tuple(tables[0][num_computed_tokens // size : -(-end // size)])
    return filled if all(filled) else None


def none_of(block_ids: Ids) -> Ids:
    """A block table of the same form without blocks."""
    if isinstance(block_ids, list):
        return []
    return tuple([] for _ in block_ids)


def _tokens_per_block(vllm_config: VllmConfig) -> int:
    """Tokens of one block id: under context parallelism it stands for one block on every rank."""
    parallel = vllm_config.parallel_config
    ranks: int = getattr(parallel, "decode_context_parallel_size", 1)
    ranks *= getattr(parallel, "prefill_context_parallel_size", 1)
    return vllm_config.cache_config.block_size * ranks
