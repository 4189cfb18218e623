"""The kernel of ``plain_kernel.cu``: it moves pages between the GPU's blocks and a buffer on the same device.

It is used where a thread without Python's interpreter gives the copies (``giver``); elsewhere Triton's kernel is.
Both ends are in the device's memory, so a round trip is short, and there is no link to the host that a few long
programs should keep full, as in ``bulk_call``. There are as many short programs as the steps need: see the source.
"""

from typing import Any, Final

from kv_offload_cpu.copy.cuda.kernel_call import DriverKernel
from kv_offload_cpu.copy.cuda.methods.page_table import STEP_BYTES
from kv_offload_cpu.copy.cuda.nvrtc import Loaded, Source

WORDS: Final = 8
"""Words that a thread moves, all in flight at once. With words of 16 bytes a warp moves a whole step; with
narrower words several warps share a step."""

WARPS: Final = 4
"""Warps of a program. There are as many programs as the steps, or their parts, need: for half a buffer of 16 MiB
about a thousand, of 16 KiB each. This number was not measured."""

WIDTHS: Final = (16, 8, 4, 2, 1)
"""Widths of words in bytes. The source has a function for each."""

SOURCE: Final = Source(
    "plain_kernel.cu",
    (f"-DWORDS={WORDS}",),
    "kernel for buffers",
    "use 'caller' as copy_submission",
)


class PlainCall:
    """The kernel on the current device; a ConfigError if it can't be compiled or loaded."""

    def __init__(self) -> None:
        loaded = Loaded(SOURCE)
        self._functions = {word: loaded.function(f"move_pages_{word}") for word in WIDTHS}

    def kernel(self, steps: Any, num_steps: int, *, is_store: bool, word: int) -> "PlainKernel":
        """The kernel for one direction and words of a width; ``steps`` is a tensor on the device."""
        return PlainKernel(self._functions[word], steps, num_steps, is_store=is_store, word=word)


class PlainKernel(DriverKernel):
    """The kernel for one direction and width of words."""

    def __init__(self, function: Any, steps: Any, num_steps: int, *, is_store: bool, word: int) -> None:
        super().__init__(function, steps, num_steps, is_store=is_store, threads=32 * WARPS)
        self._parts = -(-STEP_BYTES // (32 * WORDS * word))

    def grid(self, items: int, programs: int) -> tuple[int, int]:
        """As many programs as the steps need, whatever ``programs`` is: each of them is short."""
        return max(1, -(-items // WARPS)), self._parts
