"""A referee that goes on: everything that a checker says of one situation, in order."""

from kv_sim.violation import Invariant, Referee


class Notes(Referee):
    """Writes down what is found instead of raising it."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def fail(self, invariant: Invariant, message: str) -> None:
        self.told.append(f"{invariant}  {message}")

    def take(self) -> list[str]:
        """What was told since the last time."""
        told, self.told = self.told, []
        return told
