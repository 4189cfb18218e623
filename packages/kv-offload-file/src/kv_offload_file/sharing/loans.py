"""Locks that keep a chunk in its slot while another engine reads it.

An engine that borrows a chunk holds a shared lock on one byte of the owner's listing, the one with the number of
the slot. The owner never locks anything: before it evicts chunks it asks which bytes are locked. The locks are
those of an open file (Linux's *open file description locks*), so the system drops them when a process ends,
however it ends.
"""

import fcntl
import struct
from typing import Final

from kv_api import ConfigError

_FLOCK: Final = struct.Struct("@hhqqi4x")
"""Linux's ``struct flock``: kind, from where, begin, length, and a process, which is 0 for these locks."""


def lock(fd: int, slot: int) -> bool:
    """Lock the byte of a slot in the listing that is open as ``fd``. False: the system won't."""
    return _set(fd, fcntl.F_RDLCK, slot)


def unlock(fd: int, slot: int) -> None:
    """Unlock it."""
    _set(fd, fcntl.F_UNLCK, slot)


def locked(fd: int, num_slots: int) -> list[int]:
    """The slots whose byte another engine has locked. One system call if there are none.

    The system returns any lock in the range that it is asked about, not the first. So the ranges before and after
    it are asked about, too.
    """
    found: set[int] = set()
    parts = [(0, num_slots)]
    while parts:
        begin, end = parts.pop()
        if begin >= end:
            continue
        asked = _FLOCK.pack(fcntl.F_WRLCK, 0, begin, end - begin, 0)
        kind, _, at, length, _ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
        if kind != fcntl.F_UNLCK:
            first, last = max(at, begin), min(at + length, end) if length else end  # 0: all that follows
            found.update(range(first, last))
            parts += [(begin, first), (last, end)]
    return sorted(found)


def refuse_without_locks() -> None:
    """Raise if the system has no locks of open files."""
    if not hasattr(fcntl, "F_OFD_GETLK"):
        raise ConfigError("file_shared: this system has no locks of open files (F_OFD_SETLK), as Linux has")


def _set(fd: int, kind: int, slot: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, 0, slot, 1, 0))
    except OSError:
        return False
    return True
