"""Stores: when what is offered, and what follows from who has which blocks.

Where a fence protects a block (see ``describe``), chunks are stored as they become complete, and a block that
somebody else gets while a job uses it has the job in ``jobs_to_flush`` of that step. Otherwise a request is stored
when it has ended, and its blocks are held meanwhile.

For lack of room the beginning of an offer is stored, as much as fits; the rest is offered again after 1, 2, 4, …
of the request's steps, and a last time when it ends.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from kv_api import BlockIds, SchedulerOutput
from kv_offload.books import Books
from kv_offload.fresh import fresh_blocks, tables_of_step
from kv_offload.jobs import JobKind
from kv_offload.metadata import TransferJob
from kv_offload.metrics import ALLOCATION_FAILURE
from kv_offload.progress import Horizon, Offer
from kv_offload.request_state import RequestState
from kv_offload.stores import gpu_spec, in_batches, job_order


class Storing:
    """Plans stores and fences. Keeps nothing of its own."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def follow_blocks(self, output: SchedulerOutput, preempted: Iterable[str]) -> None:
        """Learn who has which blocks from this step on, and who must wait for whom."""
        books = self._books
        for request_id in preempted:
            if request_id in books.states:
                books.states[request_id].progress.lose_blocks()
        tables = [
            (books.states[request_id], tables, is_whole)
            for request_id, tables, is_whole in tables_of_step(output)
            if request_id in books.states
        ]
        for state, blocks, is_whole in tables:
            books.fresh |= fresh_blocks(books.layout, blocks, state.promise.local if is_whole else 0)
        copies: Sequence[Any] = getattr(output, "kv_cache_block_copies", None) or ()
        books.fresh.update(copy.dst_block_id for copy in copies)
        if books.fresh and not books.layout.reads_back_only:
            for state in books.states.values():
                state.progress.vacate(books.fresh)
        for state, blocks, is_whole in tables:
            if is_whole:
                state.progress.begin(blocks)
            else:
                state.progress.append(blocks)
        books.meta.jobs_to_flush.update(books.jobs.touching(books.fresh))

    def store_what_is_computed(self, output: SchedulerOutput) -> None:
        """Store chunks that are complete when this step has run.

        Tokens count that are known: what was computed beyond them rests on drafts, which may be rejected.
        """
        states = self._books.states
        for request_id, count in output.num_scheduled_tokens.items():
            state = states.get(request_id)
            if state is None or state.request.num_computed_tokens + count < state.progress.next_end:
                continue
            if state.steps_to_skip:
                state.steps_to_skip -= 1
            else:
                known = min(state.request.num_computed_tokens + count, state.request.num_tokens)
                self._store(state, known, is_final=False)

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

    def _limit(self, state: RequestState) -> int:
        return state.store_limit(prompt_only=self._books.engine.options.offload_prompt_only)

    def _store(self, state: RequestState, known: int, *, is_final: bool) -> bool:
        """Offer what is complete within ``known`` tokens. Returns whether anything is stored."""
        progress, request = state.progress, state.request
        limit, prompt = self._limit(state), request.num_prompt_tokens
        tokens = min(known, limit)
        is_open = tokens == known > prompt and not is_final
        horizon = Horizon(tokens, tokens - is_open, prompt)
        progress.extend_keys(request, state.context)
        offers = progress.offers(horizon, with_loaded=state.offers_loaded)
        left: list[Offer] = []
        begun = False
        for batch in in_batches(self._books.layout, offers):
            taken, is_begun = self._offer(state, batch, is_final=is_final)
            left += batch[taken:]
            begun |= is_begun
        progress.pass_over(horizon, left)
        progress.stop_at(limit, known)
        if left:
            state.refuse_store()
        else:
            state.accept_store()
        return begun

    def _offer(self, state: RequestState, batch: list[Offer], *, is_final: bool) -> tuple[int, bool]:
        """Offer a batch, or as much of its beginning as there is room for.

        Returns how many chunks are settled, and whether any of them is stored.
        """
        books = self._books
        count, output = len(batch), None
        offers: list[Offer] = []
        while count and output is None:
            offers = job_order(batch[:count])
            output = books.manager.prepare_store([offer.key for offer in offers], state.context)
            if output is None:
                books.stats.increase(ALLOCATION_FAILURE)
                count //= 2
        if output is None or not output.keys_to_store:
            return count, False
        wanted = set(output.keys_to_store)
        chosen = [offer for offer in offers if offer.key in wanted]
        source = gpu_spec(books.layout, chosen, output.keys_to_store)
        job = books.jobs.begin(
            JobKind.STORE,
            state,
            output.keys_to_store,
            blocks=source.block_ids,
            end_token=max(offer.end_token for offer in chosen),
        )
        for offer in chosen:
            books.events.note(state.request, books.layout.groups[offer.place], offer.chunk, offer.key)
        books.meta.store_jobs[job.job_id] = TransferJob(
            state.context.req_id,
            source,
            output.store_spec,
            is_held=is_final and books.engine.holds_blocks,
            is_computed=is_final,
        )
        return count, True
