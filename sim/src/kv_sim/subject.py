"""``Subject``: a connector for the testbed to drive, and the traits that it claims."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from kv_api import ConfigError, KVTransferConfig
from kv_api.errors import unknown_name
from kv_sim.config import MOST_ENGINES, WorldConfig


class Trait(StrEnum):
    """What a connector claims to support. A world only does what its connector claims to support."""

    GROUPS = "groups"
    """Several KV cache groups."""
    STATES = "states"
    """Groups whose blocks hold states, which only count at a block's end. Needs ``GROUPS``."""
    UNEQUAL = "unequal"
    """Groups whose blocks have different numbers of tokens. Needs ``GROUPS``."""
    FINE = "fine"
    """Several hashes a block: a hit on the GPU may end within a block, which is then copied on write. With runner
    V2 the copy may come before ``handle_preemptions``, but only for connectors that claim ``ZEROING``, too."""
    RANKS = "ranks"
    """Several workers."""
    FAILURES = "failures"
    """Copies that fail, whole or torn."""
    LOSSES = "losses"
    """Copies that never end, or end very late: the connector has a timeout."""
    REPEATS = "repeats"
    """Copies that are reported twice."""
    ZEROING = "zeroing"
    """New blocks may be zeroed before ``handle_preemptions`` (runner V2), so a fence there comes too late."""
    RESET = "reset"
    """``reset_cache`` works."""
    SLEEP = "sleep"
    """A paused engine without work may free its GPU memory, and allocate it again later. Not for connectors that
    serve peers."""
    KEEPS = "keeps"
    """It is a cache of this engine, or of those that share a store. It stores every full block of the prompt of a
    finished request, and evicts it only for lack of room. It serves only blocks that were computed since the last
    reset, at this engine or at one that shares the store."""
    EVENTS = "events"
    """Its KV events describe exactly what it can find; with a shared store, those of all engines do. Needs
    ``KEEPS``."""
    COUNTS = "counts"
    """Its stats have the copied bytes, and the share of its memory that is in use, under vLLM's names."""
    CLIENTS = "clients"
    """A client may send anything in ``kv_transfer_params``: a value that isn't an object, or one with wrong
    values."""
    IMAGES = "images"
    """Prompts may have images. All images have the same placeholder token."""
    HOLDS = "holds"
    """Blocks that another engine wants are all held until they are pulled, and freed if the request with their
    ticket ends without a pull. A valid ticket gets all of them. For connectors that serve peers."""
    TICKETS = "tickets"
    """A ticket may be of the beginning of a prompt, of another salt or adapter, used twice, or stale; and an
    engine may be only a producer or a consumer. Without this trait the router is fair. For connectors that serve
    peers."""
    STRANGERS = "strangers"
    """The other engine may have another model; with a shared store it may also have another layout. For connectors
    with worlds of two engines."""


TICKET: Final = "do_remote_prefill"
"""The key of ``kv_transfer_params`` that makes a ticket, as vLLM's routers use it."""
WANTED: Final = "do_remote_decode"
"""The key that asks to hold the request's blocks for another engine when it ends."""
PEERS: Final = {1: "--serves-peers", 2: "--two-engines"}
"""The options for a connector that serves peers, by the number of engines in its worlds."""
SHARES: Final = "--shares-store"
"""The option for engines that share one store."""
ROOM: Final = ("host_slots", "cpu_bytes_to_use")
"""The settings by which a world says how much memory there is. One that is None in ``extra_config`` is left out,
for connectors that refuse settings they don't know."""
OF_PEERS: Final = frozenset({Trait.HOLDS, Trait.TICKETS})
"""Traits only for connectors that serve other engines."""
OF_TWO: Final = frozenset({Trait.STRANGERS})
"""Traits only for connectors that pull from a second engine, or share a store."""
OF_SEVERAL: Final = OF_PEERS | OF_TWO
"""Traits only for connectors that serve peers or share a store."""
NOT_OF_PEERS: Final = frozenset({Trait.SLEEP})
"""Traits that connectors serving peers can't have: a peer may read while the engine sleeps."""


@dataclass(frozen=True)
class Subject:
    """A connector by its configuration, as an operator would write it."""

    kv_connector: str
    module_path: str | None = None
    extra_config: dict[str, Any] = field(default_factory=dict)
    traits: frozenset[Trait] = frozenset(Trait)
    blocks_per_chunk: int = 1
    """Blocks of a chunk: the end of a prompt may be too short for a chunk."""
    keeps_from: int = 1
    """At which computation of a chunk it stores the chunk: 1 is the first."""
    evicts_oldest: bool = False
    """It evicts the least recently used prompts first, and the end of a prompt before its beginning."""

    serves_peers: bool = False
    """It pulls what other engines computed, by tickets in ``kv_transfer_params``. A single engine pulls from
    itself, and would find everything in its prefix cache; so most such worlds have none."""
    engines: int = 1
    """Engines of its worlds. Two for a connector that serves peers but can't pull from itself, or that shares a
    store."""
    shares_store: bool = False
    """What one engine stores, another one finds, by no more than the prompt. Its worlds have two and no router,
    and ``{folder}`` in a setting is one for both."""

    def __post_init__(self) -> None:
        """Refuse what would only leave something out: a claim that nobody knows is never tried."""
        extra_config: Any = self.extra_config
        if not isinstance(extra_config, Mapping):
            raise ConfigError(f"Subject: extra_config: expected a dict, got {extra_config!r}")
        _check_claims(self.traits)
        for name in ("blocks_per_chunk", "keeps_from", "engines"):
            number = getattr(self, name)
            if type(number) is not int or number < 1:
                raise ConfigError(f"Subject: {name}: expected a whole number of at least 1, got {number!r}")
        if self.engines > MOST_ENGINES:
            raise ConfigError(f"Subject: engines: expected at most {MOST_ENGINES}, got {self.engines}")
        if self.shares_store and (self.engines != MOST_ENGINES or self.serves_peers):
            raise ConfigError(
                f"Subject: shares_store: expected engines={MOST_ENGINES} and serves_peers=False beside it, got "
                f"engines={self.engines} and serves_peers={self.serves_peers}"
            )

    @property
    def possible_traits(self) -> list[Trait]:
        """The traits that it may claim."""
        of_peers = NOT_OF_PEERS if self.serves_peers else OF_PEERS
        knows_another = self.shares_store or (self.serves_peers and self.engines > 1)
        of_two = frozenset() if knows_another else OF_TWO
        return [trait for trait in Trait if trait not in of_peers | of_two]

    def transfer_config(self, world: WorldConfig, engine_id: str = "world") -> KVTransferConfig:
        """The ``--kv-transfer-config`` of an engine of a world."""
        room = dict(zip(ROOM, (world.host_slots, world.host_bytes), strict=True))
        return KVTransferConfig.from_mapping(
            {
                "kv_connector": self.kv_connector,
                "kv_role": world.role,
                "engine_id": engine_id,
                "kv_load_failure_policy": world.failure_policy,
                "kv_connector_module_path": self.module_path,
                "kv_connector_extra_config": _with_room(self.extra_config, world.role, room),
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a schedule file."""
        return {**vars(self), "traits": sorted(self.traits)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Subject":
        """The inverse of ``to_json``."""
        return cls(**{**values, "traits": frozenset(map(Trait, values["traits"]))})


def _check_claims(traits: Any) -> None:
    if not isinstance(traits, Set):
        raise ConfigError(f"Subject: traits: expected a frozenset of Trait, got {traits!r}")
    known = [trait.value for trait in Trait]
    for name in sorted(traits, key=str):
        if name not in known:
            raise ConfigError(f"Subject: traits: {unknown_name('trait', name, known)}")


def _with_room(extra_config: dict[str, Any], role: str, room: dict[str, int]) -> dict[str, Any]:
    """The extra config of a world: children of a MultiConnector get the same room and role as it has.

    What is no list of children, or no child, stays as it is: its connector says what is wrong with it.
    """
    own: dict[str, Any] = {**room, **extra_config}
    own = {name: value for name, value in own.items() if value is not None or name not in room}
    if isinstance(own.get("connectors"), list):
        own["connectors"] = [_child_with_room(child, role, room) for child in own["connectors"]]
    return own


def _child_with_room(child: Any, role: str, room: dict[str, int]) -> Any:
    extra_config = child.get("kv_connector_extra_config", {}) if isinstance(child, dict) else None
    if not isinstance(extra_config, dict):
        return child
    room_of_child = _with_room(extra_config, child.get("kv_role", role), room)
    return {"kv_role": role, **child, "kv_connector_extra_config": room_of_child}
