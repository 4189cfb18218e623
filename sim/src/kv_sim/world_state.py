"""``WorldState``: one engine, one connector, and everything that can happen to them, one action at a time.

``apply`` takes an action, if it is legal now, and records it with everything that was drawn for it.
"""

import json
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Any, ClassVar

from kv_sim.actions import Action, Kind
from kv_sim.checkers.accounting import Counted
from kv_sim.checkers.ending import Ending
from kv_sim.checkers.medium import guard_media
from kv_sim.checkers.tickets import Tickets
from kv_sim.config import WorldConfig
from kv_sim.engine.engine import Engine
from kv_sim.engine.request import RequestSpec
from kv_sim.engines import find_engine
from kv_sim.history.arrivals import Arrivals
from kv_sim.history.coverage import Coverage
from kv_sim.memory.copies import Copy, State
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Referee


class WorldState:
    """What there is, and what happened so far."""

    guards_media: ClassVar[bool] = True
    """Whether the managers of media are judged by themselves, which takes some work in the connector's calls."""

    def __init__(
        self,
        config: WorldConfig,
        subject: Subject,
        *,
        referee: Referee | None = None,
        observe: Callable[[str, str, tuple[Any, ...], Any], None] | None = None,
        engine_class: type[Engine] | None = None,
    ) -> None:
        self.config = config
        self.subject = subject
        self.referee = referee or Referee()
        self.coverage = Coverage()
        self.history: list[Action] = []
        self.counted = Counted(self.referee, is_on=Trait.COUNTS in subject.traits)
        self.tickets = Tickets(config, self.referee, is_on=subject.serves_peers)
        self.ending = Ending()
        self._digest = blake2b(digest_size=16)
        self._observe = observe
        self.engine = (engine_class or find_engine(config.engine))(config, subject, self.referee, self._called)
        if self.guards_media:
            guard_media(self.engine.connectors[-1], self.referee)
        self.arrivals = Arrivals(config, of_peers=subject.serves_peers)

    # -- applying ------------------------------------------------------------------------------

    def apply(self, action: Action, random: Random | None = None) -> bool:
        """Take an action, if it is legal now. It is recorded with everything that was drawn for it."""
        args = dict(action.args)
        states = self.coverage.states(self.engine, action)
        self.history.append(action)
        try:
            legal = bool(getattr(self, f"_{action.kind.value}")(args, random))
        finally:
            self.history[-1] = Action(action.kind, args)  # what was drawn for it belongs to a failure, too
        if not legal:
            self.history.pop()
            return False
        self.coverage.count(action.kind, states)
        self._digest.update(json.dumps(self.history[-1].to_json(), sort_keys=True).encode())
        return True

    def take(self, kind: Kind, **args: Any) -> bool:
        """Take an action, if it is legal now, and keep no record of it; nothing is drawn."""
        return bool(getattr(self, f"_{kind.value}")(args, None))

    def taken_ids(self) -> set[str]:
        """Ids that must not be added now: requests that the engine has, or that a step under way computes."""
        under_way = (step.output.num_scheduled_tokens for step in self.engine.steps)
        return set(self.engine.scheduler.requests).union(*under_way)

    @property
    def stands_still(self) -> bool:
        """Whether copies are under way, and all of them are lost."""
        states = {copy.state for device in self.engine.devices for copy in device.copies.running.values()}
        return states == {State.LOST}

    def _add(self, args: dict[str, Any], random: Random | None) -> bool:
        spec = RequestSpec.from_json(args["spec"])
        if spec.request_id in self.taken_ids() or spec.total_tokens > self.config.max_model_len:
            return False
        self.engine.add(spec)
        return True

    def _abort(self, args: dict[str, Any], random: Random | None) -> bool:
        request = self.engine.scheduler.requests.get(args["request"])
        if request is None or request.status.is_finished:
            return False
        if request.awaits_load and self.stands_still:
            self.coverage.situation("a load that stands still is aborted")
        self.engine.abort(args["request"])
        return True

    def _turn(self, args: dict[str, Any], random: Random | None) -> bool:
        request = self.engine.scheduler.requests.get(args["request"])
        if request is None or request.status.is_finished or not request.may_hear_more:
            return False
        self.coverage.turn_arrives(request)
        self.engine.take_turn(args["request"])
        return True

    def _step(self, args: dict[str, Any], random: Random | None) -> bool:
        if not self.engine.has_work:
            return False
        while not self.engine.can_schedule:
            self.engine.finish_step()
        self._schedule_with(args, random)
        for rank in range(self.config.world_size):
            while self.engine.executable(rank):
                self.engine.execute(rank)
        while len(self.engine.steps) > self.config.run_ahead:
            self.engine.finish_step()
        return True

    def _schedule(self, args: dict[str, Any], random: Random | None) -> bool:
        if not (self.engine.can_schedule and self.engine.has_work):
            return False
        self._schedule_with(args, random)
        return True

    def _schedule_with(self, args: dict[str, Any], random: Random | None) -> None:
        """Schedule; which drafts are rejected is drawn now and recorded, or taken from the record."""
        recorded: dict[str, int] = args.get("rejects", {})
        used: dict[str, int] = {}

        def reject(request_id: str, drafts: int) -> int:
            rejected = min(recorded.get(request_id, 0), drafts) if random is None else random.randint(0, drafts)
            if rejected:
                used[request_id] = rejected
            return rejected

        step = self.engine.schedule(reject)
        self.coverage.scheduled(self.engine, step)
        if used:
            args["rejects"] = used
        else:
            args.pop("rejects", None)

    def _execute(self, args: dict[str, Any], random: Random | None) -> bool:
        rank: int = args["rank"]
        if rank >= self.config.world_size or not self.engine.executable(rank):
            return False
        self.engine.execute(rank)
        return True

    def _retire(self, args: dict[str, Any], random: Random | None) -> bool:
        rank: int = args["rank"]
        if rank >= self.config.world_size or not self.engine.devices[rank].queue:
            return False
        self.engine.retire(rank)
        return True

    def _process(self, args: dict[str, Any], random: Random | None) -> bool:
        if not self.engine.processable():
            return False
        self.engine.process()
        return True

    def _reset(self, args: dict[str, Any], random: Random | None) -> bool:
        resets = self.engine.served.resets
        done = self.engine.reset(running=args["running"], connector=args["connector"])
        self.coverage.situation(f"reset answered {done}")
        if self.engine.served.resets > resets:
            self.coverage.situation("a connector forgets at a reset")
        return True

    # -- copies --------------------------------------------------------------------------------

    def _settle(self, args: dict[str, Any], random: Random | None) -> bool:
        settled = False
        for device in self.engine.devices:
            while copies := device.copies.startable():
                settled = True
                for copy in copies:
                    device.copies.advance(copy, len(copy.pairs))
        return settled

    def _copy(self, args: dict[str, Any]) -> Copy | None:
        if args["rank"] >= self.config.world_size:
            return None
        engine = self.engine.devices[args["rank"]].copies
        return next((copy for copy in engine.startable() if copy.copy_id == args["copy"]), None)

    def _advance(self, args: dict[str, Any], random: Random | None) -> bool:
        copy = self._copy(args)
        if copy is None:
            return False
        self.engine.devices[args["rank"]].copies.advance(copy, args.get("pages", len(copy.pairs)))
        return True

    _finish = _advance

    def _fail(self, args: dict[str, Any], random: Random | None) -> bool:
        copy = self._copy(args)
        if copy is None:
            return False
        self.coverage.situation("a copy is torn" if copy.copied else "a copy fails")
        self.engine.devices[args["rank"]].copies.fail(copy)
        return True

    def _spoil(self, args: dict[str, Any], random: Random | None) -> bool:
        if args["rank"] >= self.config.world_size:
            return False
        copies = self.engine.devices[args["rank"]].copies
        if args.get("load", False):
            copies.spoiled_load = True
        else:
            copies.spoiled = True
        return True

    def _restart(self, args: dict[str, Any], random: Random | None) -> bool:
        if args["rank"] >= self.config.world_size:
            return False
        forgets = args["memory"] and not self.config.run_ahead  # loads in the step would fail
        self.coverage.situation("a restart loses host memory" if forgets else "a restart ends copies")
        self.engine.devices[args["rank"]].restart_copies(forget_host=forgets)
        return True

    def _lose(self, args: dict[str, Any], random: Random | None) -> bool:
        copy = self._copy(args)
        if copy is None:
            return False
        self.coverage.situation("a copy is lost")
        self.engine.devices[args["rank"]].lose(copy)
        return True

    def _find(self, args: dict[str, Any], random: Random | None) -> bool:
        if args["rank"] >= self.config.world_size or self.config.writes_before_fences:
            return False
        engine = self.engine.devices[args["rank"]].copies
        copy = next((copy for copy in engine.lost() if copy.copy_id == args["copy"]), None)
        if copy is None:
            return False
        self.coverage.situation("a lost copy is found")
        engine.find(copy)
        return True

    def _repeat(self, args: dict[str, Any], random: Random | None) -> bool:
        if args["rank"] >= self.config.world_size:
            return False
        engine = self.engine.devices[args["rank"]].copies
        copy = next((c for c in engine.ended if c.copy_id == args["copy"]), None)
        if copy is None or copy.state is State.LOST:
            return False
        engine.repeat(copy)
        return True

    # -- what was ---------------------------------------------------------------------------------

    @property
    def digest(self) -> str:
        """A fingerprint of everything that happened, memory included."""
        digest = self._digest.copy()
        for device in self.engine.devices:
            digest.update(device.memory.tobytes())
        return digest.hexdigest()

    def _called(self, side: str, name: str, args: tuple[Any, ...], answer: Any) -> None:
        if name == "get_num_new_matched_tokens":
            self.coverage.matched(args[0], answer)
            if self.config.has_tails and answer[0] and (args[1] + answer[0]) % self.config.block_size:
                self.coverage.situation("match: a load ends within a block")
            self._digest.update(repr((side, name, args[0].request_id, args[1], answer)).encode())
        elif name == "get_kv_connector_stats":
            self.counted.take(answer)
        if self._observe is not None:
            self._observe(side, name, args, answer)
        self.tickets.hear(name, args, answer)
