"""The interface of KV connectors and offloading media: vLLM's names, no dependencies.

Start at ``KVConnectorBase_V1`` (or, to write a connector as two classes, ``TwoSidedConnector``) and
``OffloadingSpec``.

========================== ================================================================================
a connector                ``connector``: what an engine creates; ``scheduler_side`` and ``worker_side``: what each
                           side is asked, and when; ``side``: what both have; ``contract``: all of this as data
written as two classes     ``two_sided``
what it reads              ``config`` and ``engine``; ``blocks`` and ``groups``: what blocks are, and what layers
                           read of them; ``layout`` and ``pages``: where their bytes are
what it says               ``metadata``, from one side to the other; ``output``, to the engine; ``events`` and
                           ``stats``, to others
an offloading medium       ``offload``; where bytes are: ``load_store_spec``; what it is told: ``offload_config``
                           and ``offload_request``
the first family           ``connector_v0``
of all of them             ``errors`` and how they are worded; ``exports``: names that are imported when used
========================== ================================================================================

What only offloading media need is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from kv_api.config import KVTransferConfig, RemovedKeyWarning
from kv_api.connector import KVConnectorBase_V1, KVConnectorRole, SupportsHMA, supports_hma
from kv_api.connector_v0 import KVConnectorBase, KVConnectorBaseType
from kv_api.engine import (
    AttentionMetadata,
    BlockIds,
    BlockPool,
    CachedRequestData,
    CopyBlocksOp,
    ForwardContext,
    KVCacheBlocks,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    KVCaches,
    LoRARequest,
    NewRequestData,
    PartialTails,
    Request,
    SchedulerOutput,
    Tensor,
    TransferConfig,
    VllmConfig,
)
from kv_api.errors import ConfigError, KVError, UnknownNameError, WrongSideError
from kv_api.events import (
    MEDIUM_CPU,
    MEDIUM_GPU,
    MEDIUM_STORAGE,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
    KVConnectorKVEvents,
    KVEventAggregator,
)
from kv_api.exports import imported_later
from kv_api.metadata import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)
from kv_api.output import (
    KVConnectorOutput,
    KVConnectorTransferResults,
    KVOutputAggregator,
    ModelRunnerOutput,
)
from kv_api.scheduler_side import SchedulerSide
from kv_api.stats import CacheHitSource, KVConnectorPromMetrics, KVConnectorStats
from kv_api.two_sided import TwoSidedConnector, TwoSidedHMAConnector
from kv_api.worker_side import WorkerSide

if TYPE_CHECKING:
    from kv_api.layout import (
        AttentionKind,
        CanonicalKVCacheRef,
        CanonicalKVCaches,
        CanonicalKVCacheTensor,
        CanonicalPageMapping,
        CopyRun,
    )
    from kv_api.load_store_spec import BlockIDsLoadStoreSpec, GPULoadStoreSpec, LoadStoreSpec
    from kv_api.offload import (
        Direction,
        LookupResult,
        OffloadingEvent,
        OffloadingManager,
        OffloadingSpec,
        OffloadingWorker,
        PrefixLookup,
        PrepareStoreOutput,
        StoreOffer,
        TransferResult,
    )
    from kv_api.offload_config import (
        ConfigInfo,
        ConfigInfoMapping,
        OffloadingCacheConfig,
        OffloadingConfig,
        OffloadingCounterMetadata,
        OffloadingGaugeMetadata,
        OffloadingGroupConfig,
        OffloadingHistogramMetadata,
        OffloadingKVEventsConfig,
        OffloadingMetricMetadata,
        OffloadingModelConfig,
        OffloadingParallelConfig,
    )
    from kv_api.offload_request import (
        Locality,
        Medium,
        OffloadKey,
        OffloadPolicy,
        ReqContext,
        RequestOffloadingContext,
        ScheduleEndContext,
        TierFilter,
        TierMatcher,
        get_offload_block_hash,
        get_offload_group_idx,
        make_offload_key,
    )

_LATER = {
    "kv_api.layout": (
        "AttentionKind",
        "CanonicalKVCacheRef",
        "CanonicalKVCaches",
        "CanonicalKVCacheTensor",
        "CanonicalPageMapping",
        "CopyRun",
    ),
    "kv_api.load_store_spec": ("BlockIDsLoadStoreSpec", "GPULoadStoreSpec", "LoadStoreSpec"),
    "kv_api.offload": (
        "Direction",
        "LookupResult",
        "OffloadingEvent",
        "OffloadingManager",
        "OffloadingSpec",
        "OffloadingWorker",
        "PrefixLookup",
        "PrepareStoreOutput",
        "StoreOffer",
        "TransferResult",
    ),
    "kv_api.offload_config": (
        "ConfigInfo",
        "ConfigInfoMapping",
        "OffloadingCacheConfig",
        "OffloadingConfig",
        "OffloadingCounterMetadata",
        "OffloadingGaugeMetadata",
        "OffloadingGroupConfig",
        "OffloadingHistogramMetadata",
        "OffloadingKVEventsConfig",
        "OffloadingMetricMetadata",
        "OffloadingModelConfig",
        "OffloadingParallelConfig",
    ),
    "kv_api.offload_request": (
        "Locality",
        "Medium",
        "OffloadKey",
        "OffloadPolicy",
        "ReqContext",
        "RequestOffloadingContext",
        "ScheduleEndContext",
        "TierFilter",
        "TierMatcher",
        "get_offload_block_hash",
        "get_offload_group_idx",
        "make_offload_key",
    ),
}
"""Modules that are imported at the first use of one of their names."""

_MODULE_OF = {name: module for module, names in _LATER.items() for name in names}

__all__ = [
    "MEDIUM_CPU",
    "MEDIUM_GPU",
    "MEDIUM_STORAGE",
    "AllBlocksCleared",
    "AttentionKind",
    "AttentionMetadata",
    "BlockIDsLoadStoreSpec",
    "BlockIds",
    "BlockPool",
    "BlockRemoved",
    "BlockStored",
    "CacheHitSource",
    "CachedRequestData",
    "CanonicalKVCacheRef",
    "CanonicalKVCacheTensor",
    "CanonicalKVCaches",
    "CanonicalPageMapping",
    "ConfigError",
    "ConfigInfo",
    "ConfigInfoMapping",
    "CopyBlocksOp",
    "CopyRun",
    "Direction",
    "ForwardContext",
    "GPULoadStoreSpec",
    "KVCacheBlocks",
    "KVCacheConfig",
    "KVCacheEvent",
    "KVCacheGroupSpec",
    "KVCacheManager",
    "KVCaches",
    "KVConnectorBase",
    "KVConnectorBaseType",
    "KVConnectorBase_V1",
    "KVConnectorHandshakeMetadata",
    "KVConnectorKVEvents",
    "KVConnectorMetadata",
    "KVConnectorOutput",
    "KVConnectorPromMetrics",
    "KVConnectorRole",
    "KVConnectorStats",
    "KVConnectorTransferResults",
    "KVConnectorWorkerMetadata",
    "KVError",
    "KVEventAggregator",
    "KVOutputAggregator",
    "KVTransferConfig",
    "LoRARequest",
    "LoadStoreSpec",
    "Locality",
    "LookupResult",
    "Medium",
    "ModelRunnerOutput",
    "NewRequestData",
    "OffloadKey",
    "OffloadPolicy",
    "OffloadingCacheConfig",
    "OffloadingConfig",
    "OffloadingCounterMetadata",
    "OffloadingEvent",
    "OffloadingGaugeMetadata",
    "OffloadingGroupConfig",
    "OffloadingHistogramMetadata",
    "OffloadingKVEventsConfig",
    "OffloadingManager",
    "OffloadingMetricMetadata",
    "OffloadingModelConfig",
    "OffloadingParallelConfig",
    "OffloadingSpec",
    "OffloadingWorker",
    "PartialTails",
    "PrefixLookup",
    "PrepareStoreOutput",
    "RemovedKeyWarning",
    "ReqContext",
    "Request",
    "RequestOffloadingContext",
    "ScheduleEndContext",
    "SchedulerOutput",
    "SchedulerSide",
    "StoreOffer",
    "SupportsHMA",
    "Tensor",
    "TierFilter",
    "TierMatcher",
    "TransferConfig",
    "TransferResult",
    "TwoSidedConnector",
    "TwoSidedHMAConnector",
    "UnknownNameError",
    "VllmConfig",
    "WorkerSide",
    "WrongSideError",
    "get_offload_block_hash",
    "get_offload_group_idx",
    "make_offload_key",
    "supports_hma",
]


if not TYPE_CHECKING:
    __getattr__ = imported_later(globals(), _MODULE_OF)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
