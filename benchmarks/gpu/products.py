"""Products of matrices beside copies: what the model's own work loses."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import nan
from statistics import median
from typing import Any, NamedTuple

from gpu.setting import Setting, parts_of

from kv_offload_cpu import Direction
from kv_offload_cpu.copy.cuda.engine import CudaCopyEngine

MATMUL_SIZE = 8192
AHEAD = 8
"""Products that the device was given and hasn't ended, so that it doesn't wait for the host."""

WINDOW = 0.04
"""Seconds with jobs, and as many without."""

UNDER_WAY = 2
"""Jobs at a time."""

FEWEST_JOBS = 3
"""That end in a window."""

WARM_UP = 0.15
"""Seconds of products before any counts: they draw so much power that they slow down as the GPU gets warm."""

PARTS = 4
"""That follow each other, as large together as a job without products."""


class Jobs(NamedTuple):
    """What is done beside products: how to give one more, and how many ended since this was asked last."""

    give: Callable[[], None]
    ended: Callable[[], int]
    num_bytes: float


class Beside(NamedTuple):
    """The share by which products were slower, and the GB/s of the copies beside them.

    Not a number: submitting a job took so long that the device had no product left to do.
    """

    slower: float
    moved: float


class Products:
    """Products of matrices one after the other, without a pause, on a stream of their own.

    A GPU that had a pause is faster for a while, so products before and after one can't be compared. And copies
    don't wait for them, nor do they wait for the host: some are always given ahead.
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.stream = torch.cuda.Stream()
        self.matrix = torch.randn((MATMUL_SIZE, MATMUL_SIZE), device="cuda").to(torch.bfloat16)
        self._ends: list[Any] = []
        self._num_ended = 0
        self._has_paused = False

    def beside(self, jobs: Jobs, times: int) -> Beside:
        """How much slower they are beside jobs, two of which are always under way: the median of so many times."""
        self._ends, self._num_ended, self._has_paused = [], 0, False
        until = time.perf_counter() + WARM_UP
        self._go_on(lambda: time.perf_counter() > until)
        alone, slower, moved = [self._pace()], [], []
        for _ in range(times):
            beside, rate = self._pace_beside(jobs)
            alone.append(self._pace())
            slower.append(2 * beside / (alone[-2] + alone[-1]) - 1)
            moved.append(rate)
        self.torch.cuda.synchronize()
        return Beside(nan if self._has_paused else median(slower), median(moved))

    def beside_copies(self, setting: Setting, engine: CudaCopyEngine, direction: Direction, times: int) -> Beside:
        """How much slower they are beside copies of one direction."""
        parts = parts_of(setting.copies(direction), PARTS)
        numbers = iter(range(1 << 30))

        def give() -> None:
            number = next(numbers)
            engine.submit(number, direction, parts[number % len(parts)])

        def ended() -> int:
            results = engine.poll()
            if not all(result.success for result in results):
                raise AssertionError(f"beside products: {results}")
            return len(results)

        return self.beside(Jobs(give, ended, setting.num_bytes / len(parts)), times)

    def _pace(self) -> float:
        """Milliseconds of a product alone."""
        first, until = self._settled(), time.perf_counter() + WINDOW
        self._go_on(lambda: time.perf_counter() > until and self._num_ended > first)
        return self._mean_since(first)

    def _pace_beside(self, jobs: Jobs) -> tuple[float, float]:
        """Milliseconds of a product while jobs follow each other, and the GB/s of these."""
        given, ended = 0, [time.perf_counter()]  # when they began, and when each ended

        def feed() -> bool:
            nonlocal given
            while given - (len(ended) - 1) < UNDER_WAY:
                jobs.give()
                given += 1
            ended.extend([time.perf_counter()] * jobs.ended())
            return False

        first = self._settled(feed)
        until = time.perf_counter() + WINDOW

        def is_enough() -> bool:
            feed()
            return time.perf_counter() > until and len(ended) > FEWEST_JOBS and self._num_ended > first

        self._go_on(is_enough)
        pace, seconds, num_jobs = self._mean_since(first), ended[-1] - ended[0], len(ended) - 1

        def is_over() -> bool:
            ended.extend([0.0] * jobs.ended())
            return len(ended) - 1 == given

        self._go_on(is_over)
        return pace, num_jobs * jobs.num_bytes / seconds / 1e9

    def _settled(self, feed: Callable[[], bool] = lambda: False) -> int:
        """Go on until all that was given before has ended; the number of products by then."""
        before = len(self._ends)
        self._go_on(lambda: feed() or self._num_ended > before)
        return self._num_ended

    def _mean_since(self, first: int) -> float:
        """Milliseconds of a product, of those from ``first`` on that have ended."""
        last = self._num_ended
        return float(self._ends[first - 1].elapsed_time(self._ends[last - 1])) / (last - first)

    def _go_on(self, is_over: Callable[[], bool]) -> None:
        """Give products, always a few ahead, until that is so."""
        while not is_over():
            while len(self._ends) - self._num_ended < AHEAD:
                end = self.torch.cuda.Event(enable_timing=True)
                with self.torch.cuda.stream(self.stream):
                    self.matrix @ self.matrix
                    end.record(self.stream)
                self._ends.append(end)
            while self._num_ended < len(self._ends) and self._ends[self._num_ended].query():
                self._num_ended += 1
            self._has_paused |= self._num_ended == len(self._ends)
