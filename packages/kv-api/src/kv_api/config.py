"""``KVTransferConfig``: how an engine is told which connector to use, checked when it is made.

vLLM's keys with vLLM's defaults. A wrong value is a ``ConfigError`` that names the field; a key
that vLLM removed is accepted, explained in a warning and otherwise ignored.
"""

import warnings
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, fields
from typing import Any, Final, Literal, get_args

from kv_api.errors import ConfigError, did_you_mean

KVProducer = Literal["kv_producer", "kv_both"]
KVConsumer = Literal["kv_consumer", "kv_both"]
KVRole = Literal["kv_producer", "kv_consumer", "kv_both"]
LoadFailurePolicy = Literal["recompute", "fail"]

REMOVED_KEYS: Final[Mapping[str, str]] = {
    "kv_buffer_size": "no transport reads it any more; size a connector's memory in its kv_connector_extra_config",
    "kv_rank": "a connector takes its rank from the engine's parallel configuration",
    "kv_parallel_size": "the number of instances is the router's business, not an instance's",
    "kv_ip": "connectors exchange their addresses through handshake metadata or extra config",
}
"""Keys that vLLM 0.32 removed, and what took their place."""


class RemovedKeyWarning(FutureWarning):
    """A configuration holds a key that vLLM removed; it changes nothing."""


@dataclass
class KVTransferConfig:
    """The configuration of KV transfer for one engine."""

    kv_connector: str | None = None
    """Name of the connector; ``None`` means no KV transfer."""
    engine_id: str | None = None
    """Unique name of this engine; made up when not given."""
    kv_buffer_device: str = "cuda"
    """Device of a connector's own buffers. (vLLM's default is its platform, which we can't see.)"""
    kv_role: KVRole | None = None
    """Whether this engine produces KV, consumes it, or both. Required with a connector."""
    kv_port: int = 14579
    """Base port for connectors that open sockets."""
    kv_connector_extra_config: dict[str, Any] = field(default_factory=dict)
    """The connector's own settings."""
    kv_connector_module_path: str | None = None
    """Module to import the connector's class from, under the name ``kv_connector``."""
    enable_permute_local_kv: bool = False
    """Experimental: permute the local layout before a transfer."""
    kv_load_failure_policy: LoadFailurePolicy = "fail"
    """What the engine does with requests whose load failed: ``recompute`` them or ``fail`` them."""

    kv_buffer_size: InitVar[object] = None
    kv_rank: InitVar[object] = None
    kv_parallel_size: InitVar[object] = None
    kv_ip: InitVar[object] = None

    def __post_init__(
        self, kv_buffer_size: object, kv_rank: object, kv_parallel_size: object, kv_ip: object
    ) -> None:
        """Check every field, in the order in which a reader would."""
        removed = (kv_buffer_size, kv_rank, kv_parallel_size, kv_ip)
        for key, value in zip(REMOVED_KEYS, removed, strict=True):
            if value is not None:
                warnings.warn(
                    f"{key}={value!r} has no effect since vLLM 0.32: {REMOVED_KEYS[key]}",
                    RemovedKeyWarning,
                    stacklevel=3,
                )
        for name in ("kv_connector", "engine_id", "kv_connector_module_path"):
            _check_type(name, getattr(self, name), str, optional=True)
        for name in ("kv_connector", "kv_connector_module_path"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name}: expected a name or nothing, got an empty string")
        _check_type("kv_buffer_device", self.kv_buffer_device, str)
        _check_type("enable_permute_local_kv", self.enable_permute_local_kv, bool)
        _check_type("kv_connector_extra_config", self.kv_connector_extra_config, dict)
        for key in self.kv_connector_extra_config:
            if not isinstance(key, str):
                raise ConfigError(f"kv_connector_extra_config: keys are strings, got {key!r} ({_type_name(key)})")
        _check_type("kv_port", self.kv_port, int)
        if not 0 <= self.kv_port <= 65535:
            raise ConfigError(f"kv_port: expected 0 to 65535, got {self.kv_port}")
        _check_choice("kv_load_failure_policy", self.kv_load_failure_policy, LoadFailurePolicy)
        if self.kv_role is not None:
            _check_choice("kv_role", self.kv_role, KVRole)
        elif self.kv_connector is not None:
            raise ConfigError(
                f"kv_role: required because kv_connector is {self.kv_connector!r}; "
                f"choices: {', '.join(get_args(KVRole))}"
            )
        if self.engine_id is None:
            from uuid import uuid4

            self.engine_id = str(uuid4())

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, where: str = "kv_transfer_config") -> "KVTransferConfig":
        """Make one from parsed JSON. Errors begin with ``where``; an unknown key names the nearest."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where}: expected a mapping, got {values!r} ({_type_name(values)})")
        known = [f.name for f in fields(cls)]
        for key in values:
            if key not in known and key not in REMOVED_KEYS:
                hint = did_you_mean(key, known)
                raise ConfigError(f"{where}: unknown key {key!r}; known: {', '.join(known)}{hint}")
        try:
            return cls(**values)
        except ConfigError as error:
            raise ConfigError(f"{where}.{error}") from error

    @property
    def is_kv_transfer_instance(self) -> bool:
        """Whether this engine transfers KV at all."""
        return self.kv_connector is not None and self.kv_role is not None

    @property
    def is_kv_producer(self) -> bool:
        """Whether others may read what this engine computes."""
        return self.kv_connector is not None and self.kv_role in get_args(KVProducer)

    @property
    def is_kv_consumer(self) -> bool:
        """Whether this engine may load what others, or it, computed before."""
        return self.kv_connector is not None and self.kv_role in get_args(KVConsumer)

    def get_from_extra_config(self, key: str, default: Any) -> Any:
        """The connector's own setting ``key``, or ``default``."""
        return self.kv_connector_extra_config.get(key, default)

    def has_connector(self, connector_name: str) -> bool:
        """Whether ``connector_name`` is used, directly or as a child of a MultiConnector."""
        if self.kv_connector == connector_name:
            return True
        children = self.kv_connector_extra_config.get("connectors", [])
        return self.kv_connector == "MultiConnector" and any(
            child.get("kv_connector") == connector_name for child in children
        )


def _check_type(name: str, value: object, kind: type, *, optional: bool = False) -> None:
    if optional and value is None:
        return
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        wanted = kind.__name__ + (" or None" if optional else "")
        raise ConfigError(f"{name}: expected {wanted}, got {value!r} ({_type_name(value)})")


def _check_choice(name: str, value: object, choices: object) -> None:
    names: tuple[str, ...] = get_args(choices)
    if value not in names:
        raise ConfigError(f"{name}: got {value!r}; choices: {', '.join(names)}{did_you_mean(value, names)}")


def _type_name(value: object) -> str:
    return type(value).__name__
