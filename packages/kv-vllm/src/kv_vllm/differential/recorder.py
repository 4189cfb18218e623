"""``RecordingEngine``: the testbed's engine, which records its trace. ``record`` runs one world and returns that.

It overrides the methods that a world calls on an engine: each call opens a turn, and the connector's calls that
the guard logs until the next one belong to it. Calls before the first turn are the start-up and aren't recorded.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from kv_api import Direction
from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.builtin import BuiltinEngine
from kv_sim.engine.output import Step
from kv_sim.engine.pause import PauseMode
from kv_sim.engine.place import Place
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.engine.scheduler import RejectDrafts
from kv_sim.guard import HistoryEnds, LogCall
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Referee, Violation
from kv_sim.world import World
from kv_vllm.differential.trace import (
    COMPARED,
    POOL_CALLS,
    Abort,
    Add,
    Call,
    Event,
    NextTurn,
    Paused,
    PoolCall,
    Process,
    Reset,
    Resumed,
    Sampled,
    Schedule,
    Trace,
    Turn,
    arguments_of,
    report_of,
)


class RecordingEngine(BuiltinEngine):
    """An engine that records. ``turns`` are the turns so far."""

    def __init__(
        self,
        config: WorldConfig,
        subject: Subject,
        referee: Referee,
        log: LogCall,
        place: Place | None = None,
    ) -> None:
        self.turns: list[Turn] = []
        self._report: dict[str, list[Any]] = {}
        self._pool_calls: list[PoolCall] = []

        def note(side: str, name: str, args: tuple[Any, ...], answer: Any) -> None:
            log(side, name, args, answer)
            if side == "scheduler" and self.turns and name in COMPARED:
                self._note(name, args, answer)

        super().__init__(config, subject, referee, note, place)

    def listen_to_pool(self, name: str) -> None:
        """Record calls of a method of the pool that changes it from outside the scheduler."""
        pool = self.scheduler.blocks.block_pool
        call = getattr(pool, name)

        def noted(blocks: Iterable[int]) -> None:
            blocks = list(blocks)
            self._pool_calls.append(PoolCall(name, tuple(blocks)))
            call(blocks)

        setattr(pool, name, noted)

    def _note(self, name: str, args: tuple[Any, ...], answer: Any) -> None:
        if name == "update_connector_output":
            self._report = report_of(args[0])
        self.turns[-1].calls.append(Call(name, arguments_of(name, args), answer, tuple(self._pool_calls)))
        self._pool_calls.clear()

    def _open(self, event: Event) -> Turn:
        self.turns.append(Turn(event))
        return self.turns[-1]

    def add(self, spec: RequestSpec) -> SimRequest:
        """Record the arrival."""
        self._open(
            Add(
                request_id=spec.request_id,
                prompt=spec.prompt,
                max_tokens=spec.max_tokens,
                salt=spec.salt,
                adapter=spec.adapter,
                skip_reading_prefix_cache=spec.skip_reading_prefix_cache,
                is_session=spec.turns is not None,
            )
        )
        return super().add(spec)

    def take_turn(self, request_id: str) -> None:
        """Record what arrives for a session."""
        request = self.scheduler.requests[request_id]
        number, turns = request.turns_arrived + 1, request.spec.turns or ()
        is_end = number > len(turns)
        self._open(
            NextTurn(request_id, ())
            if is_end
            else NextTurn(request_id, request.spec.said_in(number), turns[number - 1].max_tokens)
        )
        super().take_turn(request_id)

    def abort(self, request_id: str) -> None:
        """Record the abort, and the request's state."""
        request = self.scheduler.requests[request_id]
        state = request.status.value
        if request.status is Status.WAITING_FOR_REMOTE_KVS and request_id in self.scheduler.loaded:
            state = "load reported"
        self._open(Abort(request_id, state))
        super().abort(request_id)

    def reset(self, *, running: bool, connector: bool) -> bool | None:
        """Record the reset and its answer."""
        turn = self._open(Reset(running, connector))
        answer = super().reset(running=running, connector=connector)
        turn.event = Reset(running, connector, answer)
        return answer

    def pause(self, mode: PauseMode) -> None:
        """Record the pause."""
        self._open(Paused(mode))
        super().pause(mode)

    def _resume(self) -> None:
        self._open(Resumed())
        super()._resume()

    def schedule(self, reject_drafts: RejectDrafts) -> Step:
        """Record the step."""
        number, has_work = self.num_steps + 1, self.scheduler.has_work
        turn = self._open(Schedule(number, has_work))
        step = super().schedule(reject_drafts)
        turn.event = Schedule(number, has_work, step.keeps_room)
        return step

    def process(self) -> None:
        """Record what the step's requests sampled, and what the workers reported."""
        step = self.steps[0]
        before = {name: _Known.of(self.scheduler.requests.get(name)) for name in step.output.num_scheduled_tokens}
        held = Counter(block for r in self.scheduler.running for block in self._blocks(r))
        turn = self._open(Process(step.number, {}, {}))
        self._report = {}
        super().process()
        is_told = any(call.name == "update_connector_output" for call in turn.calls)
        sampled = {}
        for name in before:
            if name in step.sampling:
                drafts = len(step.output.scheduled_spec_decode_tokens.get(name, ()))
                count = 1 + drafts - step.rejected.get(name, 0)
                sampled[name] = _sampled(before[name], count)
        shares = any(held[block] > 1 for block in self._report.get("invalid_block_ids", ()))
        stops = any(known is not None and known.was_preempted and known.goes_on for known in before.values())
        turn.event = Process(step.number, sampled, self._report, shares, stops, is_told)

    def _blocks(self, request: SimRequest) -> set[int]:
        tables = self.scheduler.blocks.tables_of(request.request_id)
        return {block for table in tables.groups for block in table}


@dataclass(frozen=True)
class _Known:
    """A request's state before an output is processed."""

    request: SimRequest
    turn: int
    tokens: int
    was_preempted: bool

    @classmethod
    def of(cls, request: SimRequest | None) -> "_Known | None":
        """The state of a request now."""
        if request is None:
            return None
        is_preempted = request.status is Status.PREEMPTED
        return cls(request, request.turn, request.num_tokens, is_preempted)

    @property
    def goes_on(self) -> bool:
        """Whether it is a session whose turn has stopped since, and that hasn't ended."""
        request = self.request
        return request.turn > self.turn or request.status is Status.WAITING_FOR_STREAMING_REQ

    def taken(self) -> tuple[int, ...]:
        """The tokens that it got since then; all tokens of its turn if that is over."""
        if self.request.turn == self.turn:
            return tuple(self.request.all_token_ids[self.tokens :])
        story, asked = self.request.stories[self.turn], self.request.spec.asked_in(self.turn)
        return tuple(story.tokens[self.tokens : story.prompt_tokens + asked.output_tokens])


def _sampled(known: _Known | None, count: int) -> Sampled:
    """The tokens that a request took of the ``count`` that the model sampled."""
    if known is None:
        return Sampled((0,) * count, ends=False)
    taken, request = known.taken(), known.request
    is_over = request.turn > known.turn or request.num_output_tokens == request.asked.output_tokens
    ends = bool(taken) and is_over
    wasted = count - len(taken)
    return Sampled(taken + (0,) * wasted, ends, wasted if ends else 0)


class RecordedWorld(World):
    """A world with more rare actions: aborts of requests whose load was just reported, and failed loads."""

    def act(self, random: Random) -> None:
        engine = cast(RecordingEngine, self.engine)  # as record has it made
        reported, silent = sorted(engine.scheduler.loaded), self.config.silent
        if reported and Kind.ABORT.value not in silent and random.random() < 0.3:
            self.apply(Action(Kind.ABORT, {"request": random.choice(reported)}), random)
            return
        fails = Trait.FAILURES in self.subject.traits and Kind.FAIL.value not in silent
        loads = self._loads() if fails else []
        if loads and random.random() < 0.1:
            rank, copy = random.choice(loads)
            self.apply(Action(Kind.FAIL, {"rank": rank, "copy": copy}), random)
            return
        super().act(random)

    def _loads(self) -> list[tuple[int, int]]:
        """Loads in flight: rank and copy."""
        startable = ((d.rank, copy) for d in self.engine.devices for copy in d.copies.startable())
        return [(rank, copy.copy_id) for rank, copy in startable if copy.direction is Direction.LOAD]


def record(subject: Subject, config: WorldConfig, random: Random, actions: int) -> Trace:
    """Run one world and return its trace, without the world's end, which bypasses the engine's methods."""
    cut = None
    world = RecordedWorld(config, subject, engine_class=RecordingEngine)
    engine = world.engine
    assert isinstance(engine, RecordingEngine), f"the world made a {type(engine).__name__}"
    for name in POOL_CALLS:
        engine.listen_to_pool(name)
    try:
        for _ in range(actions):
            world.act(random)
    except (Violation, HistoryEnds) as end:  # the turn in which it was raised is incomplete
        engine.turns.pop()
        cut = str(end)
    return Trace(engine.turns, engine.scheduler.all_groups, engine.scheduler.requires_delivery, cut)
