"""``VllmScheduler``: plays a trace to vLLM's own ``Scheduler`` or ``AsyncScheduler``.

There is no model and no worker: the scheduler gets the trace's events, and the trace's model output.
"""

from typing import Any, Final

from vllm.config import KVTransferConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from kv_sim.config import WorldConfig
from kv_vllm.differential.bridge import DELIVERY_KEY, SCRIPT_KEY
from kv_vllm.differential.comparison import Script
from kv_vllm.differential.trace import (
    Abort,
    Add,
    Event,
    NextTurn,
    Paused,
    PoolCall,
    Process,
    Reset,
    Resumed,
    Sampled,
    Schedule,
    Trace,
)
from kv_vllm.vllm_scheduler import make_request, make_scheduler, pause, resume
from kv_vllm.vllm_world import VOCABULARY, hash_tokens, vllm_config

STOP_TOKEN: Final = VOCABULARY - 1
"""The last token of a request that ends before its limit; prompts and samples of the testbed are smaller."""


class VllmScheduler:
    """One of vLLM's schedulers, to which a trace is played (a ``comparison.Follower``)."""

    def __init__(self, world: WorldConfig, trace: Trace, script: Script) -> None:
        transfer = KVTransferConfig(
            kv_connector="ScriptedHMAConnector" if trace.all_groups else "ScriptedConnector",
            kv_role=world.role,
            kv_connector_module_path="kv_vllm.differential.bridge",
            kv_load_failure_policy=world.failure_policy,
            kv_connector_extra_config={SCRIPT_KEY: script, DELIVERY_KEY: trace.requires_delivery},
        )
        self._world = world
        self._outputs: dict[int, Any] = {}
        self._scheduler = make_scheduler(world, vllm_config(world, transfer), log_stats=False)
        script.call_pool = self._call_pool

    def _call_pool(self, call: PoolCall) -> None:
        pool = self._scheduler.kv_cache_manager.block_pool
        is_by_id = call.name == "evict_blocks"
        getattr(pool, call.name)(set(call.blocks) if is_by_id else [pool.blocks[block] for block in call.blocks])

    def apply(self, event: Event) -> bool | None:
        """Apply an event."""
        match event:
            case Add():
                self._scheduler.add_request(self._request(event))
            case NextTurn():
                self._scheduler.add_request(self._turn(event))
            case Schedule(step):
                has_work = bool(self._scheduler.has_requests())
                self._outputs[step] = self._scheduler.schedule()
                return has_work
            case Paused(mode):
                pause(self._scheduler, mode)
            case Resumed():
                resume(self._scheduler)
            case Process():
                self._process(event)
            case Abort(request_id):
                self._scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
            case Reset(running, connector):
                try:
                    return bool(self._scheduler.reset_prefix_cache(running, connector))
                except RuntimeError:  # raised when a load holds blocks
                    return None
        return None

    def _request(self, event: Add) -> Request:
        params = SamplingParams(max_tokens=event.max_tokens, ignore_eos=True, stop_token_ids=[STOP_TOKEN])
        identity = (event.salt, event.adapter)
        request = make_request(event.request_id, list(event.prompt), params, hash_tokens(self._world), identity)
        request.skip_reading_prefix_cache = event.skip_reading_prefix_cache
        request.resumable = event.is_session
        return request

    def _turn(self, event: NextTurn) -> Request:
        params = SamplingParams(max_tokens=event.max_tokens, ignore_eos=True, stop_token_ids=[STOP_TOKEN])
        request = make_request(event.request_id, list(event.prompt) or [0], params, hash_tokens(self._world))
        request.resumable = bool(event.prompt)
        return request

    def _process(self, event: Process) -> None:
        output = self._outputs.pop(event.step)
        names = list(output.num_scheduled_tokens)
        sampled = [self._tokens(name, event.sampled.get(name)) for name in names]
        report = KVConnectorOutput(
            # vLLM has sets here and iterates them in no particular order; the testbed sorts them.
            finished_sending=event.report.get("finished_sending"),
            finished_recving=event.report.get("finished_recving"),
            failed_recving=set(event.report.get("failed_recving", ())),
            invalid_block_ids=set(event.report.get("invalid_block_ids", ())),
        )
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=report if event.is_told else None,
        )
        self._scheduler.update_from_output(output, result)
        if self._world.spec_tokens and not self._world.async_scheduling:
            drafts = [[0] * self._world.spec_tokens for _ in names]
            self._scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

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
