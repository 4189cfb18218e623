"""Which problems of a disk are logged: one that stays full has one for every chunk, as a file that is cut off."""

from collections.abc import Callable
from typing import Final

from kv_api import Direction

QUIET_SECONDS: Final = 60.0
"""How long nothing more is said of a problem that goes on."""


class Telling:
    """Says of each problem whether to tell it now, in seconds of ``clock``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: dict[tuple[Direction, type[Exception], int | None], tuple[float, int]] = {}
        """When it was told last, and how often it came since."""

    def untold(self, direction: Direction, problem: Exception) -> int | None:
        """How many like it were not told, if this one is to be; else None. Damage is like damage."""
        errno = problem.errno if isinstance(problem, OSError) else None
        kind, now = (direction, type(problem), errno), self._clock()
        last, untold = self._told.get(kind, (now - QUIET_SECONDS, 0))
        if now - last < QUIET_SECONDS:
            self._told[kind] = (last, untold + 1)
            return None
        self._told[kind] = (now, 0)
        return untold
