"""From block hashes to keys: the hash at the end of a chunk or a tail, followed by its group.

Python adds two ``bytes`` by way of the buffer protocol, which costs more than copying them. Hashes come from one
function and are of one length, so many of them are joined with the suffix between them, and cut again, in two
calls; where their lengths don't add up to that, each is added by itself. How many come at once is most often
what it was before: a step's share of a prompt.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from operator import add
from struct import Struct
from typing import Final

from kv_api import OffloadKey
from kv_offload.shape.layout import Group, Layout

PIECE: Final = 256
"""Keys that are cut in one call, at most."""


def names(hashes: Sequence[bytes], suffix: bytes) -> Sequence[OffloadKey]:
    """The keys of chunks that end with these hashes, in their order."""
    if 0 < len(hashes) <= PIECE:
        return _of_piece(hashes, suffix)
    keys: list[OffloadKey] = []
    for start in range(0, len(hashes), PIECE):
        keys += _of_piece(hashes[start : start + PIECE], suffix)
    return keys


def tail_key(layout: Layout, group: Group, hashes: Sequence[bytes], boundary: int) -> OffloadKey:
    """The key of the tail of a group."""
    return OffloadKey(hashes[boundary // layout.tokens_per_hash - 1] + group.key_suffix)


def _of_piece(piece: Sequence[bytes], suffix: bytes) -> Sequence[OffloadKey]:
    """`names` of a few hashes, at least one, as a call returns them: its caller adds them to a list in one go."""
    count, size = len(piece), len(piece[0]) + len(suffix)
    joined = suffix.join(piece) + suffix
    if len(joined) == count * size:
        return _cutter(size, count).unpack(joined)
    return [*map(add, piece, repeat(suffix))]


@lru_cache(maxsize=64)
def _cutter(size: int, count: int) -> Struct:
    return Struct(f"{size}s" * count)
