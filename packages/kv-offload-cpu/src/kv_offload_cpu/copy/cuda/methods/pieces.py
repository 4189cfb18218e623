"""Cuts a job into pieces that each fill half of a buffer: the slot of every page, and the copies of slots. Pure.

A slot of the buffer has the layout of one in host memory, so a page has the same place in both. A piece has whole
slots of one group. Pieces use the two halves of the buffer in turn.
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
"""The parts of a half that the first pieces of a job fill: an eighth, and so on, so that copies begin soon."""

_ALIGN = 16


class Piece(NamedTuple):
    """Pages of one group that fill half of the buffer: their rows in the table, and the copies of their slots."""

    group: int
    rows: range
    half: int
    batch: Batch
    copies: tuple[int, int]


class Cutter:
    """Cuts jobs for a buffer of two halves of ``half_bytes``, or of one slot each if a slot is larger."""

    def __init__(self, plan: CopyPlan, half_bytes: int) -> None:
        self._plan = plan
        self.slots_apart = -(-plan.layout.slot_bytes // _ALIGN) * _ALIGN
        self.slots = max(1, half_bytes // self.slots_apart)
        self.half_bytes = self.slots * self.slots_apart
        self.rows_at = 0
        """The address where the first slot's row would begin: the buffer has only this worker's slot of each
        row."""
        self._first_sizes = [max(1, self.slots // part) for part in FIRST_PARTS]
        self._stretches = [SlotStretches(parts, plan.layout.blocks_per_chunk) for parts in plan.parts]

    @property
    def first_pages(self) -> int:
        """Pages of the small pieces that a job begins with, if its chunks are complete."""
        return sum(self._first_sizes) * self._plan.layout.blocks_per_chunk

    def put_at(self, address: int) -> None:
        """Set the address at which the buffer begins."""
        self.rows_at = address - self._plan.slot_begin

    def cut(
        self, direction: Direction, copies: PageCopies, columns: Numbers, half: int, *, small_first: bool
    ) -> list[Piece]:
        """The pieces of a job, the first one in ``half``; writes the job's table, row by row, to ``columns``."""
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
        """The bounds of pieces of ``num_slots`` slots; the first pieces have ``first_sizes``."""
        first = list(accumulate(first_sizes, initial=0))
        bounds = [*first, *range(first[-1] + self.slots, num_slots, self.slots)]
        return np.array([*(bound for bound in bounds if bound < num_slots), num_slots])

    def _copies(
        self, group: int, runs: Numbers, chunks: Numbers, offsets: Numbers, slots: Numbers, piece_of: Numbers
    ) -> Ranges:
        """The copies between slots of the buffer and of host memory, in the order of pieces.

        Adjacent slots of the buffer are adjacent in host memory, too, if their chunks are: then one copy takes all
        of them. Each piece counts as a tensor of its own, so that copies of different pieces aren't joined.
        """
        pages, begins, sizes = self._stretches[group].find(runs, offsets)
        host = self._plan.host_address + chunks[pages] * self._plan.layout.row_bytes + begins
        return join_neighbours(Ranges(piece_of[pages], slots[pages] + begins, host, sizes))
