"""``Ledger``: facts about a run of vLLM's scheduler that the testbed needs and vLLM doesn't keep.

For each request there is a *twin*: the testbed's request with all tokens that it will ever have, and with vLLM's
own block hashes. ``follow`` copies vLLM's view of the request to it. A twin lives as long as vLLM knows the
request; twins of ended requests are kept in ``ended``. The blocks that a load may write are noted at its
allocation, and removed when the load is reported or its step was processed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from kv_api import KVConnectorTransferResults
from kv_sim.checkers.accounting import Mirror
from kv_sim.checkers.protocol import check_reports
from kv_sim.checkers.served import Served
from kv_sim.config import WorldConfig
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
    "FINISHED_LENGTH_CAPPED": Status.FINISHED_LENGTH_CAPPED,
    "FINISHED_ABORTED": Status.FINISHED_ABORTED,
    "FINISHED_ERROR": Status.FINISHED_ERROR,
}
"""vLLM's states of a request that occur in worlds."""


class SortedSet(set[str]):
    """A set that is iterated in order: vLLM iterates it, and histories must be repeatable."""

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
        """All tokens that the request will ever have, up to its limit."""
        return self._tokens

    def take_hashes(self, hashes_of: Callable[[list[int]], Sequence[bytes]]) -> None:
        """Use vLLM's block hashes."""
        self.stories = [story._replace(block_hashes=list(hashes_of(story.tokens))) for story in self.stories]
        self._take_up(self.asked)

    def follow(self, request: Any) -> None:
        """Copy vLLM's view of the request."""
        while self.has_next_turn and request.num_prompt_tokens > self.num_prompt_tokens:
            self.begin_turn()
        self.status = STATUS[request.status.name]
        self.num_computed_tokens = request.num_computed_tokens
        self.num_output_tokens = request.num_output_tokens
        self.num_preemptions = request.num_preemptions
        self.num_stale_output_tokens = request.num_stale_output_tokens


class Ledger:
    """The testbed's books."""

    def __init__(
        self, config: WorldConfig, referee: Referee, shadow: Shadow, served: Served, mirror: Mirror
    ) -> None:
        self.twins: dict[str, Twin] = {}
        self.ended: list[SimRequest] = []
        self.fresh: list[int] = []
        """Blocks that were allocated since the scheduling of the current step began."""
        self.async_targets: list[int] = []
        self.sync_targets: dict[str, list[int]] = {}
        self.handed: list[Offer] = []
        """Ends of prompts within blocks whose states the current step hands over."""
        self.step = 0
        """The step that is being scheduled, or the last one that was."""
        self._block_size = config.block_size
        self._parts = [group.parts for group in config.groups]
        self._referee = referee
        self._shadow = shadow
        self._served = served
        self._mirror = mirror
        self._events = EventReader()
        self._matches: dict[str, tuple[int, bool]] = {}
        """Request -> the local tokens of its last match, and whether the answer was an asynchronous load."""
        self._holds_tail: set[str] = set()
        """Requests about to end whose blocks are held for the state that they registered."""

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
        """The connector answered a match."""
        self._matches[request_id] = (local, answer[1])

    def allocated(self, request_id: str, tables: tuple[list[int], ...], external: int) -> None:
        """A request got its blocks, perhaps with a load into some of them."""
        for table in tables:
            self._shadow.own(request_id, table)
        if external <= 0:
            return
        local, is_async = self._matches[request_id]
        tokens, step = range(local, local + external), None if is_async else self.step
        targets = self._shadow.expect_load(request_id, tables, tokens, self._block_size, step, self._parts)
        if is_async:
            self.twins[request_id].awaits_load = True
            self.async_targets += targets
        else:
            self.sync_targets[request_id] = targets

    def judge(self, output: Any) -> None:
        """Check the transfers that the workers report as ended, and leave only legal ones in the output."""
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
        """The twins, under the name that checkers use."""
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
        """The connector sent KV events."""
        self._mirror.take(self._events.read(events))

    def forgot(self, answer: bool | None) -> None:
        """The connector's cache was reset."""
        if answer:
            self._served.reset([*self.ended, *self.twins.values()])

    # -- what vLLM knows ------------------------------------------------------------------------

    def follow(self, requests: dict[str, Any]) -> None:
        """Copy vLLM's view of its requests; those that it forgot are forgotten."""
        self.twins = {name: self.twins[name] for name in requests}
        for name, twin in self.twins.items():
            twin.follow(requests[name])

    def poison(self, held: Iterable[int]) -> tuple[list[int], list[int]]:
        """New blocks that are still in use: those with undefined bytes, and those that a load will fill."""
        targets = {block for blocks in (self.async_targets, *self.sync_targets.values()) for block in blocks}
        still = set(held)
        fresh = [block for block in dict.fromkeys(self.fresh) if block in still]
        return [block for block in fresh if block not in targets], [block for block in fresh if block in targets]
