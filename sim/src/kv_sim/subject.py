"""``Subject``: which connector is driven, and what it claims to withstand."""

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
    FINE = "fine"
    """Several hashes a block: what the GPU has may end within one, whose end is copied on write then. With runner
    V2 the copy may come before ``handle_preemptions``: only who claims ``ZEROING``, too, meets it there."""
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
    """The engine may let go of its GPU memory, once it has paused and has no work left, and have it again later.
    For what serves no peers."""
    KEEPS = "keeps"
    """A cache of this engine alone, or of those that share a store. It stores every full block of the prompt of a
    request that ran to its end, and drops it only for lack of room. It serves nothing that was not computed since
    the last reset here, at this engine or at one that it shares with."""
    EVENTS = "events"
    """Its KV events say exactly what it can find; with a shared store, those of all engines. Needs ``KEEPS``."""
    COUNTS = "counts"
    """Its stats say how many bytes were copied, and which share of its memory is in use, under vLLM's names."""
    CLIENTS = "clients"
    """A client may send anything in ``kv_transfer_params``: what is no object, or one with wrong values."""
    IMAGES = "images"
    """Prompts may have images. All images have the same placeholder token."""
    HOLDS = "holds"
    """Blocks that another engine wants are all held until they are pulled, and freed if the request with their
    ticket ends without a pull. A valid ticket gets all of them. For connectors that serve peers."""
    TICKETS = "tickets"
    """A ticket may be of the beginning of a prompt, of another salt or adapter, given twice, or of what is long
    gone; and an engine may be a producer or a consumer alone. Without it a router can be trusted. For what serves
    peers."""
    STRANGERS = "strangers"
    """The other engine may have another model. Where a store is shared it may be of another shape, too. For what
    has worlds of two engines."""


TICKET: Final = "do_remote_prefill"
"""Keys of ``kv_transfer_params`` that make a ticket, as vLLM's routers use them."""
WANTED: Final = "do_remote_decode"
"""The key that asks to hold the request's blocks for another engine when it ends."""
PEERS: Final = {1: "--serves-peers", 2: "--two-engines"}
"""The options for a connector that serves peers, by the number of engines in its worlds."""
SHARES: Final = "--shares-store"
"""The option for engines that share one store."""
OF_PEERS: Final = frozenset({Trait.HOLDS, Trait.TICKETS})
"""Traits that mean nothing where no other engine is served."""
OF_TWO: Final = frozenset({Trait.STRANGERS})
"""Traits that mean nothing where no other engine is pulled from, and no store is shared."""
OF_SEVERAL: Final = OF_PEERS | OF_TWO
"""Traits that mean nothing where an engine is alone."""
NOT_OF_PEERS: Final = frozenset({Trait.SLEEP})
"""Traits that mean nothing where others are: they may be reading while the engine sleeps."""


@dataclass(frozen=True)
class Subject:
    """A connector by its configuration, as an operator would write it."""

    kv_connector: str
    module_path: str | None = None
    extra_config: dict[str, Any] = field(default_factory=dict)
    traits: frozenset[Trait] = frozenset(Trait)
    blocks_per_chunk: int = 1
    """It stores chunks of so many blocks: the end of a prompt may be too short for one."""
    keeps_from: int = 1
    """It stores a chunk when it is computed for the so-many-th time."""
    evicts_oldest: bool = False
    """It evicts the least recently used prompts first, and the end of a prompt before its beginning."""

    serves_peers: bool = False
    """It serves what other engines computed, by tickets in ``kv_transfer_params``. Where a world has one, that is
    the same one, which would find all of it in its own blocks; so most of these have no prefix cache."""
    engines: int = 1
    """How many its worlds have. Two, for one that serves peers and can't be its own, or that shares a store."""
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
        room = {"host_slots": world.host_slots, "cpu_bytes_to_use": world.host_bytes}
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
        return {
            "kv_connector": self.kv_connector,
            "module_path": self.module_path,
            "extra_config": self.extra_config,
            "traits": sorted(self.traits),
            "blocks_per_chunk": self.blocks_per_chunk,
            "keeps_from": self.keeps_from,
            "evicts_oldest": self.evicts_oldest,
            "serves_peers": self.serves_peers,
            "engines": self.engines,
            "shares_store": self.shares_store,
        }

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
    if isinstance(own.get("connectors"), list):
        own["connectors"] = [_child_with_room(child, role, room) for child in own["connectors"]]
    return own


def _child_with_room(child: Any, role: str, room: dict[str, int]) -> Any:
    extra_config = child.get("kv_connector_extra_config", {}) if isinstance(child, dict) else None
    if not isinstance(extra_config, dict):
        return child
    room_of_child = _with_room(extra_config, child.get("kv_role", role), room)
    return {"kv_role": role, **child, "kv_connector_extra_config": room_of_child}
