"""``Place``: which engine of a world one is. Where engines serve each other, or share a store, there are two."""

from dataclasses import dataclass, field
from uuid import uuid4

from kv_sim.config import Stranger
from kv_sim.engine.own_folder import Folder


@dataclass(frozen=True)
class Place:
    """One of the engines of a deployment: as a rule they serve the same model."""

    number: int = 0
    count: int = 1
    deployment: str = field(default_factory=lambda: uuid4().hex)
    """A name that no other world has, for what outlives an engine, or must tell one deployment from another."""
    shares_store: bool = False
    """Whether the engines of the world share one store."""
    stranger: Stranger = "none"
    """How this engine differs, if it is a stranger to the others."""
    folder: Folder = field(default_factory=Folder)
    """What ``{folder}`` stands for in a setting: one for all that share a store, else one for each engine."""

    @property
    def engine_id(self) -> str:
        """What connectors know it by."""
        return "world" if self.count == 1 else f"world-{self.number}"

    @property
    def model(self) -> str:
        """The path of the model that it serves, which no other world has."""
        if self.stranger == "path":
            return f"elsewhere/{self.deployment}"
        return f"kv-sim/{self.deployment}" + ("-other" if self.stranger == "model" else "")

    @property
    def words(self) -> str:
        """What messages and logs say before anything that is of this engine; empty if there is no other."""
        return "" if self.count == 1 else f"engine {self.number} "


def places(count: int, *, shares_store: bool = False, stranger: Stranger = "none") -> list[Place]:
    """The places of all engines of a world, of which the second may be a stranger to the first."""
    first = Place(0, count, shares_store=shares_store)
    more = {"folder": first.folder} if shares_store else {}
    return [
        first,
        *(Place(number, count, first.deployment, shares_store, stranger, **more) for number in range(1, count)),
    ]
