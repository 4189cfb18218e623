"""``VllmScheduler``: vLLM's own ``Scheduler`` or ``AsyncScheduler``, sized like a world of the testbed.

There is no model, no weights, no worker and no network: the scheduler gets a configuration, events, and as model
output what the trace says. What vLLM derives from hardware and options that a world doesn't have (steps under way,
the runner, the number of drafts) is set in ``WorldVllmConfig``; everything else is vLLM's own.
"""

import copy
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from kv_sim.config import WorldConfig
from kv_vllm.bridge import DELIVERY_KEY, SCRIPT_KEY
from kv_vllm.comparison import Script
from kv_vllm.trace import Abort, Add, Event, Process, Reset, Sampled, Schedule, Trace

STOP_TOKEN: Final = 59_999
"""The last token of a request that ends before its limit; prompts and samples of the testbed are smaller."""

MODEL: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": STOP_TOKEN + 1,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}


class WorldVllmConfig(VllmConfig):  # type: ignore[misc]
    """A configuration that takes from a world what vLLM would derive. ``world`` is set after a copy."""

    world: WorldConfig

    @property
    def max_concurrent_batches(self) -> int:
        return self.world.max_concurrent_steps

    @property
    def use_v2_model_runner(self) -> bool:
        return self.world.runner == 2

    @property
    def num_speculative_tokens(self) -> int:
        return self.world.spec_tokens


class _Ordered:
    """Ends requests in the order of their ids. vLLM takes a set's members as they come, and frees blocks so."""

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        names = [request_ids] if isinstance(request_ids, str) else sorted(request_ids)
        finish = super().finish_requests  # type: ignore[misc]
        return [request for name in names for request in finish(name, finished_status)]


class OrderedScheduler(_Ordered, Scheduler):  # type: ignore[misc]
    """vLLM's ``Scheduler``."""


class OrderedAsyncScheduler(_Ordered, AsyncScheduler):  # type: ignore[misc]
    """vLLM's ``AsyncScheduler``."""


@cache
def _base() -> VllmConfig:
    """A configuration of the smallest model; made once, since vLLM takes its time over it."""
    init_none_hash(sha256)
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        return VllmConfig(
            model_config=ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", seed=1),
            scheduler_config=SchedulerConfig(
                max_num_seqs=4,
                max_num_batched_tokens=64,
                max_model_len=MODEL["max_position_embeddings"],
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                async_scheduling=False,
            ),
            cache_config=CacheConfig(block_size=4, cache_dtype="auto", enable_prefix_caching=True),
            device_config=DeviceConfig("cpu"),
        )


def _config(world: WorldConfig, trace: Trace, script: Script) -> WorldVllmConfig:
    base = _base()
    config = object.__new__(WorldVllmConfig)
    config.__dict__.update(base.__dict__)
    config.world = world
    config.model_config = copy.copy(base.model_config)
    config.model_config.max_model_len = world.max_model_len
    config.scheduler_config = scheduler = copy.copy(base.scheduler_config)
    scheduler.max_num_seqs = world.max_running
    scheduler.max_num_batched_tokens = scheduler.max_num_scheduled_tokens = world.max_step_tokens
    scheduler.async_scheduling = world.async_scheduling
    scheduler.disable_hybrid_kv_cache_manager = len(world.groups) == 1
    config.cache_config = copy.copy(base.cache_config)
    config.cache_config.block_size = world.block_size
    config.cache_config.num_gpu_blocks = world.num_blocks
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="ScriptedHMAConnector" if trace.all_groups else "ScriptedConnector",
        kv_role=world.role,
        kv_connector_module_path="kv_vllm.bridge",
        kv_load_failure_policy=world.failure_policy,
        kv_connector_extra_config={SCRIPT_KEY: script, DELIVERY_KEY: trace.requires_delivery},
    )
    return config


def _cache_config(world: WorldConfig) -> KVCacheConfig:
    def spec(window: int) -> Any:
        size = {"block_size": world.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
        return SlidingWindowSpec(**size, sliding_window=window) if window else FullAttentionSpec(**size)

    groups = [KVCacheGroupSpec([f"group{n}"], spec(group.window)) for n, group in enumerate(world.groups)]
    return KVCacheConfig(num_blocks=world.num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)


class VllmScheduler:
    """One of vLLM's schedulers, to be taken through a trace (a ``comparison.Follower``)."""

    def __init__(self, world: WorldConfig, trace: Trace, script: Script) -> None:
        config = _config(world, trace, script)
        self._world = world
        self._hasher = get_request_block_hasher(world.block_size, sha256)
        self._outputs: dict[int, Any] = {}
        self._scheduler = (OrderedAsyncScheduler if world.async_scheduling else OrderedScheduler)(
            vllm_config=config,
            kv_cache_config=_cache_config(world),
            block_size=world.block_size,
            hash_block_size=world.block_size,
            log_stats=False,
            structured_output_manager=StructuredOutputManager(config),
        )

    def apply(self, event: Event) -> bool | None:
        """Let it happen."""
        match event:
            case Add():
                self._scheduler.add_request(self._request(event))
            case Schedule(step):
                self._outputs[step] = self._scheduler.schedule()
            case Process():
                self._process(event)
            case Abort(request_id):
                self._scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
            case Reset(running, connector):
                try:
                    return bool(self._scheduler.reset_prefix_cache(running, connector))
                except RuntimeError:  # it says so when a load holds blocks
                    return None
        return None

    def _request(self, event: Add) -> Request:
        params = SamplingParams(max_tokens=event.max_tokens, ignore_eos=True, stop_token_ids=[STOP_TOKEN])
        params.update_from_generation_config({}, None)
        request = Request(
            request_id=event.request_id,
            prompt_token_ids=list(event.prompt),
            sampling_params=params,
            pooling_params=None,
            block_hasher=self._hasher,
            cache_salt=event.salt,
            lora_request=LoRARequest(event.adapter, 1, "/none") if event.adapter else None,
        )
        request.skip_reading_prefix_cache = event.skip_reading_prefix_cache
        return request

    def _process(self, event: Process) -> None:
        output = self._outputs.pop(event.step)
        names = list(output.num_scheduled_tokens)
        sampled = [self._tokens(name, event.sampled.get(name)) for name in names]
        report = KVConnectorOutput(
            # vLLM has sets here and takes their members in no particular order; the testbed takes them sorted.
            finished_sending=event.report.get("finished_sending"),
            finished_recving=event.report.get("finished_recving"),
            failed_recving=set(event.report.get("failed_recving", ())),
            invalid_block_ids=set(event.report.get("invalid_block_ids", ())),
        )
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=report,
        )
        self._scheduler.update_from_output(output, result)
        if self._world.spec_tokens and not self._world.async_scheduling:
            drafted = [name for name in names if name in event.sampled]
            drafts = [[0] * self._world.spec_tokens for _ in drafted]
            self._scheduler.update_draft_token_ids(DraftTokenIds(drafted, drafts))

    def _tokens(self, name: str, sampled: Sampled | None) -> list[int]:
        """The sampled tokens; the last one of a request that ends before its limit is the stop token."""
        if sampled is None:
            return []
        tokens = list(sampled.tokens)
        request = self._scheduler.requests.get(name)
        last = len(tokens) - sampled.surplus
        if sampled.ends and request is not None and request.num_output_tokens + last < request.max_tokens:
            tokens[last - 1] = STOP_TOKEN
        return tokens
