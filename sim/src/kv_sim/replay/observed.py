"""What the server of a trace answered from its own caches, as it counted that itself.

Logs have it as ``cached_tokens``, or under another name, of all requests or of some. The lines of kv-vllm's
``TraceConnector`` also say which part of it a connector loaded. A replay with the caches that this server had can
be held against it (`caches.beside`).
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

_Ints: TypeAlias = npt.NDArray[np.int64]

NOT_SAID: Final = -1


class Observation(NamedTuple):
    """Of one request."""

    cached: int = NOT_SAID
    """Tokens of its prompt that its server had already, wherever."""
    loaded: int = NOT_SAID
    """Those of them that a connector loaded."""


NOTHING_SAID: Final = Observation()


@dataclass(frozen=True, eq=False)
class Observations:
    """Of all requests of a trace, as two columns; `NOT_SAID` stands where nothing is."""

    cached: _Ints
    loaded: _Ints

    def of(self, requests: _Ints) -> "Observations":
        """Those of some requests, or of all in another order."""
        return Observations(self.cached[requests], self.loaded[requests])

    @property
    def said(self) -> _Ints:
        """Those requests of which something is said."""
        requests: _Ints = np.flatnonzero(self.cached != NOT_SAID)
        return requests

    def __iter__(self) -> Iterator[Observation]:
        return map(Observation, self.cached.tolist(), self.loaded.tolist())


class ObservationsBuilder:
    """Takes them request by request. Where none says anything, nothing is kept."""

    def __init__(self) -> None:
        self._columns: tuple[array[int], array[int]] | None = None
        self._silent = 0
        """Requests before the first one that says anything."""

    def add(self, one: Observation) -> None:
        """That of the next request."""
        if self._columns is None:
            if one == NOTHING_SAID:
                self._silent += 1
                return
            before = array("i", [NOT_SAID]) * self._silent
            self._columns = before[:], before
        for column, value in zip(self._columns, one, strict=True):
            column.append(value)

    def finish(self) -> Observations | None:
        """All of them; None: nobody said anything."""
        if self._columns is None:
            return None
        return Observations(*(np.array(column, dtype=np.int64) for column in self._columns))
