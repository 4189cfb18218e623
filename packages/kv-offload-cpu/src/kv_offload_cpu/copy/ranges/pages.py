"""From a job's blocks and chunks to its pages. Pure.

The scheduler describes a job by GPU blocks, group after group, and the chunks that they fill, in the same order.
The blocks of a group are back to back in its chunks. Only the first chunk may begin in its middle, at block
``block_indices[g] % blocks_per_chunk``, and only the last may end before its end.
"""

from collections.abc import Iterable

import numpy as np

from kv_api import GPULoadStoreSpec, KVError
from kv_offload_cpu.copy.engine import Numbers, PageCopies
from kv_offload_cpu.sizing import HostLayout


def page_copies(
    job: str, blocks: GPULoadStoreSpec, chunks: Iterable[int], layout: HostLayout, num_groups: int
) -> PageCopies:
    """The pages of a job that copies to or from ``chunks``; errors call it ``job``."""
    if len(blocks.group_sizes) != num_groups:
        raise KVError(
            f"{job}: group_sizes {list(blocks.group_sizes)} are of {len(blocks.group_sizes)} groups, "
            f"the KV caches have {num_groups}"
        )
    factor = layout.blocks_per_chunk
    skipped = [index % factor for index in blocks.block_indices]
    spans = [
        -(-(skip + size) // factor) if size else 0 for skip, size in zip(skipped, blocks.group_sizes, strict=True)
    ]
    chunk_ids = np.asarray(chunks, dtype=np.int64)
    if sum(spans) != len(chunk_ids):
        raise KVError(
            f"{job}: {len(chunk_ids)} chunks given; groups of {list(blocks.group_sizes)} blocks from block "
            f"{list(blocks.block_indices)} on fill {spans} chunks of {factor}"
        )
    _check_within(job, "chunk", chunk_ids, layout.num_chunks)
    positions = [
        np.arange(skip, skip + size) + factor * begin
        for skip, size, begin in zip(skipped, blocks.group_sizes, _begins(spans), strict=True)
    ]
    # A position counts blocks over all chunks of the job, so the chunk and the offset are its quotient and rest.
    position = np.concatenate(positions) if positions else np.empty(0, np.int64)
    return PageCopies(
        groups=np.repeat(np.arange(num_groups), blocks.group_sizes),
        blocks=np.asarray(blocks.block_ids, dtype=np.int64),
        chunks=chunk_ids[position // factor],
        offsets=position % factor,
    )


def _begins(sizes: list[int]) -> list[int]:
    begins = [0]
    for size in sizes:
        begins.append(begins[-1] + size)
    return begins[:-1]


def _check_within(job: str, what: str, ids: Numbers, count: int) -> None:
    if len(ids) and (ids.min() < 0 or ids.max() >= count):
        raise KVError(f"{job}: {what} ids from {ids.min()} to {ids.max()}, there are 0 to {count - 1}")
