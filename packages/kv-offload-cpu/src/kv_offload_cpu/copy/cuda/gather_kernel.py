"""The kernel in Triton that moves pages between tensors and slots. The only module that imports Triton.

A kernel's throughput over a link is the bytes that it has in flight, divided by the time of a round trip. So a
program is as large as Triton allows, and moves several steps at once; if it moved them one after the other, it
would wait for a round trip after each. In this way few programs are enough, and the model loses few
multiprocessors.

The kernel computes the address of each step of a page by itself. The host writes three numbers for each page of a
job, in however many tensors the page is: see ``page_table``.
"""

# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,no-untyped-call"

from typing import Any, Final, NamedTuple

import triton
import triton.language as tl

WARPS: Final = 32
"""Warps of a program: the most that there can be."""


class Tile(NamedTuple):
    """How many steps a program moves at once, and how many words of each."""

    word_type: Any
    word_bytes: int
    in_pairs: bool
    height: int
    lanes: int


TILES: Final = {
    16: Tile(tl.int64, 8, True, 16, 512),
    8: Tile(tl.int64, 8, False, 4, 512),
    4: Tile(tl.int32, 4, False, 4, 1024),
    2: Tile(tl.int16, 2, False, 2, 2048),
    1: Tile(tl.int8, 1, False, 1, 4096),
}
"""The tile for each width of words. With the widest words, which fit nearly all pages, a tile is 64 KiB: each
thread has four loads of 16 bytes. Two programs with this tile fill a link of 55 GB/s."""


@triton.jit(do_not_specialize=["num_rows", "begin", "num_items", "num_steps"])
def move_pages(
    table,
    num_rows,
    begin,
    num_items,
    steps,
    num_steps,
    is_store: tl.constexpr,
    word_type: tl.constexpr,
    word_bytes: tl.constexpr,
    in_pairs: tl.constexpr,
    height: tl.constexpr,
    lanes: tl.constexpr,
):
    """Move the steps of pages from row ``begin`` of ``num_rows`` on, ``num_items`` in all.

    ``in_pairs``: all steps are made of two words, moved at once.
    """
    place = tl.arange(0, height)[:, None]
    lane = tl.arange(0, lanes)[None, :]
    for first in range(tl.program_id(0) * height, num_items, tl.num_programs(0) * height):
        item = tl.minimum(first + place, num_items - 1)
        row = table + begin + item // num_steps
        step = steps + item % num_steps
        block = tl.load(row)
        base = tl.load(row + num_rows)
        offset = tl.load(row + 2 * num_rows)
        address = tl.load(step)
        stride = tl.load(step + num_steps)
        place_in_slot = tl.load(step + 2 * num_steps)
        page_bytes = tl.load(step + 3 * num_steps)
        words = tl.load(step + 4 * num_steps).to(tl.int32) // word_bytes
        words = tl.where(first + place < num_items, words, 0)
        in_tensor = (address + block * stride).to(tl.pointer_type(word_type)) + lane
        in_slot = (base + place_in_slot + offset * page_bytes).to(tl.pointer_type(word_type)) + lane
        if in_pairs:
            words = tl.multiple_of(words, [2, 2])
            in_tensor = tl.max_contiguous(tl.multiple_of(in_tensor, [16, 16]), [1, 2])
            in_slot = tl.max_contiguous(tl.multiple_of(in_slot, [16, 16]), [1, 2])
        is_inside = lane < words
        if is_store:
            tl.store(in_slot, tl.load(in_tensor, mask=is_inside), mask=is_inside)
        else:
            tl.store(in_tensor, tl.load(in_slot, mask=is_inside), mask=is_inside)


def arguments(
    table: Any, num_rows: int, rows: range, steps: Any, num_steps: int, *, is_store: bool, word: int
) -> tuple[Any, ...]:
    """The kernel's arguments for some pages of ``table``, which has ``num_rows`` rows."""
    return (table, num_rows, rows.start, len(rows) * num_steps, steps, num_steps, is_store, *TILES[word])


def num_programs(num_items: int, word: int, most: int) -> int:
    """How many programs have steps to move, up to the limit ``most``."""
    return max(1, min(most, -(-num_items // TILES[word].height)))


class Kernel:
    """The kernel for one direction and width of words, looked up once: a look-up takes as long as a launch."""

    def __init__(self, steps: Any, num_steps: int, *, is_store: bool, word: int) -> None:
        self._steps = steps
        self._num_steps = num_steps
        self._is_store = is_store
        self._word = word
        nothing = arguments(steps, 0, range(0), steps, num_steps, is_store=is_store, word=word)
        self._compiled = move_pages.warmup(*nothing, num_warps=WARPS, grid=(1,))

    def launch(self, stream: int, table: Any, num_rows: int, rows: range, programs: int) -> None:
        """Launch the kernel for some pages of ``table``, a tensor on the device; ``stream`` is a handle."""
        told = arguments(
            table, num_rows, rows, self._steps, self._num_steps, is_store=self._is_store, word=self._word
        )
        programs = num_programs(len(rows) * self._num_steps, self._word, programs)
        self._compiled[(programs, 1, 1)](*told, stream=stream)
