"""``Drive``: the loop of one engine's arrivals and steps, in the order of time.

A step that computes something begins with the host's part (``overhead_ns``), in which the worker's hooks run. Then
comes the forward pass, and at its end the step is processed. So the first step whose hooks run after a copy's end
reports it, and a request that waits for the copy runs in the step after that one. A step that computes nothing is
processed at once, and the engine waits ``idle_ns`` before the next.

**Fusing.** A step is *quiet* if it would change only the clock and the sleepers. That is so if

- all running requests sleep (``sleepers``),
- no copy ends before the step's hooks ask for it, and every earlier end has been reported,
- the scheduler would treat every waiting request as in the step before. That is so if all waiting requests are
  loading, or if the step before was *idle*: no awake request computed, none was preempted or put off, and no copy
  began or was reported. (An admitted request computes or begins to load, a request that ends has computed, and
  blocks become free only by an end or by a reported copy.) Then the first request of the queue found no room, and
  finds none again.

``_pass_quiet_steps`` adds up quiet steps; every other step goes through the engine. If neighbours store and evict
shared files, a waiting request may find more or less in each step, so no step is idle. Restless requests, whose
stores the medium refused, never sleep, since their connector counts their steps.
"""

from collections.abc import Callable, Iterator
from typing import NoReturn

from kv_offload import OffloadingSchedulerSide
from kv_sim.checkers import conservation
from kv_sim.engine.request import SimRequest, Status
from kv_sim.replay.timed.engine.arrivals import NEVER, Arrivals
from kv_sim.replay.timed.engine.books import Books
from kv_sim.replay.timed.engine.engine import TimedEngine
from kv_sim.replay.timed.engine.request import TracedRequest
from kv_sim.replay.timed.engine.scheduler import TimedScheduler
from kv_sim.replay.timed.engine.sleepers import quiet_steps
from kv_sim.replay.timed.server.settings import Stepping
from kv_sim.violation import Invariant, Violation

MOST_EMPTY_STEPS = 1000
"""In a row, with no copy under way and no arrival to come. A connector puts a request off 50 times at most."""


class Drive:
    """One engine in a replay, with its arrivals."""

    def __init__(
        self,
        engine: TimedEngine,
        books: Books,
        arrivals: Arrivals,
        stepping: Stepping,
        ended: Callable[[TracedRequest], None] = lambda request: None,
    ) -> None:
        self.engine = engine
        self.books = books
        self._fuses = stepping is Stepping.FUSED
        self._arrivals = arrivals
        self._ended = ended
        """Called with every request that has ended, once its times are known."""
        self._step: Iterator[None] | None = None
        """The rest of the step under way."""
        self._is_idle = False
        """Whether the last step changed nothing on which the next step's decisions depend."""
        self.empty_steps = 0
        """Steps in a row that computed nothing, with no copy under way and no arrival to come."""
        owners = (owner for connector in engine.connectors for owner in conservation.owners(connector))
        self._counters = [owner for owner in owners if isinstance(owner, OffloadingSchedulerSide)]
        """The connectors' schedulers that count steps, and must be told of skipped ones."""
        self._noted = 0
        """How many of the ended requests have been noted."""

    @property
    def moment(self) -> int:
        """When the engine acts next. NEVER: it has nothing left to do, as far as is known."""
        engine, scheduler = self.engine, self.engine.scheduler
        if self._step is not None or scheduler.requests or scheduler.finished_req_ids:
            return engine.clock.now
        moment = min(self._arrivals.moment, self._next_copy_end())
        if moment == NEVER:
            return engine.clock.now if engine.has_work else NEVER
        return max(engine.clock.now, moment)

    def news(self, moment: int) -> int:
        """The earliest time at which this engine may affect others, if it goes on at ``moment`` undisturbed.

        An engine that takes quiet steps affects no other engine before a request arrives, a copy ends or a sleeper
        wakes; and no later step of the sleepers is shorter than the next one.
        """
        if moment == NEVER or not self._fuses or self._step is not None or not self._is_quiet(NEVER):
            return moment
        sleepers, costs = self.engine.scheduler.sleepers, self.engine.sizes.step
        news, alarm = min(self._arrivals.moment, self._next_copy_end()), sleepers.next_alarm()
        if alarm is not None:
            shortest = costs.overhead_ns + costs.forward_ns(len(sleepers), sleepers.context, sleepers.context)
            news = min(news, moment + (alarm - sleepers.steps) * shortest)
        return max(moment, news)

    def turn(self, moment: int, until: Callable[[], int]) -> None:
        """Go on at ``moment``: continue the step under way until the clock moves, or take new or quiet steps.

        ``until`` is called only if needed; before the time that it returns, no other engine affects this one.
        """
        if self._step is None:
            self.engine.clock.now = moment
            self._let_arrive()
            if self._fuses and self._is_quiet(NEVER) and self._is_quiet(limit := until()):
                self._pass_quiet_steps(limit)
                return
            self._step = self._take_step()
        if next(self._step, self) is self:
            self._step = None

    def check_end(self) -> None:
        """Check that no request and no copy is left."""
        engine = self.engine
        engine.check()
        conservation.check_engine(engine)
        conservation.check_connectors(engine)
        conservation.check_books(engine)
        assert engine.copies_nothing, "a copy is under way at the end"

    def _let_arrive(self) -> None:
        scheduler, arrivals = self.engine.scheduler, self._arrivals
        while arrivals.moment <= self.engine.clock.now:
            self._is_idle &= bool(scheduler.waiting)
            scheduler.add_request(arrivals.take())

    def _next_copy_end(self) -> int:
        end = self.engine.next_copy_end()
        return NEVER if end is None else end

    # -- a step through the engine -------------------------------------------------------------

    def _take_step(self) -> Iterator[None]:
        """Take one step; yields when the clock has moved, so that other engines can go first."""
        engine, clock, scheduler = self.engine, self.engine.clock, self.engine.scheduler
        if scheduler.sleepers:
            scheduler.wake(scheduler.sleepers.wake_due())
            if scheduler.may_lack_blocks() or scheduler.may_lack_tokens():
                scheduler.wake(scheduler.sleepers.wake_all())
        before, refusals = engine.copy_activity, self.books.refusals
        step = engine.schedule(_reject_none)
        work, costs = scheduler.work, engine.sizes.step
        computing = [scheduler.requests[request_id] for request_id in step.output.num_scheduled_tokens]
        if work.tokens:
            clock.now += costs.overhead_ns
            engine.forward_ns = costs.forward_ns(work.tokens, work.pairs, work.context)
            yield
        engine.execute(0)
        if work.tokens:
            clock.now = clock.busy_until
            yield
            engine.retire(0)
        engine.process()
        scheduler.sleepers.pass_steps(1)
        self.books.take_step(work, clock.now)
        self._note_progress(computing)
        if self.books.refusals > refusals:
            for request in computing:
                _traced(request).is_restless = True
        self._is_idle = not engine.shares_files and not (
            computing or step.output.preempted_req_ids or scheduler.deferred or engine.copy_activity != before
        )
        if self._fuses:
            self._put_to_sleep()
        self._count_empty_steps(work.tokens)

    def _note_progress(self, computing: list[SimRequest]) -> None:
        """Note the times of first tokens and of ends."""
        now, outcome = self.engine.clock.now, self.engine.outcome
        for request in computing:
            times = _traced(request).times
            if times.first_token < 0 and request.num_output_tokens:
                times.first_token = now
        for request in outcome.ended[self._noted :]:
            _traced(request).times.end = now
            self.books.end(_traced(request))
            self._ended(_traced(request))
        self._noted = len(outcome.ended)

    def _put_to_sleep(self) -> None:
        scheduler, size = self.engine.scheduler, self.engine.config.block_size
        awake: list[SimRequest] = []
        for request in scheduler.running:
            traced = _traced(request)
            steps = 0 if traced.is_restless else quiet_steps(traced, size)
            if steps:
                scheduler.sleepers.fall_asleep(traced, steps)
            else:
                awake.append(request)
        scheduler.running[:] = awake

    def _count_empty_steps(self, tokens: int) -> None:
        """Wait after a step that computed nothing, and fail if there are too many of these in a row."""
        if tokens:
            self.empty_steps = 0
            return
        if self.engine.scheduler.requests:
            self.engine.clock.now += self.engine.sizes.step.idle_ns
        self.empty_steps += 1
        if not self.engine.copies_nothing or self._arrivals.moment != NEVER:
            self.empty_steps = 0

    def fail_to_end(self) -> NoReturn:
        """Raise a violation: the engine takes step after step without progress."""
        left = ", ".join(map(repr, self.engine.scheduler.requests.values())) or "none, but it wants to go on"
        raise Violation(Invariant.LIVENESS, f"nothing is under way, and there are still requests: {left}")

    # -- quiet steps ---------------------------------------------------------------------------

    def _is_quiet(self, until: int) -> bool:
        """Whether the engine's next step would change nothing but the clock and the sleepers."""
        engine, scheduler = self.engine, self.engine.scheduler
        if scheduler.running or scheduler.finished_req_ids:
            return False
        alarm = scheduler.sleepers.next_alarm()
        if alarm is not None and alarm <= scheduler.sleepers.steps:
            return False
        if not self._is_idle and not _nobody_waits(scheduler):
            return False
        hooks = engine.clock.now + (engine.sizes.step.overhead_ns if scheduler.sleepers else 0)
        return self._next_news(until) > hooks

    def _next_news(self, until: int) -> int:
        """The time before which surely no copy ends; from ``until`` on, other engines may cause one to end."""
        return min(self._next_copy_end(), until) if self.engine.awaits_others else self._next_copy_end()

    def _pass_quiet_steps(self, until: int) -> None:
        engine, clock, sleepers = self.engine, self.engine.clock, self.engine.scheduler.sleepers
        news, costs, until = self._next_news(until), engine.sizes.step, min(until, self._arrivals.moment)
        alarm = sleepers.next_alarm()
        if alarm is None:
            moment = min(news, until)
            if moment == NEVER:
                self.fail_to_end()
            steps = -(-(moment - clock.now) // costs.idle_ns)
            clock.now += steps * costs.idle_ns
            if engine.copies_nothing and self._arrivals.moment == NEVER:
                self.empty_steps += steps
            self._skip(steps)
            return
        # A further step is quiet as long as its hooks run before a copy ends.
        last, count, context = news - costs.overhead_ns, len(sleepers), sleepers.context
        now, steps, most = clock.now, 0, alarm - sleepers.steps
        while steps < most and now < last and now < until:
            now += costs.overhead_ns + costs.forward_ns(count, context, context)
            context += count
            steps += 1
        clock.now = now
        sleepers.pass_steps(steps)
        self._skip(steps)

    def _skip(self, steps: int) -> None:
        self.books.num_steps += steps
        for counter in self._counters:
            counter.skip_steps(steps)


def _nobody_waits(scheduler: TimedScheduler) -> bool:
    """Whether all requests that don't run are loading."""
    loading = all(request.status is Status.WAITING_FOR_REMOTE_KVS for request in scheduler.holding)
    return loading and not scheduler.waiting and not scheduler.loaded


def _traced(request: SimRequest) -> TracedRequest:
    assert isinstance(request, TracedRequest), f"{request} isn't of a trace"
    return request


def _reject_none(request_id: str, drafts: int) -> int:
    return 0
