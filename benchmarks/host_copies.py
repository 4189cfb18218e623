"""How fast the host engine copies pages, beside one large copy by numpy, in one process.

A job moves ``--mebibytes`` of pages of one size between a KV cache in host memory and chunks, both in random order
and with no two neighbours on both sides, so that nothing can be joined. Each is timed from submission to result.
The plain copy is ``numpy.copyto`` of as many bytes between two arrays, and is timed in turn with the jobs, as the
best of ``--repeat`` each: the machine's mood is the same for all.

``store`` and ``load`` are the whole way: ranges worked out, queue, threads, result, by what ``auto`` takes:
``host-stream`` where llvmlite is installed. ``1 thread`` is a store without helpers, and ``in order`` a store of
neighbours, whose pages are joined. ``C`` is a store by the engine ``host``, and ``each`` C's ``memmove`` in a loop
over pages in Python.

C writes past the caches in one copy of hundreds of megabytes, and in nothing smaller, whose target is therefore
read before it is written: half as much traffic again. ``pieces`` is the plain copy in slices of 2 MiB, and so the
limit of whatever copies pages with C's library.

    python benchmarks/host_copies.py [--mebibytes 256] [--repeat 5] [--threads 0] [--json FILE]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv_api import CanonicalKVCacheRef
from kv_offload_cpu import CopyEngineChoice, Direction, HostLayout, PageCopies
from kv_offload_cpu.copy.choose import host_mover
from kv_offload_cpu.copy.host.engine import HostCopyEngine
from kv_offload_cpu.copy.host.memmove import BY_C
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan
from kv_offload_cpu.copy.ranges.tensors import DeviceTensor, TensorPages
from kv_offload_cpu.memory import MappedMemory

PIECE_BYTES = 2 << 20
Bytes = NDArray[np.uint8]

PAGES_KIB = (4, 8, 16, 24, 32, 64, 128, 256, 2048)


class Setting:
    """A KV cache and chunks of as many pages, and a job that copies all of them in random order."""

    def __init__(self, page_bytes: int, total_bytes: int, threads: int) -> None:
        count = total_bytes // page_bytes
        self.num_bytes = count * page_bytes
        self.page_bytes = page_bytes
        random = np.random.default_rng(page_bytes)
        layout = HostLayout(count, 1, page_bytes, 1, page_bytes)
        self.memory = MappedMemory(layout)
        self.cache = MappedMemory(layout)
        pages = self.cache.bytes.reshape(count, page_bytes)
        pages[:] = random.integers(0, 256, page_bytes, dtype=np.uint8)
        pages[:, 0] = np.arange(count) % 251
        self.tensors = [DeviceTensor(TensorPages(count, page_bytes, page_bytes, self.cache.address), "cpu", pages)]
        self.plan = CopyPlan(
            [self.tensors[0].pages], [[CanonicalKVCacheRef(0, page_bytes)]], layout, 0, self.memory.address
        )
        zeros = np.zeros(count, np.int64)
        self.copies = PageCopies(zeros, random.permutation(count), random.permutation(count), zeros)
        self.in_order = PageCopies(zeros, np.arange(count), np.arange(count), zeros)
        best = host_mover(CopyEngineChoice.AUTO)
        self.engine, self.alone, self.by_c = (
            HostCopyEngine(self.plan, self.tensors, count, mover)
            for count, mover in ((threads, best), (1, best), (threads, BY_C))
        )

    def run(self, engine: HostCopyEngine, direction: Direction, copies: PageCopies) -> None:
        """One job, to its end."""
        engine.submit(1, direction, copies)
        engine.wait([1])
        [result] = engine.poll()
        if not result.success or result.num_bytes != self.num_bytes:
            raise AssertionError(f"{result} instead of {self.num_bytes} bytes")

    def run_each(self) -> None:
        """The same store by a call a page."""
        sources = (self.copies.blocks * self.page_bytes + self.cache.address).tolist()
        targets = (self.copies.chunks * self.page_bytes + self.memory.address).tolist()
        for target, source in zip(targets, sources, strict=True):
            ctypes.memmove(target, source, self.page_bytes)

    def verify(self) -> None:
        """Whether what was stored is what was there."""
        shape = (-1, self.page_bytes)
        stored = self.memory.bytes.reshape(shape)[self.copies.chunks]
        if not np.array_equal(stored, self.cache.bytes.reshape(shape)[self.copies.blocks]):
            raise AssertionError(f"pages of {self.page_bytes} bytes differ")

    def close(self) -> None:
        """Give everything back."""
        for engine in (self.engine, self.alone, self.by_c):
            engine.shutdown()
        self.tensors.clear()
        self.memory.release()
        self.cache.release()


def copy_pieces(target: Bytes, source: Bytes) -> None:
    """The plain copy, in slices."""
    for begin in range(0, len(source), PIECE_BYTES):
        np.copyto(target[begin : begin + PIECE_BYTES], source[begin : begin + PIECE_BYTES])


def best_rates(jobs: dict[str, Callable[[], None]], num_bytes: int, repeat: int) -> dict[str, float]:
    """GB/s of each job, its best of as many rounds, in which they take turns."""
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(repeat):
        for name, job in jobs.items():
            begin = time.perf_counter()
            job()
            best[name] = min(best[name], time.perf_counter() - begin)
    return {name: num_bytes / seconds / 1e9 for name, seconds in best.items()}


def measure(page_bytes: int, total_bytes: int, repeat: int, threads: int, source: Bytes, target: Bytes) -> Any:
    """The rates for one size of page."""
    setting = Setting(page_bytes, total_bytes, threads)
    engine, alone, copies = setting.engine, setting.alone, setting.copies
    jobs: dict[str, Callable[[], None]] = {
        "plain": lambda: np.copyto(target, source),
        "pieces": lambda: copy_pieces(target, source),
        "in order": lambda: setting.run(engine, Direction.STORE, setting.in_order),
        "each": setting.run_each,
        "1 thread": lambda: setting.run(alone, Direction.STORE, copies),
        "store": lambda: setting.run(engine, Direction.STORE, copies),
        "load": lambda: setting.run(engine, Direction.LOAD, copies),
        "C": lambda: setting.run(setting.by_c, Direction.STORE, copies),
    }
    rates = best_rates(jobs, setting.num_bytes, repeat)
    setting.verify()
    setting.close()
    return rates


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The host copy engine beside a plain copy.")
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    total = arguments.mebibytes << 20
    source, target = np.ones(total, np.uint8), np.zeros(total, np.uint8)
    results: dict[str, Any] = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cores": os.cpu_count(),
        "streams": host_mover(CopyEngineChoice.AUTO) is not BY_C,
        "mebibytes": arguments.mebibytes,
        "gigabytes_per_second": {},
    }
    columns = ["plain", "pieces", "store", "load", "1 thread", "in order", "C", "each"]
    name = "host-stream" if results["streams"] else "host: llvmlite is missing, or can't be used"
    print(f"GB/s, and the share of the plain copy; auto is {name}")
    print(f"  {'page':>9}" + "".join(f"{name:>16}" for name in columns))
    for kib in PAGES_KIB:
        rates = measure(kib << 10, total, arguments.repeat, arguments.threads, source, target)
        results["gigabytes_per_second"][kib << 10] = rates
        shares = [f"{rates[name]:8.1f} {rates[name] / rates['plain']:5.0%}" for name in columns]
        print(f"  {kib:>5} KiB" + "".join(f"{share:>16}" for share in shares))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
