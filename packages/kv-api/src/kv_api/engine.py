"""What a connector reads from an engine: structural types, nothing to import or convert.

Each protocol names only the attributes that connectors really use, as read-only properties, so a vLLM object, a
simulator object and a ``SimpleNamespace`` in a test all fit. Optional attributes, which a connector reads by
``getattr`` with a default (states to store, blocks to pin), are not here. Tensors and other things that belong to
a framework are ``Any``: this package knows no framework.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol, TypeAlias

Tensor: TypeAlias = Any
"""A tensor of whatever framework the engine uses (``torch.Tensor`` in vLLM)."""

AttentionMetadata: TypeAlias = Any
"""The attention backend's metadata of one forward pass; opaque here."""


class LoRARequest(Protocol):
    """The adapter that a request uses."""

    @property
    def lora_name(self) -> str: ...


class Request(Protocol):
    """One request, as the scheduler holds it. The scheduler keeps changing it, and its lists: copy what must last.

    ``block_hashes`` has one entry for each *full* block of ``hash_block_size`` tokens, chained over the
    whole prefix, salt and adapter; it may lag behind ``num_computed_tokens`` under run-ahead.
    ``num_computed_tokens`` includes scheduled tokens whose output has not been processed yet.
    """

    @property
    def request_id(self) -> str: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def all_token_ids(self) -> Sequence[int]: ...
    @property
    def block_hashes(self) -> Sequence[bytes]: ...
    @property
    def cache_salt(self) -> str | None: ...
    @property
    def lora_request(self) -> LoRARequest | None: ...
    @property
    def kv_transfer_params(self) -> dict[str, Any] | None: ...


class KVCacheBlocks(Protocol):
    """The block table of one request, a row for each KV cache group. If kept, it changes with the request."""

    def get_block_ids(self) -> tuple[list[int], ...]:
        """Block ids of each group, in the order of the tokens; id 0 is the null block."""
        ...


class BlockPool(Protocol):
    """The engine's pool of GPU blocks."""

    @property
    def num_gpu_blocks(self) -> int: ...


class KVCacheManager(Protocol):
    """The scheduler's cache manager, of which connectors want the pool."""

    @property
    def block_pool(self) -> BlockPool: ...


class NewRequestData(Protocol):
    """A request that a step schedules for the first time (with runner V2: or resumes)."""

    @property
    def req_id(self) -> str: ...
    @property
    def prompt_token_ids(self) -> Sequence[int] | None: ...
    @property
    def block_ids(self) -> tuple[list[int], ...]: ...
    @property
    def num_computed_tokens(self) -> int: ...


class CachedRequestData(Protocol):
    """The requests that a step schedules again, as parallel lists.

    ``new_block_ids`` holds what was appended, or the *whole* table for an id in
    ``resumed_req_ids``, or ``None`` when nothing was.
    """

    @property
    def req_ids(self) -> Sequence[str]: ...
    @property
    def resumed_req_ids(self) -> AbstractSet[str]: ...
    @property
    def new_block_ids(self) -> Sequence[tuple[list[int], ...] | None]: ...
    @property
    def num_computed_tokens(self) -> Sequence[int]: ...


class KVCacheBlockCopy(Protocol):
    """A copy-on-write between two GPU blocks, done before the step's forward pass."""

    @property
    def src_block_id(self) -> int: ...
    @property
    def dst_block_id(self) -> int: ...


class SchedulerOutput(Protocol):
    """What one step will do. Connectors read it and never change it."""

    @property
    def scheduled_new_reqs(self) -> Sequence[NewRequestData]: ...
    @property
    def scheduled_cached_reqs(self) -> CachedRequestData: ...
    @property
    def num_scheduled_tokens(self) -> Mapping[str, int]: ...
    @property
    def total_num_scheduled_tokens(self) -> int: ...
    @property
    def finished_req_ids(self) -> AbstractSet[str]: ...
    @property
    def preempted_req_ids(self) -> AbstractSet[str] | None: ...


class KVCacheGroupSpec(Protocol):
    """A group of layers that share one block table."""

    @property
    def layer_names(self) -> Sequence[str]: ...
    @property
    def kv_cache_spec(self) -> Any: ...


class KVCacheConfig(Protocol):
    """How the KV cache of a model is laid out."""

    @property
    def num_blocks(self) -> int: ...
    @property
    def kv_cache_groups(self) -> Sequence[KVCacheGroupSpec]: ...


class TransferConfig(Protocol):
    """The part of a ``KVTransferConfig`` that connectors read; vLLM's class fits, and so does ours."""

    @property
    def kv_connector(self) -> str | None: ...
    @property
    def engine_id(self) -> str | None: ...
    @property
    def kv_role(self) -> str | None: ...
    @property
    def kv_connector_extra_config(self) -> dict[str, Any]: ...
    @property
    def kv_connector_module_path(self) -> str | None: ...
    @property
    def kv_load_failure_policy(self) -> str: ...
    @property
    def is_kv_transfer_instance(self) -> bool: ...
    @property
    def is_kv_producer(self) -> bool: ...
    @property
    def is_kv_consumer(self) -> bool: ...


class CacheConfig(Protocol):
    """The engine's cache settings."""

    @property
    def block_size(self) -> int: ...


class ParallelConfig(Protocol):
    """How the model is spread over workers."""

    @property
    def tensor_parallel_size(self) -> int: ...
    @property
    def pipeline_parallel_size(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def rank(self) -> int: ...


class SchedulerConfig(Protocol):
    """The scheduler's settings."""

    @property
    def disable_hybrid_kv_cache_manager(self) -> bool | None: ...


class VllmConfig(Protocol):
    """The whole configuration of an engine. A connector that needs more reads it with ``getattr``."""

    @property
    def kv_transfer_config(self) -> TransferConfig | None: ...
    @property
    def cache_config(self) -> CacheConfig: ...
    @property
    def parallel_config(self) -> ParallelConfig: ...
    @property
    def scheduler_config(self) -> SchedulerConfig: ...


class ForwardContext(Protocol):
    """The context of one forward pass."""

    @property
    def no_compile_layers(self) -> Mapping[str, Any]: ...


class CopyBlocksOp(Protocol):
    """Copies whole blocks between device caches and host buffers, for platforms without their own path."""

    def __call__(
        self,
        src_kv_caches: dict[str, Tensor],
        dst_kv_caches: dict[str, Tensor],
        src_block_ids: list[int],
        dst_block_ids: list[int],
        direction: str,
        /,
    ) -> None: ...


PartialTails: TypeAlias = Sequence[tuple[int, int, int]]
"""Sources of a finished request's partial tail: ``(group, block id, tokens before the boundary)`` each."""

BlockIds: TypeAlias = tuple[list[int], ...]
"""Block ids of a request, a list for each KV cache group."""

KVCaches: TypeAlias = dict[str, Tensor]
"""Layer name -> that layer's KV cache."""
