"""Which of the engines that share a folder one is, and how a chunk of another one is told from one of its own.

A job names its chunks by *places*, which are numbers of 32 bits. The slots of an engine's own file are the first
ones, then come as many numbers for engine 0, as many for engine 1, and so on.
"""

from pathlib import Path
from typing import Final, NamedTuple

MOST_SLOTS: Final = 1 << 23
MOST_ENGINES: Final = 253
_NOBODY: Final = MOST_ENGINES, MOST_ENGINES + 1
"""Numbers that no engine has."""
NUM_PLACES: Final = (1 + MOST_ENGINES + len(_NOBODY)) * MOST_SLOTS


class Found(NamedTuple):
    """Where a chunk lies: in a slot of the file of ``engine``."""

    engine: int
    slot: int


def place_of(found: Found) -> int:
    """The number of a place at another engine."""
    return (1 + found.engine) * MOST_SLOTS + found.slot


def found_at(place: int) -> Found | None:
    """What a place stands for. None: a slot of the engine's own."""
    engine, slot = divmod(place, MOST_SLOTS)
    return Found(engine - 1, slot) if engine else None


def nowhere(index: int) -> Found:
    """Where nothing is, for the ``index``-th chunk of a job: chunks side by side have different places."""
    return Found(_NOBODY[index % len(_NOBODY)], 0)


def home_of(folder: Path, engine: int) -> Path:
    """The home of an engine among those that share a folder."""
    return folder / f"engine-{engine}"
