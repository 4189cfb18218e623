"""Makes vLLM's own schedulers and requests for a world of the testbed, and pauses them.

The scheduler is vLLM's with one change: it iterates sets in order, so that histories can be repeated.
"""

from typing import Any, Final

from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from kv_sim.config import WorldConfig
from kv_sim.engine.pause import MODES, Pause, PauseMode
from kv_vllm.vllm_world import WorldVllmConfig, hash_tokens, kv_cache_config

PAUSE_STATES: Final = {
    Pause.NONE: PauseState.UNPAUSED,
    Pause.NEW: PauseState.PAUSED_NEW,
    Pause.ALL: PauseState.PAUSED_ALL,
}
"""vLLM's words for the testbed's states of a pause."""

init_none_hash(sha256)  # an engine of vLLM's does it when it starts; no request has hashes before


def pause(scheduler: Scheduler, mode: PauseMode) -> None:
    """Do what vLLM's engine core does with its scheduler at a pause."""
    if mode == "abort":
        scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    scheduler.set_pause_state(PAUSE_STATES[MODES[mode]])


def resume(scheduler: Scheduler) -> None:
    """Schedule all requests again."""
    scheduler.set_pause_state(PAUSE_STATES[Pause.NONE])


class _Ordered:
    """Ends requests in the order of their ids. vLLM iterates a set, and would free blocks in its order."""

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        everybody = self.requests if request_ids is None else request_ids  # type: ignore[attr-defined]
        names = [everybody] if isinstance(everybody, str) else sorted(everybody)
        finish = super().finish_requests  # type: ignore[misc]
        return [request for name in names for request in finish(name, finished_status)]


class OrderedScheduler(_Ordered, Scheduler):  # type: ignore[misc]
    """vLLM's ``Scheduler``."""


class OrderedAsyncScheduler(_Ordered, AsyncScheduler):  # type: ignore[misc]
    """vLLM's ``AsyncScheduler``."""


def make_scheduler(world: WorldConfig, config: WorldVllmConfig, *, log_stats: bool) -> Scheduler:
    """The scheduler of a world; it creates the connector that its configuration names."""
    return (OrderedAsyncScheduler if world.async_scheduling else OrderedScheduler)(
        vllm_config=config,
        kv_cache_config=kv_cache_config(world, config.parallel_config.decode_context_parallel_size),
        block_size=world.block_size,
        hash_block_size=hash_tokens(world),
        log_stats=log_stats,
        structured_output_manager=StructuredOutputManager(config),
    )


def make_request(
    request_id: str,
    tokens: list[int],
    params: SamplingParams,
    tokens_per_hash: int,
    identity: tuple[str | None, str | None] = (None, None),
) -> Request:
    """Make a request; the testbed's identity becomes its salt and its adapter."""
    salt, adapter = identity
    return Request(
        request_id=request_id,
        prompt_token_ids=tokens,
        sampling_params=params,
        pooling_params=None,
        block_hasher=get_request_block_hasher(tokens_per_hash, sha256),
        cache_salt=salt,
        lora_request=LoRARequest(adapter, 1, "/none") if adapter else None,
    )
