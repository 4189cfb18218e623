"""How the bays of a worker's staging memory are divided between stores and loads."""

from typing import Final

LEAST_BAYS: Final = 4
"""For each direction, one that is copied and one that is read or written."""


def store_bays(num_bays: int) -> int:
    """How many of the bays are for stores; the others are for loads."""
    return num_bays // 2
