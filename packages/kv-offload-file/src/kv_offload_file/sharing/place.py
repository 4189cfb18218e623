"""Places: one number by which a job names an engine and a slot of its files.

They have 32 bits, as slots have elsewhere. The slots of an engine's own files are the first ones; then come as
many numbers for engine 0, as many for engine 1, and so on.
"""

from typing import Final, NamedTuple

MOST_SLOTS: Final = 1 << 23
MOST_ENGINES: Final = 253
_NOBODY: Final = MOST_ENGINES, MOST_ENGINES + 1
"""Numbers that no engine has."""
NUM_PLACES: Final = (1 + MOST_ENGINES + len(_NOBODY)) * MOST_SLOTS


class NeighbourSlot(NamedTuple):
    """A slot of the files of ``engine``, a neighbour."""

    engine: int
    slot: int


def place_of(found: NeighbourSlot) -> int:
    """The place of a neighbour's slot."""
    return (1 + found.engine) * MOST_SLOTS + found.slot


def slot_of_neighbour(place: int) -> NeighbourSlot | None:
    """The neighbour's slot of a place. None: it is a slot of the engine's own."""
    engine, slot = divmod(place, MOST_SLOTS)
    return NeighbourSlot(engine - 1, slot) if engine else None


def nowhere(index: int) -> NeighbourSlot:
    """A place of no engine, for the ``index``-th chunk of a job: adjacent chunks have different places."""
    return NeighbourSlot(_NOBODY[index % len(_NOBODY)], 0)
