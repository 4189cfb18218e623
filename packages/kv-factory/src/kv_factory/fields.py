"""What the factories read from a configuration, with an error for each thing that can be wrong with it.

Configurations are read by attribute, so vLLM's objects, ours and a ``SimpleNamespace`` all fit.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, cast

from kv_api import ConfigError, TransferConfig


class _Missing(Enum):
    """Tells an attribute that is not there from one that is None."""

    MISSING = 0


_MISSING: Final = _Missing.MISSING


def transfer_config(config: object) -> TransferConfig:
    """The ``kv_transfer_config`` of an engine's configuration, which must be set."""
    found = optional_transfer_config(config)
    if found is None:
        raise ConfigError("kv_transfer_config: not set, so there is nothing to create")
    return found


def optional_transfer_config(config: object) -> TransferConfig | None:
    """The ``kv_transfer_config`` of an engine's configuration, or None when KV transfer is off."""
    found = getattr(config, "kv_transfer_config", _MISSING)
    if found is _MISSING:
        raise ConfigError(
            f"config: expected an engine's configuration with a kv_transfer_config, got {_kind(config)}"
        )
    return None if found is None else checked_transfer_config(found)


def checked_transfer_config(value: Any) -> TransferConfig:
    """``value``, if it looks like a ``KVTransferConfig``."""
    if getattr(value, "kv_connector", _MISSING) is _MISSING:
        hint = "; KVTransferConfig.from_mapping makes one" if isinstance(value, Mapping) else ""
        raise ConfigError(f"kv_transfer_config: expected a KVTransferConfig, got {_kind(value)}{hint}")
    return cast(TransferConfig, value)


def connector_name(transfer: TransferConfig) -> str:
    """The name of the connector, which must be set."""
    if transfer.kv_connector is None:
        raise ConfigError("kv_connector: not set, so there is no name to look up")
    return checked_string("kv_connector", transfer.kv_connector)


def connector_module_path(transfer: TransferConfig) -> str | None:
    """The module that the configuration names for the connector's class."""
    path = getattr(transfer, "kv_connector_module_path", None)
    return None if path is None else checked_string("kv_connector_module_path", path)


def wants_hma(config: object) -> bool:
    """Whether the engine works with several KV cache groups.

    As in vLLM, a switch that is None counts as on: an engine that doesn't need it turns it off before it creates
    a connector. An engine without the switch (for example without ``scheduler_config``) doesn't support groups:
    off.
    """
    scheduler = getattr(config, "scheduler_config", None)
    return not getattr(scheduler, "disable_hybrid_kv_cache_manager", True)


def extra_config(config: object) -> Mapping[str, Any]:
    """The connector's own settings: given directly, or in an offloading or engine configuration."""
    if isinstance(config, Mapping):
        return config
    if getattr(config, "extra_config", _MISSING) is not _MISSING:
        return offloading_extra_config(config)
    if getattr(config, "kv_transfer_config", _MISSING) is not _MISSING:
        return engine_extra_config(config)
    raise ConfigError(
        f"config: expected extra config, an OffloadingConfig or an engine's configuration, got {_kind(config)}"
    )


def offloading_extra_config(config: object) -> Mapping[str, Any]:
    """The settings in an ``OffloadingConfig``."""
    found = getattr(config, "extra_config", _MISSING)
    if found is _MISSING:
        raise ConfigError(
            f"config: expected an OffloadingConfig, got {_kind(config)}; "
            "an engine's configuration needs a kv_cache_config beside it"
        )
    return _mapping("extra_config", found)


def engine_extra_config(config: object) -> Mapping[str, Any]:
    """The settings in an engine's configuration."""
    transfer = transfer_config(config)
    return _mapping("kv_connector_extra_config", getattr(transfer, "kv_connector_extra_config", None))


def spec_name(extra: Mapping[str, Any], default: str) -> str:
    """The name of the offloading spec."""
    return checked_string("spec_name", extra.get("spec_name", default))


def spec_module_path(extra: Mapping[str, Any]) -> str | None:
    """The module that the configuration names for the spec's class."""
    path = extra.get("spec_module_path")
    return None if path is None else checked_string("spec_module_path", path)


def checked_string(name: str, value: object) -> str:
    """``value``, if it is a string."""
    if not isinstance(value, str):
        raise ConfigError(f"{name}: expected str, got {value!r} ({type(value).__name__})")
    return value


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}: expected a mapping, got {_kind(value)}")
    return value


def _kind(value: object) -> str:
    """What kind of thing a value is. Not the value: a whole configuration is long and may hold secrets."""
    return "None" if value is None else f"a value of type {type(value).__name__}"
