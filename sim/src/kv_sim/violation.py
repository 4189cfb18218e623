"""``Violation``: one of the ten invariants was broken, and what is known about it."""

from enum import StrEnum


class Invariant(StrEnum):
    """What a connector must never break. ARCHITECTURE.md has a row for each: its meaning, and its checkers."""

    CONTENT = "CONTENT"
    OWNERSHIP = "OWNERSHIP"
    CONSERVATION = "CONSERVATION"
    LIVENESS = "LIVENESS"
    NO_CRASH = "NO-CRASH"
    PROTOCOL = "PROTOCOL"
    HITS = "HITS"
    ACCOUNTING = "ACCOUNTING"
    GEOMETRY = "GEOMETRY"
    WORK = "WORK"


class Violation(Exception):  # noqa: N818 - the word of the documentation
    """A checker found that an invariant is broken."""

    def __init__(self, invariant: Invariant, message: str) -> None:
        super().__init__(invariant, message)  # both: an exception is pickled by its arguments
        self.invariant = invariant
        self.message = message

    def __str__(self) -> str:
        return f"{self.invariant}  {self.message}"

    @property
    def notes(self) -> list[str]:
        """Further errors when it was found."""
        return list(getattr(self, "__notes__", ()))


class TookTooLong(Violation):
    """A call of the connector took too long and was ended. A replay takes as long."""


class LeftBehind(Violation):
    """Something still runs or is open after the end, and was waited for in vain. A replay waits as long."""


class TestbedError(Exception):
    """The testbed itself did something that a real engine never does: a bug here, not in the connector."""


class DidNotReturn(BaseException):
    """A call of a connector takes too long, and is ended.

    Not an ``Exception``, so that ``except Exception`` can't catch it.
    """


class CalledAgain(BaseException):
    """A connector that broke down is called again.

    Not an ``Exception``, so that ``except Exception`` can't catch it.
    """


class Referee:
    """Raises violations, except those of checkers that are switched off."""

    def __init__(
        self, where: str = "", switched_off: set[Invariant] | None = None, *, patience: float = 1.0
    ) -> None:
        self.switched_off: set[Invariant] = set() if switched_off is None else switched_off
        self.patience = patience
        """For what must end after the history: the part of the usual time that it gets."""
        self._where = where
        """The prefix of each message."""
        self.raised: Violation | None = None
        """The last one. A connector that catches every exception within its calls may have kept it to itself."""

    def fail(self, invariant: Invariant, message: str, kind: type[Violation] = Violation) -> None:
        """Report that ``invariant`` is broken."""
        if invariant not in self.switched_off:
            self.raised = kind(invariant, self._where + message)
            raise self.raised
