"""The scheduler: who computes how many tokens in the next step, with vLLM V1's order of decisions and calls.

Running requests come first, in order of admission; when blocks run out the last one is preempted. Then, unless
somebody was preempted, waiting requests: those that hold blocks before those that don't. Each is matched against
the prefix cache, then against the connector, gets its blocks and is either admitted or parked until its load is
reported. What a step's output changes is in ``outcome``. The connector sees exactly the calls that vLLM makes.

``sched_step_seq`` counts steps that compute something, ``processed_step_seq`` those whose output came back. With
several steps under way and a consumer's role, freed blocks return to the pool only when every step that was
scheduled before has come back (``deferred_frees``).
"""

from collections import deque
from collections.abc import Callable

from kv_api import KVConnectorBase_V1
from kv_sim.config import WorldConfig
from kv_sim.engine.blocks import KVCacheManager, Tables
from kv_sim.engine.output import CachedRequestData, NewRequestData, SchedulerOutput
from kv_sim.engine.plan import StepPlan
from kv_sim.engine.request import SimRequest, Status
from kv_sim.memory.shadow import Shadow

RejectDrafts = Callable[[str, int], int]
"""(request id, drafts) -> how many of them the model rejects."""


class Scheduler:
    """State of the scheduler between steps."""

    def __init__(
        self, config: WorldConfig, connector: KVConnectorBase_V1, shadow: Shadow, *, all_groups: bool
    ) -> None:
        self.config = config
        self.connector = connector
        self.shadow = shadow
        self.blocks = KVCacheManager(config)
        self.requests: dict[str, SimRequest] = {}
        self.waiting: deque[SimRequest] = deque()
        self.holding: deque[SimRequest] = deque()
        """Waiting requests that hold blocks: a load of theirs is going on or has ended."""
        self.running: list[SimRequest] = []
        self.inflight_prefills: list[SimRequest] = []
        self.finished_req_ids: set[str] = set()
        self.preempted_req_ids: set[str] = set()
        self.loaded: set[str] = set()
        """Requests whose load was reported and who weren't scheduled since."""
        self.failed_loads: set[str] = set()
        self.deferred_frees: deque[tuple[int, list[int]]] = deque()
        self.num_steps = 0
        self.sched_step_seq = 0
        self.processed_step_seq = 0
        self.defers_frees = config.max_concurrent_steps > 1 and config.role != "kv_producer"
        self.requires_delivery = connector.requires_kv_delivery
        self.all_groups = all_groups

    # -- requests ------------------------------------------------------------------------------

    def add_request(self, request: SimRequest) -> None:
        """Put a new request into the queue."""
        assert request.request_id not in self.requests, f"request {request.request_id} is still here"
        self.requests[request.request_id] = request
        self.waiting.append(request)
        self.connector.on_new_request(request)

    @property
    def has_work(self) -> bool:
        """Whether the engine's loop would call ``schedule`` now."""
        unfinished = len(self.running) + len(self.waiting) + len(self.holding)
        return bool(unfinished or self.finished_req_ids or len(self.requests) > unfinished)

    # -- one step ------------------------------------------------------------------------------

    def schedule(self, reject_drafts: RejectDrafts) -> tuple[SchedulerOutput, StepPlan]:
        """Decide on the next step and let the connector plan its part of it."""
        self.num_steps += 1
        plan = StepPlan(self.config.max_step_tokens)
        self._schedule_running(plan)
        if not plan.preempted:
            self._schedule_waiting(plan)
        output = self._output(plan)
        output.kv_connector_metadata = self.connector.build_connector_meta(output)
        if self.defers_frees and output.total_num_scheduled_tokens:
            self.sched_step_seq += 1
        plan.attend(self.requests, self.blocks, reject_drafts)
        self._after_schedule(plan)
        return output, plan

    def _schedule_running(self, plan: StepPlan) -> None:
        index = 0
        while index < len(self.running) and plan.budget > 0:
            request = self.running[index]
            count = self._tokens_to_run(request, plan.budget)
            if count == 0:
                index += 1
                continue
            if not self._make_room(plan, request, count):
                break
            plan.run(request, count)
            index += 1

    def _tokens_to_run(self, request: SimRequest, budget: int) -> int:
        """How many tokens a running request computes next; 0 when it has to wait for its own output."""
        placeholders, end = request.num_output_placeholders, request.num_prompt_tokens + request.spec.max_tokens
        if placeholders and request.num_computed_tokens + 2 - placeholders >= end:
            return 0
        wanted = request.num_tokens_with_spec + placeholders - request.num_computed_tokens
        longest = end + self.config.spec_tokens
        return max(0, min(wanted, budget, longest - request.num_computed_tokens - 1))

    def _make_room(self, plan: StepPlan, request: SimRequest, count: int) -> bool:
        """Allocate for ``count`` more tokens, preempting from the back until it works. False: it can't."""
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
        self.blocks.drop_passed(request.request_id, max(0, known))
        before = [len(table) for table in self.blocks.tables[request.request_id].groups]
        total = request.num_computed_tokens + count
        if not self.blocks.allocate(request.request_id, total, computed_tokens=max(0, known)):
            return False
        self._own(request)
        self.blocks.cache_blocks(request.request_id, request.block_hashes, min(total, request.num_tokens))
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
        request.drop_stale_output = drop_stale_output or (
            request.drop_stale_output and request.num_stale_output_tokens > 0
        )
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.num_output_placeholders = 0
        request.num_unseen_rejects = 0
        request.num_preemptions += 1
        self.waiting.appendleft(request)
        self.preempted_req_ids.add(request.request_id)

    # -- waiting requests ----------------------------------------------------------------------

    def _schedule_waiting(self, plan: StepPlan) -> None:
        skipped: deque[SimRequest] = deque()
        skipped_holding: deque[SimRequest] = deque()

        def skip(queue: deque[SimRequest]) -> None:
            request = queue.popleft()
            holds = request.request_id in self.blocks.tables
            (skipped_holding if holds else skipped).appendleft(request)

        while plan.budget > 0 and len(self.running) < self.config.max_running:
            queue = self.holding or self.waiting
            if not queue:
                break
            request = queue[0]
            if not self._is_ready(request) or (request.num_stale_output_tokens and not request.drop_stale_output):
                skip(queue)
                continue
            fit = self._admit(plan, request)
            if fit is None:
                skip(queue)
            elif fit:
                queue.popleft()
            else:
                break
        self.holding.extendleft(skipped_holding)
        self.waiting.extendleft(skipped)

    def _is_ready(self, request: SimRequest) -> bool:
        """Whether a waiting request can be scheduled; a load that was reported is taken in here."""
        if request.status is not Status.WAITING_FOR_REMOTE_KVS:
            return True
        if request.request_id not in self.loaded:
            return False
        self.loaded.remove(request.request_id)
        if request.request_id in self.failed_loads:
            self.failed_loads.remove(request.request_id)
            if not request.num_computed_tokens:
                self.blocks.block_pool.free(self.blocks.take(request.request_id))
        if request.num_computed_tokens:
            hashes = request.block_hashes
            self.blocks.cache_blocks(request.request_id, hashes, request.num_computed_tokens)
        if request.num_computed_tokens == request.num_tokens:
            request.num_computed_tokens -= 1
        request.status = Status.PREEMPTED if request.num_preemptions else Status.WAITING
        return True

    def _admit(self, plan: StepPlan, request: SimRequest) -> bool | None:
        """Match a waiting request and give it blocks. None: not in this step. False: no room for anybody."""
        hit: tuple[list[int], ...] | None = None
        external, is_async, computed = 0, False, request.num_computed_tokens
        if computed == 0:
            hit, local = self._local_hit(request)
            answer, is_async = self.connector.get_num_new_matched_tokens(request, local)
            if request.spec.skip_reading_prefix_cache:
                answer, is_async = 0, False
            if answer is None:
                return None
            external, computed = answer, local + answer
        count = 0 if is_async else min(request.num_tokens - computed, plan.budget)
        assert is_async or count > 0, f"{request}: nothing to compute after {computed} tokens"
        request_id, total = request.request_id, computed + count
        reserved = self._reserved_blocks() if is_async else 0
        if not self.blocks.allocate(request_id, total, computed_tokens=computed, hit=hit, reserved=reserved):
            return False
        self._own(request)
        if not is_async:
            known = min(total, request.num_tokens)
            self.blocks.cache_blocks(request_id, request.block_hashes, known)
        self._announce(plan, request, computed - external, external, is_async)
        if is_async:
            request.status = Status.WAITING_FOR_REMOTE_KVS
            request.num_computed_tokens = computed
            self.inflight_prefills.append(request)
            return None
        plan.admit(request, computed, count, self.blocks.tables[request_id])
        plan.has_sync_loads |= external > 0
        self.running.append(request)
        request.status = Status.RUNNING
        request.num_computed_tokens = computed
        if computed + count < request.num_tokens:
            self.inflight_prefills.append(request)
        return True

    def _local_hit(self, request: SimRequest) -> tuple[tuple[list[int], ...], int]:
        if request.spec.skip_reading_prefix_cache:
            return tuple([] for _ in self.config.groups), 0
        return self.blocks.find_hit(request.block_hashes, request.num_tokens - 1)

    def _announce(self, plan: StepPlan, request: SimRequest, local: int, external: int, is_async: bool) -> None:
        """Tell the connector of the allocation; give its load the right to write."""
        tables = self.blocks.tables[request.request_id]
        if external:
            if is_async:
                self.connector.get_loaded_kv_cache_group_ids(request)
            first, last = local // self.config.block_size, -(-(local + external) // self.config.block_size)
            targets = [block for table in tables.groups for block in table[first:last] if block]
            plan.load(request, targets, is_async)
            request.awaits_load = is_async
            if is_async:
                self.shadow.load_rights.update(dict.fromkeys(targets, request.request_id))
            else:
                self.shadow.step_rights.update(dict.fromkeys(targets, self.num_steps))
        self.connector.update_state_after_alloc(request, Tables(tables.get_block_ids()), external)
        if external:
            self.connector.get_external_cache_hit_sources(request, external)

    def _reserved_blocks(self) -> int:
        """Blocks that requests in the middle of their prefill, or load, still need."""
        size, groups = self.config.block_size, len(self.config.groups)
        return sum(
            max(0, -(-request.num_tokens // size) * groups - sum(map(len, tables.groups)))
            for request in self.inflight_prefills
            if (tables := self.blocks.tables.get(request.request_id)) is not None
        )

    # -- after a step is decided ---------------------------------------------------------------

    def _output(self, plan: StepPlan) -> SchedulerOutput:
        resumed = [entry for entry in plan.admitted if entry.request.num_preemptions]
        as_new = plan.admitted if self.config.runner == 2 else [e for e in plan.admitted if e not in resumed]
        new = [
            NewRequestData(
                entry.request.request_id,
                list(entry.request.spec.prompt),
                entry.tables.get_block_ids(),
                entry.computed,
            )
            for entry in as_new
        ]
        cached = CachedRequestData()
        for request in plan.continued:
            cached.req_ids.append(request.request_id)
            blocks = plan.new_blocks[request.request_id]
            cached.new_block_ids.append(tuple(list(b) for b in blocks) if any(blocks) else None)
            cached.num_computed_tokens.append(request.num_computed_tokens)
            cached.num_output_tokens.append(request.num_output_tokens)
        for entry in resumed if self.config.runner == 1 else ():
            cached.req_ids.append(entry.request.request_id)
            cached.resumed_req_ids.add(entry.request.request_id)
            cached.new_block_ids.append(entry.tables.get_block_ids())
            cached.num_computed_tokens.append(entry.computed)
            cached.num_output_tokens.append(entry.request.num_output_tokens)
        plan.fresh = self.blocks.take_fresh()
        zero = [b for b in plan.fresh if b not in plan.async_targets] if self.config.zero_new_blocks else None
        return SchedulerOutput(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=dict(plan.counts),
            total_num_scheduled_tokens=sum(plan.counts.values()),
            scheduled_spec_decode_tokens={k: [-1] * v for k, v in plan.drafts.items()},
            finished_req_ids=self.finished_req_ids,
            preempted_req_ids=self.preempted_req_ids,
            has_sync_kv_loads=plan.has_sync_loads,
            new_block_ids_to_zero=zero or None,
        )

    def _after_schedule(self, plan: StepPlan) -> None:
        for request_id, count in plan.counts.items():
            request = self.requests[request_id]
            request.num_computed_tokens += count
            request.num_in_flight_tokens += count
            if self.defers_frees:
                request.last_sched_seq = self.sched_step_seq
            placeholders = request.num_output_placeholders
            request.is_prefill_chunk = request.num_computed_tokens < request.num_tokens + placeholders
            request.num_draft_tokens = 0
            if not request.is_prefill_chunk:
                plan.sampling.add(request_id)
                self.forget_prefill(request)
                if self.config.async_scheduling:
                    request.num_output_placeholders += 1 + plan.drafts.get(request_id, 0)
                    request.num_draft_tokens = self.config.spec_tokens
        self.finished_req_ids = set()
        self.preempted_req_ids = set()

    # -- freeing -------------------------------------------------------------------------------

    def blocks_can_be_freed(self, request: SimRequest) -> bool:
        """Whether no step under way may still write the request's blocks."""
        return not self.defers_frees or request.last_sched_seq <= self.processed_step_seq

    def free_request_blocks(self, request: SimRequest) -> None:
        """Give a request's blocks back, now or when the steps under way have come back."""
        blocks = self.blocks.take(request.request_id)
        for block in blocks:
            if self.shadow.load_rights.get(block) == request.request_id:
                del self.shadow.load_rights[block]
        if self.blocks_can_be_freed(request):
            self.blocks.block_pool.free(blocks)
        elif blocks:
            self.deferred_frees.append((self.sched_step_seq, blocks))

    def forget_prefill(self, request: SimRequest) -> None:
        """The request isn't in the middle of its prefill any more."""
        if request in self.inflight_prefills:
            self.inflight_prefills.remove(request)

    def _own(self, request: SimRequest) -> None:
        for table in self.blocks.tables[request.request_id].groups:
            self.shadow.owners.update(dict.fromkeys(table, request.request_id))
