"""What the parts of the scheduler's half share: the medium, requests, jobs, and what is collected for a step.

``manager`` is locked by whoever calls it: for the planning of a step from its first query on (``open_region``),
for anything else while that lasts (``locked``). The lock is not reentrant, and a call of the second sort never
comes within a step's planning, unless the engine gave that up half-way: then it is unlocked first.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from kv_api import OffloadingManager, Request
from kv_offload.describe import EngineDescription
from kv_offload.events import EventTranslator
from kv_offload.jobs import JobBook
from kv_offload.log import warn
from kv_offload.metadata import OffloadingConnectorMetadata
from kv_offload.metrics import OffloadingConnectorStats
from kv_offload.progress import Progress
from kv_offload.request_state import RequestState, begin_life


class Books:
    """State of the scheduler's half."""

    def __init__(self, engine: EngineDescription, manager: OffloadingManager) -> None:
        self.engine = engine
        self.layout = engine.layout
        self.manager = manager
        self.states: dict[str, RequestState] = {}
        """The lives that have not ended, by request id."""
        self.jobs = JobBook(engine.world_size)
        self.stats = OffloadingConnectorStats()
        self.events = EventTranslator(
            engine.layout,
            is_describing=engine.config.enable_kv_cache_events and engine.options.self_describing_kv_events,
        )
        self._region: ExitStack | None = None
        self.begin_step()

    def begin_step(self) -> None:
        """Begin to collect for the next step."""
        self.meta = OffloadingConnectorMetadata()
        self.fresh: set[int] = set()
        """Blocks that somebody may write from this step on."""
        self.in_step_bytes = 0

    def begin_life(self, request: Request) -> RequestState:
        """A request arrived."""
        state = begin_life(request, Progress(self.layout), self.manager)
        self.states[request.request_id] = state
        return state

    def open_region(self) -> None:
        """Lock the manager until the step is planned."""
        if self._region is None:
            region = ExitStack()
            region.enter_context(self.manager.lock)
            self._region = region

    def close_region(self) -> None:
        """The step is planned."""
        region, self._region = self._region, None
        if region is not None:
            region.close()

    @contextmanager
    def locked(self) -> Iterator[OffloadingManager]:
        """Lock the manager for one call outside of a step's planning."""
        if self._region is not None:
            warn("the last schedule was not finished: unlocking the offloading manager that it had locked")
            self.close_region()
        with self.manager.lock:
            yield self.manager

    def check(self) -> None:
        """Recount everything."""
        self.jobs.check()
        self.events.check()
        for request_id, state in self.states.items():
            assert request_id == state.context.req_id, f"{state.context.req_id} is kept under {request_id}"
            state.check()
        planned = {*self.meta.load_jobs, *self.meta.store_jobs}
        known = {*self.jobs.live, *self.jobs.stale}
        assert planned <= known, f"jobs {sorted(planned - known)} are planned and not in the book"
