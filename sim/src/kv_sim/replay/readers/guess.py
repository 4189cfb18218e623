"""Guesses units from a trace's first records: that of time by magnitude, that of a block by counts of ids."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from kv_sim.replay.readers.record import Moment, Record

UNITS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

_EPOCH_BEGINS: Final = 1_000_000_000
_EPOCH_ENDS: Final = 4_000_000_000
"""Seconds since 1970, of 2001 and of 2096. A clock that counts nanoseconds since a machine was started has times
that would be microseconds of the years before."""

_NUMBERED: Final = (2001 * 10**10, 2097 * 10**10)
"""The same years where the digits of a date are a number."""

_USUAL_BLOCKS: Final = (512, 256, 128, 64, 32, 16, 1024, 2048, 4096, 8)
_AGREEMENT: Final = 0.95


def guess_unit(records: Sequence[Record], usual_seconds: float) -> str | None:
    """The unit of times that count from 1970; None if they don't look like that.

    What would be seconds is left alone where the format has so small units that it may be the first second of a
    clock, unless there are fractions; of milliseconds it is more than 11 days.
    """
    times = [record.time for record in records if record.time is not None and not isinstance(record.time, Moment)]
    least = min(times, default=0)
    may_be_seconds = usual_seconds >= UNITS["ms"] or any(time != int(time) for time in times)
    units = [unit for unit in UNITS if unit != "s" or may_be_seconds]
    return next((unit for unit in units if _EPOCH_BEGINS <= least * UNITS[unit] < _EPOCH_ENDS), None)


def written_as_number(records: Sequence[Record]) -> int | float | None:
    """The first time, if all look like dates whose digits are a number, as 20260131100000; otherwise None."""
    times = [record.time for record in records if record.time is not None and not isinstance(record.time, Moment)]
    for time in times:
        if not _NUMBERED[0] <= time < _NUMBERED[1]:
            return None
        try:
            datetime.strptime(f"{time:.0f}", "%Y%m%d%H%M%S")
        except ValueError:
            return None
    return times[0] if times else None


def agreement(records: Sequence[Record], block_tokens: int) -> float:
    """The share of requests whose count of ids fits their length, with or without a last partial block."""
    pairs = [(record.input_tokens, len(record.ids)) for record in records if record.ids and record.input_tokens]
    if not pairs:
        return 1.0
    fits = sum(count in (tokens // block_tokens, -(-tokens // block_tokens)) for tokens, count in pairs)
    return fits / len(pairs)


def guess_block_tokens(records: Sequence[Record], usual: int | None) -> int | None:
    """The usual size if it fits; otherwise one that fits; if none does, the usual one."""
    pairs = [(record.input_tokens, len(record.ids)) for record in records if record.ids and record.input_tokens]
    if usual is not None and agreement(records, usual) >= _AGREEMENT:
        return usual
    for size in _USUAL_BLOCKS:
        if agreement(records, size) >= _AGREEMENT:
            return size
    tokens, count = max(pairs, key=lambda pair: pair[1])  # pairs isn't empty, or any size would have agreed
    for size in dict.fromkeys((-(-tokens // count), tokens // count)):
        if size and agreement(records, size) >= _AGREEMENT:
            return size
    return usual
