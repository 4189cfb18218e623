"""``Place``: an engine's place in a world. If engines serve each other, or share a store, there are two."""

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
    """A name that no other world has, for things that outlive an engine or must differ between deployments."""
    shares_store: bool = False
    """Whether the engines of the world share one store."""
    stranger: Stranger = "none"
    """How this engine differs from the other, if it is a stranger."""
    folder: Folder = field(default_factory=Folder)
    """The folder for ``{folder}`` in settings: one for all engines that share a store, otherwise one for each."""

    @property
    def engine_id(self) -> str:
        """The engine id for connectors."""
        return "world" if self.count == 1 else f"world-{self.number}"

    @property
    def model(self) -> str:
        """The path of the model that it serves, which no other world has."""
        if self.stranger == "path":
            return f"elsewhere/{self.deployment}"
        return f"kv-sim/{self.deployment}" + ("-other" if self.stranger == "model" else "")

    @property
    def words(self) -> str:
        """The prefix of this engine's messages and logs; empty if it is the only engine."""
        return "" if self.count == 1 else f"engine {self.number} "


def places(count: int, *, shares_store: bool = False, stranger: Stranger = "none") -> list[Place]:
    """The places of all engines of a world, of which the second may be a stranger to the first."""
    first = Place(0, count, shares_store=shares_store)
    more = {"folder": first.folder} if shares_store else {}
    return [
        first,
        *(Place(number, count, first.deployment, shares_store, stranger, **more) for number in range(1, count)),
    ]
