"""How host memory is cut: chunks of how many bytes, and how many of them. Pure sums that every process repeats.

A *row* is one chunk. It has one *slot* for each copy of the KV cache: one for each worker, or one for all of them
where every worker holds the same bytes. A chunk is of one KV cache group, and a slot has its pages of one worker:
tensor after tensor, and of each tensor the ``blocks_per_chunk`` pages that the chunk joins::

    row c   | slot 0                            | slot 1                            | to a page |
              tensor 0: block 0, 1, … tensor 1: …

The scheduler and all workers compute this from the same configuration, so they agree without a word where all
workers hold the same layers. The stages of a pipeline don't: there each worker has rows of its own, in memory of
its own, and the manager is limited to as many as the worker with the fewest has (``limit_chunks``).
"""

from dataclasses import dataclass

from kv_api import ConfigError


@dataclass(frozen=True)
class HostLayout:
    """Where the slots of each chunk lie, in bytes from the begin of host memory."""

    num_chunks: int
    blocks_per_chunk: int
    slot_bytes: int
    slots_per_row: int
    row_bytes: int

    @property
    def total_bytes(self) -> int:
        """How many bytes all rows have together."""
        return self.num_chunks * self.row_bytes


def plan_layout(
    capacity_bytes: int, bytes_per_block: int, copies: int, blocks_per_chunk: int, page_bytes: int
) -> HostLayout:
    """Cut ``capacity_bytes`` into chunks of ``blocks_per_chunk`` blocks, rows rounded up to ``page_bytes``.

    ``bytes_per_block`` is what one worker holds of a block, and ``copies`` how many workers keep theirs.
    """
    sums = {"worker_kv_bytes_per_block": bytes_per_block, "copies": copies, "blocks_per_chunk": blocks_per_chunk}
    for name, value in sums.items():
        if value < 1:
            raise ConfigError(f"{name}: expected at least 1, got {value}")
    slot_bytes = bytes_per_block * blocks_per_chunk
    row_bytes = -(-slot_bytes * copies // page_bytes) * page_bytes
    num_chunks = capacity_bytes // row_bytes
    if num_chunks < 1:
        raise ConfigError(
            f"cpu_bytes_to_use: {capacity_bytes} bytes are less than one chunk, which takes {row_bytes}: "
            f"{bytes_per_block} bytes a block × {blocks_per_chunk} blocks × {copies} copies, "
            f"in pages of {page_bytes}"
        )
    return HostLayout(num_chunks, blocks_per_chunk, slot_bytes, copies, row_bytes)
