"""``Ledger``: what the testbed has to know of a run of vLLM's scheduler, and vLLM doesn't keep.

For each request there is a *twin*: the testbed's request with all it will ever hold, and with vLLM's own block
hashes. ``follow`` copies vLLM's view of the request to it. A twin lives as long as vLLM knows the request; those
that ended are kept in ``ended``. Which blocks a load may write is written down at the allocation that announces
it, and crossed out when the load is reported or its step has come back.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from kv_api import KVConnectorTransferResults
from kv_sim.checkers.accounting import Mirror
from kv_sim.checkers.protocol import check_reports
from kv_sim.checkers.served import Served
from kv_sim.engine.request import SimRequest, Status
from kv_sim.memory.settled import Offer, offers
from kv_sim.memory.shadow import Shadow
from kv_sim.violation import Invariant, Referee
from kv_vllm.driver.events import EventReader

STATUS: Final = {
    "WAITING": Status.WAITING,
    "WAITING_FOR_REMOTE_KVS": Status.WAITING_FOR_REMOTE_KVS,
    "WAITING_FOR_STREAMING_REQ": Status.WAITING_FOR_STREAMING_REQ,
    "RUNNING": Status.RUNNING,
    "PREEMPTED": Status.PREEMPTED,
    "FINISHED_STOPPED": Status.FINISHED_STOPPED,
    "FINISHED_LENGTH_CAPPED": Status.FINISHED_STOPPED,
    "FINISHED_ABORTED": Status.FINISHED_ABORTED,
    "FINISHED_ERROR": Status.FINISHED_ERROR,
}
"""vLLM's states of a request that a world leads to."""


class SortedSet(set[str]):
    """A set whose members come in order. vLLM takes them as they come, and histories have to repeat."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__()))


class Twin(SimRequest):
    """A request as the testbed knows it."""

    @property
    def tokens_per_hash(self) -> int:
        """Tokens of a block hash."""
        return self._block_size // self.hashes_per_block

    @property
    def future(self) -> list[int]:
        """Every token that the request will ever hold, as far as a model could go."""
        return self._tokens

    def take_hashes(self, hashes_of: Callable[[list[int]], Sequence[bytes]]) -> None:
        """Tell blocks apart as vLLM does."""
        self.stories = [story._replace(block_hashes=list(hashes_of(story.tokens))) for story in self.stories]
        self._block_hashes = self.stories[self.turn].block_hashes

    def follow(self, request: Any) -> None:
        """Take over what vLLM knows of the request."""
        while self.has_next_turn and request.num_prompt_tokens > self.num_prompt_tokens:
            self.begin_turn()
        self.status = STATUS[request.status.name]
        self.num_computed_tokens = request.num_computed_tokens
        self.num_output_tokens = request.num_output_tokens
        self.num_preemptions = request.num_preemptions
        self.num_stale_output_tokens = request.num_stale_output_tokens


class Ledger:
    """The testbed's books."""

    def __init__(self, block_size: int, referee: Referee, shadow: Shadow, served: Served, mirror: Mirror) -> None:
        self.twins: dict[str, Twin] = {}
        self.ended: list[SimRequest] = []
        self.fresh: list[int] = []
        """Blocks that were allocated since the step in the making began."""
        self.async_targets: list[int] = []
        self.sync_targets: dict[str, list[int]] = {}
        self.handed: list[Offer] = []
        """Ends of prompts within blocks whose states the step in the making hands over."""
        self.step = 0
        """The step in the making, or the last one that was made."""
        self._block_size = block_size
        self._referee = referee
        self._shadow = shadow
        self._served = served
        self._mirror = mirror
        self._events = EventReader()
        self._matches: dict[str, tuple[int, bool]] = {}
        """Request -> the local tokens of its last match, and whether the answer was asynchronous."""
        self._holds_tail: set[str] = set()
        """Requests that are about to end, and whose blocks are held for the state that they registered."""

    def arrived(self, twin: Twin) -> None:
        """A request arrives."""
        self.twins[twin.request_id] = twin
        self._events.know(twin)
        self._mirror.know(twin)

    def begin_step(self) -> None:
        """A step is scheduled."""
        self.step += 1
        self.fresh, self.async_targets, self.sync_targets, self.handed = [], [], {}, []

    # -- what the connector is told and answers -------------------------------------------------

    def matched(self, request_id: str, local: int, answer: tuple[int | None, bool]) -> None:
        """A match was answered."""
        self._matches[request_id] = (local, answer[1])

    def allocated(self, request_id: str, tables: tuple[list[int], ...], external: int) -> None:
        """A request got its blocks, and maybe a load into some of them is announced."""
        for table in tables:
            self._shadow.own(request_id, table)
        if external <= 0:
            return
        local, is_async = self._matches[request_id]
        tokens, step = range(local, local + external), None if is_async else self.step
        targets = self._shadow.expect_load(request_id, tables, tokens, self._block_size, step)
        if is_async:
            self.twins[request_id].awaits_load = True
            self.async_targets += targets
        else:
            self.sync_targets[request_id] = targets

    def judge(self, output: Any) -> None:
        """Check which transfers the workers report as ended, and leave only what is legal in it."""
        results = KVConnectorTransferResults(
            set(output.finished_sending or ()), set(output.finished_recving or ()), output.failed_recving
        )
        check_reports(self, results, self._referee)
        output.finished_sending = SortedSet(results.finished_sending) or None
        output.finished_recving = SortedSet(results.finished_recving) or None
        for request_id in results.finished_recving:
            self._shadow.end_load(request_id)

    @property
    def requests(self) -> dict[str, Twin]:
        """The twins, in the words of the checkers."""
        return self.twins

    def registered(self, request_id: str, holds: bool) -> None:
        """A request registered a state within a block, and ends next."""
        if holds:
            self._holds_tail.add(request_id)

    def handed_over(self, block_state: Any) -> None:
        """The engine hands over states."""
        states = getattr(block_state, "boundary_state_offloads", None) or {}
        for name, of_one in states.items():
            self.handed += offers(name, of_one, block_state.resolve_block_ids(name)[0], self._block_size)

    def finished(self, request: Any, holds: bool) -> None:
        """A request ended."""
        holds |= request.request_id in self._holds_tail
        self._holds_tail.discard(request.request_id)
        twin = self.twins[request.request_id]
        twin.follow(request)
        self._matches.pop(request.request_id, None)
        if holds and twin.awaits_load:
            self._referee.fail(
                Invariant.PROTOCOL,
                f"request {request.request_id}: request_finished holds its blocks for a store "
                "while its load is under way; whichever is reported first frees them",
            )
        twin.is_held = holds
        self.ended.append(twin)

    def announced(self, events: Iterable[Any]) -> None:
        """The connector's news."""
        self._mirror.take(self._events.read(events))

    def forgot(self, answer: bool | None) -> None:
        """The connector's cache was reset."""
        if answer:
            self._served.reset([*self.ended, *self.twins.values()])

    # -- what vLLM knows ------------------------------------------------------------------------

    def follow(self, requests: dict[str, Any]) -> None:
        """Take over vLLM's view of its requests; those that it forgot are forgotten."""
        self.twins = {name: self.twins[name] for name in requests}
        for name, twin in self.twins.items():
            twin.follow(requests[name])

    def poison(self, held: Iterable[int]) -> tuple[list[int], list[int]]:
        """New blocks that are still held: those whose bytes nobody promised, and those that a load will fill."""
        targets = {block for blocks in (self.async_targets, *self.sync_targets.values()) for block in blocks}
        still = set(held)
        fresh = [block for block in dict.fromkeys(self.fresh) if block in still]
        return [block for block in fresh if block not in targets], [block for block in fresh if block in targets]
