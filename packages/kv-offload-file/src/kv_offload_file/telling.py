"""Which problems of a disk are logged: a full disk, or a truncated file, has one for every chunk."""

from collections.abc import Callable
from typing import Final

from kv_api import Direction

QUIET_SECONDS: Final = 60.0
"""How long a problem that continues isn't logged again."""


class Telling:
    """Says whether to log a problem now; ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: dict[tuple[Direction, type[Exception], int | None], tuple[float, int]] = {}
        """Kind of problem -> when it was logged last, and how often it has occurred since."""

    def untold(self, direction: Direction, problem: Exception) -> int | None:
        """How many problems of the same kind weren't logged before this one; None: don't log this one either."""
        errno = problem.errno if isinstance(problem, OSError) else None
        kind, now = (direction, type(problem), errno), self._clock()
        last, untold = self._told.get(kind, (now - QUIET_SECONDS, 0))
        if now - last < QUIET_SECONDS:
            self._told[kind] = (last, untold + 1)
            return None
        self._told[kind] = (now, 0)
        return untold
