"""The kernel that moves pieces of a job, in Triton. The only file here that imports it.

What a kernel gets out of a link is the bytes that it has under way, by the time of a round trip. So a program is
as large as programs can be, and moves several pieces at once: if it took one after the other, small pages would
leave most of its threads with nothing to do. Its tile is some pieces by some words, and goes along the pieces
until the longest of them ends. So few programs are enough, and few multiprocessors are taken from the model.

A table is a column of targets, one of sources and one of sizes. Addresses are of device memory, and of host memory
mapped for the device, alike.
"""

# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,no-untyped-call"

from typing import Any, Final, NamedTuple

import triton
import triton.language as tl

PROGRAMS: Final = 4
"""Programs of one launch, and so how many multiprocessors it takes. A guess until measured."""

WARPS: Final = 32
"""Of a program: as many as there can be."""


class Tile(NamedTuple):
    """How a program moves words of a width: so many pieces at once, so many words of each."""

    word_type: Any
    word_bytes: int
    in_pairs: bool
    pieces: int
    lanes: int


TILES: Final = {
    16: Tile(tl.int64, 8, True, 16, 512),
    8: Tile(tl.int64, 8, False, 4, 512),
    4: Tile(tl.int32, 4, False, 4, 512),
    2: Tile(tl.int16, 2, False, 4, 512),
    1: Tile(tl.int8, 1, False, 4, 512),
}
"""By the width of words. With the widest, which nearly all pages are made of, a tile is 64 KiB: four loads of 16
bytes a thread. Four programs have twice under way what a link of 60 GB/s holds in 2 µs. More needs more registers
than there are."""


@triton.jit(do_not_specialize=["num_rows", "begin", "end"])
def move_pieces(
    table,
    num_rows,
    begin,
    end,
    word_type: tl.constexpr,
    word_bytes: tl.constexpr,
    in_pairs: tl.constexpr,
    pieces: tl.constexpr,
    lanes: tl.constexpr,
):
    """Move rows ``begin`` to ``end`` of ``num_rows``; ``in_pairs``: all are made of two words, moved at once."""
    place = tl.arange(0, pieces)[:, None]
    lane = tl.arange(0, lanes)[None, :]
    for first_row in range(begin + tl.program_id(0) * pieces, end, tl.num_programs(0) * pieces):
        row = first_row + place
        is_row = row < end
        target = tl.load(table + row, mask=is_row, other=0).to(tl.pointer_type(word_type))
        source = tl.load(table + num_rows + row, mask=is_row, other=0).to(tl.pointer_type(word_type))
        words = tl.load(table + 2 * num_rows + row, mask=is_row, other=0).to(tl.int32) // word_bytes
        longest = tl.max(words)
        if in_pairs:
            words = tl.multiple_of(words, [2, 2])
        for first in range(0, longest, lanes):
            index = first + lane
            to, of = target + index, source + index
            if in_pairs:
                to = tl.max_contiguous(tl.multiple_of(to, [16, 16]), [1, 2])
                of = tl.max_contiguous(tl.multiple_of(of, [16, 16]), [1, 2])
            is_inside = index < words
            tl.store(to, tl.load(of, mask=is_inside), mask=is_inside)


def launch(table: Any, num_rows: int, rows: range, word: int, programs: int = PROGRAMS) -> None:
    """Give the current stream the moves of some rows of ``table``, a tensor on the device of ``num_rows``."""
    tile = TILES[word]
    num_programs = max(1, min(programs, -(-len(rows) // tile.pieces)))
    move_pieces[(num_programs,)](table, num_rows, rows.start, rows.stop, **tile._asdict(), num_warps=WARPS)
