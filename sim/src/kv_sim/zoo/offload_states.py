"""Bugs planted in kv-offload's handling of states (Mamba) that the engine hands over, and of prompts' tails."""

from collections import deque
from collections.abc import Mapping
from typing import Final

from kv_api import SchedulerOutput
from kv_offload.scheduler.state.books import Books
from kv_offload.scheduler.state.jobs import JobBook
from kv_offload.scheduler.state.request_state import RequestState
from kv_offload.scheduler.storing.boundary_store import Source
from kv_offload.scheduler.storing.handed_states import HandedStates, Taken, offers_of
from kv_offload.scheduler.storing.tails import Tables, Tails
from kv_offload.shape.naming import tail_key
from kv_sim.offload.host_memory import TimedOffloadingConnector
from kv_sim.zoo.offload import PartedScheduler

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


class _LateStates(PartedScheduler):
    handed_states = _StoresLate


class StatesStoredAfterTheirPass(TimedOffloadingConnector):
    """A state that the engine hands over is stored some steps later, when its block may be another request's."""

    scheduler_class = _LateStates


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


class _UnwatchedStates(PartedScheduler):
    handed_states = _StoresUnwatched


class StatesKeptUntilTheEnd(TimedOffloadingConnector):
    """State blocks count as their request's until it ends, although the request frees them while it runs."""

    scheduler_class = _UnwatchedStates


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


class _ShiftedTails(PartedScheduler):
    tails = _NamedByTheHashBefore


class TailsNamedByTheHashBefore(TimedOffloadingConnector):
    """A prompt's partial last block is stored under the hash of the block before it."""

    scheduler_class = _ShiftedTails


class _ReadFromTables(Tails):
    def _sources(
        self, state: RequestState, boundary: int, states: Mapping[int, int], tables: Tables
    ) -> list[Source]:
        index = boundary // self._tokens_per_block
        in_tables = {place: tables[place][index] for place in states}
        return super()._sources(state, boundary, in_tables, tables)


class _TailsOfTables(PartedScheduler):
    tails = _ReadFromTables


class TailsReadFromTables(TimedOffloadingConnector):
    """The state of a tail is read from the request's block table instead of from the copy that is handed over."""

    scheduler_class = _TailsOfTables
