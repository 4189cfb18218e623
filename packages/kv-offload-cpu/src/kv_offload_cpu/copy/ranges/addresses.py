"""From byte ranges to moves in one direction, a whole job at a time, and the widest word for addresses. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from kv_api import Direction
from kv_offload_cpu.copy.engine import Numbers
from kv_offload_cpu.copy.ranges.descriptors import Ranges

WIDEST_WORD_BYTES = 16
"""Bytes of the widest word that a kernel moves."""


class Moves(NamedTuple):
    """``sizes[i]`` bytes go from address ``sources[i]`` to ``targets[i]``."""

    targets: Numbers
    sources: Numbers
    sizes: Numbers


def moves(ranges: Ranges, direction: Direction) -> Moves:
    """The moves of a job: from device to host for a store, from host to device for a load."""
    _, device, host, sizes = ranges
    return Moves(host, device, sizes) if direction is Direction.STORE else Moves(device, host, sizes)


def split(targets: Numbers, sources: Numbers, sizes: Numbers, limit: int) -> Moves:
    """The same bytes in moves of at most ``limit`` bytes."""
    if not len(sizes) or sizes.max() <= limit:
        return Moves(targets, sources, sizes)
    counts = -(-sizes // limit)
    of_range = np.repeat(np.arange(len(sizes)), counts)
    begins = (np.arange(len(of_range)) - np.repeat(np.cumsum(counts) - counts, counts)) * limit
    return Moves(
        targets[of_range] + begins, sources[of_range] + begins, np.minimum(sizes[of_range] - begins, limit)
    )


def widest_word(columns: Iterable[Numbers]) -> int:
    """The widest word, a power of two, that all these addresses and sizes are multiples of."""
    bits = WIDEST_WORD_BYTES
    for column in columns:
        bits |= int(np.bitwise_or.reduce(column)) if len(column) else 0
    return bits & -bits
