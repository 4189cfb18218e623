"""What the host does for a job of the CUDA engine before the device can begin, by method. Needs no GPU.

A job of ``count`` pages, in layers on the device and chunks in host memory, blocks and chunks in random order, is
submitted to a device that does nothing. So this is what numpy and Python take: ranges, addresses, tables, pieces;
what the calls of a driver take comes on top. The columns are microseconds of a submission, the best of
``--repeat``, and the share of the link's rate that is left for the job as a whole if its copy takes what
``--link`` GB/s take, and nothing overlaps.

    python benchmarks/submission.py [--link 55] [--repeat 20] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from kv_api import CanonicalKVCacheRef
from kv_offload_cpu import CopyEngineChoice, Direction, HostLayout, PageCopies
from kv_offload_cpu.copy.choose import METHODS
from kv_offload_cpu.copy.cuda.engine import CudaCopyEngine
from kv_offload_cpu.copy.cuda.methods.page_table import COLUMNS
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan
from kv_offload_cpu.copy.ranges.tensors import TensorPages

LAYERS = 16
CASES = ((4, 4096), (4, 65536), (8, 65536), (16, 65536), (24, 32768), (32, 32768), (64, 16384))
"""KiB of a page, and how many."""

NAMES = [choice for choice in METHODS if choice is not CopyEngineChoice.CUDA]
"""Not the one that calls the driver for each range: its calls are nearly all that it does."""


class Table(NamedTuple):
    """Numbers for a kernel that never runs."""

    numbers: np.ndarray[Any, Any]


class NoDevice:
    """A driver that does nothing, and has done so at once."""

    mapped_shift = 0

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **more: 0

    def new_table(self, num_rows: int) -> Table:
        """Room on the host."""
        return Table(np.empty(COLUMNS * num_rows, np.int64))

    def is_reached(self, event: Any) -> bool:
        """Everything has been done."""
        return True


def job_of(page_bytes: int, count: int) -> tuple[CopyPlan, PageCopies]:
    """A plan at made-up addresses, and the pages of a job."""
    blocks, slot = count // LAYERS, LAYERS * page_bytes
    pages = [TensorPages(blocks, page_bytes, page_bytes, n * blocks * page_bytes) for n in range(1, LAYERS + 1)]
    refs = [CanonicalKVCacheRef(index, page_bytes) for index in range(LAYERS)]
    plan = CopyPlan(pages, [refs], HostLayout(blocks, 1, slot, 1, slot), 0, 1 << 40)
    random, zeros = np.random.default_rng(count), np.zeros(blocks, np.int64)
    return plan, PageCopies(zeros, random.permutation(blocks), random.permutation(blocks), zeros)


def method_maker(choice: CopyEngineChoice, plan: CopyPlan) -> Callable[[Any], Any]:
    """What makes a lane's method, from its stream."""
    return lambda stream: METHODS[choice](NoDevice(), stream, plan)


def measure(repeat: int) -> Iterator[dict[str, Any]]:
    """The best time of a submission, for each case and method."""
    for kib, count in CASES:
        plan, copies = job_of(kib << 10, count)
        for choice in NAMES:
            engine = CudaCopyEngine(plan, NoDevice(), method_maker(choice, plan))
            best = float("inf")
            for job_id in range(repeat):
                begin = time.perf_counter()
                engine.submit(job_id, Direction.STORE, copies)
                best = min(best, time.perf_counter() - begin)
                assert all(result.success for result in engine.poll())
            yield {"page_kib": kib, "count": count, "method": choice.value, "seconds": best}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the host does for a job of the CUDA engine.")
    parser.add_argument("--link", type=float, default=55, metavar="GB/S")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    left = f"left of {arguments.link:g} GB/s"
    print(f"{'page':>8} {'count':>7} {'method':>12} {'µs':>8} {left:>18}")
    rows = []
    for row in measure(arguments.repeat):
        copy = (row["page_kib"] << 10) * row["count"] / arguments.link / 1e9
        row["left"] = copy / (copy + row["seconds"])
        rows.append(row)
        case = f"{row['page_kib']:>4} KiB {row['count']:>7} {row['method']:>12}"
        print(f"{case} {row['seconds'] * 1e6:8.0f} {row['left']:18.0%}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"link": arguments.link, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
