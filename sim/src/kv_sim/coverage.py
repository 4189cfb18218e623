"""What a campaign reached: (action, state of a request) pairs, and named situations of the contract."""

from collections import Counter
from typing import Any

from kv_sim.actions import Action, Kind
from kv_sim.engine.engine import Engine
from kv_sim.engine.output import Step
from kv_sim.engine.request import Status


class Coverage:
    """Counts of what was reached; counts of several worlds add up."""

    def __init__(self) -> None:
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.situations: Counter[str] = Counter()

    def states(self, engine: Engine, action: Action) -> set[str]:
        """The states of the requests that ``action`` meets."""
        requests = engine.scheduler.requests.values()
        if action.kind is Kind.ABORT:
            requests = [r for r in requests if r.request_id == action.args["request"]]  # type: ignore[assignment]
        return {r.status.value + (" and held" if r.is_held else "") for r in requests}

    def count(self, kind: Kind, states: set[str]) -> None:
        """An action was taken."""
        self.pairs.update((kind.value, state) for state in sorted(states))

    def situation(self, name: str) -> None:
        """A named situation occurred."""
        self.situations[name] += 1

    def matched(self, request: Any, answer: Any) -> None:
        """The connector answered a match."""
        count, is_async = answer
        if count is None:
            self.situation("match: ask again")
        elif count:
            self.situation("match: asynchronous load" if is_async else "match: load in the step")
            if request.num_preemptions:
                self.situation("match: a preempted request loads")
            if request.spec.skip_reading_prefix_cache:
                self.situation("match: the answer is dropped")

    def scheduled(self, engine: Engine, step: Step) -> None:
        """A step was scheduled."""
        output = step.output
        for end, count in step.ends:
            self.situation(f"match: {'more' if count > end else 'less'} than the end of a block")
        if output.kv_cache_block_copies:
            self.situation("a block is copied on write")
        handed = getattr(output, "kv_connector_block_state", None)
        offers = handed.boundary_state_offloads.values() if handed is not None else ()
        if any(boundary % engine.config.block_size for of_one in offers for _, _, boundary in of_one):
            self.situation("a state within a block is handed over")
        if output.preempted_req_ids:
            self.situation("a request is preempted")
        if output.scheduled_cached_reqs.resumed_req_ids:
            self.situation("a request resumes, runner V1")
        new = {request.req_id for request in output.scheduled_new_reqs}
        if new & output.finished_req_ids:
            self.situation("an id is finished and new in one step")
        if any(engine.scheduler.requests[name].num_preemptions for name in new):
            self.situation("a request resumes, runner V2")
        if engine.scheduler.deferred_frees:
            self.situation("frees are deferred")
        if step.rejected:
            self.situation("drafts are rejected")
        if not output.total_num_scheduled_tokens:
            self.situation("an empty step")
        if any(r.status is Status.WAITING_FOR_REMOTE_KVS for r in engine.scheduler.holding):
            self.situation("a step while a load is under way")

    def add(self, other: "Coverage") -> None:
        """Add another world's counts."""
        self.pairs.update(other.pairs)
        self.situations.update(other.situations)
