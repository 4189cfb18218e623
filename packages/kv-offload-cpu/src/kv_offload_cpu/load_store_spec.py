"""Where in host memory a job finds its chunks, and what came of a store."""

from array import array
from typing import NamedTuple

from kv_api import BlockIDsLoadStoreSpec, OffloadKey


class CPULoadStoreSpec(BlockIDsLoadStoreSpec):
    """Chunk slots of host memory, one for each key of the job, in ``block_ids`` (vLLM's name; not GPU blocks)."""

    @property
    def chunk_ids(self) -> "array[int]":
        """The same slots, under what they are."""
        return self.block_ids


class Stored(NamedTuple):
    """What a store took in, where to, and what had to go for it."""

    keys: list[OffloadKey]
    slots: list[int]
    evicted: list[OffloadKey]
