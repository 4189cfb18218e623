"""What the two sides of a connector send each other, where their objects are in different processes.

With several workers each is a process of its own: what the scheduler's side says reaches it as a pickled copy, and
what it answers comes back as one. A single worker is in the scheduler's process, so both sides share the very
objects, and it executes each step before the next one is scheduled. A world may let it execute later; then it is
treated as one in another process, and gets a copy that was made before the next step was scheduled (``part``).
"""

import pickle
from typing import Any, TypeVar

from kv_sim.violation import Invariant, Referee

Value = TypeVar("Value")


class Crossing:
    """The way between the processes of one engine."""

    def __init__(self, world_size: int, referee: Referee) -> None:
        self._is_needed = world_size > 1
        self.referee = referee

    def pack(self, value: Any, what: str) -> bytes | None:
        """What is sent. None: the thing itself is shared, since nobody is elsewhere or it can't be sent."""
        if not self._is_needed:
            return None
        try:
            return pickle.dumps(value)
        except Exception as error:  # noqa: BLE001 - whatever the connector's objects raise is told
            self._refuse(what, value, error)
            return None

    def part(self, value: Any) -> bytes | None:
        """What one worker gets of a step later than the next is scheduled. None: it is shared all the same."""
        try:
            return pickle.dumps(value)
        except Exception:  # noqa: BLE001 - nobody demands of one worker's that it can be sent
            return None

    def unpack(self, packed: bytes | None, value: Value, what: str) -> Value:
        """What arrives of ``value``."""
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
