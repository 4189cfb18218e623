"""Finds the stretches of a slot that some pages fill; one copy moves a stretch between slots of one layout. Pure.

Nearly every chunk of a job is complete, and all complete chunks of a group have the same single stretch, since a
chunk's parts are back to back. It is worked out once; the stretches of incomplete chunks are found from their
pages.
"""

from typing import NamedTuple

import numpy as np

from kv_offload_cpu.copy.engine import Numbers
from kv_offload_cpu.copy.ranges.descriptors import Parts


class Stretches(NamedTuple):
    """Stretch ``i`` is in the slot of page ``pages[i]``, and begins at byte ``begins[i]`` of its row."""

    pages: Numbers
    begins: Numbers
    sizes: Numbers


def runs_of(chunks: Numbers, offsets: Numbers) -> Numbers:
    """The number of each page's run: pages of one chunk at consecutive offsets are a run."""
    is_new = (chunks[1:] != chunks[:-1]) | (offsets[1:] <= offsets[:-1])
    found: Numbers = np.concatenate(([0], is_new.cumsum()))
    return found


class SlotStretches:
    """The stretches of one group's pages, of chunks of ``blocks_per_chunk``."""

    def __init__(self, parts: Parts, blocks_per_chunk: int) -> None:
        self._parts = parts
        self._factor = blocks_per_chunk
        whole = np.arange(blocks_per_chunk)
        self._whole = self._joined(np.zeros_like(whole), whole)

    def find(self, runs: Numbers, offsets: Numbers) -> Stretches:
        """The stretches of pages, by their runs and in their order."""
        if self._factor == 1:
            return self._of_whole(np.arange(len(runs)))
        firsts = np.flatnonzero(np.concatenate(([True], runs[1:] != runs[:-1])))
        lengths = np.diff(firsts, append=len(runs))
        is_whole = lengths == self._factor  # since offsets rise in a run, these are all of them
        found = self._of_whole(firsts[is_whole])
        if is_whole.all():
            return found
        rest = np.flatnonzero(~np.repeat(is_whole, lengths))
        pages, begins, sizes = self._joined(runs[rest], offsets[rest])
        others = Stretches(rest[pages], begins, sizes)
        columns = [np.concatenate(pair) for pair in zip(found, others, strict=True)]
        order = columns[0].argsort(kind="stable")
        return Stretches(*(column[order] for column in columns))

    def _of_whole(self, firsts: Numbers) -> Stretches:
        """The stretches of whole chunks, given their first pages. None if other ranks have the group's layers."""
        _, begins, sizes = self._whole
        if not len(sizes):
            return Stretches(firsts[:0], begins, sizes)
        count = len(firsts)
        return Stretches(firsts, np.full(count, begins[0]), np.full(count, sizes[0]))

    def _joined(self, runs: Numbers, offsets: Numbers) -> Stretches:
        """The stretches of any pages, all of their ranges put in order."""
        parts = self._parts
        begins = (parts.host_begins + offsets[:, None] * parts.sizes).ravel()
        sizes = np.tile(parts.sizes, len(runs))
        pages = np.repeat(np.arange(len(runs)), len(parts.sizes))
        order = np.lexsort((begins, runs[pages]))
        pages, begins, sizes = pages[order], begins[order], sizes[order]
        if not len(pages):
            return Stretches(pages, begins, sizes)
        of_run = runs[pages]
        is_first = np.concatenate(([True], (of_run[1:] != of_run[:-1]) | (begins[1:] != begins[:-1] + sizes[:-1])))
        firsts = np.flatnonzero(is_first)
        return Stretches(pages[firsts], begins[firsts], np.add.reduceat(sizes, firsts))
