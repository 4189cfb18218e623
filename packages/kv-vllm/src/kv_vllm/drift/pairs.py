"""The pairs of a class or function of ours and its counterpart in vLLM. Data, read by ``compare``."""

from typing import Final

_DISTRIBUTED: Final = "vllm.distributed"
_CONNECTOR: Final = f"{_DISTRIBUTED}.kv_transfer.kv_connector"
_STATE: Final = f"{_DISTRIBUTED}.kv_transfer.kv_transfer_state"
_EVENTS: Final = f"{_DISTRIBUTED}.kv_events"
_METRICS: Final = f"{_CONNECTOR}.v1.metrics"
_OFFLOAD: Final = "vllm.v1.kv_offload.base"
_OFFLOAD_CONFIG: Final = "vllm.v1.kv_offload.config"
_STEP: Final = "vllm.v1.core.sched.output"
_LAYOUT: Final = "vllm.v1.kv_cache_interface"

CONNECTORS: Final = f"{_CONNECTOR}.v1.base"
"""Where vLLM has the interface of its connectors."""

INTERFACE: Final[tuple[tuple[str, str, str], ...]] = (
    ("KVConnectorBase_V1", "kv_api", CONNECTORS),
    ("SupportsHMA", "kv_api", CONNECTORS),
    ("KVConnectorTransferResults", "kv_api", CONNECTORS),
    ("KVConnectorWorkerMetadata", "kv_api", CONNECTORS),
    ("KVConnectorStats", "kv_api", _METRICS),
    ("KVConnectorOutput", "kv_api", "vllm.v1.outputs"),
    ("MultiConnector", "kv_multi", f"{_CONNECTOR}.v1.multi_connector"),
    ("OffloadingManager", "kv_api", _OFFLOAD),
    ("OffloadingWorker", "kv_api", _OFFLOAD),
    ("OffloadingSpec", "kv_api", _OFFLOAD),
    ("GPULoadStoreSpec", "kv_api", _OFFLOAD),
    ("PrepareStoreOutput", "kv_api", _OFFLOAD),
    ("RequestOffloadingContext", "kv_api", _OFFLOAD),
    ("OffloadingEvent", "kv_api", _OFFLOAD),
    ("TransferResult", "kv_api", _OFFLOAD),
    ("LookupResult", "kv_api", _OFFLOAD),
    ("OffloadPolicy", "kv_api", _OFFLOAD),
)
"""Classes of connectors and media, and of objects that they give to vLLM: a name, our module and vLLM's."""

PAIRS: Final = (
    *INTERFACE,
    ("KVConnectorRole", "kv_api", CONNECTORS),
    ("KVConnectorMetadata", "kv_api", CONNECTORS),
    ("KVConnectorHandshakeMetadata", "kv_api", CONNECTORS),
    ("KVConnectorPromMetrics", "kv_api", _METRICS),
    ("CacheHitSource", "kv_api", "vllm.v1.metrics.cache_hit_source"),
    ("KVOutputAggregator", "kv_api", f"{_CONNECTOR}.utils"),
    ("KVTransferConfig", "kv_api", "vllm.config"),
    ("KVCacheEvent", "kv_api", _EVENTS),
    ("BlockStored", "kv_api", _EVENTS),
    ("BlockRemoved", "kv_api", _EVENTS),
    ("AllBlocksCleared", "kv_api", _EVENTS),
    ("KVEventAggregator", "kv_api", _EVENTS),
    ("KVConnectorKVEvents", "kv_api", _EVENTS),
    ("KVConnectorFactory", "kv_factory", f"{_CONNECTOR}.factory"),
    ("OffloadingSpecFactory", "kv_factory", "vllm.v1.kv_offload.factory"),
    ("ensure_kv_transfer_initialized", "kv_factory", _STATE),
    ("ensure_kv_transfer_shutdown", "kv_factory", _STATE),
    ("get_kv_transfer_group", "kv_factory", _STATE),
    ("has_kv_transfer_group", "kv_factory", _STATE),
    ("is_v1_kv_transfer_group", "kv_factory", _STATE),
    ("LoadStoreSpec", "kv_api", _OFFLOAD),
    ("BlockIDsLoadStoreSpec", "kv_api", _OFFLOAD),
    ("ReqContext", "kv_api", _OFFLOAD),
    ("ScheduleEndContext", "kv_api", _OFFLOAD),
    ("Medium", "kv_api", _OFFLOAD),
    ("Locality", "kv_api", _OFFLOAD),
    ("TierFilter", "kv_api", _OFFLOAD),
    ("TierMatcher", "kv_api", _OFFLOAD),
    ("CanonicalKVCaches", "kv_api", _OFFLOAD),
    ("CanonicalKVCacheTensor", "kv_api", _OFFLOAD),
    ("CanonicalKVCacheRef", "kv_api", _OFFLOAD),
    ("CanonicalPageMapping", "kv_api", _OFFLOAD),
    ("CopyRun", "kv_api", _OFFLOAD),
    ("OffloadingMetricMetadata", "kv_api", _OFFLOAD),
    ("OffloadingCounterMetadata", "kv_api", _OFFLOAD),
    ("OffloadingGaugeMetadata", "kv_api", _OFFLOAD),
    ("OffloadingHistogramMetadata", "kv_api", _OFFLOAD),
    ("OffloadingKVEventsConfig", "kv_api", _OFFLOAD),
    ("OffloadingConfig", "kv_api", _OFFLOAD_CONFIG),
    ("OffloadingCacheConfig", "kv_api", _OFFLOAD_CONFIG),
    ("OffloadingGroupConfig", "kv_api", _OFFLOAD_CONFIG),
    ("OffloadingModelConfig", "kv_api", _OFFLOAD_CONFIG),
    ("OffloadingParallelConfig", "kv_api", _OFFLOAD_CONFIG),
)
"""All that has a counterpart there: classes and functions."""

PROMISES: Final[tuple[tuple[str, str, str], ...]] = (
    ("kv_api.engine.LoRARequest", "LoRARequest", "vllm.lora.request"),
    ("kv_api.engine.Request", "Request", "vllm.v1.request"),
    ("kv_api.engine.KVCacheBlocks", "KVCacheBlocks", "vllm.v1.core.kv_cache_manager"),
    ("kv_api.engine.BlockPool", "BlockPool", "vllm.v1.core.block_pool"),
    ("kv_api.engine.KVCacheManager", "KVCacheManager", "vllm.v1.core.kv_cache_manager"),
    ("kv_api.engine.NewRequestData", "NewRequestData", _STEP),
    ("kv_api.engine.CachedRequestData", "CachedRequestData", _STEP),
    ("kv_api.engine.KVCacheBlockCopy", "KVCacheBlockCopy", "vllm.v1.core.kv_cache_utils"),
    ("kv_api.engine.SchedulerOutput", "SchedulerOutput", _STEP),
    ("kv_api.engine.KVCacheGroupSpec", "KVCacheGroupSpec", _LAYOUT),
    ("kv_api.engine.KVCacheConfig", "KVCacheConfig", _LAYOUT),
    ("kv_api.engine.TransferConfig", "KVTransferConfig", "vllm.config"),
    ("kv_api.engine.CacheConfig", "CacheConfig", "vllm.config"),
    ("kv_api.engine.ParallelConfig", "ParallelConfig", "vllm.config"),
    ("kv_api.engine.SchedulerConfig", "SchedulerConfig", "vllm.config"),
    ("kv_api.engine.VllmConfig", "VllmConfig", "vllm.config"),
    ("kv_api.output.ModelRunnerOutput", "ModelRunnerOutput", "vllm.v1.outputs"),
    ("kv_api.engine.ForwardContext", "ForwardContext", "vllm.forward_context"),
)
"""A protocol of ours, the class of vLLM's whose objects a connector gets, and its module."""

LOOKED_FOR: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("SchedulerOutput", _STEP, ("kv_cache_block_copies", "kv_connector_block_state")),
    ("KVConnectorBlockState", _STEP, ("boundary_state_offloads",)),
    (
        "Request",
        "vllm.v1.request",
        (
            *("abort_immediately", "kv_hints", "mm_features", "prompt_embeds", "shared_prefix_boundary"),
            *("skip_reading_prefix_cache", "status"),
        ),
    ),
    ("BlockPool", "vllm.v1.core.block_pool", ("free_block_queue", "free_blocks", "touch")),
    (
        "KVCacheConfig",
        _LAYOUT,
        (
            *("hash_block_size", "kv_cache_tensors", "kv_tp_replicas", "needs_kv_cache_zeroing"),
            "prefix_cacheable_group_ids",
        ),
    ),
    ("KVCacheGroupSpec", _LAYOUT, ("host_resident", "is_eagle_group")),
    ("KVCacheSpec", _LAYOUT, ("dcp_sharded",)),
    (
        "CacheConfig",
        "vllm.config",
        (
            *("cache_dtype", "enable_prefix_caching", "hash_block_size", "kv_cache_layout", "kv_offloading_size"),
            "prefix_cache_retention_interval",
        ),
    ),
    (
        "VllmConfig",
        "vllm.config",
        ("attention_config", "instance_id", "kv_events_config", "model_config", "use_v2_model_runner"),
    ),
    ("KVTransferConfig", "vllm.config", ("kv_port",)),
    (
        "ParallelConfig",
        "vllm.config",
        (
            *(
                "cp_kv_cache_interleave_size",
                "data_parallel_index",
                "data_parallel_rank_local",
                "data_parallel_size",
            ),
            *("decode_context_parallel_size", "prefill_context_parallel_size"),
            *("distributed_executor_backend", "nnodes_within_dp"),
        ),
    ),
    ("ModelConfig", "vllm.config", ("dtype", "max_model_len", "model", "use_mla")),
    ("LoRARequest", "vllm.lora.request", ("lora_int_id", "lora_name")),
)
"""A class of vLLM's, its module, and attributes that our connectors use if they exist.

Without them the connectors store less, pin no blocks or have less in an event, without any message. So they are
compared, too, but a server isn't refused for lack of them.
"""
