"""From pages to byte ranges, a whole job at a time. Pure, and without a loop over pages.

A plan is made once, from how the tensors, the groups and host memory are laid out. A page of a group is one range
in each tensor that holds layers of it: of the unpadded page, since nobody reads the padding, and once even where
several layers alias the same bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kv_api import CanonicalKVCacheRef, KVError
from kv_offload_cpu.copy.engine import Numbers, PageCopies
from kv_offload_cpu.copy.tensors import TensorPages
from kv_offload_cpu.sizing import HostLayout


class Ranges(NamedTuple):
    """Byte ranges: ``sizes[i]`` bytes, at ``device[i]`` of tensor ``tensors[i]`` and ``host[i]`` of the host."""

    tensors: Numbers
    device: Numbers
    host: Numbers
    sizes: Numbers

    @property
    def num_bytes(self) -> int:
        """All of them together."""
        return int(self.sizes.sum())


class Part(NamedTuple):
    """What one tensor holds of a group's page: so many bytes; its pages begin at ``host_begin`` in a row."""

    tensor: int
    size: int
    host_begin: int


class CopyPlan:
    """The parts of each group's page, and so the ranges of any job. ``slot`` is this worker's, in every row."""

    def __init__(
        self,
        tensors: Sequence[TensorPages],
        group_data_refs: Sequence[Sequence[CanonicalKVCacheRef]],
        layout: HostLayout,
        slot: int,
    ) -> None:
        self.tensors = list(tensors)
        self.layout = layout
        factor = layout.blocks_per_chunk
        begins = [slot * layout.slot_bytes]
        for pages in tensors:
            begins.append(begins[-1] + pages.page_bytes * factor)
        if begins[-1] - begins[0] > layout.slot_bytes or not 0 <= slot < layout.slots_per_row:
            raise KVError(
                f"KV caches: pages of {[pages.page_bytes for pages in tensors]} bytes × {factor} blocks don't fit "
                f"slot {slot} of {layout.slots_per_row} with {layout.slot_bytes} bytes"
            )
        self.parts = [self._parts(group, refs, begins) for group, refs in enumerate(group_data_refs)]
        self._num_blocks = [min((tensors[part.tensor].num_blocks for part in p), default=0) for p in self.parts]

    def ranges(self, copies: PageCopies) -> Ranges:
        """The ranges of a job's pages, neighbours on both sides joined."""
        self.check(copies)
        if len(copies) and (copies.groups == copies.groups[0]).all():
            found = self._ranges_of(int(copies.groups[0]), copies.blocks, copies.chunks, copies.offsets)
        else:
            each = [Ranges(*(np.empty(0, np.int64) for _ in Ranges._fields))]
            for group in np.unique(copies.groups).tolist():
                chosen = copies.groups == group
                each.append(
                    self._ranges_of(group, copies.blocks[chosen], copies.chunks[chosen], copies.offsets[chosen])
                )
            found = Ranges(*(np.concatenate(column) for column in zip(*each, strict=True)))
        return join_neighbours(found)

    def host_begins(self, group: int, chunks: Numbers, offsets: Numbers) -> Numbers:
        """Where pages of a group are in host memory: a row for each page, a column for each part."""
        parts = self.parts[group]
        page_bytes = np.array([self.tensors[part.tensor].page_bytes for part in parts], np.int64)
        firsts = np.array([part.host_begin for part in parts], np.int64)
        found: Numbers = chunks[:, None] * self.layout.row_bytes + firsts + offsets[:, None] * page_bytes
        return found

    def _ranges_of(self, group: int, blocks: Numbers, chunks: Numbers, offsets: Numbers) -> Ranges:
        """The ranges of pages of one group, tensor after tensor."""
        parts, count = self.parts[group], len(blocks)
        strides = np.array([self.tensors[part.tensor].stride_bytes for part in parts], np.int64)
        return Ranges(
            np.repeat(np.array([part.tensor for part in parts], np.int64), count),
            (strides[:, None] * blocks).ravel(),
            self.host_begins(group, chunks, offsets).T.ravel(),
            np.repeat(np.array([part.size for part in parts], np.int64), count),
        )

    def _parts(self, group: int, refs: Sequence[CanonicalKVCacheRef], begins: list[int]) -> list[Part]:
        sizes: dict[int, int] = {}
        for ref in refs:
            index, size = ref.tensor_idx, ref.page_size_bytes
            if not 0 <= index < len(self.tensors):
                raise KVError(f"group {group}: refers to tensor {index}, there are {len(self.tensors)}")
            if not 0 < size <= self.tensors[index].page_bytes:
                raise KVError(
                    f"group {group}: a page of {size} bytes in tensor {index}, "
                    f"whose pages have {self.tensors[index].page_bytes}"
                )
            sizes[index] = max(size, sizes.get(index, 0))
        return [Part(index, size, begins[index]) for index, size in sizes.items()]

    def check(self, copies: PageCopies) -> None:
        """Refuse pages that lie outside: these numbers become addresses."""
        limits = np.array([0, *self._num_blocks])[np.clip(copies.groups, -1, len(self.parts) - 1) + 1]
        layout = self.layout
        bounds = (
            ("group", copies.groups, len(self.parts)),
            ("block", copies.blocks, limits),
            ("chunk", copies.chunks, layout.num_chunks),
            ("offset", copies.offsets, layout.blocks_per_chunk),
        )
        for what, numbers, limit in bounds:
            wrong = (numbers < 0) | (numbers >= limit)
            if wrong.any():
                first = int(wrong.argmax())
                end = int(limit[first]) if isinstance(limit, np.ndarray) else limit
                raise KVError(f"page {first} of the job: {what} {numbers[first]}, expected 0 to {end - 1}")


def join_neighbours(ranges: Ranges) -> Ranges:
    """The same bytes in fewer ranges: what follows its predecessor on both sides becomes part of it."""
    tensors, device, host, sizes = ranges
    if len(sizes) < 2:
        return ranges
    follows = device[1:] - device[:-1] == sizes[:-1]
    if not follows.any():
        return ranges
    follows &= (tensors[1:] == tensors[:-1]) & (host[1:] - host[:-1] == sizes[:-1])
    if not follows.any():
        return ranges
    firsts = np.flatnonzero(np.concatenate(([True], ~follows)))
    return Ranges(tensors[firsts], device[firsts], host[firsts], np.add.reduceat(sizes, firsts))
