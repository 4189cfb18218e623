"""What a campaign reached: (action, state of a request) pairs, and named situations of the contract."""

from collections import Counter
from collections.abc import Container, Mapping
from typing import Any, Final

from kv_api import KVConnectorOutput
from kv_sim.actions import Action, Kind
from kv_sim.engine.engine import Engine
from kv_sim.engine.output import Step
from kv_sim.engine.pause import Pause
from kv_sim.engine.request import SimRequest, Status

LOADS: Final = ("match: asynchronous load", "match: load in the step")
"""Situations in which a match found tokens."""
PULLED: Final = "a load by a ticket ends well"
NOT_PULLED: Final = "a load by a ticket fails"
CONTINUED: Final = "a load by a ticket goes on after tokens on the GPU"
LENT: Final = "a load of what another engine stored"
STRANGE: Final = "a stranger's KV is not found"
STRANGE_WORDS: Final = "a client sends strange parameters"
NO_OBJECT: Final = "a client sends no object"
IMAGE: Final = "a prompt with an image arrives"


def why_little_is_shown(
    situations: Mapping[str, int], *, serves_peers: bool = False, shares_store: bool = False
) -> str | None:
    """A warning about a green run that never tried what it should have."""
    if not any(situations.get(name) for name in LOADS):
        return "no match found any tokens, so no load was tried: does the connector store what it should?"
    if serves_peers and not situations.get(PULLED):
        times = situations.get(NOT_PULLED, 0)
        return (
            f"no load by a ticket succeeded ({times} failed, and their prompts were computed), so "
            "this run doesn't show what other engines get"
        )
    if serves_peers and not situations.get(CONTINUED):
        return (
            "no load by a ticket that succeeded went on after tokens on the GPU, so this run doesn't show that "
            "such a load gets the right blocks: --histories N tries more"
        )
    if shares_store and not situations.get(LENT):
        return "no engine loaded what the other had stored, so this run doesn't show that they share a store"
    return None


class Coverage:
    """Counts of pairs and situations; counts of several worlds can be added."""

    def __init__(self) -> None:
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.situations: Counter[str] = Counter()
        self.room: Counter[str] = Counter()
        """Stores for which an offloading medium had room (``free``), or first had to make some (``full``)."""
        self._turns: dict[str, int] = {}
        """Request id -> its turn when it was scheduled as a new request."""
        self._pulls_in_step: set[str] = set()
        """Requests with a ticket that load within the step in which they are scheduled."""
        self._goes_on: set[str] = set()
        """Requests that loaded, when last matched, what comes after tokens on the GPU."""
        self._pulls: dict[tuple[int, int], dict[str, list[int]]] = {}
        """Engine and step -> request -> the blocks that it loads in this step by a ticket, and that haven't
        failed."""

    def states(self, engine: Engine, action: Action) -> set[str]:
        """The states of the requests that ``action`` meets."""
        requests = engine.scheduler.requests.values()
        if action.kind in (Kind.ABORT, Kind.TURN):
            requests = [r for r in requests if r.request_id == action.args["request"]]  # type: ignore[assignment]
        return {r.status.value + (" and held" if r.is_held else "") for r in requests}

    def count(self, kind: Kind, states: set[str]) -> None:
        """Count an action."""
        self.pairs.update((kind.value, state) for state in sorted(states))

    def situation(self, name: str) -> None:
        """Count a named situation."""
        self.situations[name] += 1

    def client_sends(self, params: Any) -> None:
        """A request arrives with these parameters of its client, or None."""
        if params is not None:
            self.situation(STRANGE_WORDS if isinstance(params, dict) else NO_OBJECT)

    def matched(self, request: Any, answer: Any, carries: Container[str] = (), local: int = 0) -> None:
        """The connector answered a match, with ``local`` tokens on the GPU. ``carries``: who has a ticket."""
        count, is_async = answer
        self._goes_on.discard(request.request_id)
        if local and count:
            self._goes_on.add(request.request_id)
        self._pulls_in_step.discard(request.request_id)
        if count and not is_async and request.request_id in carries:
            self._pulls_in_step.add(request.request_id)
        if count is None:
            self.situation("match: ask again")
        elif count:
            self.situation("match: asynchronous load" if is_async else "match: load in the step")
            if request.num_preemptions:
                self.situation("match: a preempted request loads")
            if request.spec.skip_reading_prefix_cache:
                self.situation("match: the answer is dropped")

    def reported(self, engine: Engine, output: KVConnectorOutput, carries: Container[str]) -> None:
        """The connector's scheduler side got its workers' reports; ``carries`` are the requests with a ticket."""
        for request_id in output.finished_recving or ():
            if request_id in carries and request_id in engine.scheduler.requests:
                tables = engine.scheduler.blocks.tables.get(request_id)
                blocks = [] if tables is None else [block for group in tables.groups for block in group]
                has_failed = request_id in output.failed_recving or not output.invalid_block_ids.isdisjoint(blocks)
                self._pulled(request_id, has_failed=has_failed)
        for (number, _), pulls in self._pulls.items():
            for request_id, blocks in list(pulls.items()):
                if number == engine.place.number and not output.invalid_block_ids.isdisjoint(blocks):
                    del pulls[request_id]
                    self._pulled(request_id, has_failed=True)

    def _pulled(self, request_id: str, *, has_failed: bool = False) -> None:
        """A load by a ticket has ended."""
        self.situation(NOT_PULLED if has_failed else PULLED)
        if request_id in self._goes_on and not has_failed:
            self.situation(CONTINUED)

    def pulls(self, engine: Engine, step: Step) -> None:
        """A step was scheduled: note its loads by tickets, and count those of processed steps as successful."""
        under_way = {(engine.place.number, one.number) for one in engine.steps}
        for earlier in [one for one in self._pulls if one[0] == engine.place.number and one not in under_way]:
            for request_id in self._pulls.pop(earlier):
                self._pulled(request_id)
        pulls = {name: blocks for name, blocks in step.sync_targets.items() if name in self._pulls_in_step}
        if pulls:
            self._pulls[engine.place.number, step.number] = pulls

    def turn_arrives(self, request: SimRequest) -> None:
        """The next turn of a session arrives, or the end of it."""
        is_paused = request.status is Status.WAITING_FOR_STREAMING_REQ
        if not is_paused:
            self.situation("a session's next input comes before it stops")
        elif request.turns_arrived == request.turn == len(request.spec.turns or ()):
            self.situation("a session ends while it waits")

    def scheduled(self, engine: Engine, step: Step) -> None:
        """A step was scheduled."""
        output = step.output
        for end, count in step.ends:
            self.situation(f"match: {'more' if count > end else 'less'} than the end of a block")
        if output.kv_cache_block_copies:
            self.situation("a block is copied on write")
        if step.handed:
            self.situation("a state within a block is handed over")
        if output.preempted_req_ids:
            self.situation("a request is preempted")
        if output.scheduled_cached_reqs.resumed_req_ids:
            self.situation("a request resumes, runner V1")
        new = {request.req_id for request in output.scheduled_new_reqs}
        if new & output.finished_req_ids:
            self.situation("an id is finished and new in one step")
        going_on = self._going_on(engine, new)
        if any(engine.scheduler.requests[name].num_preemptions for name in new - going_on):
            self.situation("a request resumes, runner V2")
        if step.rejected:
            self.situation("drafts are rejected")
        if not output.total_num_scheduled_tokens:
            self.situation("an empty step")
        self._meanwhile(engine)

    def _meanwhile(self, engine: Engine) -> None:
        """Count the situations in which a step is scheduled."""
        if engine.scheduler.deferred_frees:
            self.situation("frees are deferred")
        requests = engine.scheduler.requests.values()
        if engine.pause_state is Pause.ALL and any(r.status is Status.RUNNING for r in requests):
            self.situation("a step that schedules no running request")
        if engine.is_asleep:
            self.situation("a step while the engine sleeps")
        if any(r.status is Status.WAITING_FOR_REMOTE_KVS for r in engine.scheduler.holding):
            self.situation("a step while a load is under way")

    def _going_on(self, engine: Engine, new: set[str]) -> set[str]:
        """Count those of these requests that are sessions which continue."""
        requests = [request for name, request in engine.scheduler.requests.items() if name in new]
        going_on = [request for request in requests if request.turn > self._turns.get(request.request_id, 0)]
        self._turns.update((request.request_id, request.turn) for request in requests)
        if going_on:
            self.situation("a session goes on")
        if any(request.num_stale_output_tokens for request in going_on):
            self.situation("a session goes on before its last turn is over")
        return {request.request_id for request in going_on}

    def add(self, other: "Coverage") -> None:
        """Add another world's counts."""
        self.pairs.update(other.pairs)
        self.situations.update(other.situations)
        self.room.update(other.room)
