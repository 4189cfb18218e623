"""From names in a configuration to connectors and offloading specs, and the process's one connector.

Start at ``KVConnectorFactory`` and ``OffloadingSpecFactory``; ``python -m kv_factory`` shows what they know.

========================== ================================================================================
``connectors``, ``specs``  the two factories; ``fields``: what they read from a configuration
``registry``               names that stand for classes; ``installed``: those that other packages offer
``loading``                from a name to its class; ``module_paths``: whether a module may be named instead
``building``               from a class to an instance
``transfer_state``         the process's one connector
``isolation``              registries and a connector of a test's own
``listing``                what is known, as rows
``environment``, ``log``   the switches that are read, and what is logged
========================== ================================================================================
"""

from kv_api import KVConnectorBaseType
from kv_factory.connectors import KVConnectorFactory
from kv_factory.isolation import isolated
from kv_factory.loading import Offer, Target
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
