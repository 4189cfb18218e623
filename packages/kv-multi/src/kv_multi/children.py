"""The children of a MultiConnector: from the list in its configuration to named connectors.

The parent's ``kv_connector_extra_config`` has ``connectors``, a list with the ``KVTransferConfig`` of each child;
``options`` reads the rest of it. A child's may have ``name`` and ``save``. The child sees them too, and a
MultiConnector with ``save: false`` passes that on to its own children.

A child is named by ``name``, or else by its class and its place in the list (``OffloadingConnector0``). Settings
of the whole engine (``engine_id``, ``kv_buffer_device``, ``kv_load_failure_policy``) a child inherits from the
parent, unless it sets them itself. No configuration is changed in place: a child gets a copy of the engine's,
with another ``kv_transfer_config`` and a mark that it is a child. By that mark a MultiConnector knows that
another one calls it (``is_outermost``), even through a wrapping child between them: the wrapper copies its
configuration and replaces ``kv_transfer_config``, but the mark beside it stays.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

from kv_api import (
    ConfigError,
    KVCacheConfig,
    KVConnectorBase_V1,
    KVConnectorRole,
    KVTransferConfig,
    TransferConfig,
    UnknownNameError,
    VllmConfig,
)
from kv_factory import KVConnectorFactory

QUARANTINED: Final = "quarantined"
"""The entry of the stats that lists who was switched off; no child may have this name."""

INHERITED: Final = ("engine_id", "kv_buffer_device", "kv_load_failure_policy")
"""Fields that hold for a whole engine, which a child takes from its parent."""

_CHILD: Final = "kv_multi_child"
"""The attribute of an engine's configuration that marks the copy of a child."""


class ChildConfig(NamedTuple):
    """What is known of a child before it exists."""

    place: int
    name: str
    connector_class: type[KVConnectorBase_V1]
    transfer: KVTransferConfig
    saves: bool


class Child(NamedTuple):
    """One child of a MultiConnector object."""

    place: int
    name: str
    connector: KVConnectorBase_V1
    saves: bool


def has_children(extra_config: Mapping[str, Any]) -> bool:
    """Whether any child is configured."""
    return bool(extra_config.get("connectors"))


def parse_children(parent: TransferConfig) -> tuple[ChildConfig, ...]:
    """The children of a MultiConnector's configuration, in its order."""
    inherited = {key: value for key in INHERITED if (value := getattr(parent, key, None)) is not None}
    return parse_connectors(parent.kv_connector_extra_config, inherited)


def parse_connectors(
    extra_config: Mapping[str, Any], inherited: Mapping[str, Any] | None = None
) -> tuple[ChildConfig, ...]:
    """The same, from the parent's extra config alone."""
    listed = extra_config.get("connectors")
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
        raise ConfigError(
            f"connectors: expected a non-empty list of KVTransferConfig mappings, got {listed!r} "
            f"({type(listed).__name__})"
        )
    saves = _flag("kv_connector_extra_config.save", extra_config.get("save", True))
    children = tuple(_parse_child(index, values, inherited or {}, saves) for index, values in enumerate(listed))
    _refuse_equal_names(children)
    return children


def child_vllm_config(vllm_config: VllmConfig, child: ChildConfig) -> VllmConfig:
    """A shallow copy of the engine's configuration, for one child."""
    copied: Any = copy(vllm_config)
    copied.kv_transfer_config = child.transfer
    setattr(copied, _CHILD, True)
    return cast(VllmConfig, copied)


def is_outermost(vllm_config: VllmConfig) -> bool:
    """Whether the connector with this configuration is called by an engine, and not by a MultiConnector."""
    return getattr(vllm_config, _CHILD, None) is not True


def build_children(
    configs: Sequence[ChildConfig],
    vllm_config: VllmConfig,
    role: KVConnectorRole,
    kv_cache_config: KVCacheConfig | None,
) -> tuple[Child, ...]:
    """Create the connectors.

    If one raises, its place in the list is added to the exception. Those before it are shut down: the caller gets
    no object to do so by, and they may have threads, sockets and locks.
    """
    children: list[Child] = []
    for config in configs:
        own_config = child_vllm_config(vllm_config, config)
        try:
            connector = KVConnectorFactory.create_connector(own_config, role, kv_cache_config)
        except BaseException as error:
            error.add_note(f"while creating connectors[{config.place}] ({config.name!r}) of a MultiConnector")
            _give_up(children, error)
            raise
        children.append(Child(config.place, config.name, connector, config.saves))
    return tuple(children)


def shut_down_all(children: Sequence[Child]) -> None:
    """Shut down every child, whatever the others do; then raise what they raised."""
    errors: list[Exception] = []
    for child in children:
        try:
            child.connector.shutdown()
        except Exception as error:  # noqa: BLE001 - raised below, when every child had its turn
            error.add_note(f"in shutdown of connector {child.name!r}")
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {len(children)} connectors failed to shut down", errors)


def _give_up(children: Sequence[Child], because: BaseException) -> None:
    """Shut down every child; what they raise is added to the exception for which they are given up."""
    for child in children:
        try:
            child.connector.shutdown()
        except Exception as error:  # noqa: BLE001 - the first exception says why there is no MultiConnector
            said = f"{type(error).__name__}: {error}"
            because.add_note(f"the shutdown of connector {child.name!r}, made before, raised {said}")


def _parse_child(index: int, values: Any, inherited: Mapping[str, Any], parent_saves: bool) -> ChildConfig:
    where = f"connectors[{index}]"
    # Anything that isn't a mapping is passed on as it is: `from_mapping` has the words to refuse it.
    given = {**inherited, **values} if isinstance(values, Mapping) else values
    transfer = KVTransferConfig.from_mapping(given, where=where)
    if transfer.kv_connector is None:
        raise ConfigError(f"{where}.kv_connector: required, a child is a connector")
    # What a child does to its own settings must not reach the engine's configuration.
    extra = transfer.kv_connector_extra_config = dict(transfer.kv_connector_extra_config)
    saves = _flag(f"{where}.kv_connector_extra_config.save", extra.get("save", True)) and parent_saves
    if not saves:
        transfer = _consumer(where, transfer)
    connector_class = _connector_class(where, transfer)
    name = extra.get("name", f"{connector_class.__name__}{index}")
    _check_name(where, name)
    return ChildConfig(index, name, connector_class, transfer, saves)


def _consumer(where: str, transfer: KVTransferConfig) -> KVTransferConfig:
    """The configuration of a child with ``save: false``: its role, ``kv_consumer``, tells it not to store."""
    if transfer.kv_role == "kv_producer":
        raise ConfigError(
            f"{where}: save is false, but its kv_role is 'kv_producer', and a producer only saves; "
            "choices: save true, or kv_role 'kv_both' or 'kv_consumer'"
        )
    return replace(transfer, kv_role="kv_consumer")


def _connector_class(where: str, transfer: KVTransferConfig) -> type[KVConnectorBase_V1]:
    try:
        found = KVConnectorFactory.get_connector_class(transfer)
    except UnknownNameError as error:
        raise UnknownNameError(f"{where}.kv_connector: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{where}.kv_connector: {error}") from error
    if not issubclass(found, KVConnectorBase_V1):
        raise ConfigError(
            f"{where}.kv_connector: {transfer.kv_connector!r} is a V0 connector ({found.__name__}); "
            "the children of a MultiConnector are V1 connectors"
        )
    return found


def _flag(place: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{place}: expected bool, got {value!r} ({type(value).__name__})")
    return value


def _check_name(where: str, name: object) -> None:
    place = f"{where}.kv_connector_extra_config.name"
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{place}: expected a non-empty str, got {name!r} ({type(name).__name__})")
    if name == QUARANTINED:
        raise ConfigError(f"{place}: {name!r} is reserved: stats list the switched-off connectors under it")


def _refuse_equal_names(children: Sequence[ChildConfig]) -> None:
    first: dict[str, int] = {}
    for child in children:
        if child.name in first:
            raise ConfigError(
                f"connectors[{child.place}]: the name {child.name!r} is already taken by "
                f"connectors[{first[child.name]}]; give each child its own kv_connector_extra_config.name"
            )
        first[child.name] = child.place
