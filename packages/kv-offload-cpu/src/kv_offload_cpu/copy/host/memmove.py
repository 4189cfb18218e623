"""Moving byte ranges by what every system has: C's ``memmove``, and a call of the kernel for the small ones.

Numpy can't do it well: gathering into an array and scattering from it touches each byte twice, and holds the
interpreter's lock meanwhile. So large ranges are moved one by one by C's ``memmove``. Small ones are moved by the
thousand by ``process_vm_readv``, which takes lists of ranges; aimed at one's own process, it is a copy in one call
of the kernel. Both let go of the lock; the second takes it again a thousand times less often, which is what counts
beside a thread that computes in Python. Where a sandbox forbids that call, or a system lacks it, small ranges go
by ``memmove`` too.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kv_offload_cpu.copy.engine import Numbers
from kv_offload_cpu.copy.host.moves import Mover

LARGE_BYTES: Final = 32 << 10
"""From this size on a call for each range is faster: what the kernel does for each page of memory costs more."""

_BATCH: Final = 1024
"""Ranges in one call; the kernel takes no more."""


def move_by_c(targets: Numbers, sources: Numbers, sizes: Numbers) -> None:
    """Large ranges by ``memmove``, small ones by the kernel."""
    large = sizes >= LARGE_BYTES
    if large.all():
        move_each(targets, sources, sizes)
    elif not large.any():
        move_small(targets, sources, sizes)
    else:
        move_each(targets[large], sources[large], sizes[large])
        move_small(targets[~large], sources[~large], sizes[~large])


def move_each(targets: Numbers, sources: Numbers, sizes: Numbers) -> None:
    """One ``memmove`` for each range."""
    for target, source, size in zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(target, source, size)


def move_small(targets: Numbers, sources: Numbers, sizes: Numbers) -> None:
    """Many ranges a call; what the kernel doesn't take is moved one by one."""
    if _batch_call is None:
        move_each(targets, sources, sizes)
        return
    into, out_of = _lists(targets, sizes), _lists(sources, sizes)
    for begin in range(0, len(sizes), _BATCH):
        end = min(begin + _BATCH, len(sizes))
        count = end - begin
        moved = _batch_call(os.getpid(), into[begin:].ctypes.data, count, out_of[begin:].ctypes.data, count, 0)
        if moved != int(sizes[begin:end].sum()):
            move_each(targets[begin:end], sources[begin:end], sizes[begin:end])


def _find_batch_call() -> Callable[..., int] | None:
    """The kernel's ``process_vm_readv``, if one may call it here."""
    try:
        call: Callable[..., int] = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except (AttributeError, OSError, TypeError):
        return None
    number = ctypes.c_ulong
    call.argtypes = [ctypes.c_int, ctypes.c_void_p, number, ctypes.c_void_p, number, number]  # type: ignore[attr-defined]
    call.restype = ctypes.c_ssize_t  # type: ignore[attr-defined]
    source, target = np.arange(1, 65, dtype=np.uint8), np.zeros(64, np.uint8)
    lists = np.array([[target.ctypes.data, 64], [source.ctypes.data, 64]])
    moved = call(os.getpid(), lists[0].ctypes.data, 1, lists[1].ctypes.data, 1, 0)
    return call if moved == 64 and bool((target == source).all()) else None


def _lists(addresses: Numbers, sizes: Numbers) -> NDArray[np.int64]:
    """The kernel's list of ranges: address and length, each as wide as a pointer."""
    lists = np.empty((len(sizes), 2), np.int64)
    lists[:, 0] = addresses
    lists[:, 1] = sizes
    return lists


_batch_call = _find_batch_call()

BY_C: Final = Mover(move_by_c, piece_bytes=1 << 20)
"""The mover that is always there."""
