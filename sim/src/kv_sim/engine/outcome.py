"""Takes in a step's output: tokens, ends, failed loads, finished transfers; vLLM's ``update_from_output``.

The order matters to connectors: deferred frees, failed loads, tokens (with ``request_finished`` for those that
stop), requests that failed, then ``update_connector_output``, then reports of loads and stores, stats, events.
"""

from collections.abc import Iterable
from typing import cast

from kv_api import KVConnectorOutput, KVConnectorTransferResults, SupportsHMA
from kv_sim.checkers.protocol import check_lists, check_params, check_reports
from kv_sim.engine.failed_loads import take_failed_loads
from kv_sim.engine.output import Step
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.scheduler import Scheduler
from kv_sim.guard import Guard
from kv_sim.violation import Invariant, Referee


class Outcome:
    """Applies outputs of steps, aborts and resets to a scheduler."""

    def __init__(self, scheduler: Scheduler, referee: Referee) -> None:
        self.scheduler = scheduler
        self.referee = referee
        self.ended: list[SimRequest] = []
        """Requests that have ended, for the checkers."""

    def process(self, step: Step, report: KVConnectorOutput) -> None:
        """Process the output of the oldest step."""
        scheduler, output = self.scheduler, step.output
        if scheduler.defers_frees and output.total_num_scheduled_tokens:
            scheduler.processed_step_seq += 1
            self._drain_deferred_frees()
        failed = take_failed_loads(scheduler, step, report, self.referee)
        stopped = []
        for request_id, count in output.num_scheduled_tokens.items():
            request = scheduler.requests.get(request_id)
            if request is None:
                continue
            if self._take_tokens(step, request, count, skip=request_id in failed.skipped):
                stopped.append(request)
        for request in stopped:
            if request in scheduler.running:
                scheduler.running.remove(request)
            else:
                scheduler.waiting.remove(request)
            if not request.status.is_finished:
                (scheduler.holding if request.num_computed_tokens else scheduler.waiting).append(request)
        self.finish(failed.failing, Status.FINISHED_ERROR)
        scheduler.shadow.end_step(step.number)
        # As in vLLM: in one process nobody is told of a step that computed nothing and has nothing to report.
        if output.total_num_scheduled_tokens or scheduler.config.world_size > 1 or not report.is_empty():
            scheduler.connector.update_connector_output(report)
            self._transfers_ended(report)
        more = scheduler.connector.get_kv_connector_stats()
        cast(Guard, scheduler.connector).add_stats(report.kv_connector_stats, more)

    # -- tokens --------------------------------------------------------------------------------

    def _take_tokens(self, step: Step, request: SimRequest, count: int, *, skip: bool) -> bool:
        """Count a request's computed tokens. True: it stopped and its blocks are freed, or a session waits."""
        request.num_in_flight_tokens -= count
        is_stale = request.num_stale_output_tokens > 0
        if is_stale:
            request.num_stale_output_tokens -= count
        rejected = step.rejected.get(request.request_id, 0)
        if not is_stale:
            request.num_unseen_rejects -= rejected
        if skip and request.request_id in step.sampling and not self.scheduler.config.async_scheduling:
            request.num_draft_tokens = self.scheduler.config.spec_tokens  # the worker drafts all the same
        if skip or request.status.is_finished or (is_stale and request.drop_stale_output):
            return False
        if rejected and not is_stale:
            request.num_computed_tokens -= rejected
            if request.num_output_placeholders:
                request.num_output_placeholders -= rejected
        if request.request_id not in step.sampling:
            return False
        drafts = len(step.output.scheduled_spec_decode_tokens.get(request.request_id, ()))
        return self._append_tokens(request, 1 + drafts - rejected, is_stale=is_stale)

    def _append_tokens(self, request: SimRequest, new: int, *, is_stale: bool) -> bool:
        """Append ``new`` sampled tokens. True: the request stopped."""
        left = request.asked.output_tokens - request.num_output_tokens
        request.num_output_tokens += min(new, left)
        if new > left and not is_stale:
            request.num_computed_tokens -= new - left
        if request.num_output_placeholders > 0 and not is_stale:
            request.num_output_placeholders -= new
        if not is_stale and request.status is Status.RUNNING:
            known = request.num_computed_tokens - request.num_in_flight_tokens
            self.scheduler.blocks.cache_blocks(request, known)
            request.num_draft_tokens = self.scheduler.config.spec_tokens
        if request.num_output_tokens < request.asked.output_tokens:
            return False
        if not self._pauses(request):
            self._finish(request, self._end_of(request), delay_free=False)
        return True

    def _end_of(self, request: SimRequest) -> Status:
        is_full = request.num_tokens >= self.scheduler.config.max_model_len
        if is_full or request.num_output_tokens >= request.asked.max_tokens:
            return Status.FINISHED_LENGTH_CAPPED
        return Status.FINISHED_STOPPED

    # -- sessions ------------------------------------------------------------------------------

    def take_turn(self, request: SimRequest) -> None:
        """The next turn of a session has arrived, or its end. It counts once the session has stopped."""
        request.turns_arrived += 1
        if request.status is not Status.WAITING_FOR_STREAMING_REQ:
            return
        if request.has_next_turn:
            self.scheduler.num_paused -= 1
            request.begin_turn()
            request.status = Status.WAITING
        else:
            self.finish([request.request_id], Status.FINISHED_ABORTED)

    def _pauses(self, request: SimRequest) -> bool:
        """Let a stopped session wait for its next turn, or go on if that has arrived. False: it ends.

        Unless it is preempted, it keeps its blocks, and the tokens that are known to be computed in them; tokens
        that later steps compute are dropped.
        """
        if request.spec.turns is None:
            return False
        request.num_computed_tokens -= request.num_output_placeholders
        request.forget_steps_under_way()
        if request.has_next_turn:
            request.begin_turn()
            request.status = Status.WAITING
        elif request.was_told_to_end:
            return False
        else:
            self.scheduler.num_paused += 1
            request.status = Status.WAITING_FOR_STREAMING_REQ
        return True

    # -- ends ----------------------------------------------------------------------------------

    def finish(self, request_ids: Iterable[str], status: Status) -> None:
        """End requests from outside: an abort, or an error."""
        scheduler = self.scheduler
        for request_id in sorted(request_ids):
            request = scheduler.requests.get(request_id)
            if request is None or request.status.is_finished:
                continue
            if request.status is Status.RUNNING:
                scheduler.running.remove(request)
            elif request in scheduler.holding:
                scheduler.holding.remove(request)
            else:
                scheduler.waiting.remove(request)
            scheduler.num_paused -= request.status is Status.WAITING_FOR_STREAMING_REQ
            delay_free = False
            if request.status is Status.WAITING_FOR_REMOTE_KVS:
                delay_free = request_id not in scheduler.loaded
                scheduler.loaded.discard(request_id)
                scheduler.failed_loads.discard(request_id)
            self._finish(request, status, delay_free=delay_free)

    def _finish(self, request: SimRequest, status: Status, *, delay_free: bool) -> None:
        scheduler = self.scheduler
        request.status = status
        scheduler.forget_prefill(request)
        tails = self._tails_of(request)
        known = request.num_computed_tokens - request.num_in_flight_tokens
        scheduler.blocks.drop_passed(request.request_id, known)
        block_ids = tuple(
            table[: -(-request.num_computed_tokens // scheduler.config.tokens_of(group))]
            for group, table in enumerate(scheduler.blocks.tables_of(request.request_id).get_block_ids())
        )
        connector = scheduler.connector
        holds_tail = bool(tails) and connector.register_finished_partial_tail(request, block_ids, tails)
        if scheduler.all_groups:
            hold, params = cast(SupportsHMA, connector).request_finished_all_groups(request, block_ids)
        else:
            hold, params = connector.request_finished(request, block_ids[0])
        check_params(request.request_id, params, self.referee)
        check_lists(request, self.referee)
        hold = hold or holds_tail
        if hold and delay_free:
            self.referee.fail(
                Invariant.PROTOCOL,
                f"request {request.request_id}: request_finished holds its blocks for a store "
                "while its load is under way; whichever is reported first frees them",
            )
        scheduler.finished_req_ids.add(request.request_id)
        self.ended.append(request)
        request.is_held = hold
        if not (hold or delay_free):
            self._free(request)

    def _tails_of(self, request: SimRequest) -> list[tuple[int, int, int]]:
        """The states within blocks that a request registers when it ends."""
        scheduler = self.scheduler
        if scheduler.blocks.tails is None or scheduler.config.role == "kv_consumer":
            return []
        return scheduler.blocks.tails.end(request, scheduler.blocks.tables_of(request.request_id).groups)

    def _free(self, request: SimRequest) -> None:
        self.scheduler.free_request_blocks(request)
        del self.scheduler.requests[request.request_id]

    def _drain_deferred_frees(self) -> None:
        scheduler = self.scheduler
        while scheduler.deferred_frees and scheduler.deferred_frees[0][0] <= scheduler.processed_step_seq:
            scheduler.blocks.block_pool.free(scheduler.deferred_frees.popleft()[1])

    # -- loads and stores ----------------------------------------------------------------------

    def _transfers_ended(self, report: KVConnectorOutput) -> None:
        scheduler = self.scheduler
        results = KVConnectorTransferResults(
            set(report.finished_sending or ()), set(report.finished_recving or ()), report.failed_recving
        )
        check_reports(scheduler, results, self.referee)
        for request_id in sorted(results.finished_recving):
            request = scheduler.requests[request_id]
            if request.status is Status.WAITING_FOR_REMOTE_KVS:
                scheduler.loaded.add(request_id)
                scheduler.shadow.end_load(request_id)
            else:  # it was aborted
                self._free(request)
        for request_id in sorted(results.finished_sending):
            if request_id in scheduler.requests:
                self._free(scheduler.requests[request_id])
