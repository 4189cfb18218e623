"""What the first records of a trace say about its units: of time by magnitude, of a block by counts of ids."""

from collections.abc import Sequence
from typing import Final

from kv_sim.replay.readers.record import Record

UNITS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

_EPOCHS: Final = (("ns", 10**17), ("us", 10**14), ("ms", 10**11))
"""From which size on a time of this century, counted from 1970, can only be in this unit."""

_SECONDS: Final = 10**9
"""The same for seconds, where the choice is between them and milliseconds: of these it is more than 11 days."""

_USUAL_BLOCKS: Final = (512, 256, 128, 64, 32, 16, 1024, 2048, 4096, 8)
_AGREEMENT: Final = 0.95


def guess_unit(records: Sequence[Record], usual_seconds: float) -> str | None:
    """The unit of times that count from 1970; None where they are too small to tell."""
    times = [record.time for record in records if record.time is not None]
    least = min(times, default=0)
    epochs = (*_EPOCHS, ("s", _SECONDS)) if usual_seconds >= UNITS["ms"] else _EPOCHS
    return next((unit for unit, size in epochs if least >= size), None)


def agreement(records: Sequence[Record], block_tokens: int) -> float:
    """The share of requests whose count of ids fits their length, with or without a last partial block."""
    pairs = [(record.input_tokens, len(record.ids)) for record in records if record.ids and record.input_tokens]
    if not pairs:
        return 1.0
    fits = sum(count in (tokens // block_tokens, -(-tokens // block_tokens)) for tokens, count in pairs)
    return fits / len(pairs)


def guess_block_tokens(records: Sequence[Record], usual: int | None) -> int | None:
    """The usual size if it fits; else the one that does, if there is one; else the usual one."""
    pairs = [(record.input_tokens, len(record.ids)) for record in records if record.ids and record.input_tokens]
    if usual is not None and agreement(records, usual) >= _AGREEMENT:
        return usual
    for size in _USUAL_BLOCKS:
        if agreement(records, size) >= _AGREEMENT:
            return size
    if pairs:
        tokens, count = max(pairs, key=lambda pair: pair[1])
        for size in dict.fromkeys((-(-tokens // count), tokens // count)):
            if size and agreement(records, size) >= _AGREEMENT:
                return size
    return usual
