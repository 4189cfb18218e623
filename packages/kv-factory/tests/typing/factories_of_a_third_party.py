"""Checked by mypy and pyright, never run: what a user's code gets from the factories."""

from typing import assert_type

from kv_api import (
    KVCacheConfig,
    KVConnectorBase,
    KVConnectorBase_V1,
    KVConnectorRole,
    KVTransferConfig,
    OffloadingConfig,
    OffloadingSpec,
    VllmConfig,
)
from kv_factory import (
    KVConnectorBaseType,
    KVConnectorFactory,
    Offer,
    OffloadingSpecFactory,
    Target,
    ensure_kv_transfer_initialized,
    get_kv_transfer_group,
    is_v1_kv_transfer_group,
    isolated,
)


def connectors(config: VllmConfig, cache: KVCacheConfig, transfer: KVTransferConfig) -> None:
    factory = KVConnectorFactory
    assert_type(factory.create_connector_v0(0, 0, config), KVConnectorBase)
    assert_type(factory.create_connector_v1(config, KVConnectorRole.WORKER), KVConnectorBase_V1)
    assert_type(
        factory.create_connector(config, KVConnectorRole.WORKER, cache, allow_module_paths=False),
        KVConnectorBase_V1,
    )
    found: type[KVConnectorBaseType] = factory.get_connector_class_by_name("A")
    found = factory.get_connector_class(transfer)
    assert_type(factory.supports_hma_config(transfer), bool)
    assert_type(found.__name__, str)


def specs(config: VllmConfig, cache: KVCacheConfig, offloading: OffloadingConfig) -> None:
    assert_type(OffloadingSpecFactory.create_spec(offloading), OffloadingSpec)
    assert_type(OffloadingSpecFactory.create_spec(config, cache), OffloadingSpec)
    assert_type(OffloadingSpecFactory.create_spec(config, None, allow_module_paths=False), OffloadingSpec)
    assert_type(OffloadingSpecFactory.get_spec_cls({"spec_name": "A"}), type[OffloadingSpec])
    assert_type(OffloadingSpecFactory.get_spec_cls(offloading), type[OffloadingSpec])
    assert_type(OffloadingSpecFactory.get_spec_cls(config), type[OffloadingSpec])


def group(config: VllmConfig) -> bool:
    with isolated(connectors=[Offer("A", Target("a", "A"), "from a test")]):
        ensure_kv_transfer_initialized(config, broadcast_engine_id=lambda engine_id: engine_id)
        connector: KVConnectorBaseType = get_kv_transfer_group()
        return is_v1_kv_transfer_group(connector)
