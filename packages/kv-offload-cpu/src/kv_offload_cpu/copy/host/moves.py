"""Moves the byte ranges of a job by a mover, on as many cores as pay.

A mover is a function that moves arrays of ranges and releases the interpreter's lock meanwhile. The modules
``memmove`` and ``streaming`` have one each; this module shares its work among threads.
"""

from collections.abc import Callable
from concurrent.futures import Executor, wait
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from kv_offload_cpu.copy.engine import Numbers
from kv_offload_cpu.copy.ranges.addresses import split


class Mover(NamedTuple):
    """Moves bytes: ``move(targets, sources, sizes)`` takes ranges of any size at any address, in any order.

    Another thread pays only for ``piece_bytes`` or more.
    """

    move: Callable[[Numbers, Numbers, Numbers], None]
    piece_bytes: int


def move(
    targets: Numbers,
    sources: Numbers,
    sizes: Numbers,
    mover: Mover,
    helpers: Executor | None = None,
    threads: int = 1,
) -> None:
    """Move ranges by up to ``threads`` threads: this one and those of ``helpers``."""
    if helpers is None or threads == 1:
        mover.move(targets, sources, sizes)
        return
    limit = max(int(sizes.sum()) // threads, mover.piece_bytes)
    targets, sources, sizes = split(targets, sources, sizes, limit)
    first, *others = share(sizes, threads, mover.piece_bytes)
    running = [helpers.submit(mover.move, targets[piece], sources[piece], sizes[piece]) for piece in others]
    try:
        mover.move(targets[first], sources[first], sizes[first])
    finally:
        wait(running)  # else the job would be reported while a helper still moves its bytes
    for future in running:
        future.result()


def share(sizes: Numbers, threads: int, piece_bytes: int) -> list[slice]:
    """Cut ranges into pieces of about the same number of bytes: one for each thread that pays."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    count = max(1, min(threads, total // piece_bytes))
    targets = [total * n // count for n in range(1, count)]
    cuts = [0, *np.searchsorted(ends, targets, side="right").tolist(), len(sizes)]
    return [slice(begin, end) for begin, end in pairwise(cuts)]
