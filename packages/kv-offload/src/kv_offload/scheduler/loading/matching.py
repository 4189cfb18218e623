"""Promises and loads: how far a request can be loaded, and the job for what the engine then allocated.

From the first query of a step to ``build_connector_meta`` the manager is locked, and stores, which alone evict,
are planned at the end of that time: so nothing leaves between a promise and its load. Every chunk is looked up
once more all the same. If one is gone, the load is sent without a source and fails in the workers, and the engine
computes those tokens.
"""

from collections.abc import Mapping, Sequence

from kv_api import CacheHitSource, KVError, LookupResult, OffloadKey, Request
from kv_offload.clock import Clock
from kv_offload.metadata import TransferJob
from kv_offload.metrics import LOOKUP_ASYNC_DELAY, LOOKUP_SYNC_DELAY
from kv_offload.scheduler.loading.answers import Answers
from kv_offload.scheduler.loading.lookup import Match, find_match
from kv_offload.scheduler.loading.plan import LoadPlan, plan_load
from kv_offload.scheduler.loading.tail_lookup import TailAnswers
from kv_offload.scheduler.state.books import Books
from kv_offload.scheduler.state.request_state import Promise, RequestState
from kv_offload.scheduler.state.sources import count_sources
from kv_offload.shape.naming import tail_key


class Matching:
    """Answers queries and begins loads. Keeps nothing of its own."""

    def __init__(self, books: Books, clock: Clock) -> None:
        self._books = books
        self._clock = clock

    def match(self, request: Request, local: int) -> tuple[int | None, bool]:
        """How many tokens beyond ``local`` can be loaded, and whether asynchronously. None: ask again later."""
        books = self._books
        state = books.states.get(request.request_id) or books.begin_life(request)
        if request.request_id in books.agenda:
            books.lose_blocks(state)
        state.progress.rewind()
        state.promise = Promise(local, 0)
        skips = getattr(request, "skip_reading_prefix_cache", False)
        if skips or not books.engine.can_load or state.loads:
            return 0, False
        match = self._answer(state, local)
        if match is None:
            return None, False
        tokens = match.boundary - local
        in_step = tokens > 0 and self._charge_step(local, match.boundary)
        state.promise = Promise(local, tokens, in_step, match.is_tail)
        return tokens, tokens > 0 and not in_step

    def _answer(self, state: RequestState, local: int) -> Match | None:
        """How far the request can be loaded. None: it pays to ask again later.

        The engine asks about a waiting request in each step. As long as the chunk that it waits for isn't there,
        the medium is asked for that chunk alone.
        """
        began = self._clock()
        match = self._unchanged(state, local) or self._ask(state, local)
        now = self._clock()
        self._books.stats.observe(LOOKUP_SYNC_DELAY, now - began)
        if match.waits:
            state.deferrals += 1
            state.awaited = None if match.awaited is None else (local, match.awaited)
            if state.deferred_since is None:
                state.deferred_since = began
            return None
        self.end_deferral(state, now)
        return match

    def _unchanged(self, state: RequestState, local: int) -> Match | None:
        """The last answer once more, if that was to wait for a chunk which still isn't readable."""
        since, key = state.awaited or (local, None)
        if key is None or since != local or not self._may_wait(state):
            return None
        if self._books.manager.lookup(key, state.context) is not LookupResult.HIT_PENDING:
            return None
        return Match(local, waits=True, awaited=key)

    def _ask(self, state: RequestState, local: int) -> Match:
        """How far the request can be loaded, as the medium says now.

        Never to its very end: something has to be computed anyway, and what a window or a state needs for the
        last token lies before it.
        """
        layout = self._books.layout
        limit = wanted = state.request.num_tokens - 1
        if state.max_load_tokens is not None and local + state.max_load_tokens < limit:
            wanted = local + state.max_load_tokens
            limit = wanted // layout.grain_tokens * layout.grain_tokens
        first = self._ask_for_the_first(state, local, limit)
        if LookupResult.MISS in first.values():
            return Match(local)
        return self._ask_for_all(state, local, limit, wanted, first)

    def _ask_for_the_first(self, state: RequestState, local: int, limit: int) -> dict[int, LookupResult]:
        """The answer for the first chunk that would be loaded, if it isn't there, and where it decides.

        That is where a request's only group reads all tokens: if the chunk is missing, nothing can be loaded, and
        no other chunk needs a name yet.
        """
        (progress, *others) = state.progress.groups
        chunk = local // progress.group.tokens_per_chunk
        if others or not progress.group.reads_all or progress.group.chunks_needed(local, limit).stop <= chunk:
            return {}
        state.progress.extend_keys(state.request, (chunk + 1) * progress.group.tokens_per_chunk)
        if chunk >= len(progress.keys):
            return {chunk: LookupResult.MISS}
        answer = self._books.manager.lookup(progress.keys[chunk], state.context)
        return {} if answer is LookupResult.HIT else {chunk: answer}

    def _ask_for_all(
        self, state: RequestState, local: int, limit: int, wanted: int, known: Mapping[int, LookupResult]
    ) -> Match:
        """Ask the medium: for complete chunks up to ``limit``, for a tail up to ``wanted``."""
        books, request, layout = self._books, state.request, self._books.layout
        state.progress.extend_keys(request)
        answers = [
            Answers(books.manager, state.context, progress.keys, state.refused, known)
            for progress in state.progress.groups
        ]
        tails = None
        if layout.has_tails:
            most = min(wanted, request.num_prompt_tokens - 1)
            hashes, stored = request.block_hashes, books.jobs.is_being_stored
            tails = TailAnswers(books.manager, state.context, layout, hashes, most, state.refused, stored)
        return find_match(layout.groups, answers, local, limit, may_wait=self._may_wait(state), tails=tails)

    def _may_wait(self, state: RequestState) -> bool:
        return state.deferrals < self._books.engine.options.max_deferred_lookups

    def end_deferral(self, state: RequestState, now: float) -> None:
        """The request no longer waits for an answer."""
        state.awaited = None
        if state.deferred_since is not None:
            self._books.stats.observe(LOOKUP_ASYNC_DELAY, now - state.deferred_since)
            state.deferred_since = None

    def _charge_step(self, local: int, boundary: int) -> bool:
        """Charge the budget of what a step loads itself, if it may load this. Whether it does.

        Never with several groups, windows or states, where no engine can recompute a load of the step that fails.
        """
        books = self._books
        budget = books.engine.options.sync_load_budget_bytes
        if not budget or books.engine.fails_requests:
            return False
        (group,) = books.layout.groups
        size = len(group.blocks_to_load(local, boundary)) * books.engine.config.worker_kv_bytes_per_block
        if books.in_step_bytes + size > budget:
            return False
        books.in_step_bytes += size
        return True

    def begin_load(self, state: RequestState, tables: Sequence[Sequence[int]], tokens: int) -> None:
        """Load ``tokens`` of what was promised, or fewer, into the blocks of ``tables``."""
        books, promise = self._books, state.promise
        if tokens > promise.tokens:
            raise KVError(
                f"request {state.context.req_id}: the engine loads {tokens} tokens, but "
                f"get_num_new_matched_tokens promised {promise.tokens}"
            )
        boundary = promise.local + tokens
        tail_hashes = state.request.block_hashes if promise.is_tail and tokens == promise.tokens else None
        plan = plan_load(books.layout, state.progress, tables, promise.local, boundary, tail_hashes)
        job = TransferJob(state.context.req_id, None, plan.gpu_spec, sync=promise.in_step)
        pinned: Sequence[OffloadKey] = ()
        if self._confirm(state, plan):
            job.src_spec = books.manager.prepare_load(plan.keys, state.context)
            pinned = plan.keys
        for progress, chunks in zip(state.progress.groups, plan.chunks, strict=True):
            progress.loaded = chunks
            books.events.note(state.request, progress.group, chunks, progress.keys)
            if tail_hashes is not None:
                tail = tail_key(books.layout, progress.group, tail_hashes, boundary)
                books.events.note_tail(state.request, progress.group, boundary, tail)
        state.progress.loaded_tail = boundary if tail_hashes is not None else 0
        state.supplies = plan.supplies
        begun = books.jobs.begin_load(state, pinned, plan.block_ids, is_async=not promise.in_step)
        books.meta.load_jobs[begun.job_id] = job

    def _confirm(self, state: RequestState, plan: LoadPlan) -> bool:
        """Whether what was promised can still be loaded; what is gone is not promised to this request again."""
        if not plan.is_possible:
            state.refused.update(plan.keys)
            return False
        manager, context = self._books.manager, state.context
        if manager.lookup_prefix(plan.keys, context).hits == len(plan.keys):
            return True
        gone = [key for key in plan.keys if manager.lookup(key, context) is not LookupResult.HIT]
        state.refused.update(gone)
        return not gone

    def sources(self, state: RequestState, tokens: int) -> dict[CacheHitSource, int]:
        """Where the tokens of the last load come from."""
        ask, context = self._books.manager.get_load_source, state.context
        supplied = [part for supply in state.supplies for part in supply.by_source(lambda key: ask(key, context))]
        return count_sources(range(state.promise.local, state.promise.local + tokens), supplied)
