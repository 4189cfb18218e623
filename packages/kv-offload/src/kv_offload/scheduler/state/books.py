"""What the parts of the scheduler's side share: the medium, requests, jobs, and what is collected for a step.

Whoever calls ``manager`` locks it. While a step is planned the lock is held throughout, from the first query to
the end of ``build_connector_meta`` (``open_region``, ``close_region``); any other call holds it for itself
(``lock``). The lock is not reentrant. Calls of the second kind never come while a step is planned; if one does,
the engine has given the planning up half-way, and ``lock`` ends that region first.
"""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kv_api import OffloadingManager, OffloadKey, PrepareStoreOutput, ReqContext, Request, StoreOffer
from kv_offload.describe import EngineDescription
from kv_offload.log import warn
from kv_offload.metadata import OffloadingConnectorMetadata, RankRoom
from kv_offload.metrics import OffloadingConnectorStats
from kv_offload.scheduler.events import EventTranslator
from kv_offload.scheduler.state.agenda import Agenda
from kv_offload.scheduler.state.block_index import BlockIndex
from kv_offload.scheduler.state.evictions import Evictions
from kv_offload.scheduler.state.fresh import Tables, fresh_blocks
from kv_offload.scheduler.state.jobs import JobBook
from kv_offload.scheduler.state.pins import Pins
from kv_offload.scheduler.state.request_state import RequestState, begin_life
from kv_offload.scheduler.state.rooms import Rooms


class Books:
    """State of the scheduler's side."""

    def __init__(self, engine: EngineDescription, manager: OffloadingManager) -> None:
        self.engine = engine
        self.layout = engine.layout
        self.manager = manager
        self.rooms = Rooms(engine)
        self.states: dict[str, RequestState] = {}
        """The lives that have not ended, by request id."""
        self.block_index = None if self.layout.reads_back_only else BlockIndex()
        """Of their tables, in groups where blocks may be lost one by one; None if there are no such groups."""
        self.agenda = Agenda()
        self._awaits_room: dict[RequestState, None] = {}
        """Requests that were refused room and have not been told to offer again, the longest waiting first."""
        self.jobs = JobBook(engine.world_size)
        self.pins = Pins()
        self.evictions = Evictions(self.layout) if engine.can_store and engine.stores_late else None
        """What requests left on the GPU; None: chunks are stored before that."""
        self.stats = OffloadingConnectorStats()
        self.events = EventTranslator(
            engine.layout,
            engine.hash_extras,
            is_describing=engine.config.enable_kv_cache_events and engine.options.self_describing_kv_events,
        )
        self._region: AbstractContextManager[Any] | None = None
        self.begin_step()

    def begin_step(self) -> None:
        """Begin to collect for the next step."""
        self.meta = OffloadingConnectorMetadata()
        self.fresh: set[int] = set()
        """Blocks that somebody may write from this step on."""
        self.in_step_bytes = 0

    def begin_life(self, request: Request) -> RequestState:
        """A request arrived."""
        state = begin_life(request, self.layout, self.manager, self.block_index)
        self.states[request.request_id] = state
        return state

    def end_life(self, request_id: str) -> RequestState | None:
        """The request ended, and its blocks are freed next. None: it was not known."""
        self.agenda.remove(request_id)
        state = self.states.pop(request_id, None)
        if state is not None:
            self._awaits_room.pop(state, None)
            self.jobs.release(state)
            if self.block_index is not None:
                state.progress.leave_index()
        return state

    def lose_blocks(self, state: RequestState) -> None:
        """The request has no blocks any more."""
        self._awaits_room.pop(state, None)
        self.jobs.release(state)
        state.progress.lose_blocks()
        self.agenda.remove(state.context.req_id)

    def rewind(self, state: RequestState) -> None:
        """Loaded or stored chunks of a request can't be relied on: if it has blocks, it offers all again."""
        state.progress.rewind()
        self.agenda.hasten(state.context.req_id)  # a later request of this id is only looked at early

    def refuse_store(self, state: RequestState) -> None:
        """There was no room for what a request offered. A request that has ended offers nothing more."""
        state.refuse_store(self.agenda.step)
        if self.states.get(state.context.req_id) is state:
            self._awaits_room[state] = None

    def accept_store(self, state: RequestState) -> None:
        """The medium had room for what a request offered."""
        state.accept_store()
        self._awaits_room.pop(state, None)

    def prepare_store(self, keys: Collection[OffloadKey], context: ReqContext) -> PrepareStoreOutput | None:
        """Ask the manager for places. There are none before every rank has reported its room."""
        return self.manager.prepare_store(keys, context) if self.rooms.may_store else None

    def prepare_stores(self, offers: Sequence[StoreOffer]) -> list[PrepareStoreOutput]:
        """The same of one offer after the other, up to the first for which there is no room."""
        return self.manager.prepare_stores(offers) if self.rooms.may_store else []

    def take_rooms(self, rooms: Sequence[RankRoom]) -> None:
        """Ranks reported their room: every request that waits for room offers again in the next step."""
        self.rooms.take(rooms, self.manager)
        if rooms and self.rooms.may_store:
            for state in [*self._awaits_room]:
                self._let_offer_again(state)

    def offer_again(self) -> None:
        """A job ended, so there may be room: the request that waits longest for some offers again next step."""
        longest_waiting = next(iter(self._awaits_room), None)
        if longest_waiting is not None:
            self._let_offer_again(longest_waiting)

    def _let_offer_again(self, state: RequestState) -> None:
        del self._awaits_room[state]
        state.retry_step = 0
        self.agenda.hasten(state.context.req_id)

    def note_fresh(self, state: RequestState | None, tables: Tables) -> None:
        """A request got these blocks, and may write all but those that hold tokens it was found to have.

        A session that goes on after a pause isn't matched again: its table begins with the blocks that it has had
        all along. A block that slid out of one of its windows may come back in another place; then it is fresh.
        """
        if state is None:
            self.fresh |= fresh_blocks(self.layout, tables, 0)
            return
        found = fresh_blocks(self.layout, tables, state.promise.local)
        for progress in state.progress.groups:
            got = zip(progress.table, tables[progress.group.group_id], strict=False)
            found.difference_update(before for before, now in got if before == now)
        self.fresh |= found

    def open_region(self) -> None:
        """Lock the manager until the step is planned."""
        if self._region is None:
            region = self.manager.lock
            region.__enter__()
            self._region = region

    def close_region(self) -> None:
        """The step is planned."""
        region, self._region = self._region, None
        if region is not None:
            region.__exit__(None, None, None)

    def lock(self) -> AbstractContextManager[Any]:
        """The manager's lock, for calls outside of a step's planning."""
        if self._region is not None:
            warn(
                "the previous step was begun but never built (build_connector_meta); unlocking the offloading "
                "manager"
            )
            self.close_region()
        return self.manager.lock

    def check(self) -> None:
        """Recount everything."""
        self.jobs.check()
        self.pins.check([*self.jobs.live, *(i for i, job in self.jobs.stale.items() if job.waiting)])
        self.events.check()
        if self.evictions is not None:
            self.evictions.check()
        for job in self.jobs.kept():
            state = job.owner
            is_alive = self.states.get(state.context.req_id) is state
            blocks = {block for progress in state.progress.groups for block in progress.table}
            assert is_alive and blocks.issuperset(job.blocks), f"{job}: its request has lost blocks to others"
        for request_id, state in self.states.items():
            assert request_id == state.context.req_id, f"{state.context.req_id} is kept under {request_id}"
            state.check()
            self._check_look(request_id, state)
        if self.block_index is not None:
            groups = [progress for state in self.states.values() for progress in state.progress.groups]
            self.block_index.check([progress.table for progress in groups if not progress.group.reads_all])
        for state in self._awaits_room:
            is_waiting = state.store_refusals > 0 and state.progress.has_blocks
            assert is_waiting and self.states.get(state.context.req_id) is state, f"{state} waits for room"
        self.agenda.check(request_id for request_id, state in self.states.items() if state.progress.has_blocks)
        planned = {*self.meta.load_jobs, *self.meta.store_jobs}
        known = {*self.jobs.live, *self.jobs.stale}
        assert planned <= known, f"jobs {sorted(planned - known)} are planned and not in the book"

    def _check_look(self, request_id: str, state: RequestState) -> None:
        """See that a request is looked at in the step in which it may have something to store, or before."""
        step = self.agenda.step_of(request_id)
        missing = max(0, state.progress.next_end - state.request.num_computed_tokens - 1)
        latest = max(state.retry_step, self.agenda.step + missing)
        assert step is None or step <= latest, f"{request_id} is looked at in step {step} instead of {latest}"
