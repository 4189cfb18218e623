"""``Subject``: which connector is driven, and what it claims to withstand."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kv_api import KVConnectorBase_V1, KVConnectorRole, KVTransferConfig
from kv_factory import KVConnectorFactory


class Trait(StrEnum):
    """What a connector claims. A world never does to it what it doesn't claim to withstand."""

    GROUPS = "groups"
    """Several KV cache groups."""
    RANKS = "ranks"
    """Several workers."""
    FAILURES = "failures"
    """Copies that fail, whole or torn."""
    LOSSES = "losses"
    """Copies that never end: it has a timeout."""
    REPEATS = "repeats"
    """Copies that are reported twice."""
    ZEROING = "zeroing"
    """New blocks may be zeroed before ``handle_preemptions`` (runner V2), so a fence there comes too late."""
    RESET = "reset"
    """``reset_cache`` works."""
    KEEPS = "keeps"
    """A cache of this engine alone: it stores every full block of the prompt of a request that ran to its end,
    drops it only for lack of room, and serves nothing that was not computed here since the last reset."""
    EVENTS = "events"
    """Its KV events say exactly what it can find. Needs ``KEEPS``."""


@dataclass(frozen=True)
class Subject:
    """A connector by its configuration, as an operator would write it."""

    kv_connector: str
    module_path: str | None = None
    extra_config: dict[str, Any] = field(default_factory=dict)
    traits: frozenset[Trait] = frozenset(Trait)

    def transfer_config(self, role: str, failure_policy: str, host_slots: int) -> KVTransferConfig:
        """The ``--kv-transfer-config`` of a world."""
        return KVTransferConfig.from_mapping(
            {
                "kv_connector": self.kv_connector,
                "kv_role": role,
                "engine_id": "world",
                "kv_load_failure_policy": failure_policy,
                "kv_connector_module_path": self.module_path,
                "kv_connector_extra_config": _with_room(self.extra_config, role, host_slots),
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a schedule file."""
        return {
            "kv_connector": self.kv_connector,
            "module_path": self.module_path,
            "extra_config": self.extra_config,
            "traits": sorted(self.traits),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Subject":
        """The inverse of ``to_json``."""
        return cls(**{**values, "traits": frozenset(map(Trait, values["traits"]))})


def _with_room(extra_config: dict[str, Any], role: str, host_slots: int) -> dict[str, Any]:
    """The extra config of a world: children of a MultiConnector get the same room and role as it has."""
    own: dict[str, Any] = {"host_slots": host_slots, **extra_config}
    if "connectors" in own:
        own["connectors"] = [
            {
                "kv_role": role,
                **child,
                "kv_connector_extra_config": _with_room(
                    child.get("kv_connector_extra_config", {}), child.get("kv_role", role), host_slots
                ),
            }
            for child in own["connectors"]
        ]
    return own


def create(config: Any, role: KVConnectorRole, kv_cache_config: Any) -> KVConnectorBase_V1:
    """Create one object of the connector, through the factory."""
    return KVConnectorFactory.create_connector(config, role, kv_cache_config)
