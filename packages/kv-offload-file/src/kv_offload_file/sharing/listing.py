"""The file ``listing``, which tells neighbours which chunk is in which slot of an engine.

======================= ==================================================================================
the first page          its epoch, the run in which it is written, and the number of slots
``changes``, ``uses``   how many slots were changed, and how many chunks borrowed, in this run
the slots changed last  their numbers, in the order of the changes, in a ring
the chunks borrowed     their engines and slots, likewise
an entry for each slot  the key of its chunk; empty if there is none
======================= ==================================================================================

A run begins with each start of the engine, and with each reset.

A reader goes through the slots that were changed since its last look, or through all entries if the ring no longer
has them all. An engine whose chunks were borrowed learns likewise that they are still used. Readers take no locks.
An entry may be read while it is written, and a chunk may be gone when it is read: the listing only says where to
look, and isn't trusted. What a slot holds is told by its row, which every read compares.

A listing from an earlier boot of the machine is ignored.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from kv_api import OffloadKey
from kv_offload_file.sharing.place import NeighbourSlot
from kv_offload_file.slot_file import this_boot

NAME: Final = "listing"
ENTRY_BYTES: Final = 64
MOST_KEY_BYTES: Final = ENTRY_BYTES - 1
"""A longer key isn't listed; vLLM's are all shorter."""
REMEMBERED: Final = 1 << 14
"""How many changes the ring has."""

_HEADER: Final = struct.Struct("<8sIQQ36s")
_MAGIC: Final = b"KVLIST01"
_SUM: Final = struct.Struct("<I")
_CHANGES: Final = struct.Struct("<QQ")
_AT_CHANGES: Final = 512


class _Ring(NamedTuple):
    """The part of the file with the last `REMEMBERED` items of a kind, as a ring."""

    begin: int
    item: struct.Struct

    @property
    def end(self) -> int:
        return self.begin + REMEMBERED * self.item.size

    def write(self, fd: int, number: int, items: list[tuple[int, ...]]) -> int:
        """Write items, the first with this number; returns the number after the last one."""
        told = items[-REMEMBERED:]
        number += len(items) - len(told)
        while told:
            at = number % REMEMBERED
            part, told = told[: REMEMBERED - at], told[REMEMBERED - at :]
            os.pwrite(fd, b"".join(self.item.pack(*item) for item in part), self.begin + at * self.item.size)
            number += len(part)
        return number

    def read(self, fd: int, since: int, now: int) -> list[tuple[int, ...]] | None:
        """The items from number ``since`` on, before ``now``; None: some of them were overwritten."""
        if not 0 <= now - since <= REMEMBERED // 2:  # the other half may be written meanwhile
            return None
        items: list[tuple[int, ...]] = []
        while since < now:
            at = since % REMEMBERED
            count = min(now - since, REMEMBERED - at)
            data = os.pread(fd, count * self.item.size, self.begin + at * self.item.size)
            if len(data) < count * self.item.size:
                return None
            items += self.item.iter_unpack(data)
            since += count
        return items


_CHANGED: Final = _Ring(4096, struct.Struct("<I"))
_USED: Final = _Ring(_CHANGED.end, struct.Struct("<II"))
_AT_ENTRIES: Final = _USED.end


class Opening(NamedTuple):
    """The contents of the first page."""

    num_slots: int
    epoch: int
    run: int
    """A new number for each beginning of the listing."""
    changes: int
    uses: int


def size_of(num_slots: int) -> int:
    """The bytes of a listing of so many slots."""
    return _AT_ENTRIES + num_slots * ENTRY_BYTES


class ListingWriter:
    """The writer of a listing, at first without chunks. Raises the system's errors."""

    def __init__(self, fd: int, num_slots: int) -> None:
        self._fd = fd
        self._num_slots = num_slots
        self._changes = self._uses = 0
        os.ftruncate(fd, 0)
        os.ftruncate(fd, size_of(num_slots))

    def open(self, epoch: int, run: int) -> None:
        """Let neighbours read it."""
        body = _HEADER.pack(_MAGIC, self._num_slots, epoch, run, this_boot().encode())
        os.pwrite(self._fd, _SUM.pack(zlib.crc32(body)) + body, 0)

    def write(self, slots: list[int], keys: list[OffloadKey]) -> None:
        """List these slots with these chunks; an empty key: no chunk. Adjacent slots are written together."""
        if not slots:
            return
        entries = [_entry(key) for key in keys]
        for first, last in _runs(slots):
            begin = _AT_ENTRIES + slots[first] * ENTRY_BYTES
            os.pwrite(self._fd, b"".join(entries[first:last]), begin)
        self._changes = _CHANGED.write(self._fd, self._changes, [(slot,) for slot in slots])
        self._count()

    def use(self, borrowed: list[NeighbourSlot]) -> None:
        """Chunks in these slots of other engines were borrowed."""
        self._uses = _USED.write(self._fd, self._uses, [*borrowed])
        self._count()

    def _count(self) -> None:
        os.pwrite(self._fd, _CHANGES.pack(self._changes, self._uses), _AT_CHANGES)


def read_opening(fd: int) -> Opening | None:
    """The contents of the first page; None if it isn't valid."""
    data = os.pread(fd, _AT_CHANGES + _CHANGES.size, 0)
    if len(data) < _AT_CHANGES + _CHANGES.size:
        return None
    run = _read_run(data[: _SUM.size + _HEADER.size])
    return None if run is None else Opening(*run, *_CHANGES.unpack_from(data, _AT_CHANGES))


def changed_slots(fd: int, since: int, now: int) -> list[int] | None:
    """The slots of the changes from ``since`` to ``now``; None: some of them were overwritten."""
    items = _CHANGED.read(fd, since, now)
    return None if items is None else [slot for (slot,) in items]


def used_slots(fd: int, since: int, now: int, engine: int) -> list[int]:
    """The slots of an engine that were borrowed from ``since`` to ``now``, as far as the ring has them."""
    items = _USED.read(fd, max(since, now - REMEMBERED // 2), now) or []
    return [slot for owner, slot in items if owner == engine]


def read_entry(fd: int, slot: int) -> OffloadKey:
    """The key of the chunk in a slot; empty: no chunk."""
    return _key(os.pread(fd, ENTRY_BYTES, _AT_ENTRIES + slot * ENTRY_BYTES))


def read_entries(fd: int, slots: range) -> Iterator[tuple[int, OffloadKey]]:
    """The slots with a chunk among adjacent ones, and their keys."""
    data = os.pread(fd, len(slots) * ENTRY_BYTES, _AT_ENTRIES + slots.start * ENTRY_BYTES)
    for slot, begin in zip(slots, range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES), strict=False):
        size = data[begin]
        if size:
            yield slot, OffloadKey(data[begin + 1 : begin + 1 + size])


@lru_cache(maxsize=1024)  # each look reads it, and it stays the same in a run
def _read_run(data: bytes) -> tuple[int, int, int] | None:
    """The number of slots, the epoch and the run; None if the page isn't valid."""
    if _SUM.unpack_from(data)[0] != zlib.crc32(data[_SUM.size :]):
        return None
    magic, num_slots, epoch, run, boot = _HEADER.unpack_from(data, _SUM.size)
    is_known = magic == _MAGIC and boot.rstrip(b"\0").decode() == this_boot() != ""
    return (num_slots, epoch, run) if is_known else None


def _entry(key: OffloadKey) -> bytes:
    size = len(key) if len(key) <= MOST_KEY_BYTES else 0
    return (bytes([size]) + key[:size]).ljust(ENTRY_BYTES, b"\0")


def _key(entry: bytes) -> OffloadKey:
    return OffloadKey(entry[1 : 1 + entry[0]] if len(entry) == ENTRY_BYTES else b"")


def _runs(slots: list[int]) -> Iterator[tuple[int, int]]:
    """Where runs of adjacent slots begin and end in the list."""
    first = 0
    for index in range(1, len(slots) + 1):
        if index == len(slots) or slots[index] != slots[index - 1] + 1:
            yield first, index
            first = index
