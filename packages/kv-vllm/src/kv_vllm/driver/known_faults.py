"""Ends a history where vLLM itself is known to go wrong, so that no connector is blamed for it.

That is after a failed load that is recomputed, or a failed load of a block that several requests share; where
loads have left no room for each other's next chunks; and before 0.33 when a session stops while it is preempted,
or before its last draft.
``tests/differential/test_vllm_faults.py`` shows these faults without the testbed.
"""

from collections import Counter
from collections.abc import Mapping

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

from kv_sim.config import WorldConfig
from kv_sim.guard import HistoryEnds
from kv_vllm.driver.ledger import Ledger
from kv_vllm.installed import vllm_version


def end_where_loads_left_no_room(vllm: Scheduler, output: SchedulerOutput) -> None:
    """Called after a step was scheduled: end if nobody runs, and requests whose loads have ended hold all."""
    begun, manager = vllm._inflight_prefills, vllm.kv_cache_manager
    if output.num_scheduled_tokens or vllm.running or not begun or vllm.pause_state != PauseState.UNPAUSED:
        return
    waiting = {r.request_id for r in begun if r.status is RequestStatus.WAITING_FOR_REMOTE_KVS}
    own = {block for r in begun for table in manager.get_block_ids(r.request_id) for block in table}
    held = {block.block_id for block in manager.block_pool.blocks if block.ref_cnt and not block.is_null}
    if waiting <= vllm.finished_recving_kv_req_ids and held <= own:
        raise HistoryEnds("loads left no room for the next chunks of requests before them, and nobody goes on")


def end_at_shared_failure(vllm: Scheduler, report: KVConnectorOutput) -> None:
    """Called before vLLM gets a step's report: end if a block of a failed load is in several tables."""
    tables = (vllm.kv_cache_manager.get_block_ids(r.request_id) for r in vllm.running)
    held = Counter(block for groups in tables for block in {block for table in groups for block in table})
    if any(held[block] > 1 for block in report.invalid_block_ids):
        raise HistoryEnds(
            "several requests share a block whose load failed, and vLLM counts it as computed for one of them"
        )


def end_at_broken_session(
    world: WorldConfig, vllm: Scheduler, ledger: Ledger, sampled: Mapping[str, list[int]]
) -> None:
    """Called before vLLM gets a step's sampled tokens, for versions before 0.33."""
    if vllm_version() >= (0, 33):
        return
    for name, tokens in sampled.items():
        request, twin = vllm.requests.get(name), ledger.twins.get(name)
        if request is None or twin is None or not request.resumable:
            continue
        surplus = request.num_output_tokens + len(tokens) - twin.asked.output_tokens
        goes_on = twin.has_next_turn or not twin.was_told_to_end
        delivers = request.status is RequestStatus.PREEMPTED and not request.drop_stale_output
        if delivers and surplus >= 0 and goes_on:
            raise HistoryEnds("a session stops while it is preempted, and vLLM loses it")
        if surplus > 0 and not world.async_scheduling:
            raise HistoryEnds("a session stops before its last draft, and vLLM takes what comes after it along")


def end_at_recomputed_load(world: WorldConfig, report: KVConnectorOutput) -> None:
    """Called after vLLM got a step's report."""
    if world.failure_policy == "recompute" and (report.invalid_block_ids or report.failed_recving):
        raise HistoryEnds("a failed load is recomputed, after which vLLM itself goes wrong")
