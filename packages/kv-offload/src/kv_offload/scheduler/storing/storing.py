"""Stores: which chunks are offered, and when; and which jobs have to end before a block gets a new owner.

If a fence can protect blocks (see ``describe``), chunks are stored as they become complete. If another request
gets a block while a job uses it, the job is among the ``jobs_to_flush`` of that step. Without fences a request is
stored when it has ended, and its blocks are held meanwhile. With ``store_when: evicted`` it leaves its chunks in
its blocks instead, and these are stored when the engine's pool is about to reuse the blocks (``evictions``).

The chunks that a step completes are planned request by request, offered to the medium all together, and then
stored. If there is no room for an offer, it is halved until its beginning fits, and the rest is offered again
later: whenever a job ends, by the request that has waited longest; by each request after passing over 1, 2, 4, …
steps; and a last time when the request ends.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from kv_api import BlockIds, OffloadKey, PrepareStoreOutput, SchedulerOutput
from kv_offload.metadata import TransferJob
from kv_offload.metrics import ALLOCATION_FAILURE
from kv_offload.scheduler.state.books import Books
from kv_offload.scheduler.state.evictions import NO_REQUEST, Evictions, detached
from kv_offload.scheduler.state.fresh import StepTables, tables_of_step
from kv_offload.scheduler.state.request_state import RequestState
from kv_offload.scheduler.storing.batches import (
    Batch,
    Plan,
    Progressed,
    beginning,
    blocks_of,
    chosen,
    in_batches,
    keys_of,
)
from kv_offload.shape.reach import Ends


class Storing:
    """Plans stores and fences. Keeps nothing of its own that changes."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._is_prompt_only = books.engine.options.offload_prompt_only
        self._holds_blocks = books.engine.holds_blocks

    def follow_blocks(self, output: SchedulerOutput, preempted: Iterable[str]) -> None:
        """Learn which blocks each request has from this step on, and which jobs must be waited for."""
        books, states = self._books, self._books.states
        for request_id in preempted:
            if request_id in states:
                state = states[request_id]
                # Chunks that aren't computed are left, too, and never stored: their last blocks have no hash.
                self._leave(state, state.request.num_tokens)
                books.lose_blocks(state)
        told = tables_of_step(output, states)
        for state, _ in told.whole:
            books.jobs.release(state)
        if books.jobs.is_watching or books.block_index is not None or books.evictions is not None:
            self._follow_fresh(output, told)
        for state, blocks in told.whole:
            state.progress.begin(blocks)
            books.agenda.put(state.context.req_id, books.agenda.step)
        through = books.agenda.through
        for request_id, blocks in told.more:
            if request_id not in through and request_id in states:
                states[request_id].progress.append(blocks)
                if request_id not in books.agenda:
                    books.agenda.put(request_id, books.agenda.step)

    def _follow_fresh(self, output: SchedulerOutput, told: StepTables[RequestState]) -> None:
        """Note the blocks that this step may write, and fence them."""
        books, fresh = self._books, self._books.fresh
        for state, blocks in told.whole:
            books.note_fresh(state, blocks)
        for _, blocks in told.more:
            fresh.update(*blocks)
        fresh.discard(0)
        copies: Sequence[Any] = getattr(output, "kv_cache_block_copies", None) or ()
        fresh.update(copy.dst_block_id for copy in copies)
        if books.block_index is not None:
            books.block_index.vacate(fresh)
        if books.evictions is not None:
            books.evictions.vacate(fresh)
        books.meta.jobs_to_flush.update(books.jobs.touching(fresh))

    def store_what_is_due(self, output: SchedulerOutput) -> None:
        """Store what this step completes; with ``evicted``, what is in the blocks that the engine evicts next."""
        if self._books.evictions is None:
            self._store_what_is_computed(output)
        else:
            self._store_what_is_evicted(self._books.evictions)

    def _store_what_is_computed(self, output: SchedulerOutput) -> None:
        """Store chunks that are complete when this step has run.

        Only known tokens count: those computed beyond depend on drafts, which may be rejected.
        """
        books, counts = self._books, output.num_scheduled_tokens
        looks: list[tuple[RequestState, int]] = []
        plans: list[Plan] = []
        for request_id in books.agenda.take(counts):
            state = books.states.get(request_id)
            if state is None:
                continue
            computed = state.request.num_computed_tokens + counts[request_id]
            looks.append((state, computed))
            if computed >= state.progress.next_end and books.agenda.step > state.retry_step:
                plans.append(self._plan(state, min(computed, state.request.num_tokens), is_final=False))
        self._store(plans)
        this_step = books.agenda.step - 1
        for state, computed in looks:
            if state.progress.next_end == sys.maxsize:
                books.agenda.close(state.context.req_id)
            else:
                next_step = this_step + state.progress.next_end - computed
                books.agenda.put(state.context.req_id, max(next_step, state.retry_step))

    def _store_what_is_evicted(self, evictions: Evictions) -> None:
        """Store chunks in blocks that the engine is about to reuse."""
        due = evictions.take_due()
        plans = [
            Plan(state, in_batches(self._books.layout, by_place), None, is_final=True) for state, by_place in due
        ]
        for plan in plans:
            self._books.manager.on_new_request(plan.state.context)
        self._store(plans)
        for plan in plans:
            self._books.manager.on_request_finished(plan.state.context)

    def _leave(self, state: RequestState, known: int) -> None:
        """A request frees its blocks, and leaves its chunks within ``known`` tokens in them."""
        evictions = self._books.evictions
        if evictions is not None:
            left = detached(state, self._books.layout)
            plan = self._plan(left, known, is_final=True)
            if not self._books.events.is_describing:
                left.request = NO_REQUEST
            evictions.leave(left, plan.batches)

    def store_at_end(self, state: RequestState, block_ids: BlockIds) -> bool:
        """Store what was not stored before. Returns whether that is anything.

        A request that is still loading has computed nothing yet, so there is nothing new in its blocks. The last
        token was sampled and never computed, or computed with drafts.
        """
        request = state.request
        known = min(request.num_computed_tokens, request.num_tokens - 1)
        if state.loads or not self._books.engine.can_store or not state.progress.has_more(known):
            return False
        if self._books.engine.holds_blocks:
            state.progress.begin(block_ids)
        else:
            state.progress.end(block_ids)
        if self._books.evictions is not None:
            self._leave(state, known)
            return False
        plan = self._plan(state, known, is_final=True)
        self._store([plan])
        return plan.is_begun

    def _plan(self, state: RequestState, known: int, *, is_final: bool) -> Plan:
        """The chunks of a request that are complete within ``known`` tokens and were not offered yet."""
        progress, request = state.progress, state.request
        prompt, limit = request.num_prompt_tokens, state.max_offload_tokens
        limit = sys.maxsize if limit is None else limit
        if self._is_prompt_only:
            limit = min(limit, prompt)  # which may still grow
        tokens = min(known, limit)
        is_open = tokens == known > prompt and not is_final
        progress.extend_keys(request, tokens)
        stops = progress.stops(tokens, tokens - is_open)
        ends = None
        if not self._books.layout.reaches_all:
            shared = getattr(request, "shared_prefix_boundary", 0)
            ends = Ends(min(prompt, limit), tokens, min(shared, limit))
        offers = progress.offers(stops, ends, with_loaded=state.offers_loaded)
        then = Progressed(stops, limit, known, prompt)
        return Plan(state, in_batches(self._books.layout, offers), then, is_final)

    def _store(self, plans: list[Plan]) -> None:
        """Offer planned chunks in order, and note how far each request has come."""
        offers = [(plan, batch, keys_of(plan.state.progress, batch)) for plan in plans for batch in plan.batches]
        if offers:
            outputs = self._books.prepare_stores([(keys, plan.state.context) for plan, _, keys in offers])
            for place, output in enumerate(outputs):
                self._begin(*offers[place], output)
            if len(outputs) < len(offers):
                plan, batch, keys = offers[len(outputs)]
                self._offer_less(plan, batch, len(keys))
                for plan, batch, keys in offers[len(outputs) + 1 :]:
                    self._offer(plan, batch, keys)
        for plan in plans:
            state, then = plan.state, plan.then
            if then is None:
                continue
            state.progress.pass_over(then.stops, plan.left, then.limit, then.known, then.prompt)
            if plan.left:
                self._books.refuse_store(state)
            elif state.store_refusals:
                self._books.accept_store(state)

    def _offer(self, plan: Plan, batch: Batch, keys: list[OffloadKey]) -> None:
        """Offer a batch by itself."""
        output = self._books.prepare_store(keys, plan.state.context)
        if output is None:
            self._offer_less(plan, batch, len(keys))
        else:
            self._begin(plan, batch, keys, output)

    def _offer_less(self, plan: Plan, batch: Batch, count: int) -> None:
        """There was no room for the ``count`` chunks of a batch: offer half as many until there is."""
        books, progress = self._books, plan.state.progress
        offered = batch
        while True:
            books.stats.increase(ALLOCATION_FAILURE)
            offered = beginning(books.layout, offered, count // 2)
            keys = keys_of(progress, offered)
            count = len(keys)
            output = books.prepare_store(keys, plan.state.context) if keys else None
            if output is not None or not keys:
                break
        _note_left(plan.left, batch, offered)
        if output is not None:
            self._begin(plan, offered, keys, output)

    def _begin(self, plan: Plan, batch: Batch, keys: list[OffloadKey], output: PrepareStoreOutput) -> None:
        """Begin a job for the chunks that the medium made room for, if any."""
        if not output.keys_to_store:
            return
        books, state, is_final = self._books, plan.state, plan.is_final
        if output.keys_to_store != keys:
            batch = chosen(state.progress, batch, output.keys_to_store)
        read = blocks_of(state.progress, batch)
        job = books.jobs.begin_store(state, output.keys_to_store, read.blocks, read.end_token)
        plan.is_begun = True
        if is_final or not books.layout.reads_back_only:
            books.jobs.release(state)
        if books.events.is_describing:
            for progress, chunks in zip(state.progress.groups, batch, strict=True):
                books.events.note(state.request, progress.group, chunks, progress.keys)
        books.meta.store_jobs[job.job_id] = TransferJob(
            state.context.req_id,
            read.gpu_spec,
            output.store_spec,
            is_held=is_final and self._holds_blocks,
            is_computed=is_final,
        )


def _note_left(left: dict[int, int], batch: Batch, settled: Batch) -> None:
    """Note the first chunk of each group that is not settled."""
    for place, (chunks, ended) in enumerate(zip(batch, settled, strict=True)):
        if len(ended) < len(chunks):
            left[place] = min(chunks[len(ended)], left.get(place, chunks[len(ended)]))
