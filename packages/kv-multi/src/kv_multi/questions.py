"""What an engine asks the class before any object exists, answered from the configuration alone."""

from collections.abc import Mapping
from typing import Any

from kv_api import ConfigError, TransferConfig, VllmConfig
from kv_factory import KVConnectorFactory
from kv_multi.children import (
    ChildConfig,
    child_vllm_config,
    has_children,
    parse_children,
    parse_connectors,
)


def children_of(vllm_config: VllmConfig) -> tuple[ChildConfig, ...]:
    """The children in an engine's configuration."""
    if vllm_config.kv_transfer_config is None:
        raise ConfigError("kv_transfer_config: not set, so there are no children")
    return parse_children(vllm_config.kv_transfer_config)


def required_layout(vllm_config: VllmConfig) -> str | None:
    """The layout that children require; None if no child requires one."""
    wanted = {}
    for child in children_of(vllm_config):
        layout = child.connector_class.get_required_kvcache_layout(child_vllm_config(vllm_config, child))
        if layout is not None:
            wanted[child.name] = layout
    if len(set(wanted.values())) > 1:
        wishes = ", ".join(f"{name!r} {layout}" for name, layout in wanted.items())
        raise ConfigError(f"the connectors want different KV cache layouts: {wishes}")
    return next(iter(wanted.values()), None)


def any_requires_piecewise(extra_config: Mapping[str, Any]) -> bool:
    """Whether any child works in the layer hooks. False without children."""
    return has_children(extra_config) and any(
        child.connector_class.requires_piecewise_for_cudagraph(child.transfer.kv_connector_extra_config)
        for child in parse_connectors(extra_config)
    )


def all_support_sleep_mode(transfer: TransferConfig) -> bool:
    """Whether all children support an engine's sleep. False without children."""
    return has_children(transfer.kv_connector_extra_config) and all(
        child.connector_class.supports_sleep_mode(child.transfer) for child in parse_children(transfer)
    )


def all_support_hma(transfer: TransferConfig) -> bool:
    """Whether all children, at any depth, work with several KV cache groups. False without children."""
    return has_children(transfer.kv_connector_extra_config) and all(
        KVConnectorFactory.supports_hma_config(child.transfer) for child in parse_children(transfer)
    )
