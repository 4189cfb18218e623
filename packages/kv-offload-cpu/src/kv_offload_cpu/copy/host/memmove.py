"""Moves byte ranges without compiling anything: large ones by C's ``memmove``, small ones by a system call.

Numpy isn't suited: it gathers into an array and scatters from it, touches each byte twice, and holds the
interpreter's lock meanwhile. So large ranges are moved one by one by C's ``memmove``. Small ones are moved by the
thousand by the system call ``process_vm_readv``, which takes lists of ranges and here reads from this process
itself. Both release the interpreter's lock. The system call takes it again a thousand times less often, which
matters beside a thread that computes in Python. Where a sandbox forbids that call, or a system lacks it, small
ranges are moved by ``memmove``, too.
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
"""From this size on ``memmove`` is faster: the system call's work for each page of memory costs more."""

_BATCH: Final = 1024
"""Ranges of one system call, at most: the kernel's limit."""


def move_by_c(targets: Numbers, sources: Numbers, sizes: Numbers) -> None:
    """Move large ranges by ``memmove``, small ones by the system call."""
    large = sizes >= LARGE_BYTES
    if large.all():
        move_each(targets, sources, sizes)
    elif not large.any():
        move_small(targets, sources, sizes)
    else:
        move_each(targets[large], sources[large], sizes[large])
        move_small(targets[~large], sources[~large], sizes[~large])


def move_each(targets: Numbers, sources: Numbers, sizes: Numbers) -> None:
    """Move each range by one ``memmove``."""
    for target, source, size in zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(target, source, size)


def move_small(targets: Numbers, sources: Numbers, sizes: Numbers) -> None:
    """Move many ranges by each system call; ranges that the kernel doesn't take are moved one by one."""
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
    """The system call ``process_vm_readv``; None where it is missing or forbidden."""
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
"""The mover that is always available."""
