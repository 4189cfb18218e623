"""KV caches in many layouts, and the obvious model of what stores and loads do to their bytes."""

from collections import defaultdict
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from kv_api import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from kv_offload_cpu import CPULoadStoreSpec, HostLayout
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan


class LikeTorchs:
    """Says of itself what a tensor of torch does, which counts strides in elements."""

    def __init__(self, kind="cuda", shape=(8, 64), strides=(64, 1), element_bytes=1):
        self.device = SimpleNamespace(type=kind)
        self.shape = shape
        self.stride = lambda: strides
        self.element_size = lambda: element_bytes

    def data_ptr(self):
        return 4096


def offloading_config(
    bytes_per_block,
    blocks_per_chunk=1,
    rank=0,
    world_size=1,
    *,
    replicated=False,
    groups=1,
    max_model_len=0,
    stages=1,
    **extra,
):
    """What an engine tells a spec; ``extra`` is the extra config."""
    return OffloadingConfig(
        groups=tuple(OffloadingGroupConfig(16, (f"layer {group}",), group) for group in range(groups)),
        worker_kv_bytes_per_block=bytes_per_block,
        enable_kv_cache_events=False,
        extra_config=extra,
        engine_id="engine",
        model=OffloadingModelConfig("model", "float16", max_model_len),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=blocks_per_chunk),
        parallel=OffloadingParallelConfig(rank, world_size, world_size // stages, stages, 1, 1, 0, 1, None, False),
        replicated_layout=replicated,
    )


class Tensor(NamedTuple):
    """A tensor's geometry: bytes of a page, and bytes between two pages that belong to nobody."""

    page_bytes: int
    gap_bytes: int = 0


class Shape(NamedTuple):
    """KV caches: the tensors, and for each group the tensors that hold its layers with the bytes of a page."""

    num_blocks: int
    blocks_per_chunk: int
    tensors: tuple[Tensor, ...]
    groups: tuple[tuple[tuple[int, int], ...], ...]

    def parts(self, group):
        """The tensors that hold a group's layers, and the bytes of a page there, in the order of host memory."""
        sizes = {}
        for tensor, size in self.groups[group]:
            sizes[tensor] = max(size, sizes.get(tensor, 0))
        return sorted(sizes.items())

    @property
    def bytes_per_block(self):
        """Of the group with the most: a chunk is of one."""
        return max(sum(size for _, size in self.parts(group)) for group in range(len(self.groups)))

    def places(self, group, offset):
        """Of each part of a page the tensor, the bytes, and where they are in a slot."""
        begin = 0
        for tensor, size in self.parts(group):
            yield tensor, size, begin + offset * size
            begin += size * self.blocks_per_chunk


def make_caches(shape, seed):
    """Arrays of random bytes, and the canonical caches over them."""
    random = np.random.default_rng(seed)
    wide = [tensor.page_bytes + tensor.gap_bytes for tensor in shape.tensors]
    arrays = [random.integers(-128, 128, (shape.num_blocks, width), dtype=np.int8) for width in wide]
    return arrays, canonical(shape, arrays)


def canonical(shape, arrays):
    """Canonical caches over arrays (or tensors) of pages and gaps."""
    tensors = [
        CanonicalKVCacheTensor(array[:, : tensor.page_bytes], tensor.page_bytes)
        for array, tensor in zip(arrays, shape.tensors, strict=True)
    ]
    return CanonicalKVCaches(tensors, [[CanonicalKVCacheRef(*ref) for ref in refs] for refs in shape.groups])


class Job(NamedTuple):
    """Blocks and chunks of a job by group, and the block of the request that each group begins at."""

    blocks: tuple[tuple[int, ...], ...]
    chunks: tuple[tuple[int, ...], ...]
    begins: tuple[int, ...]

    @property
    def gpu_spec(self):
        return GPULoadStoreSpec(
            [block for blocks in self.blocks for block in blocks],
            [len(blocks) for blocks in self.blocks],
            self.begins,
        )

    @property
    def cpu_spec(self):
        return CPULoadStoreSpec([chunk for chunks in self.chunks for chunk in chunks])

    def pages(self, blocks_per_chunk):
        """Group, block, chunk and offset of every page, one by one."""
        for group, (blocks, chunks, begin) in enumerate(zip(self.blocks, self.chunks, self.begins, strict=True)):
            for position, block in enumerate(blocks, begin % blocks_per_chunk):
                yield group, block, chunks[position // blocks_per_chunk], position % blocks_per_chunk


class BytesModel:
    """The bytes of host memory that one slot of each chunk has, and what jobs do to them and to arrays."""

    def __init__(self, shape):
        self.shape = shape
        self.slots = defaultdict(lambda: np.zeros(shape.bytes_per_block * shape.blocks_per_chunk, np.int8))

    def store(self, arrays, job):
        for page, kept in self._pages(arrays, job):
            kept[:] = page

    def load(self, arrays, job):
        for page, kept in self._pages(arrays, job):
            page[:] = kept

    def _pages(self, arrays, job):
        for group, block, chunk, offset in job.pages(self.shape.blocks_per_chunk):
            for tensor, size, begin in self.shape.places(group, offset):
                yield arrays[tensor][block, :size], self.slots[chunk][begin : begin + size]


@st.composite
def shapes(draw):
    """One to three groups over one to four tensors, aliased and padded, all alike, or not; chunks of some blocks.

    A group's layers may all be other workers'.
    """
    some = st.builds(Tensor, st.integers(1, 33), st.sampled_from([0, 0, 1, 7]))
    alike = st.builds(lambda tensor, count: [tensor] * count, some, st.integers(2, 4))
    tensors = draw(st.lists(some, min_size=1, max_size=4) | alike)
    refs = st.integers(0, len(tensors) - 1).flatmap(
        lambda index: st.tuples(st.just(index), st.integers(1, tensors[index].page_bytes))
    )
    every = st.just([(index, tensor.page_bytes) for index, tensor in enumerate(tensors)])
    group = (st.lists(refs, min_size=1, max_size=5) | every).map(tuple)
    groups = draw(st.lists(group, min_size=1, max_size=2))
    groups += draw(st.just([]) | st.just([()]) | group.map(lambda last: [last]))
    return Shape(draw(st.integers(1, 12)), draw(st.integers(1, 4)), tuple(tensors), tuple(groups))


@st.composite
def jobs(draw, shape, num_chunks):
    """A job that begins and ends anywhere in chunks of its own, as any load may."""
    factor = shape.blocks_per_chunk
    free_blocks = draw(st.permutations(range(shape.num_blocks)))
    free_chunks = draw(st.permutations(range(num_chunks)))
    blocks, chunks, begins = [], [], []
    for _ in shape.groups:
        begin = draw(st.integers(0, 9))
        room = len(free_chunks) * factor - begin % factor
        size = draw(st.integers(0, max(0, min(len(free_blocks), room))))
        spanned = -(-(begin % factor + size) // factor) if size else 0
        blocks.append(tuple(free_blocks[:size]))
        chunks.append(tuple(free_chunks[:spanned]))
        begins.append(begin)
        free_blocks, free_chunks = free_blocks[size:], free_chunks[spanned:]
    return Job(tuple(blocks), tuple(chunks), tuple(begins))


def plan_of_tensors(*tensors, slot=0):
    """Of one group that has pages in each of these tensors, and chunks of two blocks."""
    refs = [[CanonicalKVCacheRef(index, tensor.page_bytes) for index, tensor in enumerate(tensors)]]
    slot_bytes = 2 * sum(tensor.page_bytes for tensor in tensors)
    layout = HostLayout(3, 2, slot_bytes, 2, 2 * slot_bytes)
    return CopyPlan(tensors, refs, layout, slot, 1 << 40)
