"""The interface of KV connectors and offloading media: vLLM's names, no dependencies.

Start at ``KVConnectorBase_V1`` (or, to write a connector as two classes, ``TwoSidedConnector``) and
``OffloadingSpec``.

=================== ===========================================================================
**a connector**     what an engine creates and calls
``connector``       the base class
``scheduler_side``  what the scheduler asks, and when
``worker_side``     what each worker asks, and when
``side``            what both sides have
``two_sided``       a connector written as two classes, one for each side
``contract``        the calls of a connector as data: a table
``connector_v0``    the first family, which moves whole requests
**what it reads**   of an engine
``config``          its configuration; ``engine``: requests, blocks and steps
``model_variant``   what makes another model of the one at a path
``blocks``          how large blocks are; ``groups``: what the layers of a group read of them
``layout``          where the bytes of blocks are, as pages; ``pages``: one layer as pages
**what it says**    to others
``metadata``        from one side to the other
``output``          from the workers to the engine
``events``          which blocks appeared and vanished; ``stats``: numbers, and sources of hits
**a medium**        where an offloading connector keeps chunks
``offload``         its manager, its worker, and the spec that makes both
``offload_config``  what it is told of the engine; ``offload_request``: and of a request
``load_store_spec`` where the bytes of a job are
**all of them**     need these
``errors``          the errors, and their wording
``exports``         names that are imported at their first use
=================== ===========================================================================

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
