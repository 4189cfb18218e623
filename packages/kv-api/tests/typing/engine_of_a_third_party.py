"""Checked by mypy and pyright, never run: objects shaped like an engine's fit the protocols as they are.

Properties and plain attributes, lists of subtypes, subclasses of ``Sequence``, an overloaded ``get_block_ids``
with an extra argument, sets for abstract sets, attributes nobody here knows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NewType, overload

from kv_api import (
    KVCacheBlocks,
    KVConnectorBase_V1,
    KVConnectorOutput,
    KVConnectorTransferResults,
    KVOutputAggregator,
    KVTransferConfig,
    Request,
    SchedulerOutput,
    VllmConfig,
)

BlockHash = NewType("BlockHash", bytes)


@dataclass
class EngineLoRA:
    lora_name: str
    lora_int_id: int


class EngineRequest:
    def __init__(self) -> None:
        self.request_id = "r"
        self.num_prompt_tokens = 3
        self.num_computed_tokens = 0
        self.cache_salt: str | None = None
        self.lora_request: EngineLoRA | None = None
        self.block_hashes: list[BlockHash] = []
        self.kv_transfer_params: dict[str, Any] | None = None
        self.priority = 0
        self._all_token_ids = [1, 2, 3]

    @property
    def all_token_ids(self) -> Sequence[int]:
        return self._all_token_ids

    @property
    def num_tokens(self) -> int:
        return len(self._all_token_ids)


class EngineBlocks:
    @overload
    def get_block_ids(self, allow_none: Literal[False] = False) -> tuple[list[int], ...]: ...
    @overload
    def get_block_ids(self, allow_none: Literal[True]) -> tuple[list[int], ...] | None: ...
    def get_block_ids(self, allow_none: bool = False) -> tuple[list[int], ...] | None:
        return None if allow_none else ([1],)


@dataclass
class EngineNewRequest:
    req_id: str
    prompt_token_ids: list[int] | None
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int


@dataclass
class EngineCachedRequests:
    req_ids: list[str] = field(default_factory=list[str])
    resumed_req_ids: set[str] = field(default_factory=set[str])
    new_block_ids: list[tuple[list[int], ...] | None] = field(default_factory=list[tuple[list[int], ...] | None])
    num_computed_tokens: list[int] = field(default_factory=list[int])


@dataclass
class EngineStep:
    scheduled_new_reqs: list[EngineNewRequest]
    scheduled_cached_reqs: EngineCachedRequests
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    finished_req_ids: set[str]
    preempted_req_ids: set[str] | None = None
    has_sync_kv_loads: bool = False


@dataclass
class EngineCacheConfig:
    block_size: int = 16


@dataclass
class EngineParallelConfig:
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    world_size: int = 1
    rank: int = 0


@dataclass
class EngineSchedulerConfig:
    disable_hybrid_kv_cache_manager: bool | None = False


@dataclass
class EngineConfig:
    kv_transfer_config: KVTransferConfig | None
    cache_config: EngineCacheConfig
    parallel_config: EngineParallelConfig
    scheduler_config: EngineSchedulerConfig


@dataclass
class EngineRunnerOutput:
    kv_connector_output: KVConnectorOutput | None = None


def run(connector: KVConnectorBase_V1, ids: set[str]) -> None:
    request: Request = EngineRequest()
    blocks: KVCacheBlocks = EngineBlocks()
    step: SchedulerOutput = EngineStep([], EngineCachedRequests(), {}, 0, set())
    config: VllmConfig = EngineConfig(None, EngineCacheConfig(), EngineParallelConfig(), EngineSchedulerConfig())
    connector.on_new_request(EngineRequest())
    connector.update_state_after_alloc(request, blocks, 0)
    connector.bind_connector_metadata(connector.build_connector_meta(step))
    results: KVConnectorTransferResults = connector.get_transfer_results(ids)
    output = EngineRunnerOutput(KVConnectorOutput(finished_sending=results.finished_sending))
    joined: EngineRunnerOutput | None = KVOutputAggregator(1).aggregate([output])
    used: list[object] = [joined, config.cache_config.block_size, step.finished_req_ids]
    used.clear()
