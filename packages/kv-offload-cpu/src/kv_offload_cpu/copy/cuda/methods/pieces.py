"""A job cut into pieces that fill a half of a buffer each: the slot of every page, and the copies of slots. Pure.

A slot of the buffer looks like one of host memory, so a page has the same place in both. Pieces are of whole
slots, and of one group. They take turns with the two halves.
"""

from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from kv_api import Direction
from kv_offload_cpu.copy.cuda.methods.batch import SOURCE_ORDER, Batch
from kv_offload_cpu.copy.engine import Numbers, PageCopies
from kv_offload_cpu.copy.ranges.addresses import moves
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan, Ranges, by_group, join_neighbours
from kv_offload_cpu.copy.ranges.stretches import SlotStretches, runs_of

FIRST_PARTS = (8, 4, 2)
"""What parts of a half the first pieces of a job fill: an eighth, and so on, so that the link needn't wait."""

_ALIGN = 16


class Piece(NamedTuple):
    """Pages of one group that fill a half of the buffer: the rows of the table, and the copies of their slots."""

    group: int
    rows: range
    half: int
    batch: Batch
    copies: tuple[int, int]


class Cutter:
    """Cuts jobs for a buffer of two halves of ``half_bytes``, or of one slot where that is more."""

    def __init__(self, plan: CopyPlan, half_bytes: int) -> None:
        self._plan = plan
        self.slots_apart = -(-plan.layout.slot_bytes // _ALIGN) * _ALIGN
        self.slots = max(1, half_bytes // self.slots_apart)
        self.half_bytes = self.slots * self.slots_apart
        self.rows_at = 0
        """Where the first slot's row would begin, of which the buffer has this worker's slot alone."""
        self._first_sizes = [max(1, self.slots // part) for part in FIRST_PARTS]
        self._stretches = [SlotStretches(parts, plan.layout.blocks_per_chunk) for parts in plan.parts]

    @property
    def first_pages(self) -> int:
        """Pages of the small pieces that a job begins with, if its chunks are whole."""
        return sum(self._first_sizes) * self._plan.layout.blocks_per_chunk

    def put_at(self, address: int) -> None:
        """Learn where the buffer begins."""
        self.rows_at = address - self._plan.slot_begin

    def cut(
        self, direction: Direction, copies: PageCopies, columns: Numbers, half: int, *, small_first: bool
    ) -> list[Piece]:
        """The pieces of a job, from ``half`` on; writes its table, row by row, to ``columns``."""
        pieces: list[Piece] = []
        end = 0
        for group, chosen in by_group(copies.groups):
            begin, end = end, end + len(copies.blocks[chosen])
            chunks, offsets = copies.chunks[chosen], copies.offsets[chosen]
            runs = runs_of(chunks, offsets)
            bounds = self._bounds(int(runs[-1]) + 1, self._first_sizes if small_first else [])
            ends = runs.searchsorted(bounds)
            piece_of = np.repeat(np.arange(len(bounds) - 1), np.diff(ends))
            slots = self.rows_at + (runs - bounds[piece_of]) * self.slots_apart
            slots += (piece_of + half) % 2 * self.half_bytes
            columns[:, begin:end] = copies.blocks[chosen], slots, offsets
            found = self._copies(group, runs, chunks, offsets, slots, piece_of)
            batch = Batch(moves(found, direction), SOURCE_ORDER[direction])
            copy_ends = found.tensors.searchsorted(np.arange(len(ends)))
            for rows, here in zip(pairwise(ends.tolist()), pairwise(copy_ends.tolist()), strict=True):
                pieces.append(Piece(group, range(begin + rows[0], begin + rows[1]), half, batch, here))
                half = 1 - half
        return pieces

    def _bounds(self, num_slots: int, first_sizes: list[int]) -> Numbers:
        """Where pieces of so many slots begin and end, the first ones of these sizes."""
        first = list(accumulate(first_sizes, initial=0))
        bounds = [*first, *range(first[-1] + self.slots, num_slots, self.slots)]
        return np.array([*(bound for bound in bounds if bound < num_slots), num_slots])

    def _copies(
        self, group: int, runs: Numbers, chunks: Numbers, offsets: Numbers, slots: Numbers, piece_of: Numbers
    ) -> Ranges:
        """The copies between slots of the buffer and of host memory, in the order of pieces.

        Slots that are neighbours here are so in host memory, too, if their chunks are: then one copy takes all of
        them. The buffer counts as a tensor for each piece, so that none is joined to another.
        """
        pages, begins, sizes = self._stretches[group].find(runs, offsets)
        host = self._plan.host_address + chunks[pages] * self._plan.layout.row_bytes + begins
        return join_neighbours(Ranges(piece_of[pages], slots[pages] + begins, host, sizes))
