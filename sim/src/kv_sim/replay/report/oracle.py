"""Writes a trace as libCacheSim's oracleGeneral, so that other simulators can be asked.

A record is 24 bytes, little-endian: seconds (u32), id (u64), size (u32), and the number of the next access to the
same id, counted from 0, or -1 (i64). The next access comes from sorting the ids, as a trace's shape does.
"""

from pathlib import Path
from typing import Final

import numpy as np

from kv_api import ConfigError
from kv_sim.replay.caches.shape import uses_again
from kv_sim.replay.columns import Columns
from kv_sim.whole_file import whole_file

RECORD: Final = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
_PIECE: Final = 1 << 20
_LATEST: Final = 1 << 32
"""Seconds."""


def write_oracle(columns: Columns, path: Path) -> int:
    """Write every reference of a trace, in order; returns how many. Each block counts one."""
    if columns.duration_seconds >= _LATEST:
        raise ConfigError(
            f"the last request arrives after {columns.duration_seconds:.3g} s, and oracleGeneral has room for "
            f"{_LATEST - 1}; check --time-unit"
        )
    total = columns.references
    nexts = np.full(total, -1, dtype=np.int64)
    for place, before in uses_again(columns.blocks):
        nexts[before] = place
    with whole_file(path) as file:
        for first in range(0, total, _PIECE):
            stop = min(first + _PIECE, total)
            requests = np.searchsorted(columns.offsets, np.arange(first, stop), side="right") - 1
            piece = np.empty(stop - first, dtype=RECORD)
            piece["time"], piece["size"] = columns.arrivals[requests].astype(np.uint32), 1
            piece["id"], piece["next"] = columns.blocks[first:stop], nexts[first:stop]
            file.write(piece.tobytes())  # numpy's own way tells nobody when the last of it can't be written
    return total
