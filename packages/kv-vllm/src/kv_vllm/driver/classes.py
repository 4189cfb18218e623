"""Finds the connector class of a name or a configuration in the driver: one of ours, or one of vLLM's.

A module path wins; without one a name is looked up in our factory, then in vLLM's. A connector of vLLM's base
class is made by vLLM's factory and gets tensors. vLLM's factory also knows the connectors that plugins register
(the entry points ``vllm.general_plugins``), which vLLM loads in each of its processes.
"""

from collections.abc import Iterable
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory as VllmFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1 as VllmBase
from vllm.distributed.kv_transfer.kv_connector.v1.base import supports_hma
from vllm.plugins import load_general_plugins

from kv_api import ConfigError, KVConnectorBase_V1, KVTransferConfig, UnknownNameError
from kv_api.errors import unknown_name
from kv_factory import KVConnectorFactory
from kv_factory.registry import LazyRegistry
from kv_sim.subject import Subject
from kv_vllm.driver.subjects import OUR_SUBJECTS, VLLM_SUBJECTS

_EITHER: Final = LazyRegistry("connector", "", (KVConnectorBase_V1, VllmBase), {}, search=lambda group: ())
"""A factory without registered names; it finds a class in a module."""


def class_named(name: str, others: Iterable[str] = ()) -> type[Any]:
    """The class of a name in one of the two factories. An error suggests similar names, also of ``others``."""
    load_general_plugins()
    try:
        return KVConnectorFactory.get_connector_class_by_name(name)
    except UnknownNameError:
        known = VllmFactory._registry
        if name not in known:
            all_known = {*KVConnectorFactory._registry.names(), *known, *others}
            raise UnknownNameError(unknown_name("connector", name, all_known)) from None
    try:
        found: type[Any] = VllmFactory.get_connector_class_by_name(name)
    except ImportError as error:
        raise ConfigError(f"connector {name!r} of vLLM can't be imported: {error}") from error
    return found


def class_of(name: str | None, module_path: str | None) -> type[Any]:
    """The class that a configuration names. Loads vLLM's plugins."""
    load_general_plugins()
    if name is None:
        raise ConfigError("kv_connector: no connector is named")
    if module_path is None:
        return class_named(name)
    found: type[Any] = _EITHER.get_from_module(name, module_path, "kv_connector_module_path").loaded
    return found


def subject_named(name: str) -> Subject:
    """A subject of the driver, or a subject without traits for a connector's name.

    The latter has the module path if the connector is vLLM's.
    """
    subjects = {**VLLM_SUBJECTS, **OUR_SUBJECTS}
    if name in subjects:
        return subjects[name]
    found = class_named(name, subjects)
    if issubclass(found, VllmBase):
        return Subject(found.__name__, found.__module__, traits=frozenset())
    return Subject(name, None, traits=frozenset())


def is_vllms(name: str, module_path: str | None) -> bool:
    """Whether the connector has vLLM's base class."""
    return issubclass(class_of(name, module_path), VllmBase)


def supports_groups(transfer: KVTransferConfig) -> bool:
    """Whether a configured connector works with several KV cache groups."""
    found = class_of(transfer.kv_connector, transfer.kv_connector_module_path)
    if not issubclass(found, VllmBase):
        return KVConnectorFactory.supports_hma_config(transfer)
    children = getattr(found, "all_children_support_hma", None)
    return bool(supports_hma(found) if children is None else children(transfer))
