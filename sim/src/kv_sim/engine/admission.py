"""Admission: what happens to waiting requests when a step is scheduled.

Requests with blocks (those with an announced load, and sessions) come before those without. Each of the others is
matched against the prefix cache, then against the connector, and gets its blocks; then it runs, or waits for its
load. A session that goes on isn't matched: it has blocks and gets more. A session that waits for its next turn
counts as a running request. A request that can't go on now is skipped and keeps its position in the queue; if a
request finds no room, admission ends for this step. A paused engine admits only requests with blocks.
"""

from collections import deque
from enum import Enum, auto
from typing import NamedTuple

from kv_sim.engine.blocks import Tables
from kv_sim.engine.pause import Pause
from kv_sim.engine.plan import StepPlan
from kv_sim.engine.queues import Queues
from kv_sim.engine.request import SimRequest, Status


class Admitted(Enum):
    """The result of trying to admit a waiting request."""

    RUNS = auto()
    LATER = auto()
    """Not in this step: it waits for the connector's answer, or for its load. Later requests may be admitted."""
    NO_ROOM = auto()
    """Neither it nor later requests are admitted, for lack of blocks or budget."""


class Match(NamedTuple):
    """A request's hit on the GPU, and the connector's."""

    hit: tuple[list[int], ...]
    """The blocks of the hit on the GPU, by group."""
    local: int
    """Tokens of the hit on the GPU."""
    external: int
    """Tokens to load."""
    is_async: bool


class Admission:
    """The waiting half of a scheduler."""

    def __init__(self, queues: Queues) -> None:
        self._state = queues

    def schedule(self, plan: StepPlan) -> None:
        """Admit or park waiting requests until the budget, the places or the blocks run out."""
        skipped: deque[SimRequest] = deque()
        skipped_holding: deque[SimRequest] = deque()

        def skip(queue: deque[SimRequest]) -> None:
            request = queue.popleft()
            holds = request.request_id in self._state.blocks.tables
            (skipped_holding if holds else skipped).appendleft(request)

        places = self._state.config.max_running - self._state.num_paused
        while plan.budget > 0 and self._state.num_running < places:
            queue = self._state.holding
            if not queue and self._state.pause is Pause.NONE:
                queue = self._state.waiting
            if not queue:
                break
            request = queue[0]
            if not self._make_ready(request) or (
                request.num_stale_output_tokens and not request.drop_stale_output
            ):
                skip(queue)
                continue
            if queue is self._state.holding and request.request_id not in self._state.blocks.tables:
                # Its load failed, and it has no blocks any more. vLLM leaves it in this queue; if it finds no
                # room, the requests behind it can't go on either, although their loads have ended.
                self._state.waiting.appendleft(queue.popleft())
                continue
            admitted = self._admit(plan, request)
            if admitted is Admitted.NO_ROOM:
                break
            if admitted is Admitted.RUNS:
                queue.popleft()
            else:
                skip(queue)
        self._state.holding.extendleft(skipped_holding)
        self._state.waiting.extendleft(skipped)

    def _make_ready(self, request: SimRequest) -> bool:
        """Take in the end of a waiting request's load, if it was reported. False: it can't be scheduled."""
        if request.status is not Status.WAITING_FOR_REMOTE_KVS:
            return request.status is not Status.WAITING_FOR_STREAMING_REQ
        if request.request_id not in self._state.loaded:
            return False
        self._state.loaded.remove(request.request_id)
        if request.request_id in self._state.failed_loads:
            self._state.failed_loads.remove(request.request_id)
            # If it stayed among the requests in prefill, as in vLLM, it would reserve blocks against its own next
            # load.
            self._state.forget_prefill(request)
            if not request.num_computed_tokens:
                self._state.blocks.free(request.request_id)
        if request.num_computed_tokens:
            self._state.blocks.cache_blocks(request, request.num_computed_tokens)
        if request.num_computed_tokens == request.num_tokens:
            request.num_computed_tokens -= 1
        request.status = Status.PREEMPTED if request.num_preemptions else Status.WAITING
        return True

    def _admit(self, plan: StepPlan, request: SimRequest) -> Admitted:
        """Match a waiting request and give it blocks."""
        hit: tuple[list[int], ...] | None = None
        external, is_async, computed = 0, False, request.num_computed_tokens
        if computed == 0:
            match = self._match(plan, request)
            if match is None:
                return Admitted.LATER
            hit, external, is_async = match.hit, match.external, match.is_async
            computed = match.local + external
        count = 0 if is_async else self._tokens_to_run(plan, request, computed)
        if count is None:
            return Admitted.NO_ROOM
        count = self._state.cut(request, computed, count)
        request_id, total = request.request_id, computed + count
        reserved, vllms = self._reserved_blocks() if is_async else (0, 0)
        if is_async:
            self._state.connector.get_loaded_kv_cache_group_ids(request)
        if not self._state.blocks.fits_whole(request_id, request.num_tokens, computed, hit):
            return Admitted.NO_ROOM
        self._state.blocks.drop_passed(request_id, computed - request.num_in_flight_tokens)
        if not self._state.blocks.allocate(
            request_id, total, computed_tokens=computed, hit=hit, reserved=reserved
        ):
            plan.keeps_room |= reserved > vllms
            return Admitted.NO_ROOM
        self._state.own(request)
        if not is_async:
            self._state.blocks.cache_blocks(request, total)
        self._announce(plan, request, computed - external, external, is_async=is_async)
        if is_async:
            request.status = Status.WAITING_FOR_REMOTE_KVS
            request.num_computed_tokens = computed
            self._state.note_prefill(request)
            return Admitted.LATER
        plan.admit(request, computed, count, self._state.blocks.tables[request_id])
        plan.has_sync_loads |= external > 0
        self._state.running.append(request)
        request.status = Status.RUNNING
        request.num_computed_tokens = computed
        if computed + count < request.num_tokens:
            self._state.note_prefill(request)
        return Admitted.RUNS

    def _match(self, plan: StepPlan, request: SimRequest) -> Match | None:
        """Find a request's hits, on the GPU and at the connector. None: ask the connector again.

        A hit on the GPU may end within a block. The connector is told only its full blocks; if the connector's hit
        reaches beyond the end of the GPU's, it is loaded, and the partly filled block isn't copied.
        """
        hit, local = self._local_hit(request)
        end = local % self._state.config.block_size
        answer, is_async = self._state.connector.get_num_new_matched_tokens(request, local - end)
        if request.spec.skip_reading_prefix_cache:
            answer, is_async = 0, False
        if answer is None:
            return None
        if not end:
            return Match(hit, local, answer, is_async)
        plan.ends.append((end, answer))
        if answer > end:
            return Match(tuple(table[:-1] for table in hit), local - end, answer, is_async)
        return Match(hit, local, 0, False)

    def _tokens_to_run(self, plan: StepPlan, request: SimRequest, computed: int) -> int | None:
        """How many tokens the request computes first. None: a padded decode doesn't fit, which ends admission.

        With drafts a request that begins with one token is padded to the size of a decode, so that the step
        keeps one shape.
        """
        count = request.num_tokens - computed
        assert count > 0, f"{request}: nothing to compute after {computed} tokens"
        padded = 1 + self._state.config.spec_tokens
        begins_as_decode = count == 1 and padded > 1 and not plan.has_prefill and (plan.continued or computed)
        if begins_as_decode and computed + padded + 1 <= self._state.config.max_model_len:
            plan.padded[request.request_id] = padded - 1
            return padded if padded <= plan.budget else None
        return min(count, plan.budget)

    def _local_hit(self, request: SimRequest) -> tuple[tuple[list[int], ...], int]:
        if request.spec.skip_reading_prefix_cache:
            return tuple([] for _ in self._state.config.groups), 0
        return self._state.blocks.find_hit(request.known_block_hashes, request.num_tokens - 1)

    def _announce(self, plan: StepPlan, request: SimRequest, local: int, external: int, *, is_async: bool) -> None:
        """Tell the connector of the allocation; give its load the right to write."""
        tables = self._state.blocks.tables[request.request_id]
        if external:
            tokens, step = range(local, local + external), None if is_async else self._state.num_steps
            config = self._state.config
            parts = [group.parts for group in config.groups]
            targets = self._state.shadow.expect_load(
                request.request_id, tables.groups, tokens, config.block_size, step, parts
            )
            plan.load(request, targets, is_async=is_async)
            request.awaits_load = is_async
        # The tables themselves: who keeps them sees how they change, as in vLLM.
        self._state.connector.update_state_after_alloc(request, Tables(tables.groups), external)
        if external and not request.num_preemptions:  # hits are counted once for each request
            self._state.connector.get_external_cache_hit_sources(request, external)

    def _reserved_blocks(self) -> tuple[int, int]:
        """Blocks that requests in the middle of a prefill or load still need, and room for a step of drafts.

        The second number is vLLM's. It subtracts the null blocks before a window from the window's limit, so with
        several groups it admits loads that leave no room for the requests before them, and none of them ever goes
        on. Here a request needs never fewer than for its next chunk.
        """
        config = self._state.config
        decode = 1 + config.spec_tokens if config.spec_tokens else 0
        drafts = sum(-(-decode // config.tokens_of(group)) for group in range(len(config.groups)))
        needs = [self._still_needed(request, decode) for request in self._state.inflight_prefills]
        return sum(map(max, needs)) + drafts, sum(rest for rest, _ in needs) + drafts

    def _still_needed(self, request: SimRequest, decode: int) -> tuple[int, int]:
        """The blocks that a request still needs, as vLLM counts them, and for its next chunk."""
        blocks, computed = self._state.blocks, request.num_computed_tokens
        tables, total = blocks.tables_of(request.request_id).groups, request.num_tokens + decode
        chunk = min(total, computed + self._state.config.max_step_tokens)
        rest = blocks.blocks_to_allocate(tables, total, computed, whole=True)
        return rest, blocks.blocks_to_allocate(tables, chunk, computed)
