"""From pages to byte ranges, a whole job at a time. Pure, and without a loop over pages.

A plan is made once, from the addresses and layouts of the tensors, host memory and the groups. A page of a group
is one range in each tensor that holds layers of the group. The range leaves out the padding, which nobody reads,
and layers that alias the same bytes share one range. A chunk belongs to one group, whose pages fill its slot from
the begin on: if groups have different tensors, a slot has room for the largest group, not for all of them.

Ranges come slot by slot, each in the order of host memory, so that copies go through host memory in long strides.
"""

import sys
from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

import numpy as np

from kv_api import CanonicalKVCacheRef, KVError
from kv_offload_cpu.copy.engine import Numbers, PageCopies
from kv_offload_cpu.copy.ranges.tensors import TensorPages
from kv_offload_cpu.sizing import HostLayout


class Ranges(NamedTuple):
    """``sizes[i]`` bytes at address ``device[i]``, in tensor ``tensors[i]``, and at ``host[i]`` in host memory."""

    tensors: Numbers
    device: Numbers
    host: Numbers
    sizes: Numbers

    @property
    def num_bytes(self) -> int:
        """The bytes of all ranges together."""
        return int(self.sizes.sum())


class Parts(NamedTuple):
    """The parts of a group's page, one in each tensor that has some, in the order of host memory."""

    tensors: Numbers
    sizes: Numbers
    addresses: Numbers
    strides: Numbers
    host_begins: Numbers
    """Where each part's pages of a chunk begin in the chunk's row. They are back to back there."""


class Extent(NamedTuple):
    """The size of a job: its ranges, before neighbours are joined, and their bytes."""

    num_ranges: int
    num_bytes: int


class Scratch:
    """Memory for the numbers of a job, reused by the next one: allocating it takes longer than filling it."""

    def __init__(self) -> None:
        self._numbers: Numbers = np.empty(0, np.int64)

    def columns(self, count: int, length: int) -> Numbers:
        """``count`` rows of ``length`` numbers, valid until the next call."""
        needed = count * length
        if needed > len(self._numbers):
            self._numbers = np.empty(1 << (needed - 1).bit_length(), np.int64)
        return self._numbers[:needed].reshape(count, length)


class CopyPlan:
    """Finds the ranges of any job, from the parts of each group's page. ``slot``: this worker's place in a row."""

    def __init__(
        self,
        tensors: Sequence[TensorPages],
        group_data_refs: Sequence[Sequence[CanonicalKVCacheRef]],
        layout: HostLayout,
        slot: int,
        host_address: int = 0,
    ) -> None:
        self.tensors = list(tensors)
        self.layout = layout
        self.host_address = host_address
        self.slot_begin = slot * layout.slot_bytes
        if not 0 <= slot < layout.slots_per_row:
            raise KVError(f"slot {slot}: a row has {layout.slots_per_row}")
        self.parts = [self._parts(group, refs) for group, refs in enumerate(group_data_refs)]
        self._ranges_a_page = [len(parts.sizes) for parts in self.parts]
        self._bytes_a_page = [int(parts.sizes.sum()) for parts in self.parts]
        self._num_blocks = [
            min((tensors[index].num_blocks for index in parts.tensors.tolist()), default=sys.maxsize)
            for parts in self.parts
        ]

    @property
    def range_bytes(self) -> int:
        """The average bytes of a range, before neighbours are joined."""
        sizes = np.concatenate([np.empty(0, np.int64), *(parts.sizes for parts in self.parts)])
        return int(sizes.sum()) // len(sizes) if len(sizes) else 1

    @property
    def least_range_bytes(self) -> int:
        """The average bytes of a range in jobs of the group with the smallest ranges."""
        pages = zip(self._bytes_a_page, self._ranges_a_page, strict=True)
        return min((num_bytes // count for num_bytes, count in pages if count), default=1)

    @property
    def num_ranges_a_page(self) -> int:
        """The ranges of a page, in the group whose pages are in the most tensors."""
        return max(self._ranges_a_page, default=1)

    def extent(self, copies: PageCopies) -> Extent:
        """The size of a job, which was checked before."""
        counts = np.bincount(copies.groups).tolist()  # of none beyond the last one that has pages
        return Extent(sum(map(mul, counts, self._ranges_a_page)), sum(map(mul, counts, self._bytes_a_page)))

    def ranges(self, copies: PageCopies) -> Ranges:
        """The ranges of a job's pages; ranges that are adjacent on both sides are joined."""
        self.check(copies)
        return self.checked_ranges(copies, Scratch())

    def checked_ranges(self, copies: PageCopies, scratch: Scratch) -> Ranges:
        """Like ``ranges``, for a job that was checked before; the numbers are in ``scratch``."""
        blocks, chunks, offsets = copies.blocks, copies.chunks, copies.offsets
        of_group = by_group(copies.groups)
        lengths = [len(blocks[chosen]) * len(self.parts[group].tensors) for group, chosen in of_group]
        columns = scratch.columns(len(Ranges._fields), sum(lengths))
        end = 0
        for (group, chosen), length in zip(of_group, lengths, strict=True):
            begin, end = end, end + length
            self._fill(columns[:, begin:end], group, blocks[chosen], chunks[chosen], offsets[chosen])
        return join_neighbours(Ranges(*columns))

    def host_begins(self, group: int, chunks: Numbers, offsets: Numbers) -> Numbers:
        """The addresses of a group's pages in host memory: a row for each page, a column for each part."""
        parts = self.parts[group]
        found: Numbers = chunks[:, None] * self.layout.row_bytes + parts.host_begins
        if self.layout.blocks_per_chunk > 1:
            found += offsets[:, None] * parts.sizes
        return found

    def _surely_fits(self, copies: PageCopies) -> bool:
        """Whether the smallest and largest numbers alone show that all pages are within bounds."""
        layout = self.layout
        bounds = (
            (copies.groups, len(self.parts)),
            (copies.blocks, min(self._num_blocks, default=0)),
            (copies.chunks, layout.num_chunks),
            (copies.offsets, layout.blocks_per_chunk),
        )
        return all(int(numbers.min()) >= 0 and int(numbers.max()) < limit for numbers, limit in bounds)

    def _fill(self, columns: Numbers, group: int, blocks: Numbers, chunks: Numbers, offsets: Numbers) -> None:
        """Write the ranges of pages of one group."""
        parts, factor = self.parts[group], self.layout.blocks_per_chunk
        tensors, device, host, sizes = (column.reshape(len(blocks), len(parts.tensors)) for column in columns)
        tensors[:], sizes[:] = parts.tensors, parts.sizes
        np.multiply(blocks[:, None], parts.strides, out=device)
        device += parts.addresses
        rows = chunks * self.layout.row_bytes
        np.add(rows[:, None], parts.host_begins + self.host_address, out=host)
        if factor > 1:
            host += offsets[:, None] * parts.sizes
        if factor > 1 and len(parts.tensors) > 1:
            order = _slot_by_slot(chunks, len(parts.tensors))
            for column in columns:
                column[:] = column[order]

    def _parts(self, group: int, refs: Sequence[CanonicalKVCacheRef]) -> Parts:
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
        rows, begin, factor = [], 0, self.layout.blocks_per_chunk
        for index, size in sorted(sizes.items()):
            pages = self.tensors[index]
            rows.append((index, size, pages.address, pages.stride_bytes, self.slot_begin + begin))
            begin += size * factor
        if begin > self.layout.slot_bytes:
            raise KVError(
                f"group {group}: pages of {[row[1] for row in rows]} bytes × {factor} blocks don't fit a slot of "
                f"{self.layout.slot_bytes} bytes"
            )
        return Parts(*np.array(rows, np.int64).reshape(-1, len(Parts._fields)).T.copy())

    def check(self, copies: PageCopies) -> None:
        """Raise a KVError for pages out of bounds, since these numbers become addresses."""
        if len(copies) and self._surely_fits(copies):
            return
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


def by_group(groups: Numbers) -> list[tuple[int, slice | Numbers]]:
    """The groups of a job, each with its pages."""
    if len(groups) and (groups == groups[0]).all():
        return [(int(groups[0]), slice(None))]
    return [(group, np.flatnonzero(groups == group)) for group in np.unique(groups).tolist()]


def _slot_by_slot(chunks: Numbers, num_parts: int) -> Numbers:
    """The order that sorts ranges from page by page to host memory's: in a slot, pages of a part are together."""
    firsts = np.flatnonzero(np.concatenate(([True], chunks[1:] != chunks[:-1])))
    lengths = np.diff([*firsts, len(chunks)])
    first, length = np.repeat(firsts, lengths), np.repeat(lengths, lengths)
    places = (first * (num_parts - 1) + np.arange(len(chunks)))[:, None] + length[:, None] * np.arange(num_parts)
    order = np.empty(places.size, np.int64)
    order[places.ravel()] = np.arange(places.size)
    return order


def join_neighbours(ranges: Ranges) -> Ranges:
    """The same bytes in fewer ranges: a range that follows its predecessor on both sides becomes part of it."""
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
