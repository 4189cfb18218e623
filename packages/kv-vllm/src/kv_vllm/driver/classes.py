"""Which class a name or a configuration stands for in the driver: one of ours, or one of vLLM's.

A module path wins; without one a name is looked for in our factory, then in vLLM's. What is of vLLM's class is
made by vLLM's factory and gets tensors. What vLLM's factory knows includes what plugins tell it
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
"""Finds a class in a module. It knows no names."""


def class_named(name: str, others: Iterable[str] = ()) -> type[Any]:
    """The class of a name that one of the two factories knows. ``others`` could have been meant, too."""
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
    """The class that a configuration stands for. From now on vLLM knows what its plugins tell it."""
    load_general_plugins()
    if name is None:
        raise ConfigError("kv_connector: no connector is named")
    if module_path is None:
        return class_named(name)
    found: type[Any] = _EITHER.get_from_module(name, module_path, "kv_connector_module_path").loaded
    return found


def subject_named(name: str) -> Subject:
    """A subject of the driver, or a connector that goes by a name, claiming nothing.

    One of vLLM's is named with its module.
    """
    subjects = {**VLLM_SUBJECTS, **OUR_SUBJECTS}
    if name in subjects:
        return subjects[name]
    found = class_named(name, subjects)
    if issubclass(found, VllmBase):
        return Subject(found.__name__, found.__module__, traits=frozenset())
    return Subject(name, None, traits=frozenset())


def is_vllms(name: str, module_path: str | None) -> bool:
    """Whether the connector is of a class of vLLM's. One without a module is one that our factory knows."""
    return module_path is not None and issubclass(class_of(name, module_path), VllmBase)


def supports_groups(transfer: KVTransferConfig) -> bool:
    """Whether a configured connector works with several KV cache groups."""
    found = class_of(transfer.kv_connector, transfer.kv_connector_module_path)
    if not issubclass(found, VllmBase):
        return KVConnectorFactory.supports_hma_config(transfer)
    children = getattr(found, "all_children_support_hma", None)
    return bool(supports_hma(found) if children is None else children(transfer))
