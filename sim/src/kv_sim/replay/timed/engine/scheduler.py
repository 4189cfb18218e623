"""The engine's scheduler, which also counts the work of each step, and knows the sleepers.

The running requests are ``running`` and the sleepers together, in the order of admission. A sleeper takes one
token of a step's budget. Mostly only the request that was admitted last is in its prefill, so no request before a
sleeper can take the sleeper's token. The exception is a prefill that stands still until blocks are freed: requests
may have been admitted after it.
"""

from collections.abc import Iterable

from kv_sim.engine.admission import Admission, Admitted
from kv_sim.engine.output import SchedulerOutput
from kv_sim.engine.plan import StepPlan
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.scheduler import RejectDrafts, Scheduler
from kv_sim.replay.timed.durations.timing import Clock, Work
from kv_sim.replay.timed.engine.request import TracedRequest
from kv_sim.replay.timed.engine.sleepers import Sleepers


class TimedAdmission(Admission):
    """Admission that notes when requests are admitted, and what was found for them."""

    _state: "TimedScheduler"

    def _admit(self, plan: StepPlan, request: SimRequest) -> Admitted:
        assert isinstance(request, TracedRequest), f"{request} isn't of a trace"
        state, times = self._state, request.times
        admitted = super()._admit(plan, request)
        if request.status is Status.WAITING_FOR_REMOTE_KVS:
            times.parked = state.clock.now
        elif admitted is Admitted.RUNS:
            request.run_order = state.next_run_order()
            if times.parked >= 0:
                times.load_wait += state.clock.now - times.parked
                times.parked = -1
        elif admitted is Admitted.LATER:
            state.deferred += 1
        if times.scheduled < 0 and (admitted is Admitted.RUNS or times.parked >= 0):
            times.scheduled = state.clock.now
        return admitted

    def _announce(self, plan: StepPlan, request: SimRequest, local: int, external: int, *, is_async: bool) -> None:
        assert isinstance(request, TracedRequest), f"{request} isn't of a trace"
        if request.times.local_tokens < 0:
            request.times.local_tokens, request.times.external_tokens = local, external
        super()._announce(plan, request, local, external, is_async=is_async)


class TimedScheduler(Scheduler):
    """A scheduler of an engine with a clock."""

    admission_class = TimedAdmission
    clock: Clock
    """Set by the engine."""
    running: list[SimRequest]

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.sleepers = Sleepers()
        self.work = Work()
        """The work of the last step, the sleepers' part included."""
        self.deferred = 0
        """How many requests the connector put off in the last step."""
        self._run_orders = 0

    @property
    def num_running(self) -> int:
        return len(self.running) + len(self.sleepers)

    def next_run_order(self) -> int:
        """A place after all running requests."""
        self._run_orders += 1
        return self._run_orders

    def _schedule_running(self, plan: StepPlan) -> None:
        self.deferred = 0
        plan.budget -= len(self.sleepers)
        super()._schedule_running(plan)

    def schedule(self, reject_drafts: RejectDrafts) -> tuple[SchedulerOutput, StepPlan]:
        output, plan = super().schedule(reject_drafts)
        output.total_num_scheduled_tokens += len(self.sleepers)
        return output, plan

    def attend(self, plan: StepPlan, reject_drafts: RejectDrafts) -> None:
        self._note_work(plan)
        super().attend(plan, reject_drafts)

    def _note_work(self, plan: StepPlan) -> None:
        sleeping = len(self.sleepers)
        self.work = work = Work(sleeping, self.sleepers.context, self.sleepers.context)
        for request_id, count in plan.counts.items():
            work.add(self.requests[request_id].num_computed_tokens, count)

    # -- sleeping ------------------------------------------------------------------------------

    def wake(self, woken: Iterable[TracedRequest]) -> None:
        """Let sleepers run again, at their places."""
        self.running.extend(woken)
        self.running.sort(key=_run_order)

    def may_lack_blocks(self) -> bool:
        """Whether running requests might need more blocks than are free, so that one would be preempted."""
        size, needed = self.config.block_size, 0
        for request in self.running:
            wanted = request.num_computed_tokens + min(
                self.config.max_step_tokens, request.num_tokens - request.num_computed_tokens
            )
            (table,) = self.blocks.tables[request.request_id].groups
            needed += max(0, -(-wanted // size) - len(table))
        return needed > self.blocks.block_pool.num_free

    def may_lack_tokens(self) -> bool:
        """Whether a request before a sleeper might take the sleeper's token."""
        return any(
            request.num_tokens - request.num_computed_tokens > 1 and _run_order(request) < self._run_orders
            for request in self.running
        )

    def check(self) -> None:
        """Recount, with all sleepers woken."""
        self.sleepers.check()
        self.wake(self.sleepers.wake_all())
        super().check()


class QuickScheduler(TimedScheduler):
    """The scheduler of an engine without memory, where readers and owners of blocks don't matter."""

    def attend(self, plan: StepPlan, reject_drafts: RejectDrafts) -> None:
        self._note_work(plan)

    def own(self, request: SimRequest) -> None:
        """Nothing to do: without memory there are no rights to blocks."""


def _run_order(request: SimRequest) -> int:
    assert isinstance(request, TracedRequest), f"{request} isn't of a trace"
    return request.run_order
