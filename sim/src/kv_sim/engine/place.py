"""``Place``: which engine of a world one is. Where engines serve each other there may be two."""

from dataclasses import dataclass, field
from uuid import uuid4


@dataclass(frozen=True)
class Place:
    """One of the engines that serve the same model."""

    number: int = 0
    count: int = 1
    deployment: str = field(default_factory=lambda: uuid4().hex)
    """A name that no other world has, for what outlives an engine, or must tell one deployment from another."""

    @property
    def engine_id(self) -> str:
        """What connectors know it by."""
        return "world" if self.count == 1 else f"world-{self.number}"

    @property
    def words(self) -> str:
        """What messages and logs say before anything that is of this engine; empty if there is no other."""
        return "" if self.count == 1 else f"engine {self.number} "


def places(count: int) -> list[Place]:
    """The places of all engines of a world."""
    first = Place(0, count)
    return [Place(number, count, first.deployment) for number in range(count)]
