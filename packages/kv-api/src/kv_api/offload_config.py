"""What an offloading medium is told about the engine, and what it declares about its metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias


@dataclass(frozen=True)
class OffloadingGroupConfig:
    """One KV cache group: tokens in a block over all workers, layers, index, and how far attention looks back."""

    tokens_per_block: int
    layer_names: tuple[str, ...]
    group_id: int
    sliding_window_size_in_chunks: int | None = None
    """How many of its last chunks a request needs of this group (sliding window). None: all."""


@dataclass(frozen=True)
class OffloadingModelConfig:
    """The model; ``max_model_len`` 0 when not known."""

    name: str
    dtype: str
    max_model_len: int = 0


@dataclass(frozen=True)
class OffloadingCacheConfig:
    """The grain of the cache: tokens that one block hash covers, blocks that one chunk joins."""

    tokens_per_hash: int
    blocks_per_chunk: int


@dataclass(frozen=True)
class OffloadingParallelConfig:
    """How the engine is spread; ``rank`` is this worker's (0 in the scheduler)."""

    rank: int
    world_size: int
    tp_size: int
    pp_size: int
    pcp_size: int
    dcp_size: int
    data_parallel_index: int
    data_parallel_size: int
    data_parallel_rank_local: int | None
    is_parallelism_agnostic: bool
    """Whether stored bytes mean the same under another spread."""
    cp_kv_cache_interleave_size: int = 1
    """Consecutive tokens on one worker, where workers share the tokens of a block. vLLM's class has no such
    field."""


@dataclass(frozen=True)
class OffloadingConfig:
    """Everything that an ``OffloadingSpec`` is built from."""

    groups: tuple[OffloadingGroupConfig, ...]
    worker_kv_bytes_per_block: int
    enable_kv_cache_events: bool
    extra_config: Mapping[str, Any]
    engine_id: str
    model: OffloadingModelConfig
    cache: OffloadingCacheConfig
    parallel: OffloadingParallelConfig
    replicated_layout: bool = False
    """Every worker holds the same bytes, so one copy is enough."""
    canonical_layout: bool = False
    """Whether pages that don't depend on the parallelism were asked for."""
    kv_cache_layout: str | None = None


@dataclass(frozen=True)
class OffloadingKVEventsConfig:
    """Whether KV events are published at all, and whether with full payloads."""

    enable_kv_cache_events: bool
    self_describing_kv_events: bool


@dataclass(frozen=True)
class OffloadingMetricMetadata:
    """What a spec declares of one Prometheus metric."""

    documentation: str
    labelnames: tuple[str, ...] = ()


@dataclass(frozen=True)
class OffloadingCounterMetadata(OffloadingMetricMetadata):
    """A counter."""


@dataclass(frozen=True)
class OffloadingGaugeMetadata(OffloadingMetricMetadata):
    """A gauge; several frontends report snapshots of one engine, so the most recent one is right."""

    multiprocess_mode: str = "mostrecent"


@dataclass(frozen=True)
class OffloadingHistogramMetadata(OffloadingMetricMetadata):
    """A histogram; ``buckets`` None: the default ones."""

    buckets: tuple[float, ...] | None = None


ConfigInfoMapping: TypeAlias = Mapping[str, str | int | float | bool]
"""Labels of one series of the info metric."""


@dataclass(frozen=True)
class ConfigInfo:
    """Facts that never change in a process, published as labels of the info metric: a field, a label."""

    @classmethod
    def config_info_keys(cls) -> tuple[str, ...]:
        """The label names, in the order of the fields."""
        return tuple(f.name for f in fields(cls))

    def as_config_info(self) -> ConfigInfoMapping:
        """The labels; None becomes the word "None"."""
        values = {key: getattr(self, key) for key in self.config_info_keys()}
        return {key: "None" if value is None else value for key, value in values.items()}
