"""vLLM's own connectors as children of our ``MultiConnector``.

kv-multi requires children of kv-api's class, found by a module and a name. This module has such a class for each
of vLLM's connectors, under a name that identifies it: ``NixlConnector`` for one that vLLM has registered,
``package/module:Class`` for one in a module. The class passes each call on to vLLM's connector. Engine objects,
payloads and answers pass unchanged, since they come from vLLM and go back to it.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Final

from vllm.config import KVTransferConfig as VllmTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory as VllmFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1 as VllmBase
from vllm.distributed.kv_transfer.kv_connector.v1.base import supports_hma

from kv_api import ConfigError, KVConnectorBase_V1, SupportsHMA
from kv_vllm.handing_on import CALLED, CALLED_WITH_GROUPS, methods_to_inner
from kv_vllm.translate import to_vllm

OURS: Final = ("MultiConnector", "OffloadingConnector", "P2PConnector", "RecordingConnector", "TraceConnector")
"""Names that mean the classes of this package when a child's configuration names no module."""


class ForeignConnector(KVConnectorBase_V1):
    """A connector of kv-api's class that passes each call on to a connector of vLLM's."""

    theirs: ClassVar[Any]

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.inner = self.theirs(config_for_vllm(vllm_config), to_vllm(role), kv_cache_config)

    @property
    def requires_kv_delivery(self) -> bool:
        return bool(self.inner.requires_kv_delivery)

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        return bool(self.inner.supports_divergent_local_hybrid_hits)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        layout: str | None = cls.theirs.get_required_kvcache_layout(config_for_vllm(vllm_config))
        return layout

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return bool(cls.theirs.requires_piecewise_for_cudagraph(extra_config))

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        ask = getattr(cls.theirs, "supports_sleep_mode", None)  # new in 0.33
        return ask is not None and bool(ask(transfer_for_vllm(kv_transfer_config)))

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        return cls.theirs.build_kv_connector_stats(data)

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> Any:
        config = config_for_vllm(vllm_config)
        return cls.theirs.build_prom_metrics(config, metric_types, labelnames, per_engine_labelvalues)


@cache
def foreign_class(theirs: Any) -> type[ForeignConnector]:
    """The class for one of vLLM's connectors."""
    bases: tuple[type, ...] = (ForeignConnector,)
    names = [name for name in CALLED if hasattr(VllmBase, name)]
    if supports_hma(theirs):
        bases += (SupportsHMA,)
        names += CALLED_WITH_GROUPS
    made = type(theirs.__name__, bases, {"theirs": theirs, "__module__": __name__, **methods_to_inner(names)})
    assert issubclass(made, ForeignConnector), f"{made} of {bases}"
    return made


def __getattr__(name: str) -> type[ForeignConnector]:
    if ":" not in name and name not in VllmFactory._registry:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = name.rpartition(":")
    if not module:
        return foreign_class(VllmFactory.get_connector_class_by_name(name))
    return foreign_class(getattr(import_module(module.replace("/", ".")), attribute))


def with_found_children(extra_config: Mapping[str, Any]) -> dict[str, Any]:
    """A MultiConnector's extra config, with the module of each child added, so that kv-multi finds it."""
    listed = extra_config.get("connectors")
    if not isinstance(listed, list | tuple):
        return dict(extra_config)
    return {**extra_config, "connectors": [_found(child) for child in listed]}


def _found(child: Any) -> Any:
    """A child's configuration with its module. A wrong one passes unchanged: kv-multi raises the error."""
    if not isinstance(child, Mapping) or not isinstance(child.get("kv_connector"), str):
        return child
    name, path = child["kv_connector"], child.get("kv_connector_module_path")
    if path is None and name in OURS:
        path = "kv_vllm"
        child = {**child, "kv_connector_module_path": path}
    if path is None:
        known = name in VllmFactory._registry
        return {**child, "kv_connector_module_path": __name__} if known else child
    found = getattr(import_module(path), name, None)
    if not isinstance(found, type) or not issubclass(found, VllmBase) or issubclass(found, KVConnectorBase_V1):
        return child
    named = f"{path.replace('.', '/')}:{name}"
    return {**child, "kv_connector": named, "kv_connector_module_path": __name__}


def config_for_vllm(vllm_config: Any) -> Any:
    """A child's configuration with a ``kv_transfer_config`` of vLLM's class."""
    copied = copy(vllm_config)
    copied.kv_transfer_config = transfer_for_vllm(vllm_config.kv_transfer_config)
    return copied


def transfer_for_vllm(transfer: Any) -> Any:
    """A ``kv_transfer_config`` of vLLM's class."""
    if isinstance(transfer, VllmTransferConfig):
        return transfer
    if transfer is None:
        raise ConfigError("kv_transfer_config: not set, so there is no connector to create")
    known = {field.name for field in fields(VllmTransferConfig)}
    given = {field.name: getattr(transfer, field.name) for field in fields(transfer) if field.name in known}
    return VllmTransferConfig(**given)
