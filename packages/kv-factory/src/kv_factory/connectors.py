"""``KVConnectorFactory``: makes the connector that a ``kv_transfer_config`` names, for one role.

There are two generations of this API. They differ when a name is registered *and* the configuration names a
module (``kv_connector_module_path``). ``create_connector_v0`` and ``create_connector_v1`` use the registered
name; ``create_connector``, ``get_connector_class`` and ``supports_hma_config`` use the module.

An engine creates two kinds of connector object: one of role ``SCHEDULER`` beside its scheduler, and one of role
``WORKER`` in each worker, used only around the forward pass.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, cast

from kv_api import (
    ConfigError,
    KVCacheConfig,
    KVConnectorBase,
    KVConnectorBase_V1,
    KVConnectorBaseType,
    KVConnectorRole,
    TransferConfig,
    VllmConfig,
    supports_hma,
)
from kv_factory import fields
from kv_factory.building import build, call, takes_by_name
from kv_factory.environment import USE_V1, read_switch
from kv_factory.importing import Found, Offer
from kv_factory.log import info
from kv_factory.module_paths import limit_module_paths
from kv_factory.registry import LazyRegistry

_V0, _V1 = "V0", "V1"
_BASES: dict[str, type[Any]] = {_V0: KVConnectorBase, _V1: KVConnectorBase_V1}
_MODULE_KEY = "kv_connector_module_path"


class KVConnectorFactory:
    """The connectors that are known by name, and how they are made. All of it is on the class."""

    _registry: ClassVar[LazyRegistry] = LazyRegistry(
        "connector",
        "kv_connectors",
        tuple(_BASES.values()),
        {
            "MultiConnector": "kv-multi",
            "OffloadingConnector": "kv-offload",
            "P2PConnector": "kv-p2p",
            "SimpleConnector": "kv-p2p",
        },
    )

    # -- what is known -------------------------------------------------------------------------

    @classmethod
    def register_connector(cls, name: str, module_path: str, class_name: str) -> None:
        """Make ``name`` stand for a class, whose module is imported at first use.

        Registering a name twice is an error.
        """
        cls._registry.register(name, module_path, class_name)

    @classmethod
    def refresh_entry_points(cls) -> None:
        """Look again, at the next lookup, for what installed packages offer."""
        cls._registry.refresh()

    @classmethod
    def get_connector_class_by_name(cls, connector_name: str) -> type[KVConnectorBaseType]:
        """The class of a known name, of either family."""
        return cls._registry.get(fields.checked_string("connector_name", connector_name)).loaded

    @classmethod
    def get_connector_class(
        cls, kv_transfer_config: TransferConfig, *, allow_module_paths: bool = True
    ) -> type[KVConnectorBaseType]:
        """The class that a configuration stands for, of either family. Its module path wins."""
        transfer = fields.checked_transfer_config(kv_transfer_config)
        with limit_module_paths(allow_module_paths=allow_module_paths):
            return cls._find(transfer, prefer_module=True).loaded

    @classmethod
    def supports_hma_config(cls, kv_transfer_config: TransferConfig, *, allow_module_paths: bool = True) -> bool:
        """Whether the configured connector works with several KV cache groups.

        If that depends on the configuration, the class has a class method
        ``all_children_support_hma(kv_transfer_config)``, which is asked instead.
        """
        transfer = fields.checked_transfer_config(kv_transfer_config)
        with limit_module_paths(allow_module_paths=allow_module_paths):
            return _supports_hma(cls._find(transfer, prefer_module=True).loaded, transfer)

    # -- making one ----------------------------------------------------------------------------

    @classmethod
    def create_connector_v0(
        cls, rank: int, local_rank: int, config: VllmConfig, *, allow_module_paths: bool = True
    ) -> KVConnectorBase:
        """Make a connector of the first family, as ``(rank, local_rank, config)``. V1 must be off."""
        _require_generation(_V0)
        transfer = fields.transfer_config(config)
        with limit_module_paths(allow_module_paths=allow_module_paths):
            found = cls._find_family(transfer, _V0, prefer_module=False)
            _log(found, _V0, f"rank {rank}", transfer)
            made = build(found.place, found.loaded, call("(rank, local_rank, config)", rank, local_rank, config))
        return cast(KVConnectorBase, made)

    @classmethod
    def create_connector_v1(
        cls, config: VllmConfig, role: KVConnectorRole, *, allow_module_paths: bool = True
    ) -> KVConnectorBase_V1:
        """Make a connector of the second family, as ``(config, role)``. V1 must be on, and a known name wins."""
        _require_generation(_V1)
        transfer = fields.transfer_config(config)
        _require_role(role)
        with limit_module_paths(allow_module_paths=allow_module_paths):
            found = cls._find_family(transfer, _V1, prefer_module=False)
            _log(found, _V1, f"role {role.name}", transfer)
            made = build(found.place, found.loaded, call("(config, role)", config, role))
        return cast(KVConnectorBase_V1, made)

    @classmethod
    def create_connector(
        cls,
        config: VllmConfig,
        role: KVConnectorRole,
        kv_cache_config: KVCacheConfig | None,
        *,
        allow_module_paths: bool = True,
    ) -> KVConnectorBase_V1:
        """Make a connector as engines do today; a module path in the configuration wins over a registered name.

        It is made as ``(config, role, kv_cache_config)``, or as ``(config, role)`` when its class takes no
        more. An engine that works with several KV cache groups is refused a connector that doesn't.
        """
        transfer = fields.transfer_config(config)
        _require_role(role)
        with limit_module_paths(allow_module_paths=allow_module_paths):
            found = cls._find_family(transfer, _V1, prefer_module=True)
            if fields.wants_hma(config) and not _supports_hma(found.loaded, transfer):
                raise ConfigError(
                    f"{found.place}: it supports one KV cache group only, but the engine may use several; set "
                    "disable_hybrid_kv_cache_manager=True (--disable-hybrid-kv-cache-manager) or use a "
                    "connector that derives from SupportsHMA"
                )
            _log(found, _V1, f"role {role.name}", transfer)
            by_name = call("(config, role, kv_cache_config)", config, role, kv_cache_config=kv_cache_config)
            by_place = call("(config, role, kv_cache_config)", config, role, kv_cache_config)
            ways = (by_place, by_name)
            if takes_by_name(found.loaded, "kv_cache_config"):
                ways = (by_name, by_place)
            made = build(found.place, found.loaded, *ways, call("(config, role)", config, role))
        return cast(KVConnectorBase_V1, made)

    # -- for tests -----------------------------------------------------------------------------

    @classmethod
    def isolated(cls, installed: Iterable[Offer] | None = None) -> AbstractContextManager[None]:
        """Begin with nothing registered, and restore all at the end; ``installed`` replaces all entry points."""
        return cls._registry.isolated(installed)

    @classmethod
    def _find(cls, transfer: TransferConfig, *, prefer_module: bool) -> Found:
        name, path = fields.connector_name(transfer), fields.connector_module_path(transfer)
        return cls._registry.get_either(name, path, _MODULE_KEY, prefer_module=prefer_module)

    @classmethod
    def _find_family(cls, transfer: TransferConfig, asked: str, *, prefer_module: bool) -> Found:
        found = cls._find(transfer, prefer_module=prefer_module)
        if not issubclass(found.loaded, _BASES[asked]):
            other = _V0 if asked == _V1 else _V1
            use = "create_connector_v0, with VLLM_USE_V1=0" if other == _V0 else "create_connector"
            raise ConfigError(
                f"{found.place}: asked for a {asked} connector ({_BASES[asked].__name__}), "
                f"found a {other} connector ({_BASES[other].__name__}); create that with {use}"
            )
        return found


def _require_generation(asked: str) -> None:
    """Refuse to make a connector of one family when the engine was told to use the other."""
    switch = read_switch(USE_V1)
    said = _V1 if switch.on else _V0
    if said != asked:
        raise ConfigError(f"asked for a {asked} connector, but {USE_V1} says {said}: it {switch.why}")


def _require_role(role: object) -> None:
    if not isinstance(role, KVConnectorRole):
        choices = " or ".join(str(choice) for choice in KVConnectorRole)
        raise ConfigError(f"role: expected {choices}, got {role!r}")


def _supports_hma(connector_class: type[Any], transfer: TransferConfig) -> bool:
    ask = getattr(connector_class, "all_children_support_hma", None)
    return supports_hma(connector_class) if ask is None else bool(ask(transfer))


def _log(found: Found, family: str, whose: str, transfer: TransferConfig) -> None:
    engine_id = getattr(transfer, "engine_id", None)
    info("creating %s connector %s for %s, engine_id: %s", family, found.loaded.__name__, whose, engine_id)
