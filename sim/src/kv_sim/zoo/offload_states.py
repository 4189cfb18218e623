"""Bugs planted in kv-offload's handling of states (Mamba) that the engine hands over, and of prompts' tails."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kv_api import AttentionKind, KVCacheConfig, LookupResult, SchedulerOutput, VllmConfig
from kv_offload.describe import EngineDescription
from kv_offload.metadata import OffloadingConnectorMetadata
from kv_offload.scheduler.loading.lookup import Match
from kv_offload.scheduler.loading.matching import Matching
from kv_offload.scheduler.state.books import Books
from kv_offload.scheduler.state.jobs import JobBook
from kv_offload.scheduler.state.request_state import RequestState
from kv_offload.scheduler.storing.boundary_store import Source
from kv_offload.scheduler.storing.handed_states import HandedStates, Offer, Taken, offers_of
from kv_offload.scheduler.storing.tails import Tables, Tails
from kv_offload.shape.naming import tail_key
from kv_sim.offload.host_memory import TimedOffloadingConnector
from kv_sim.zoo.offload import PartedScheduler
from kv_sim.zoo.planted import with_parts

STEPS: Final = 4


class _StoresLate(HandedStates):
    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._late: deque[list[tuple[RequestState, int, Taken]]] = deque([[]] * STEPS)

    def store(self, output: SchedulerOutput) -> None:
        for state, boundary, taken in self._late.popleft():
            if self._books.states.get(state.context.req_id) is state:
                self._begin(state, boundary, taken)
        now = []
        for request_id, offers in offers_of(output).items():
            found = self._books.states.get(request_id)
            if found is not None:
                found.progress.extend_keys(found.request)
                now += [(found, boundary, taken) for boundary, taken in self._taken(found, offers)]
        self._late.append(now)


class StatesStoredAfterTheirPass(TimedOffloadingConnector):
    """A state that the engine hands over is stored some steps later, when its block may be another request's."""

    scheduler_class = with_parts(PartedScheduler, handed_states=_StoresLate)


class _KeepsStates(JobBook):
    def release(self, owner: RequestState) -> None:
        pass


class _StoresUnwatched(HandedStates):
    def _begin(self, state: RequestState, boundary: int, taken: Taken) -> None:
        jobs = self._books.jobs
        watching = type(jobs)
        jobs.__class__ = _KeepsStates
        try:
            super()._begin(state, boundary, taken)
        finally:
            jobs.__class__ = watching


class StatesKeptUntilTheEnd(TimedOffloadingConnector):
    """State blocks count as their request's until it ends, although the request frees them while it runs."""

    scheduler_class = with_parts(PartedScheduler, handed_states=_StoresUnwatched)


class _LeavesTheLast(HandedStates):
    def _taken(self, state: RequestState, offers: Iterable[Offer]) -> list[tuple[int, Taken]]:
        prompt = state.request.num_prompt_tokens
        return [(boundary, taken) for boundary, taken in super()._taken(state, offers) if boundary < prompt]


class LastStatesNotStored(TimedOffloadingConnector):
    """The state at a prompt's end isn't stored, so a longer prompt finds less than it could go on from."""

    scheduler_class = with_parts(PartedScheduler, handed_states=_LeavesTheLast)


class _OfTokens(PartedScheduler):
    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig | None,
        engine: EngineDescription,
        spec: Any,
    ) -> None:
        groups = tuple(group for group in engine.layout.groups if group.kind is not AttentionKind.STATE_SPACE)
        self._left_out = (0,) * (len(engine.layout.groups) - len(groups))
        left = replace(engine, layout=replace(engine.layout, groups=groups))
        super().__init__(vllm_config, kv_cache_config, left, spec)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> OffloadingConnectorMetadata:
        meta = super().build_connector_meta(scheduler_output)
        for job in (*meta.load_jobs.values(), *meta.store_jobs.values()):
            job.gpu_spec.group_sizes += self._left_out  # states are the last groups
            job.gpu_spec.block_indices += self._left_out
        return meta


class StatesLeftOut(TimedOffloadingConnector):
    """Groups of states are neither stored nor loaded, and hits go as far as the other groups say."""

    scheduler_class = _OfTokens


class _GoesOnBetween(Matching):
    def _ask_for_all(
        self, state: RequestState, local: int, limit: int, wanted: int, known: Mapping[int, LookupResult]
    ) -> Match:
        match = super()._ask_for_all(state, local, limit + self._ends_chunks(limit + 1), wanted, known)
        return match._replace(boundary=min(match.boundary, limit))

    def _ends_chunks(self, end: int) -> bool:
        groups = self._books.layout.groups
        has_states = any(group.kind is AttentionKind.STATE_SPACE for group in groups)
        has_one_size = len({group.tokens_per_block for group in groups}) == 1  # else others have no block for it
        return has_states and has_one_size and not any(end % group.tokens_per_chunk for group in groups)

    def begin_load(self, state: RequestState, tables: Sequence[Sequence[int]], tokens: int) -> None:
        if tokens and self._ends_chunks(state.promise.local + tokens + 1):
            state.promise = state.promise._replace(tokens=tokens + 1)
            tokens += 1
        super().begin_load(state, tables, tokens)


class HitsBetweenStates(TimedOffloadingConnector):
    """A prompt that ends with a chunk is found up to its last token, and gets the state that has that token."""

    scheduler_class = with_parts(PartedScheduler, matching=_GoesOnBetween)


class _ChargesStates(Matching):
    def _charge_step(self, local: int, boundary: int) -> bool:
        groups = self._books.layout.groups
        has_states = any(group.kind is AttentionKind.STATE_SPACE for group in groups)
        return has_states or super()._charge_step(local, boundary)


class StatesLoadedInTheStep(TimedOffloadingConnector):
    """States are loaded within the step, when the engine has copied them to where the request goes on."""

    scheduler_class = with_parts(PartedScheduler, matching=_ChargesStates)


class _NamedByTheHashBefore(Tails):
    def _sources(
        self, state: RequestState, boundary: int, states: Mapping[int, int], tables: Tables
    ) -> list[Source]:
        layout, hashes = self._books.layout, state.request.block_hashes
        before = max(boundary - layout.tokens_per_hash, layout.tokens_per_hash)
        return [
            source._replace(key=tail_key(layout, layout.groups[source.place], hashes, before))
            for source in super()._sources(state, boundary, states, tables)
        ]


class TailsNamedByTheHashBefore(TimedOffloadingConnector):
    """A prompt's partial last block is stored under the hash of the block before it."""

    scheduler_class = with_parts(PartedScheduler, tails=_NamedByTheHashBefore)


class _ReadFromTables(Tails):
    def _sources(
        self, state: RequestState, boundary: int, states: Mapping[int, int], tables: Tables
    ) -> list[Source]:
        index = boundary // self._tokens_per_block
        in_tables = {place: tables[place][index] for place in states}
        return super()._sources(state, boundary, in_tables, tables)


class TailsReadFromTables(TimedOffloadingConnector):
    """The state of a tail is read from the request's block table instead of from the copy that is handed over."""

    scheduler_class = with_parts(PartedScheduler, tails=_ReadFromTables)
