"""From byte ranges to moves in one direction, a whole job at a time. Pure.

Who hands a job to a device in one go needs pieces of a size that suits it, and must know how wide a word may be
that all of them are made of.
"""

from typing import NamedTuple

import numpy as np

from kv_offload_cpu.copy.descriptors import Ranges
from kv_offload_cpu.copy.engine import Direction, Numbers

WIDEST_WORD_BYTES = 16
"""The widest word that a kernel moves."""


class Moves(NamedTuple):
    """``sizes[i]`` bytes go from address ``sources[i]`` to ``targets[i]``."""

    targets: Numbers
    sources: Numbers
    sizes: Numbers


def moves(ranges: Ranges, direction: Direction) -> Moves:
    """The moves of a job between tensors and host memory."""
    return oriented(ranges.device, ranges.host, ranges.sizes, direction)


def oriented(device: Numbers, host: Numbers, sizes: Numbers, direction: Direction) -> Moves:
    """Moves from the device's side to the host's for a store, and back for a load."""
    return Moves(host, device, sizes) if direction is Direction.STORE else Moves(device, host, sizes)


def split(targets: Numbers, sources: Numbers, sizes: Numbers, limit: int) -> Moves:
    """The same bytes in moves of at most ``limit``."""
    if not len(sizes) or sizes.max() <= limit:
        return Moves(targets, sources, sizes)
    counts = -(-sizes // limit)
    of_range = np.repeat(np.arange(len(sizes)), counts)
    begins = (np.arange(len(of_range)) - np.repeat(np.cumsum(counts) - counts, counts)) * limit
    return Moves(
        targets[of_range] + begins, sources[of_range] + begins, np.minimum(sizes[of_range] - begins, limit)
    )


def word_bytes(found: Moves) -> int:
    """The widest word, a power of two, that all addresses and sizes are multiples of."""
    bits = WIDEST_WORD_BYTES
    for column in found:
        bits |= int(np.bitwise_or.reduce(column)) if len(column) else 0
    return bits & -bits
