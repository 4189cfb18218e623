"""From a ``--kv-transfer-config`` to connectors whose copies are timed.

The connectors are found by name, as in a server. Wherever an OffloadingConnector over host memory stands, alone or
among the children of a MultiConnector, its medium is replaced by one that copies over a timed link. Who brings
another medium can't be timed, and is refused.
"""

from collections.abc import Mapping
from typing import Any, Final

from kv_api import ConfigError, KVConnectorBase_V1, KVTransferConfig
from kv_factory import KVConnectorFactory
from kv_multi import MultiConnector
from kv_offload import OffloadingConnector
from kv_sim.replay.timed import medium
from kv_sim.replay.timed.medium import ReplayCPUOffloadingSpec, ReplayOffloadingConnector
from kv_sim.replay.timed.nothing import NoConnector

_EXTRA: Final = "kv_connector_extra_config"
_MODULE: Final = "kv_connector_module_path"
_PLACE: Final = "connector config"
_TIMEOUTS: Final = ("load_timeout_seconds", "store_timeout_seconds")

NOTHING: Final = {"kv_connector": NoConnector.__name__, _MODULE: NoConnector.__module__, "kv_role": "kv_both"}
"""A server without a connector."""


def timed_config(written: Mapping[str, Any]) -> dict[str, Any]:
    """The same configuration with timed media. Who can't be timed is refused by name."""
    config = _timed(written, _PLACE, role=None)
    KVTransferConfig.from_mapping(written)  # whose names are those that its writer knows
    return config


def decides_in_known_steps(timed: Mapping[str, Any]) -> bool:
    """Whether it is known in which steps the connectors of a timed configuration can decide anything.

    It is of those that we know. A class of somebody else may count steps, and who gives up a copy that takes too
    long does so in a step in which no copy ends.
    """
    found = KVConnectorFactory.get_connector_class(KVTransferConfig.from_mapping(timed))
    if found is MultiConnector:
        return all(decides_in_known_steps(child) for child in timed[_EXTRA]["connectors"])
    if found is ReplayOffloadingConnector:
        return not any(timed[_EXTRA].get(timeout) for timeout in _TIMEOUTS)
    return found is NoConnector


def _timed(written: object, place: str, role: str | None) -> dict[str, Any]:
    if not isinstance(written, Mapping):
        raise ConfigError(f"{place}: expected a mapping, got {written!r}")
    config = {"kv_role": role, **written} if role else dict(written)
    if not isinstance(config.get("kv_connector"), str):
        raise ConfigError(f"{place}.kv_connector: expected a name, got {config.get('kv_connector')!r}")
    extra = config.get(_EXTRA) or {}
    if not isinstance(extra, Mapping):
        raise ConfigError(f"{place}.{_EXTRA}: expected a mapping, got {extra!r}")
    found = KVConnectorFactory.get_connector_class(KVTransferConfig.from_mapping({"kv_role": "kv_both", **config}))
    if found is NoConnector:
        return config
    if issubclass(found, OffloadingConnector):
        return _timed_offloading(config, dict(extra), place, found)
    if issubclass(found, MultiConnector):
        return {**config, _EXTRA: _timed_children(config, dict(extra), place)}
    raise ConfigError(
        f"{place}.kv_connector: {found.__name__} moves bytes in a way that has no timing model; "
        "OffloadingConnector has one, and MultiConnector of such"
    )


def _timed_offloading(
    config: dict[str, Any], extra: dict[str, Any], place: str, found: type[KVConnectorBase_V1]
) -> dict[str, Any]:
    spec = extra.get("spec_name", "CPUOffloadingSpec")
    if spec != "CPUOffloadingSpec":
        raise ConfigError(
            f"{place}.{_EXTRA}.spec_name: {spec!r} is a medium that has no timing model; CPUOffloadingSpec has one"
        )
    extra |= {"spec_name": ReplayCPUOffloadingSpec.__name__, "spec_module_path": medium.__name__}
    timed = {**config, _EXTRA: extra}
    if found is OffloadingConnector:
        timed |= {"kv_connector": ReplayOffloadingConnector.__name__, _MODULE: medium.__name__}
    return timed


def _timed_children(config: dict[str, Any], extra: dict[str, Any], place: str) -> dict[str, Any]:
    children = extra.get("connectors")
    if not isinstance(children, list):
        raise ConfigError(f"{place}.{_EXTRA}.connectors: expected a list, got {children!r}")
    role = config.get("kv_role", "kv_both")
    extra["connectors"] = [
        _timed(child, f"{place}.{_EXTRA}.connectors[{index}]", role) for index, child in enumerate(children)
    ]
    return extra
