"""Takes in failed loads: which requests are set back, or fail, and which blocks leave the prefix cache."""

from collections.abc import Iterable
from typing import NamedTuple

from kv_api import KVConnectorOutput
from kv_sim.engine.output import Step
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.scheduler import Scheduler
from kv_sim.violation import Invariant, Referee


class FailedLoads(NamedTuple):
    """Requests whose load failed."""

    failing: set[str]
    """Requests that fail with their load."""
    skipped: set[str]
    """Requests whose tokens of this step don't count."""


class Rewound(NamedTuple):
    """Requests that were set back, since blocks were not loaded."""

    request_ids: set[str]
    block_ids: set[int]
    """Their blocks, from the first that wasn't loaded on."""


def take_failed_loads(
    scheduler: Scheduler, step: Step, report: KVConnectorOutput, referee: Referee
) -> FailedLoads:
    """Rewind requests whose load failed, or let them fail, as the engine's policy has it."""
    counts = step.output.num_scheduled_tokens
    recompute = scheduler.config.failure_policy == "recompute"
    affected = set()
    for request_id in sorted(report.failed_recving):
        request = scheduler.requests.get(request_id)
        if request is not None and request.status is Status.WAITING_FOR_REMOTE_KVS:
            affected.add(request_id)
            if recompute:
                request.num_computed_tokens = 0
                scheduler.failed_loads.add(request_id)
    if not report.invalid_block_ids:
        return FailedLoads(set(), set()) if recompute else FailedLoads(affected, affected)
    if len(scheduler.config.groups) > 1:
        referee.fail(
            Invariant.PROTOCOL,
            "get_block_ids_with_load_errors reports blocks, but there are several KV cache groups: report the "
            "requests in failed_recving",
        )
        return FailedLoads(set(), set())
    loading = [r for r in scheduler.holding if r.status is Status.WAITING_FOR_REMOTE_KVS]
    waiting = _rewind(scheduler, loading, report.invalid_block_ids, counts)
    running = _rewind(scheduler, scheduler.running, report.invalid_block_ids, counts)
    # vLLM leaves them in the prefix cache when it recomputes, so a hit on one may read bytes that weren't
    # loaded.
    spoilt = (block for problem in step.problems for block in problem.spoilt)
    for block in sorted(running.block_ids.union(report.invalid_block_ids, spoilt)):
        scheduler.blocks.block_pool.uncache(block)
    if recompute:
        scheduler.failed_loads |= waiting.request_ids
        return FailedLoads(failing=set(), skipped=running.request_ids)
    failed = affected | waiting.request_ids | running.request_ids
    return FailedLoads(failed, failed)


def _rewind(
    scheduler: Scheduler, requests: Iterable[SimRequest], invalid: set[int], counts: dict[str, int]
) -> Rewound:
    """Set each request back to before its first failed block.

    If an earlier request shares a failed block, vLLM counts it as computed, because that request recomputes
    it. But if that request fails or is preempted first, the connector is told of tokens that aren't in any
    block.
    """
    size = scheduler.config.block_size
    rewound = Rewound(set(), set())
    for request in requests:
        (table,) = scheduler.blocks.tables[request.request_id].groups
        computed = request.num_computed_tokens - counts.get(request.request_id, 0)
        bad = [i for i in range(-(-computed // size)) if table[i] in invalid]
        if not bad:
            continue
        rewound.request_ids.add(request.request_id)
        rewound.block_ids.update(table[bad[0] :])
        request.num_computed_tokens = bad[0] * size
        request.forget_steps_under_way()
        cached = scheduler.blocks.tables[request.request_id].num_cached
        cached[0] = min(cached[0], bad[0])
    return rewound
