"""What each action does to an engine and to the copies of its ranks, if it is legal now.

Everything that is drawn for an action is written into its arguments, so that it can be replayed with them.
"""

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, TypeAlias

from kv_sim.actions import Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.engine import Engine
from kv_sim.engine.pause import Pause
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.history.coverage import IMAGE, Coverage
from kv_sim.memory.copies import Copies
from kv_sim.memory.copy import Copy, State
from kv_sim.memory.device import Device

Args: TypeAlias = dict[str, Any]

Effect: TypeAlias = Callable[[Args, Random | None], bool]
"""Takes an action. False: it isn't legal now, and changed nothing. Without a ``Random`` it draws nothing."""


def taken_ids(engine: Engine) -> set[str]:
    """Ids that must not be added now: requests that the engine has, or that a step under way computes."""
    under_way = (step.output.num_scheduled_tokens for step in engine.steps)
    return set(engine.scheduler.requests).union(*under_way)


def stands_still(engine: Engine) -> bool:
    """Whether copies are under way, and all of them are lost."""
    states = {copy.state for device in engine.devices for copy in device.copies.running.values()}
    return states == {State.LOST}


class Effects:
    """The effects of actions on one engine. It counts the situations that campaigns look for."""

    def __init__(self, engine: Engine, config: WorldConfig, coverage: Coverage) -> None:
        self._engine = engine
        self._config = config
        self._coverage = coverage
        self._of: Mapping[Kind, Effect] = {
            Kind.ADD: self._add,
            Kind.ABORT: self._abort,
            Kind.TURN: self._turn,
            Kind.STEP: self._step,
            Kind.SCHEDULE: self._schedule,
            Kind.EXECUTE: self._execute,
            Kind.RETIRE: self._retire,
            Kind.PROCESS: self._process,
            Kind.SETTLE: self._settle,
            Kind.FINISH: self._on_copy(Copies.startable, self._advance),
            Kind.ADVANCE: self._on_copy(Copies.startable, self._advance),
            Kind.FAIL: self._on_copy(Copies.startable, self._fail),
            Kind.SPOIL: self._spoil,
            Kind.LOSE: self._on_copy(Copies.startable, self._lose),
            Kind.FIND: self._on_copy(self._found_again, self._find),
            Kind.REPEAT: self._on_copy(lambda copies: copies.ended, self._repeat),
            Kind.RESTART: self._restart,
            Kind.RESET: self._reset,
            Kind.PAUSE: self._pause,
            Kind.SLEEP: self._sleep,
            Kind.WAKE: self._wake,
        }

    def take(self, kind: Kind, args: Args, random: Random | None) -> bool:
        """Take an action, if it is legal now."""
        return self._of[kind](args, random)

    def _has(self, rank: int) -> bool:
        """Whether the world has this rank. A history may be replayed in a world with fewer ranks."""
        return rank < self._config.world_size

    # -- requests and steps --------------------------------------------------------------------

    def _add(self, args: Args, random: Random | None) -> bool:
        spec = RequestSpec.from_json(args["spec"])
        if spec.request_id in taken_ids(self._engine) or spec.total_tokens > self._config.max_model_len:
            return False
        self._coverage.client_sends(spec.kv_transfer_params)
        if spec.seen is not None:
            self._coverage.situation(IMAGE)
        self._engine.add(spec)
        return True

    def _abort(self, args: Args, random: Random | None) -> bool:
        request = self._engine.scheduler.requests.get(args["request"])
        if request is None or request.status.is_finished:
            return False
        if request.awaits_load and stands_still(self._engine):
            self._coverage.situation("a load that stands still is aborted")
        self._engine.abort(args["request"])
        return True

    def _turn(self, args: Args, random: Random | None) -> bool:
        request = self._engine.scheduler.requests.get(args["request"])
        if request is None or request.status.is_finished or not request.may_hear_more:
            return False
        self._coverage.turn_arrives(request)
        self._engine.take_turn(args["request"])
        return True

    def _step(self, args: Args, random: Random | None) -> bool:
        if not self._engine.has_work:
            return False
        while not self._engine.can_schedule:
            self._engine.finish_step()
        self._schedule_with(args, random)
        for rank in range(self._config.world_size):
            while self._engine.executable(rank):
                self._engine.execute(rank)
        while len(self._engine.steps) > self._config.run_ahead:
            self._engine.finish_step()
        return True

    def _schedule(self, args: Args, random: Random | None) -> bool:
        if not (self._engine.can_schedule and self._engine.has_work):
            return False
        self._schedule_with(args, random)
        return True

    def _schedule_with(self, args: Args, random: Random | None) -> None:
        """Schedule; which drafts are rejected is drawn now and recorded, or taken from the record."""
        recorded: dict[str, int] = args.get("rejects", {})
        used: dict[str, int] = {}

        def reject(request_id: str, drafts: int) -> int:
            rejected = min(recorded.get(request_id, 0), drafts) if random is None else random.randint(0, drafts)
            if rejected:
                used[request_id] = rejected
            return rejected

        step = self._engine.schedule(reject)
        self._coverage.scheduled(self._engine, step)
        self._coverage.pulls(self._engine, step)
        if used:
            args["rejects"] = used
        else:
            args.pop("rejects", None)

    def _execute(self, args: Args, random: Random | None) -> bool:
        rank: int = args["rank"]
        if not self._has(rank) or not self._engine.executable(rank):
            return False
        self._engine.execute(rank)
        return True

    def _retire(self, args: Args, random: Random | None) -> bool:
        rank: int = args["rank"]
        if not self._has(rank) or not self._engine.devices[rank].queue:
            return False
        self._engine.retire(rank)
        return True

    def _process(self, args: Args, random: Random | None) -> bool:
        if not self._engine.processable():
            return False
        self._engine.process()
        return True

    def _reset(self, args: Args, random: Random | None) -> bool:
        resets = self._engine.served.resets
        done = self._engine.reset(running=args["running"], connector=args["connector"])
        self._coverage.situation(f"reset answered {done}")
        if self._engine.served.resets > resets:
            self._coverage.situation("a connector forgets at a reset")
        return True

    def _pause(self, args: Args, random: Random | None) -> bool:
        if self._engine.pause_state is not Pause.NONE:
            return False
        self._engine.pause(args["mode"])
        return True

    def _sleep(self, args: Args, random: Random | None) -> bool:
        if not self._engine.may_sleep:
            return False
        if not self._engine.sleep():
            self._coverage.situation("the engine can't sleep")
        elif self._engine.scheduler.requests:
            self._coverage.situation("the engine sleeps and keeps requests")
        else:
            self._coverage.situation("the engine sleeps")
        return True

    def _wake(self, args: Args, random: Random | None) -> bool:
        if self._engine.pause_state is Pause.NONE:
            return False
        self._engine.wake()
        return True

    # -- copies --------------------------------------------------------------------------------

    def _settle(self, args: Args, random: Random | None) -> bool:
        settled = False
        for device in self._engine.devices:
            while copies := device.copies.startable():
                settled = True
                for copy in copies:
                    device.copies.advance(copy, copy.size)
        return settled

    def _device(self, args: Args) -> Device | None:
        """None: the world has no such rank."""
        return self._engine.devices[args["rank"]] if self._has(args["rank"]) else None

    def _on_copy(
        self, choices: Callable[[Copies], Iterable[Copy]], effect: Callable[[Device, Copy, Args], None]
    ) -> Effect:
        """The effect of an action on one of the ``choices`` among a rank's copies, if it is there."""

        def take(args: Args, random: Random | None) -> bool:
            device = self._device(args)
            copies = () if device is None else choices(device.copies)
            copy = next((copy for copy in copies if copy.copy_id == args["copy"]), None)
            if device is None or copy is None:
                return False
            effect(device, copy, args)
            return True

        return take

    def _advance(self, device: Device, copy: Copy, args: Args) -> None:
        device.copies.advance(copy, args.get("pages", copy.size))

    def _fail(self, device: Device, copy: Copy, args: Args) -> None:
        self._coverage.situation("a copy is torn" if copy.copied else "a copy fails")
        device.copies.fail(copy)

    def _lose(self, device: Device, copy: Copy, args: Args) -> None:
        self._coverage.situation("a copy is lost")
        device.lose(copy)

    def _found_again(self, copies: Copies) -> Iterable[Copy]:
        return () if self._config.writes_before_fences else copies.lost()

    def _find(self, device: Device, copy: Copy, args: Args) -> None:
        self._coverage.situation("a lost copy is found")
        device.copies.find(copy)

    def _repeat(self, device: Device, copy: Copy, args: Args) -> None:
        device.copies.repeat(copy)

    def _spoil(self, args: Args, random: Random | None) -> bool:
        device = self._device(args)
        if device is None:
            return False
        if args.get("load", False):
            device.copies.spoiled_load = True
        else:
            device.copies.spoiled = True
        return True

    def _restart(self, args: Args, random: Random | None) -> bool:
        device = self._device(args)
        if device is None:
            return False
        forgets = args["memory"] and not self._config.run_ahead  # loads in the step would fail
        if device.copies.running:
            self._coverage.situation("a restart ends copies")
        if forgets and len(device.host):
            self._coverage.situation("a restart loses host memory")
        device.restart_copies(forget_host=forgets)
        return True
