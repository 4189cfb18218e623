"""From names in a configuration to connectors and offloading specs, and the process's one connector.

Start at ``KVConnectorFactory`` and ``OffloadingSpecFactory``; ``python -m kv_factory`` shows what they know.

================== ================================================================================
``connectors``     the factory of connectors; ``specs``: the one of offloading specs
``fields``         what both read from a configuration
``registry``       names that stand for classes; ``installed``: names that installed packages offer
``importing``      from a name to its class; ``building``: from a class to an instance
``module_paths``   whether a configuration may name a module instead
``transfer_state`` the process's one connector
``isolation``      registries and a connector for one test alone
``listing``        the known names as rows, for the command
``environment``    the environment variables that are read; ``log``: what is logged
================== ================================================================================
"""

from kv_api import KVConnectorBaseType
from kv_factory.connectors import KVConnectorFactory
from kv_factory.importing import Offer, Target
from kv_factory.isolation import isolated
from kv_factory.module_paths import forbid_module_paths, module_paths_allowed
from kv_factory.specs import OffloadingSpecFactory
from kv_factory.transfer_state import (
    KVTransferStateError,
    ensure_kv_transfer_initialized,
    ensure_kv_transfer_shutdown,
    get_kv_transfer_group,
    has_kv_transfer_group,
    is_v1_kv_transfer_group,
)

__all__ = [
    "KVConnectorBaseType",
    "KVConnectorFactory",
    "KVTransferStateError",
    "Offer",
    "OffloadingSpecFactory",
    "Target",
    "ensure_kv_transfer_initialized",
    "ensure_kv_transfer_shutdown",
    "forbid_module_paths",
    "get_kv_transfer_group",
    "has_kv_transfer_group",
    "is_v1_kv_transfer_group",
    "isolated",
    "module_paths_allowed",
]
