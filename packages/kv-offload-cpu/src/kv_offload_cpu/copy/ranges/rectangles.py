"""From pages to rectangles: byte ranges of one size and at one distance, on the device and in host memory. Pure.

Layers of an engine are often equally large and follow each other, and so do a page's parts in a slot. Then all of
a page is one rectangle, whose rows are its parts: their distance is that of two layers on the device, and that of
two parts in the slot. Which parts make a rectangle is worked out once.
"""

from typing import NamedTuple

import numpy as np

from kv_offload_cpu.copy.engine import Numbers, PageCopies
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan, Parts, by_group


class Rectangles(NamedTuple):
    """``heights[i]`` rows of ``widths[i]`` bytes, each side's first row, and how far apart its rows are.

    Rows of one side don't overlap. What is of one row has 0 for distances.
    """

    device: Numbers
    host: Numbers
    device_pitches: Numbers
    host_pitches: Numbers
    widths: Numbers
    heights: Numbers

    @property
    def sizes(self) -> Numbers:
        """In bytes."""
        found: Numbers = self.widths * self.heights
        return found


class Regular(NamedTuple):
    """Parts of a group's page that follow each other at one distance: the first one's number, and so on."""

    firsts: Numbers
    device_pitches: Numbers
    host_pitches: Numbers
    heights: Numbers


class RectanglePlan:
    """The rectangles of any job of ``plan``. Distances are at most ``most_pitch``."""

    def __init__(self, plan: CopyPlan, most_pitch: int) -> None:
        self._plan = plan
        self._regular = [regular(parts, most_pitch) for parts in plan.parts]

    def count(self, copies: PageCopies) -> int:
        """How many a job has, before neighbours are joined."""
        counts = np.bincount(copies.groups).tolist()
        return sum(count * len(self._regular[group].firsts) for group, count in enumerate(counts))

    def rectangles(self, copies: PageCopies) -> Rectangles:
        """The rectangles of a job that was checked, neighbours joined."""
        found = [
            self._of_group(group, copies.blocks[chosen], copies.chunks[chosen], copies.offsets[chosen])
            for group, chosen in by_group(copies.groups)
        ]
        return Rectangles(*(np.concatenate(columns) for columns in zip(*found, strict=True)))

    def _of_group(self, group: int, blocks: Numbers, chunks: Numbers, offsets: Numbers) -> Rectangles:
        """Of pages of one group: all first ones, then all second ones, and so on."""
        parts, layout = self._plan.parts[group], self._plan.layout
        firsts, *columns = self._regular[group]
        widths = parts.sizes[firsts]
        shape = (len(firsts), len(blocks))
        device = blocks * parts.strides[firsts, None] + parts.addresses[firsts, None]
        host = chunks * layout.row_bytes + offsets * widths[:, None]
        host += parts.host_begins[firsts, None] + self._plan.host_address
        of_page = (
            np.broadcast_to(column[:, None], shape).ravel() for column in (*columns[:2], widths, columns[2])
        )
        return join_side_by_side(Rectangles(device.ravel(), host.ravel(), *of_page))


def regular(parts: Parts, most_pitch: int) -> Regular:
    """A group's parts in as few rows of equal distance as there are if each one takes all that it can."""
    _, sizes, addresses, strides, host_begins = (column.tolist() for column in parts)
    rows: list[list[int]] = []
    for number in range(len(sizes)):
        if rows:
            before, row = number - 1, rows[-1]
            distances = [addresses[number] - addresses[before], host_begins[number] - host_begins[before]]
            alike = sizes[number] == sizes[before] and strides[number] == strides[before]
            fitting = all(sizes[number] <= distance <= most_pitch for distance in distances)
            if alike and fitting and (row[3] == 1 or distances == row[1:3]):
                row[1:3] = distances
                row[3] += 1
                continue
        rows.append([number, 0, 0, 1])
    return Regular(*np.array(rows, np.int64).reshape(-1, len(Regular._fields)).T.copy())


def join_side_by_side(found: Rectangles) -> Rectangles:
    """The same bytes in fewer rectangles: what continues its predecessor's rows on both sides widens it.

    As long as the distance of rows lets it: nothing is joined in rectangles that might then overlap themselves.
    """
    device, host, device_pitches, host_pitches, widths, heights = found
    if len(widths) < 2:
        return found
    follows = (device[1:] - device[:-1] == widths[:-1]) & (host[1:] - host[:-1] == widths[:-1])
    for column in (heights, device_pitches, host_pitches):
        follows &= column[1:] == column[:-1]
    if not follows.any():
        return found
    firsts = np.flatnonzero(np.concatenate(([True], ~follows)))
    wide = np.add.reduceat(widths, firsts)
    if ((wide > device_pitches[firsts]) & (heights[firsts] > 1)).any():
        return found
    return Rectangles(
        device[firsts], host[firsts], device_pitches[firsts], host_pitches[firsts], wide, heights[firsts]
    )
