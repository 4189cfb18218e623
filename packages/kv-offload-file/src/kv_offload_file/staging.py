"""How a worker's staging memory is shared out: its bays, between what is stored and what is loaded."""

from typing import Final

LEAST_BAYS: Final = 4
"""Of each direction one that is copied and one that is read or written."""


def store_bays(num_bays: int) -> int:
    """How many of the bays stores go through; the others are for loads."""
    return num_bays // 2
