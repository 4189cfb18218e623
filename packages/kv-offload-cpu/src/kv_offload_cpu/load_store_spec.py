"""Where in host memory a job finds its chunks."""

from array import array

from kv_api import BlockIDsLoadStoreSpec


class CPULoadStoreSpec(BlockIDsLoadStoreSpec):
    """Chunk slots of host memory, one for each key of the job, in ``block_ids`` (vLLM's name; not GPU blocks)."""

    @property
    def chunk_ids(self) -> "array[int]":
        """The same slots, under what they are."""
        return self.block_ids
