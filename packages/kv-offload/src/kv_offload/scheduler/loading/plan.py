"""From a promise and a block table to what a load copies."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_api import AttentionKind, GPULoadStoreSpec, OffloadKey
from kv_offload.scheduler.state.progress import Progress
from kv_offload.scheduler.state.sources import Supply
from kv_offload.shape.layout import Layout
from kv_offload.shape.naming import tail_key


@dataclass
class LoadPlan:
    """The blocks and chunks that a load copies, group after group."""

    keys: list[OffloadKey] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    group_sizes: list[int] = field(default_factory=list)
    block_indices: list[int] = field(default_factory=list)
    chunks: list[range] = field(default_factory=list)
    """Of each group, without a tail."""
    supplies: list[Supply] = field(default_factory=list)
    is_possible: bool = True
    """Whether the table has a block for all of it."""

    @property
    def gpu_spec(self) -> GPULoadStoreSpec:
        """The blocks that it fills."""
        return GPULoadStoreSpec(self.block_ids, self.group_sizes, self.block_indices)


def plan_load(
    layout: Layout,
    progress: Progress,
    tables: Sequence[Sequence[int]],
    local: int,
    boundary: int,
    tail_hashes: Sequence[bytes] | None,
) -> LoadPlan:
    """Load what lies between ``local`` and ``boundary`` tokens into the blocks of ``tables``, by group id.

    The boundary may lie anywhere in a chunk, and so may the beginning. A window's table may begin with null blocks
    where the engine needs less of it than we do; a null block after that can't be loaded. Neither can a state
    where no chunk ends, unless the load ends with a tail: with the request's hashes, which name it.
    """
    plan = LoadPlan()
    for of_group in progress.groups:
        group, table = of_group.group, tables[of_group.group.group_id]
        blocks = group.blocks_to_load(local, boundary)
        first = next((index for index in blocks if index < len(table) and table[index]), blocks.stop)
        blocks = range(first, blocks.stop)
        chunks = group.chunks_of(blocks)
        ids = list(table[blocks.start : blocks.stop])
        complete = chunks if tail_hashes is None else chunks[:-1]
        keys = of_group.keys[complete.start : complete.stop]
        complete = complete[: len(keys)]
        if tail_hashes is not None:
            is_possible = bool(blocks)
            keys.append(tail_key(layout, group, tail_hashes, boundary))
        else:
            is_possible = group.kind is not AttentionKind.STATE_SPACE or not boundary % group.tokens_per_chunk
        if len(ids) < len(blocks) or 0 in ids or len(keys) < len(chunks) or not is_possible:
            plan.is_possible = False
            ids = [block for block in ids if block]
        plan.keys += keys
        plan.block_ids += ids
        plan.group_sizes.append(len(ids))
        plan.block_indices.append(blocks.start)
        plan.chunks.append(complete)
        plan.supplies.append(
            Supply(blocks.start * group.tokens_per_block, group.tokens_per_chunk, chunks.start, keys)
        )
    return plan
