"""From block hashes to keys: a chunk's hash, and behind it which group's it is. Pure.

Python adds two ``bytes`` by way of the buffer protocol, which costs more than copying them. Hashes come from one
function and are of one length, so many of them are joined with the suffix between them, and cut again, in two
calls. Where they aren't as long as the first of them, each is added by itself.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from operator import add
from struct import Struct
from typing import Final

from kv_api import OffloadKey

PIECE: Final = 64
"""Keys that are cut in one call."""


def names(hashes: Sequence[bytes], suffix: bytes) -> list[OffloadKey]:
    """The keys of chunks that end with these hashes, in their order."""
    count = len(hashes)
    whole = count // PIECE * PIECE
    keys: list[OffloadKey] = []
    if whole:
        size = len(hashes[0]) + len(suffix)
        joined = suffix.join(hashes[:whole]) + suffix
        if len(joined) == whole * size:
            for piece in _cutter(size).iter_unpack(joined):
                keys += piece
    if len(keys) < count:
        keys += map(add, hashes[len(keys) :], repeat(suffix))
    return keys


@lru_cache
def _cutter(size: int) -> Struct:
    return Struct(f"{size}s" * PIECE)
