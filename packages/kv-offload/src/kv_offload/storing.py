"""Stores: when what is offered, and what follows from who has which blocks.

Where a fence protects a block (see ``describe``), chunks are stored as they become complete, and a block that
somebody else gets while a job uses it has the job in ``jobs_to_flush`` of that step. Otherwise a request is stored
when it has ended, and its blocks are held meanwhile.

For lack of room the beginning of an offer is stored, as much as fits; the rest is offered again after 1, 2, 4, …
steps, and a last time when it ends.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from kv_api import BlockIds, PrepareStoreOutput, SchedulerOutput
from kv_offload.books import Books
from kv_offload.fresh import Tables, fresh_blocks, tables_of_step
from kv_offload.metadata import TransferJob
from kv_offload.metrics import ALLOCATION_FAILURE
from kv_offload.request_state import RequestState
from kv_offload.stores import Batch, beginning, chosen, in_batches, keys_of, source_of

Got = tuple[RequestState, Tables]
"""A request, and the blocks that it got."""


class Storing:
    """Plans stores and fences. Keeps nothing of its own that changes."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._is_prompt_only = books.engine.options.offload_prompt_only
        self._holds_blocks = books.engine.holds_blocks

    def follow_blocks(self, output: SchedulerOutput, preempted: Iterable[str]) -> None:
        """Learn who has which blocks from this step on, and who must wait for whom."""
        books, states = self._books, self._books.states
        for request_id in preempted:
            if request_id in states:
                books.lose_blocks(states[request_id])
        told, told_more = tables_of_step(output)
        whole = [(states[request_id], blocks) for request_id, blocks in told if request_id in states]
        more = [(states[request_id], blocks) for request_id, blocks in told_more if request_id in states]
        for state, _ in whole:
            books.jobs.release(state)
        if books.jobs.is_watching or not books.layout.reads_back_only:
            self._follow_fresh(output, whole, more)
        for state, blocks in whole:
            state.progress.begin(blocks)
            books.agenda.put(state.context.req_id, books.agenda.step)
        for state, blocks in more:
            state.progress.append(blocks)
            if books.agenda.step_of(state.context.req_id) is None:
                books.agenda.put(state.context.req_id, books.agenda.step)

    def _follow_fresh(self, output: SchedulerOutput, whole: list[Got], more: list[Got]) -> None:
        """Learn which blocks somebody may write, and fence them."""
        books, fresh = self._books, self._books.fresh
        for state, blocks in whole:
            fresh |= fresh_blocks(books.layout, blocks, state.promise.local)
        for _, blocks in more:
            fresh.update(*blocks)
        fresh.discard(0)
        copies: Sequence[Any] = getattr(output, "kv_cache_block_copies", None) or ()
        fresh.update(copy.dst_block_id for copy in copies)
        if fresh and not books.layout.reads_back_only:
            for state in books.states.values():
                state.progress.vacate(fresh)
        books.meta.jobs_to_flush.update(books.jobs.touching(fresh))

    def store_what_is_computed(self, output: SchedulerOutput) -> None:
        """Store chunks that are complete when this step has run.

        Tokens count that are known: what was computed beyond them rests on drafts, which may be rejected.
        """
        states, counts = self._books.states, output.num_scheduled_tokens
        for request_id in self._books.agenda.take(counts):
            state = states.get(request_id)
            if state is not None:
                self._look(state, state.request.num_computed_tokens + counts[request_id])

    def _look(self, state: RequestState, computed: int) -> None:
        """Store what is complete after ``computed`` tokens, and say when to look again."""
        agenda, progress = self._books.agenda, state.progress
        this_step = agenda.step - 1
        if computed >= progress.next_end and this_step >= state.retry_step:
            self._store(state, min(computed, state.request.num_tokens), is_final=False)
        agenda.put(state.context.req_id, max(this_step + progress.next_end - computed, state.retry_step))

    def store_at_end(self, state: RequestState, block_ids: BlockIds) -> bool:
        """Store what was not stored before. Returns whether that is anything.

        What is loading was not computed, so the blocks of a request that loads have nothing new. The last token
        was sampled and never computed, or computed by drafts.
        """
        if state.loads or not self._books.engine.can_store:
            return False
        if self._books.engine.holds_blocks:
            state.progress.begin(block_ids)
        else:
            state.progress.end(block_ids)
        request = state.request
        return self._store(state, min(request.num_computed_tokens, request.num_tokens - 1), is_final=True)

    def _store(self, state: RequestState, known: int, *, is_final: bool) -> bool:
        """Offer what is complete within ``known`` tokens. Returns whether anything is stored."""
        progress, request = state.progress, state.request
        prompt, limit = request.num_prompt_tokens, state.max_offload_tokens
        limit = sys.maxsize if limit is None else limit
        if self._is_prompt_only:
            limit = min(limit, prompt)  # which may still grow
        tokens = min(known, limit)
        is_open = tokens == known > prompt and not is_final
        progress.extend_keys(request)
        stops = progress.stops(tokens, tokens - is_open)
        ends = (prompt, tokens)
        if self._books.layout.retention_tokens is not None:
            ends = (min(prompt, limit), min(getattr(request, "shared_prefix_boundary", 0), limit))
        offers = progress.offers(stops, ends, with_loaded=state.offers_loaded)
        left: dict[int, int] = {}
        is_begun = False
        for batch in in_batches(self._books.layout, offers):
            settled, is_stored = self._offer(state, batch, is_final=is_final)
            is_begun |= is_stored
            if settled is not batch:
                _note_left(left, batch, settled)
        progress.pass_over(stops, left)
        progress.stop_at(limit, known)
        if left:
            state.refuse_store(self._books.agenda.step)
        elif state.store_refusals:
            state.accept_store()
        return is_begun

    def _offer(self, state: RequestState, batch: Batch, *, is_final: bool) -> tuple[Batch, bool]:
        """Offer a batch, or as much of its beginning as there is room for.

        Returns the chunks that are settled, and whether any of them is stored.
        """
        books = self._books
        offered, keys = batch, keys_of(state.progress, batch)
        while (output := books.manager.prepare_store(keys, state.context)) is None:
            books.stats.increase(ALLOCATION_FAILURE)
            offered = beginning(books.layout, offered, len(keys) // 2)
            keys = keys_of(state.progress, offered)
            if not keys:
                return offered, False
        if not output.keys_to_store:
            return offered, False
        wanted = offered if output.keys_to_store == keys else chosen(state.progress, offered, output.keys_to_store)
        self._begin(state, wanted, output, is_final=is_final)
        return offered, True

    def _begin(self, state: RequestState, batch: Batch, output: PrepareStoreOutput, *, is_final: bool) -> None:
        """Begin a job for what the medium made room for."""
        books = self._books
        source = source_of(state.progress, batch)
        job = books.jobs.begin_store(state, output.keys_to_store, source.blocks, source.end_token)
        if is_final or not books.layout.reads_back_only:
            books.jobs.release(state)
        if books.events.is_describing:
            for progress, chunks in zip(state.progress.groups, batch, strict=True):
                for chunk in chunks:
                    books.events.note(state.request, progress.group, chunk, progress.keys[chunk])
        books.meta.store_jobs[job.job_id] = TransferJob(
            state.context.req_id, source.spec, output.store_spec, False, is_final and self._holds_blocks, is_final
        )


def _note_left(left: dict[int, int], batch: Batch, settled: Batch) -> None:
    """Note the first chunk of each group that is not settled."""
    for place, (chunks, ended) in enumerate(zip(batch, settled, strict=True)):
        if len(ended) < len(chunks):
            left[place] = min(chunks[len(ended)], left.get(place, chunks[len(ended)]))
