"""Which of the engines that share a folder one is, and how a chunk of another one is told from one of its own.

A job names its chunks by *places*, which are numbers. The slots of an engine's own file are the first ones, those
of engine 0 come next, then those of engine 1, and so on, as if each had as many slots as this one. Slots of
another engine beyond that number are not used.
"""

from pathlib import Path
from typing import Final, NamedTuple

MOST_ENGINES: Final = 254
_NOBODY: Final = MOST_ENGINES, MOST_ENGINES + 1
"""Numbers that no engine has."""
MOST_PLACES: Final = 2**31 - 1
"""They travel in 32 bits."""


class Found(NamedTuple):
    """Where a chunk lies: in a slot of the file of ``engine``."""

    engine: int
    slot: int


def place_of(found: Found, num_slots: int) -> int:
    """The number of a place at another engine, for an engine of so many slots."""
    return (1 + found.engine) * num_slots + found.slot


def found_at(place: int, num_slots: int) -> Found | None:
    """What a place stands for. None: a slot of the engine's own."""
    engine, slot = divmod(place, num_slots)
    return Found(engine - 1, slot) if engine else None


def nowhere(index: int) -> Found:
    """Where nothing is, for the ``index``-th chunk of a job: chunks side by side have different places."""
    return Found(_NOBODY[index % len(_NOBODY)], 0)


def num_places(num_slots: int) -> int:
    """How many places there are for an engine of so many slots."""
    return (1 + MOST_ENGINES + len(_NOBODY)) * num_slots


def home_of(folder: Path, engine: int) -> Path:
    """The home of an engine among those that share a folder."""
    return folder / f"engine-{engine}"
