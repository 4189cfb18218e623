"""The children's stats, each under the child's name, even if two children are of one class.

A payload (``to_dict``) has for each child its data and what identifies its class, because the process that logs it
has only the payload: ``{name: {"kv_connector": …, "kv_connector_module_path": …, "data": …}}``. Children that are
switched off are listed in an entry of their own, ``quarantined``.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kv_api import KVConnectorBase_V1, KVConnectorStats, KVTransferConfig
from kv_factory import KVConnectorFactory
from kv_multi.children import QUARANTINED, ChildConfig

_log = logging.getLogger("kv_multi")

_NAME: Final = "kv_connector"
_MODULE: Final = "kv_connector_module_path"
_DATA: Final = "data"


class Origin(NamedTuple):
    """How another process finds a child's class."""

    kv_connector: str | None = None
    kv_connector_module_path: str | None = None


@dataclass
class QuarantineStats(KVConnectorStats):
    """Which children are switched off, and why: ``data`` is name -> reason. A state, which no reset ends."""

    def reset(self) -> None:
        pass

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        self.data = {**other.data, **self.data}
        return self

    def reduce(self) -> dict[str, Any]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not self.data


@dataclass
class MultiKVConnectorStats(KVConnectorStats):
    """Stats objects by name of the child; ``origins`` says what class each child is."""

    origins: dict[str, Origin] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {name: self._envelope(name, stats) for name, stats in self.data.items()}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        if not isinstance(other, MultiKVConnectorStats):
            raise TypeError(f"stats: expected MultiKVConnectorStats, got {type(other).__name__}")
        for name, stats in other.data.items():
            mine = self.data.get(name)
            if mine is not None and not isinstance(stats, type(mine)):
                raise TypeError(
                    f"stats of connector {name!r}: can't add {type(stats).__name__} to {type(mine).__name__}"
                )
            self.data[name] = stats if mine is None else mine.aggregate(stats)
        self.origins = {**other.origins, **self.origins}
        return self

    def reset(self) -> None:
        for stats in self.data.values():
            stats.reset()

    def reduce(self) -> dict[str, Any]:
        return {name: stats.reduce() for name, stats in self.data.items()}

    def is_empty(self) -> bool:
        return all(stats.is_empty() for stats in self.data.values())

    def __getitem__(self, name: str) -> KVConnectorStats:
        found: KVConnectorStats = self.data[name]
        return found

    def __setitem__(self, name: str, stats: KVConnectorStats) -> None:
        self.data[name] = stats

    def _envelope(self, name: str, stats: KVConnectorStats) -> dict[str, Any]:
        origin = self.origins.get(name, Origin())
        return {_NAME: origin.kv_connector, _MODULE: origin.kv_connector_module_path, _DATA: stats.to_dict()}


def origins(children: tuple[ChildConfig, ...]) -> dict[str, Origin]:
    """The class of each configured child."""
    return {
        child.name: Origin(child.transfer.kv_connector, child.transfer.kv_connector_module_path)
        for child in children
    }


def collect(
    by_name: Mapping[str, KVConnectorStats | None], known: Mapping[str, Origin], off: Mapping[str, str]
) -> MultiKVConnectorStats | None:
    """Join the stats of the children of one object. None: nothing was counted."""
    data: dict[str, Any] = {name: stats for name, stats in by_name.items() if stats is not None}
    if off:
        data[QUARANTINED] = QuarantineStats(dict(off))
    if not data:
        return None
    return MultiKVConnectorStats(data, {name: origin for name, origin in known.items() if name in data})


def rebuild(payload: Mapping[str, Any]) -> MultiKVConnectorStats:
    """Make stats objects from a payload, in a process that may know nothing of the configuration.

    Objects pass through. A child whose class can't build its stats is left out, as an engine does with a connector
    that can't; one whose class isn't known here is an error, as in vLLM.
    """
    data: dict[str, Any] = {}
    found_origins: dict[str, Origin] = {}
    for name, value in payload.items():
        if isinstance(value, KVConnectorStats):
            data[name] = value
            continue
        origin, child_data = open_envelope(name, value)
        stats = _build(name, origin, child_data)
        if stats is None:
            _log.debug("connector %r sent stats, but its class can't rebuild them", name)
            continue
        data[name] = stats
        found_origins[name] = origin
    return MultiKVConnectorStats(data, found_origins)


def open_envelope(name: str, value: Any) -> tuple[Origin, dict[str, Any]]:
    """The class and the data in one entry of a payload.

    Without an envelope the entry is one of vLLM's, whose name is that of a registered connector.
    """
    if isinstance(value, Mapping) and set(value) == {_NAME, _MODULE, _DATA}:
        return Origin(value[_NAME], value[_MODULE]), value[_DATA]
    if isinstance(value, Mapping):
        return Origin(name), dict(value)
    raise TypeError(f"stats of connector {name!r}: expected a payload or an object, got {value!r}")


def _build(name: str, origin: Origin, data: dict[str, Any]) -> KVConnectorStats | None:
    if name == QUARANTINED:
        return QuarantineStats(dict(data))
    transfer = KVTransferConfig(
        kv_connector=origin.kv_connector or name,
        kv_connector_module_path=origin.kv_connector_module_path,
        kv_role="kv_both",
        engine_id=name,
    )
    found = KVConnectorFactory.get_connector_class(transfer)
    if not issubclass(found, KVConnectorBase_V1):
        raise TypeError(f"stats of connector {name!r}: {found.__name__} is no V1 connector")
    return found.build_kv_connector_stats(data)
