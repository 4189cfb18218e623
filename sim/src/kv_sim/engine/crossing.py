"""Carries metadata and reports between the two sides of a connector, as between processes.

Each of several workers is a process of its own: the scheduler's metadata reaches it as a pickled copy, and its
reports come back as one. A single worker is in the scheduler's process, so both sides share the very
objects, and it executes each step before the next one is scheduled. A world may let it execute later; then it is
treated as one in another process, and gets a copy that was made before the next step was scheduled (``part``).
"""

import pickle
from typing import Any, TypeVar

from kv_sim.violation import Invariant, Referee

Value = TypeVar("Value")


class Crossing:
    """The transport between the processes of one engine."""

    def __init__(self, world_size: int, referee: Referee) -> None:
        self._is_needed = world_size > 1
        self.referee = referee

    def pack(self, value: Any, what: str) -> bytes | None:
        """Pickle ``value``. None: the object is shared: there is one process, or pickling failed."""
        if not self._is_needed:
            return None
        try:
            return pickle.dumps(value)
        except Exception as error:  # noqa: BLE001 - whatever the connector's objects raise is told
            self._refuse(what, value, error)
            return None

    def part(self, value: Any) -> bytes | None:
        """Pickle a step's metadata for a single worker that executes it late. None: it can't be; it is shared."""
        try:
            return pickle.dumps(value)
        except Exception:  # noqa: BLE001 - with a single worker it needn't be picklable
            return None

    def unpack(self, packed: bytes | None, value: Value, what: str) -> Value:
        """``value`` as it arrives."""
        if packed is None:
            return value
        try:
            arrived: Value = pickle.loads(packed)
        except Exception as error:  # noqa: BLE001 - whatever the connector's objects raise is told
            self._refuse(what, value, error)
            return value
        return arrived

    def carry(self, value: Value, what: str) -> Value:
        """`pack` and `unpack` in one: the value as it arrives."""
        return self.unpack(self.pack(value, what), value, what)

    def _refuse(self, what: str, value: Any, error: Exception) -> None:
        self.referee.fail(
            Invariant.PROTOCOL,
            f"{what} answered a {type(value).__name__} that doesn't survive pickling, and so reaches no other "
            f"process: {type(error).__name__}: {error}",
        )
