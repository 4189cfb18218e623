"""The scheduler: how many tokens each request computes in the next step, with vLLM V1's decisions and calls.

Running requests come first, in the order of admission; if blocks run out, the last one is preempted. Then come
waiting requests, unless a request was preempted (``admission``). ``outcome`` processes a step's output. The
connector gets exactly the calls that vLLM makes. ``queues`` has the state between steps.
"""

from collections.abc import Callable
from typing import ClassVar

from kv_api import KVConnectorBase_V1
from kv_sim.config import WorldConfig
from kv_sim.engine.admission import Admission
from kv_sim.engine.output import BlockCopy, BlockState, SchedulerOutput
from kv_sim.engine.pause import Pause
from kv_sim.engine.plan import StepPlan
from kv_sim.engine.queues import Queues
from kv_sim.engine.request import SimRequest, Status
from kv_sim.memory.settled import Offer, offers
from kv_sim.memory.shadow import Shadow

RejectDrafts = Callable[[str, int], int]
"""(request id, drafts) -> how many of them the model rejects."""


class Scheduler(Queues):
    """Plans one step after the other."""

    admission_class: ClassVar[type[Admission]] = Admission

    def __init__(
        self, config: WorldConfig, connector: KVConnectorBase_V1, shadow: Shadow, *, all_groups: bool
    ) -> None:
        super().__init__(config, connector, shadow, all_groups=all_groups)
        self.admission = self.admission_class(self)

    # -- one step ------------------------------------------------------------------------------

    def schedule(self, reject_drafts: RejectDrafts) -> tuple[SchedulerOutput, StepPlan]:
        """Plan the next step, and let the connector plan its part of it."""
        self.num_steps += 1
        plan = StepPlan(0 if self.pause is Pause.ALL else self.config.max_step_tokens)
        self._schedule_running(plan)
        if not plan.preempted:
            self.admission.schedule(plan)
        plan.fresh = self.blocks.take_fresh()
        plan.copies = self.blocks.take_copies()
        self._release_when_copied(plan.copies)
        output = plan.output(self.config, self.finished_req_ids, self.preempted_req_ids)
        output.kv_connector_block_state = BlockState(self.blocks.take_handed())
        plan.handed = self._offers(output.kv_connector_block_state)
        output.kv_connector_metadata = self.connector.build_connector_meta(output)
        output.kv_connector_block_state = None  # no worker gets it
        if self.defers_frees and output.total_num_scheduled_tokens:
            self.sched_step_seq += 1
        self.attend(plan, reject_drafts)
        self._after_schedule(plan)
        return output, plan

    def attend(self, plan: StepPlan, reject_drafts: RejectDrafts) -> None:
        """Work out what the devices will compute and read."""
        plan.attend(self.requests, self.blocks, reject_drafts)

    def _schedule_running(self, plan: StepPlan) -> None:
        index = 0
        while index < len(self.running) and plan.budget > 0:
            request = self.running[index]
            count = self.cut(request, request.num_computed_tokens, self._tokens_to_run(request, plan.budget))
            if count == 0:
                index += 1
                continue
            if not self._make_room(plan, request, count):
                break
            plan.run(request, count)
            index += 1

    def _tokens_to_run(self, request: SimRequest, budget: int) -> int:
        """How many tokens a running request computes next; 0 when it has to wait for its own output."""
        placeholders, end = request.num_output_placeholders, request.num_prompt_tokens + request.asked.max_tokens
        if placeholders and request.num_computed_tokens + 2 - placeholders >= end:
            return 0
        wanted = request.num_tokens_with_spec + placeholders - request.num_computed_tokens
        return max(0, min(wanted, budget, self.config.max_model_len - request.num_computed_tokens - 1))

    def _make_room(self, plan: StepPlan, request: SimRequest, count: int) -> bool:
        """Allocate blocks for ``count`` more tokens; preempt the last requests until they fit. False: no room."""
        while not self._allocate_running(plan, request, count):
            if self.connector.has_pending_block_frees():
                return False
            victim = self.running[-1]
            if not self.blocks_can_be_freed(victim):
                return False
            self.running.pop()
            self.preempt(victim, drop_stale_output=self.requires_delivery)
            plan.preempt(victim)
            if victim is request:
                return False
        return True

    def _allocate_running(self, plan: StepPlan, request: SimRequest, count: int) -> bool:
        known = request.num_computed_tokens - request.num_in_flight_tokens
        self.blocks.drop_passed(request.request_id, known)
        before = [len(table) for table in self.blocks.tables[request.request_id].groups]
        total = request.num_computed_tokens + count
        if not self.blocks.allocate(request.request_id, total, computed_tokens=known):
            return False
        self.own(request)
        self.blocks.cache_blocks(request, total)
        tables = self.blocks.tables[request.request_id].groups
        plan.new_blocks[request.request_id] = tuple(
            table[start:] for table, start in zip(tables, before, strict=True)
        )
        return True

    def preempt(self, request: SimRequest, *, drop_stale_output: bool) -> None:
        """Take a running request's blocks and put it in front of the queue."""
        assert request.status is Status.RUNNING, f"{request} is preempted and doesn't run"
        self.free_request_blocks(request)
        self.forget_prefill(request)
        request.status = Status.PREEMPTED
        request.num_computed_tokens = 0
        request.num_draft_tokens = 0
        # A request that resumes while the output of an earlier step is under way already drops that output.
        request.drop_stale_output = drop_stale_output or request.num_stale_output_tokens > 0
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.num_output_placeholders = 0
        request.num_unseen_rejects = 0
        request.num_preemptions += 1
        self.waiting.appendleft(request)
        self.preempted_req_ids.add(request.request_id)

    # -- after a step is planned ---------------------------------------------------------------

    def _after_schedule(self, plan: StepPlan) -> None:
        for request_id, count in plan.counts.items():
            request = self.requests[request_id]
            request.num_computed_tokens += count
            request.num_in_flight_tokens += count
            if self.defers_frees:
                request.last_sched_seq = self.sched_step_seq
            request.is_prefill_chunk = request.num_computed_tokens < request.num_tokens
            request.num_draft_tokens = 0
            if not request.is_prefill_chunk:
                plan.sampling.add(request_id)
                self.forget_prefill(request)
                if self.config.async_scheduling:
                    request.num_output_placeholders += 1 + plan.drafts.get(request_id, 0)
                    request.num_draft_tokens = self.config.spec_tokens
        self.finished_req_ids = set()
        self.preempted_req_ids = set()

    def _release_when_copied(self, copies: list[BlockCopy]) -> None:
        """Hold source and target of each copy until its step has come back."""
        blocks = [block for copy in copies for block in copy]
        if blocks and self.defers_frees:
            self.deferred_frees.append((self.sched_step_seq + 1, blocks))
        else:
            self.blocks.block_pool.free(blocks)

    def _offers(self, handed: BlockState) -> list[Offer]:
        """The handed-over blocks, each with how many of its tokens don't change while others are appended."""
        size, tables = self.config.block_size, self.blocks.tables
        return [
            offer
            for request_id, states in handed.boundary_state_offloads.items()
            for offer in offers(request_id, states, tables[request_id].groups[0], size)
        ]
