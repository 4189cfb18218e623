"""A kernel that has some multiprocessors to itself and does nothing: the least that any kernel costs others."""

# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

WARPS = 32
"""Of a program, as many as there can be. A multiprocessor has room for twice as many, but not beside a program
of a product, which wants nearly all registers."""

NAPS = 2000
"""Of a microsecond or two each."""


@triton.jit
def idle(room, naps):
    """Sleep."""
    lanes = tl.arange(0, 1024)
    kept = lanes
    for _ in range(naps):
        kept = tl.inline_asm_elementwise(
            "nanosleep.u32 1000; mov.b32 $0, $1;", "=r,r", [kept], dtype=tl.int32, is_pure=False, pack=1
        )
    tl.store(room + lanes, kept)


class Idlers:
    """Jobs that keep so many multiprocessors, for ``gpu.products``."""

    def __init__(self, torch: Any, count: int) -> None:
        self.torch = torch
        self.count = count
        self.stream = torch.cuda.Stream()
        self.room = torch.empty(1024, dtype=torch.int32, device="cuda")
        self._ends: list[Any] = []

    def give(self) -> None:
        """One more."""
        end = self.torch.cuda.Event()
        with self.torch.cuda.stream(self.stream):
            idle[(self.count,)](self.room, NAPS, num_warps=WARPS)
            end.record(self.stream)
        self._ends.append(end)

    def ended(self) -> int:
        """How many ended since this was asked last."""
        left = [end for end in self._ends if not end.query()]
        count, self._ends = len(self._ends) - len(left), left
        return count
