"""The keys of a trace's blocks, as offloading connectors make them, and the request context for managers."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from kv_api import OffloadKey, ReqContext
from kv_sim.replay.columns import Columns

KEYS_LOOKED_FOR: Final = 4
_KEYS_AT_ONCE: Final = 1 << 15


class KeysContext(ReqContext):
    """The request as a manager sees it.

    An index of all keys is built once a policy has asked for many positions.
    """

    def __init__(self, request_id: str, keys: list[OffloadKey]) -> None:
        super().__init__(request_id)
        self._keys = keys
        self._asked = 0
        self._places: dict[OffloadKey, int] = {}

    def get_offload_key_position(self, key: OffloadKey) -> int | None:
        if self._places:
            return self._places.get(key)
        if self._asked < KEYS_LOOKED_FOR:
            self._asked += 1
            try:
                return self._keys.index(key)
            except ValueError:
                return None
        self._places = {one: place for place, one in enumerate(self._keys)}
        return self._places.get(key)


def keys_of(columns: Columns) -> Iterator[list[OffloadKey]]:
    """The keys of each request's blocks, as a connector makes them: a hash and the group."""
    offsets = columns.offsets
    first, requests = 0, len(columns)
    while first < requests:
        stop = int(np.searchsorted(offsets, offsets[first] + _KEYS_AT_ONCE, side="right")) - 1
        stop = min(max(stop, first + 1), requests)
        begin, end = int(offsets[first]), int(offsets[stop])
        rows = np.zeros(end - begin, dtype=[("hash", "<i8"), ("group", "<u4")])
        rows["hash"] = columns.blocks[begin:end]
        keys: list[OffloadKey] = rows.view("V12").tolist()
        ends = (offsets[first : stop + 1] - begin).tolist()
        for index in range(stop - first):
            yield keys[ends[index] : ends[index + 1]]
        first = stop
