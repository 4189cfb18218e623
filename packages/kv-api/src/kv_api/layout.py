"""Canonical KV caches: the GPU's memory as plain pages, whatever the attention backend made of it.

A worker of an offloading medium copies pages. It is told once which tensors there are, each ``(num_blocks,
page bytes)``, and which of them hold the layers of each KV cache group. Layers that alias the same memory share
one tensor.
"""

from dataclasses import dataclass
from enum import StrEnum

from kv_api.engine import Tensor


class AttentionKind(StrEnum):
    """What the layers of a KV cache group read of what came before.

    An engine of ours names it in its group's ``kv_cache_spec.kind``; vLLM's classes are translated by kv-vllm.
    """

    FULL = "full_attention"
    """Every token."""
    SLIDING_WINDOW = "sliding_window"
    """The last ``kv_cache_spec.sliding_window`` tokens, the one that is computed among them."""
    STATE_SPACE = "state_space"
    """The state after the token before: only the last block counts, and only at a block's end."""


@dataclass
class CanonicalKVCacheTensor:
    """One tensor of pages: first dimension the GPU block, one page of ``page_size_bytes`` (padded) each."""

    tensor: Tensor
    page_size_bytes: int


@dataclass(frozen=True)
class CopyRun:
    """Equal fragments at regular distances, in a worker's page and in the canonical page.

    Fragment ``i`` is ``fragment_size`` bytes at ``local_offset + i * local_stride`` here, and at
    ``canonical_offset + i * canonical_stride`` there.
    """

    local_offset: int
    canonical_offset: int
    fragment_size: int
    num_fragments: int
    local_stride: int
    canonical_stride: int


@dataclass(frozen=True)
class CanonicalPageMapping:
    """Where the bytes of a worker's page lie in a page that doesn't depend on parallelism.

    The runs cover the whole local page. ``num_writers`` ranks hold the same bytes and take turns in writing them.
    """

    canonical_page_size_bytes: int
    local_page_size_bytes: int
    runs: tuple[CopyRun, ...]
    num_writers: int
    writer_index: int
    parallelism_agnostic: bool

    def is_writer(self, block_id: int) -> bool:
        """Whether it is this worker's turn to write the page of ``block_id``."""
        return block_id % self.num_writers == self.writer_index


@dataclass
class CanonicalKVCacheRef:
    """Where the bytes of a layer (or of several that share a page) are: a tensor, and the unpadded page size."""

    tensor_idx: int
    page_size_bytes: int
    mapping: CanonicalPageMapping | None = None


@dataclass
class CanonicalKVCaches:
    """All pages of a worker: the tensors, and for each group the references into them."""

    tensors: list[CanonicalKVCacheTensor]
    group_data_refs: list[list[CanonicalKVCacheRef]]
