"""The hits of the server that a trace was recorded on, by its own count.

Logs have them as ``cached_tokens``, or under another name, for all requests or for some. The lines of kv-vllm's
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
    """Tokens of its prompt that the server had cached, in any cache."""
    loaded: int = NOT_SAID
    """How many of these a connector loaded."""


NOTHING_SAID: Final = Observation()


@dataclass(frozen=True, eq=False)
class Observations:
    """The observations of all requests of a trace, as two columns; `NOT_SAID` where there is none."""

    cached: _Ints
    loaded: _Ints

    def of(self, requests: _Ints) -> "Observations":
        """Those of some requests, or of all in another order."""
        return Observations(self.cached[requests], self.loaded[requests])

    @property
    def said(self) -> _Ints:
        """The requests that have an observation."""
        requests: _Ints = np.flatnonzero(self.cached != NOT_SAID)
        return requests

    def __iter__(self) -> Iterator[Observation]:
        return map(Observation, self.cached.tolist(), self.loaded.tolist())


class ObservationsBuilder:
    """Collects observations request by request. It keeps nothing as long as there are none."""

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
        """All observations; None if there are none."""
        if self._columns is None:
            return None
        return Observations(*(np.array(column, dtype=np.int64) for column in self._columns))
