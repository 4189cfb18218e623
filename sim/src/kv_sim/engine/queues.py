"""The scheduler's state between steps: waiting and running requests, their blocks, and deferred frees.

``sched_step_seq`` counts steps that compute something, ``processed_step_seq`` those whose output came back. With
several steps under way and a consumer's role, freed blocks return to the pool only when every step that was
scheduled before has come back (``deferred_frees``).
"""

from collections import Counter, deque

from kv_api import KVConnectorBase_V1
from kv_sim.config import WorldConfig
from kv_sim.engine.blocks import KVCacheManager
from kv_sim.engine.pause import Pause
from kv_sim.engine.request import SimRequest, Status
from kv_sim.memory.shadow import Shadow


class Queues:
    """The scheduler's state, shared by the parts that schedule, admit, and process outputs."""

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
        """Waiting requests that hold blocks: their load is under way or has ended, or they are paused sessions."""
        self.pause = Pause.NONE
        self.num_paused = 0
        """How many sessions wait for their next turn. They keep their blocks and aren't scheduled."""
        self.running: list[SimRequest] = []
        self.inflight_prefills: list[SimRequest] = []
        self.finished_req_ids: set[str] = set()
        self.preempted_req_ids: set[str] = set()
        self.loaded: set[str] = set()
        """Requests whose load was reported, until they are scheduled."""
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
        if self.pause is Pause.NONE:
            return len(self.requests) > self.num_paused or bool(self.finished_req_ids)
        queued = len(self.running) + len(self.waiting) + len(self.holding)
        if self.finished_req_ids or len(self.requests) > queued:
            return True
        going_on = (request.status is not Status.WAITING_FOR_STREAMING_REQ for request in self.holding)
        return self.pause is Pause.NEW and (bool(self.running) or any(going_on))

    @property
    def num_running(self) -> int:
        """How many requests run."""
        return len(self.running)

    # -- tokens and blocks -----------------------------------------------------------------------

    def cut(self, request: SimRequest, start: int, count: int) -> int:
        """How many of ``count`` tokens from ``start`` on a step computes: only up to where a state is kept."""
        return self.blocks.tails.cut(request, start, count) if self.blocks.tails is not None else count

    def blocks_can_be_freed(self, request: SimRequest) -> bool:
        """Whether no step under way may still write the request's blocks."""
        return not self.defers_frees or request.last_sched_seq <= self.processed_step_seq

    def free_request_blocks(self, request: SimRequest) -> None:
        """Free a request's blocks, now or when all steps under way have been processed."""
        if self.blocks_can_be_freed(request):
            self.blocks.free(request.request_id)
        else:
            blocks = [block for group in self.blocks.take(request.request_id) for block in group]
            if blocks:
                self.deferred_frees.append((self.sched_step_seq, blocks[::-1]))
        self.shadow.end_load(request.request_id)

    def note_prefill(self, request: SimRequest) -> None:
        """Note that the request is in the middle of its prefill or load."""
        if request not in self.inflight_prefills:
            self.inflight_prefills.append(request)

    def forget_prefill(self, request: SimRequest) -> None:
        """Note that the request's prefill has ended."""
        if request in self.inflight_prefills:
            self.inflight_prefills.remove(request)

    def own(self, request: SimRequest) -> None:
        """Tell the shadow that the blocks are the request's now."""
        for table in self.blocks.tables[request.request_id].groups:
            self.shadow.own(request.request_id, table)

    def check(self) -> None:
        """Recount: each reference is a table's, a deferred free's or a connector's; live requests are queued."""
        held: Counter[int] = Counter()
        for tables in self.blocks.tables.values():
            held.update(block for table in tables.groups for block in table if block)
        for _, blocks in self.deferred_frees:
            held.update(blocks)
        held.update(self.blocks.block_pool.touched)
        counts = {block: n for block, n in enumerate(self.blocks.block_pool.ref_counts) if n}
        assert counts == dict(held), (
            f"references {counts} != tables, deferred frees and a connector's {dict(held)}"
        )
        queued = [*self.running, *self.waiting, *self.holding]
        unfinished = [r for r in self.requests.values() if not r.status.is_finished]
        ids = sorted(r.request_id for r in queued)
        assert ids == sorted(r.request_id for r in unfinished), f"queued {ids}, unfinished {unfinished}"
        paused = [r for r in queued if r.status is Status.WAITING_FOR_STREAMING_REQ]
        assert self.num_paused == len(paused), f"{self.num_paused} sessions wait, {paused}"
        self.blocks.check()
