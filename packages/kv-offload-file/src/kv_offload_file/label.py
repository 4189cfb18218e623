"""The label of a slot: which chunk it holds, by which store, and the checksum of its bytes.

Each slot has a row of 256 bytes in a file of its own, so that all rows are read at once. A row has a checksum of
its own. It is emptied before the slot's bytes are written, and filled after them, and each read compares row and
bytes. So a slot that was written only in part, or by another process, is never taken for the requested chunk.
"""

import struct
import zlib
from typing import Final, NamedTuple

from kv_api import KVError, OffloadKey

ROW_BYTES: Final = 256

_ROW: Final = struct.Struct("<IQQIH226s")
"""The sum of the bytes, then the label: epoch, number, nth, and the key with its length."""

_SUM: Final = struct.Struct("<I")
_MOST_KEY_BYTES: Final = 226


class Label(NamedTuple):
    """The chunk ``key``, as the ``nth`` of store ``number``; valid only in its ``epoch``."""

    key: OffloadKey
    epoch: int
    number: int
    nth: int


class Row(NamedTuple):
    """The label of a slot's chunk, and the CRC-32 of its bytes."""

    label: Label
    data_sum: int


def pack_row(row: Row) -> bytes:
    """The bytes of a row."""
    key, epoch, number, nth = row.label
    if len(key) > _MOST_KEY_BYTES:
        raise KVError(f"key {key.hex()} has {len(key)} bytes; a row of a slot has room for {_MOST_KEY_BYTES}")
    body = _ROW.pack(row.data_sum, epoch, number, nth, len(key), key)
    return _SUM.pack(zlib.crc32(body)) + body


def unpack_row(data: bytes) -> Row | None:
    """A row that was read. None: it is empty, or was written only in part."""
    if len(data) != ROW_BYTES or _SUM.unpack_from(data)[0] != zlib.crc32(data[_SUM.size :]):
        return None
    data_sum, epoch, number, nth, size, key = _ROW.unpack_from(data, _SUM.size)
    return Row(Label(OffloadKey(key[:size]), epoch, number, nth), data_sum)
