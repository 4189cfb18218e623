"""Products of matrices beside copies: what the model's own work loses."""

from __future__ import annotations

import time
from statistics import median
from typing import Any, NamedTuple

from gpu.setting import Setting, parts_of

from kv_offload_cpu import Direction, PageCopies
from kv_offload_cpu.copy.cuda.engine import CudaCopyEngine

MATMUL_SIZE = 8192
MATMULS = 24
JOBS = 4
"""That follow each other, as large together as a job without products."""


class Beside(NamedTuple):
    """The share by which products were slower, and the GB/s of the copies beside them."""

    slower: float
    moved: float


class Products:
    """Products of matrices on a stream of their own, so that copies don't wait for them."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.stream = torch.cuda.Stream()
        self.matrix = torch.randn((MATMUL_SIZE, MATMUL_SIZE), device="cuda").to(torch.bfloat16)
        self.alone()

    def give(self) -> tuple[Any, Any]:
        """The events before and after ``MATMULS`` of them."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.torch.cuda.stream(self.stream):
            begin.record(self.stream)
            for _ in range(MATMULS):
                self.matrix @ self.matrix
            end.record(self.stream)
        return begin, end

    def alone(self) -> float:
        """Milliseconds of them without anything beside."""
        begin, end = self.give()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def beside(self, setting: Setting, engine: CudaCopyEngine, direction: Direction, times: int) -> Beside:
        """How much slower they are beside jobs of one direction: the median of so many times.

        Their speed changes as the GPU gets warm, so each is compared with products alone before and after it.
        """
        parts = parts_of(setting.copies(direction), JOBS)
        self.alone()
        alone, slower, moved = [self.alone()], [], []
        for _ in range(times):
            took, rate = self.once_beside(setting.num_bytes / len(parts), engine, direction, parts)
            alone.append(self.alone())
            slower.append(2 * took / (alone[-2] + alone[-1]) - 1)
            moved.append(rate)
        return Beside(median(slower), median(moved))

    def once_beside(
        self, job_bytes: float, engine: CudaCopyEngine, direction: Direction, parts: list[PageCopies]
    ) -> tuple[float, float]:
        """Milliseconds of products beside jobs, and the GB/s of those that ended with them.

        The products were given to the device before, so whatever the host does meanwhile is no matter to them.
        """
        begin, end = self.give()
        began = last = time.perf_counter()
        num_jobs = num_ended = 0
        while not end.query():
            while num_jobs - num_ended < 2:
                engine.submit(num_jobs, direction, parts[num_jobs % len(parts)])
                num_jobs += 1
            if ended := len(engine.poll()):
                num_ended, last = num_ended + ended, time.perf_counter()
        engine.wait(range(num_jobs))
        engine.poll()
        return begin.elapsed_time(end), num_ended * job_bytes / (last - began) / 1e9 if num_ended else 0.0
