"""From a ``--kv-transfer-config`` to connectors whose copies are timed.

The connectors are found by name, as in a server; those that vLLM would find in ``kv_vllm`` are ours. Each
OffloadingConnector over host memory or files, alone or as a child of a MultiConnector, gets a medium that copies
over a timed link, and to a timed disk. A connector with another medium has no timing model, and is refused.
"""

from collections.abc import Mapping
from typing import Any, Final

from kv_api import ConfigError, KVConnectorBase_V1, KVTransferConfig, OffloadingSpec
from kv_factory import KVConnectorFactory
from kv_multi import MultiConnector
from kv_offload import OffloadingConnector
from kv_offload_file.options import FileOptions
from kv_p2p import P2PConnector
from kv_sim.replay.timed.connectors import host_memory
from kv_sim.replay.timed.connectors.files import NUMBER, SHARED, STAGING, ReplayFileOffloadingSpec
from kv_sim.replay.timed.connectors.host_memory import ReplayCPUOffloadingSpec, ReplayOffloadingConnector
from kv_sim.replay.timed.connectors.nothing import NoConnector
from kv_sim.replay.timed.connectors.pulls import ReplayP2PConnector
from kv_sim.replay.timed.engine.neighbours import FOLDERS
from kv_sim.replay.timed.engine.seat import Seat

_EXTRA: Final = "kv_connector_extra_config"
_MODULE: Final = "kv_connector_module_path"
_PLACE: Final = "connector"
"""The name with which errors begin: the setting."""
_TIMEOUTS: Final = ("load_timeout_seconds", "store_timeout_seconds")
_INSIDE_VLLM: Final = "kv_vllm"
"""The module where vLLM finds our connectors, under the same names."""

_SPEC, _SPEC_MODULE = "spec_name", "spec_module_path"
_FILES: Final = "FileOffloadingSpec"
_MEDIA: Final[Mapping[str, tuple[type[OffloadingSpec], str]]] = {
    "CPUOffloadingSpec": (ReplayCPUOffloadingSpec, "kv_offload_cpu"),
    _FILES: (ReplayFileOffloadingSpec, "kv_offload_file"),
}
"""Spec of a medium -> its timed replacement, and the package of the spec."""

NOTHING: Final = {"kv_connector": NoConnector.__name__, _MODULE: NoConnector.__module__, "kv_role": "kv_both"}
"""A server without a connector."""


def timed_config(written: Mapping[str, Any], ranks: int, seat: Seat | None = None) -> dict[str, Any]:
    """The same configuration with timed media. A connector that can't be timed is refused by name.

    The replay has one rank for all of a server's, so sizes that each rank has are multiplied by their number.
    Through its ``seat`` a server shares files of one machine with others, or wires to pull over.
    """
    config = _timed(written, _PLACE, None, ranks, seat)
    KVTransferConfig.from_mapping(written)  # checked as written, so that errors have the user's names
    return config


def decides_in_known_steps(timed: Mapping[str, Any]) -> bool:
    """Whether it is known in which steps the connectors of a timed configuration can decide anything.

    It is known only for our own classes. A foreign class may count steps, and a connector with a timeout gives up
    a copy in a step in which no copy ends.
    """
    found = KVConnectorFactory.get_connector_class(KVTransferConfig.from_mapping(timed))
    if found is MultiConnector:
        return all(decides_in_known_steps(child) for child in timed[_EXTRA]["connectors"])
    if found is ReplayP2PConnector:
        return True  # its wire knows when it gives something up
    if found is ReplayOffloadingConnector:
        return not any(timed[_EXTRA].get(timeout) for timeout in _TIMEOUTS)
    return found is NoConnector


def without_files(written: Mapping[str, Any]) -> dict[str, Any] | None:
    """A configuration without its media of files. None: it has no files, or only files."""
    extra, children = _parts(written)
    left = [child for child in children if not has_files(child)]
    if not left or len(left) == len(children):
        return None
    return {**written, _EXTRA: {**extra, "connectors": left}}


def has_files(written: object) -> bool:
    """Whether any medium of a configuration is files. False for one that `timed_config` refuses."""
    extra, children = _parts(written)
    return extra.get(_SPEC) == _FILES or any(map(has_files, children))


def shares_files(written: object) -> bool:
    """Whether any medium of a configuration is files that servers share."""
    extra, children = _parts(written)
    return (extra.get(_SPEC) == _FILES and bool(extra.get(SHARED))) or any(map(shares_files, children))


def _parts(written: object) -> tuple[Mapping[str, Any], list[Any]]:
    """A connector's extra settings, and the configurations of its children."""
    extra = written.get(_EXTRA) if isinstance(written, Mapping) else None
    if not isinstance(extra, Mapping):
        return {}, []
    children = extra.get("connectors")
    return extra, children if isinstance(children, list) else []


def _timed(written: object, place: str, role: str | None, ranks: int, seat: Seat | None) -> dict[str, Any]:
    if not isinstance(written, Mapping):
        raise ConfigError(f"{place}: expected a mapping, got {written!r}")
    config = {"kv_role": role, **written} if role else dict(written)
    if config.get(_MODULE) == _INSIDE_VLLM:
        del config[_MODULE]
    if not isinstance(config.get("kv_connector"), str):
        raise ConfigError(f"{place}.kv_connector: expected a name, got {config.get('kv_connector')!r}")
    extra = config.get(_EXTRA) or {}
    if not isinstance(extra, Mapping):
        raise ConfigError(f"{place}.{_EXTRA}: expected a mapping, got {extra!r}")
    found = KVConnectorFactory.get_connector_class(KVTransferConfig.from_mapping({"kv_role": "kv_both", **config}))
    if found is NoConnector:
        return config
    if found is P2PConnector and seat is not None and seat.wires is not None:
        return {**config, "kv_connector": ReplayP2PConnector.__name__, _MODULE: ReplayP2PConnector.__module__}
    if issubclass(found, OffloadingConnector):
        return _timed_offloading(config, dict(extra), place, found, ranks, seat)
    if issubclass(found, MultiConnector):
        return {**config, _EXTRA: _timed_children(config, dict(extra), place, ranks, seat)}
    raise ConfigError(
        f"{place}.kv_connector: {found.__name__} has no timing model; OffloadingConnector has one, and a "
        "MultiConnector of OffloadingConnectors"
    )


def _timed_offloading(
    config: dict[str, Any],
    extra: dict[str, Any],
    place: str,
    found: type[KVConnectorBase_V1],
    ranks: int,
    seat: Seat | None,
) -> dict[str, Any]:
    spec = extra.get(_SPEC, "CPUOffloadingSpec")
    if spec not in _MEDIA:
        raise ConfigError(
            f"{place}.{_EXTRA}.{_SPEC}: {spec!r} is a medium without a timing model; "
            f"{' and '.join(_MEDIA)} have one"
        )
    timed_spec, package = _MEDIA[spec]
    module = extra.get(_SPEC_MODULE, package)
    if str(module).split(".")[0] != package:
        raise ConfigError(
            f"{place}.{_EXTRA}.{_SPEC_MODULE}: {module!r} has a {spec} of its own, which has no timing model; "
            f"that of {package} has one"
        )
    extra |= {_SPEC: timed_spec.__name__, _SPEC_MODULE: timed_spec.__module__}
    if spec == _FILES:
        if extra.get(SHARED):
            if seat is None or seat.machine is None:
                raise ConfigError(
                    f"{place}.{_EXTRA}.{SHARED}: there is no other server to share with; add --servers N "
                    "--disk-shared"
                )
            extra |= {NUMBER: seat.number, FOLDERS: seat.machine.folders}
        staging = extra.get(STAGING, FileOptions.file_staging_bytes)
        if isinstance(staging, int):  # otherwise the medium refuses it
            extra[STAGING] = staging * ranks
    timed = {**config, _EXTRA: extra}
    if found is OffloadingConnector:
        timed |= {"kv_connector": ReplayOffloadingConnector.__name__, _MODULE: host_memory.__name__}
    return timed


def _timed_children(
    config: dict[str, Any], extra: dict[str, Any], place: str, ranks: int, seat: Seat | None
) -> dict[str, Any]:
    children = extra.get("connectors")
    if not isinstance(children, list):
        raise ConfigError(f"{place}.{_EXTRA}.connectors: expected a list, got {children!r}")
    role = config.get("kv_role", "kv_both")
    extra["connectors"] = [
        _timed(child, f"{place}.{_EXTRA}.connectors[{index}]", role, ranks, seat)
        for index, child in enumerate(children)
    ]
    return extra
