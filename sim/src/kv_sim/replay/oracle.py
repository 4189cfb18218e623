"""Writes a trace as libCacheSim's oracleGeneral, so that other simulators can be asked.

A record is 24 bytes, little-endian: seconds (u32), id (u64), size (u32), and the number of the next access to the
same id, counted from 0, or -1 (i64). The next access is known only from behind: one pass backwards, in pieces.
"""

from pathlib import Path
from typing import Final

import numpy as np

from kv_sim.replay.columns import Columns

RECORD: Final = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
_PIECE: Final = 1 << 20


def write_oracle(columns: Columns, path: Path, size: int = 1) -> int:
    """Write every reference of a trace, in order; returns how many. ``size`` is what each block counts."""
    total = columns.references
    following: dict[int, int] = {}
    times = np.repeat(columns.arrivals.astype(np.uint32), columns.counts)
    with path.open("wb") as file:
        for stop in range(total, 0, -_PIECE):
            first = max(0, stop - _PIECE)
            piece = np.empty(stop - first, dtype=RECORD)
            piece["time"], piece["id"], piece["size"] = times[first:stop], columns.blocks[first:stop], size
            nexts = [-1] * (stop - first)
            ids = columns.blocks[first:stop].tolist()
            for place in range(stop - first - 1, -1, -1):
                nexts[place] = following.get(ids[place], -1)
                following[ids[place]] = first + place
            piece["next"] = nexts
            file.seek(first * RECORD.itemsize)
            file.write(piece.tobytes())  # numpy's own way tells nobody when the last of it can't be written
    return total
