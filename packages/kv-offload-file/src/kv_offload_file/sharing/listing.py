"""The file in which an engine says what it has, for its neighbours: ``listing``.

======================= ==================================================================================
the first page          of which epoch it is, in which run it is written, how many slots there are
``changes``, ``uses``   how many slots were ever changed, and how many chunks borrowed, in this run
the slots changed last  their numbers, in the order of the changes, round and round
what was borrowed last  of whom, and from which slot, likewise
an entry for each slot  the key of the chunk that is there; nothing, if none is
======================= ==================================================================================

A run begins with each start of the engine, and with each reset.

An engine that reads it goes through what was changed since it looked last, or through all entries if that is no
longer told. An engine whose chunks were borrowed learns likewise that they are still of use. Nothing is locked for
that. An entry may be read while it is written, and a chunk may have gone when it is asked for: what is said here
decides what is looked for, and never what is believed. For that each slot has its row, which every read compares.

A listing from an earlier start of the machine says nothing.
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
"""A longer key is not told: none of vLLM's is."""
REMEMBERED: Final = 1 << 14
"""So many changes are told one by one."""

_HEADER: Final = struct.Struct("<8sIQQ36s")
_MAGIC: Final = b"KVLIST01"
_SUM: Final = struct.Struct("<I")
_CHANGES: Final = struct.Struct("<QQ")
_AT_CHANGES: Final = 512


class _Ring(NamedTuple):
    """Where the file has the last `REMEMBERED` items of a kind, each at its number, round and round."""

    begin: int
    item: struct.Struct

    @property
    def end(self) -> int:
        return self.begin + REMEMBERED * self.item.size

    def write(self, fd: int, number: int, items: list[tuple[int, ...]]) -> int:
        """Write items that have this number and those that follow; returns the number after them."""
        told = items[-REMEMBERED:]
        number += len(items) - len(told)
        while told:
            at = number % REMEMBERED
            part, told = told[: REMEMBERED - at], told[REMEMBERED - at :]
            os.pwrite(fd, b"".join(self.item.pack(*item) for item in part), self.begin + at * self.item.size)
            number += len(part)
        return number

    def read(self, fd: int, since: int, now: int) -> list[tuple[int, ...]] | None:
        """The items from number ``since`` on, before ``now``; None if not all of them are there any more."""
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
    """What the first page says."""

    num_slots: int
    epoch: int
    run: int
    """Another one whenever the listing is begun anew."""
    changes: int
    uses: int


def size_of(num_slots: int) -> int:
    """The bytes of a listing of so many slots."""
    return _AT_ENTRIES + num_slots * ENTRY_BYTES


class ListingWriter:
    """A listing as who owns the slots writes it, beginning with none. Raises what the system raises."""

    def __init__(self, fd: int, num_slots: int) -> None:
        self._fd = fd
        self._num_slots = num_slots
        self._changes = self._uses = 0
        os.ftruncate(fd, 0)
        os.ftruncate(fd, size_of(num_slots))

    def open(self, epoch: int, run: int) -> None:
        """Let it be read."""
        body = _HEADER.pack(_MAGIC, self._num_slots, epoch, run, this_boot().encode())
        os.pwrite(self._fd, _SUM.pack(zlib.crc32(body)) + body, 0)

    def write(self, slots: list[int], keys: list[OffloadKey]) -> None:
        """These slots have these chunks; of an empty key, none. Slots side by side are written in one go."""
        if not slots:
            return
        entries = [_entry(key) for key in keys]
        for first, last in _runs(slots):
            begin = _AT_ENTRIES + slots[first] * ENTRY_BYTES
            os.pwrite(self._fd, b"".join(entries[first:last]), begin)
        self._changes = _CHANGED.write(self._fd, self._changes, [(slot,) for slot in slots])
        self._count()

    def use(self, borrowed: list[NeighbourSlot]) -> None:
        """What is in these slots was borrowed."""
        self._uses = _USED.write(self._fd, self._uses, [*borrowed])
        self._count()

    def _count(self) -> None:
        os.pwrite(self._fd, _CHANGES.pack(self._changes, self._uses), _AT_CHANGES)


def read_opening(fd: int) -> Opening | None:
    """What the first page says; None if it says nothing that counts."""
    data = os.pread(fd, _AT_CHANGES + _CHANGES.size, 0)
    if len(data) < _AT_CHANGES + _CHANGES.size:
        return None
    run = _read_run(data[: _SUM.size + _HEADER.size])
    return None if run is None else Opening(*run, *_CHANGES.unpack_from(data, _AT_CHANGES))


def changed_slots(fd: int, since: int, now: int) -> list[int] | None:
    """The slots of the changes from ``since`` to ``now``; None if not all of them are told any more."""
    items = _CHANGED.read(fd, since, now)
    return None if items is None else [slot for (slot,) in items]


def used_slots(fd: int, since: int, now: int, engine: int) -> list[int]:
    """Those slots of an engine that were borrowed from ``since`` to ``now``, as far as that is still told."""
    items = _USED.read(fd, max(since, now - REMEMBERED // 2), now) or []
    return [slot for owner, slot in items if owner == engine]


def read_entry(fd: int, slot: int) -> OffloadKey:
    """The key of what is in a slot; empty if nothing is."""
    return _key(os.pread(fd, ENTRY_BYTES, _AT_ENTRIES + slot * ENTRY_BYTES))


def read_entries(fd: int, slots: range) -> Iterator[tuple[int, OffloadKey]]:
    """Those of some slots side by side that have something in them, and its key."""
    data = os.pread(fd, len(slots) * ENTRY_BYTES, _AT_ENTRIES + slots.start * ENTRY_BYTES)
    for slot, begin in zip(slots, range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES), strict=False):
        size = data[begin]
        if size:
            yield slot, OffloadKey(data[begin + 1 : begin + 1 + size])


@lru_cache(maxsize=1024)  # whoever looks reads it anew each time, and it is the same for as long as a run is
def _read_run(data: bytes) -> tuple[int, int, int] | None:
    """How many slots there are, of which epoch, in which run; None if this is of no listing that counts."""
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
    """Where in the list slots that lie side by side begin and end."""
    first = 0
    for index in range(1, len(slots) + 1):
        if index == len(slots) or slots[index] != slots[index - 1] + 1:
            yield first, index
            first = index
