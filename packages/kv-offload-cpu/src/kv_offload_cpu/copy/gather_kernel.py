"""The kernel that moves pieces of a job, in Triton. The only file here that imports it.

A program takes every n-th row of the table and moves that piece in steps of ``LANES`` words. Rows hold addresses,
of device memory and of host memory mapped for the device alike.
"""

# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,no-untyped-call"

from typing import Any

import triton
import triton.language as tl

PROGRAMS = 16
"""Programs of one launch, and so about how many multiprocessors it takes. A guess until measured."""

LANES = 1024
"""Words of a step. With 16 programs 128 KiB are under way, what a link of 60 GB/s holds in 2 µs. A guess, too."""

_WORDS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64, 16: tl.int64}


@triton.jit(do_not_specialize=["begin", "end"])
def move_pieces(
    table,
    begin,
    end,
    word_type: tl.constexpr,
    word_bytes: tl.constexpr,
    in_pairs: tl.constexpr,
    lanes: tl.constexpr,
):
    """Move rows ``begin`` to ``end``; ``in_pairs``: all are made of two words, so these can be moved at once."""
    for row in range(begin + tl.program_id(0), end, tl.num_programs(0)):
        target = tl.load(table + 3 * row).to(tl.pointer_type(word_type))
        source = tl.load(table + 3 * row + 1).to(tl.pointer_type(word_type))
        words = tl.load(table + 3 * row + 2) // word_bytes
        if in_pairs:
            target, source = tl.multiple_of(target, 16), tl.multiple_of(source, 16)
            words = tl.multiple_of(words, 2)
        for first in range(0, words, lanes):
            index = first + tl.arange(0, lanes)
            is_inside = index < words
            tl.store(target + index, tl.load(source + index, mask=is_inside), mask=is_inside)


def launch(table: Any, begin: int, end: int, word: int, programs: int = PROGRAMS) -> None:
    """Give the current stream the moves of some rows of ``table``, a tensor on the device."""
    word_type = _WORDS[word]
    move_pieces[(max(1, min(programs, end - begin)),)](
        table,
        begin,
        end,
        word_type=word_type,
        word_bytes=min(word, 8),
        in_pairs=word == 16,
        lanes=LANES,
    )
