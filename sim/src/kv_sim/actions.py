"""Actions: everything that can happen in a world, as values that a schedule file holds.

An action carries its resolved arguments, so that a history is replayed by applying its actions in order; one that
is not legal any more (because an earlier one was removed) is skipped.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

USUAL_ACTIONS: Final = 80
"""Actions of a history by default."""


class Kind(StrEnum):
    """What can happen."""

    ADD = "add"
    """A request arrives."""
    ABORT = "abort"
    """A request's client goes away."""
    TURN = "turn"
    """The next turn of a session arrives, or the end of it."""
    STEP = "step"
    """A step is scheduled and executed on all ranks; the oldest ones are finished until the run-ahead is kept."""
    SCHEDULE = "schedule"
    """A step is scheduled, and nothing else."""
    EXECUTE = "execute"
    """A rank runs the hooks of its next step."""
    RETIRE = "retire"
    """A rank's device runs the kernels of its oldest step."""
    PROCESS = "process"
    """The output of the oldest step goes back to the scheduler."""
    SETTLE = "settle"
    """Every copy that can end ends."""
    FINISH = "finish"
    """A copy succeeds."""
    ADVANCE = "advance"
    """A copy moves some pages."""
    FAIL = "fail"
    """A copy fails; after some pages, if it had advanced: torn."""
    SPOIL = "spoil"
    """Make the next copy, or the next load, fail for which a rank's worker waits."""
    LOSE = "lose"
    """A copy doesn't end."""
    FIND = "find"
    """A copy that was lost goes on, long after."""
    REPEAT = "repeat"
    """The end of a copy is reported once more."""
    RESTART = "restart"
    """A rank's copy engine restarts: every copy under way fails, and the rank's host memory may be lost."""
    RESET = "reset"
    """``reset_prefix_cache``, maybe with the running requests, maybe with the connector."""
    PAUSE = "pause"
    """The engine pauses: it schedules no new requests, or none at all."""
    SLEEP = "sleep"
    """A paused engine without work releases its GPU memory."""
    WAKE = "wake"
    """The engine goes on after a pause; if it slept, it has GPU memory again, without the old contents."""


@dataclass(frozen=True)
class Action:
    """One thing that happened."""

    kind: Kind
    args: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a schedule file."""
        return {"action": self.kind.value, **self.args}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Action":
        """The inverse of ``to_json``."""
        rest = dict(values)
        return cls(Kind(rest.pop("action")), rest)

    def __str__(self) -> str:
        return " ".join([f"{self.kind.value:<8}", *(f"{name}={_short(v)}" for name, v in self.args.items())])


def _short(value: Any) -> str:
    return ",".join(f"{k}:{v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
