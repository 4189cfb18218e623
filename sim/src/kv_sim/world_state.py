"""``WorldState``: one engine, one connector, and what happened to them, one action at a time.

``apply`` takes an action, if it is legal now, and records it with everything that was drawn for it. What an action
does is in ``history.effects``.
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
from kv_sim.checkers.tickets import ENDS, Tickets, tables_told
from kv_sim.config import WorldConfig
from kv_sim.engine.engine import Engine
from kv_sim.engines import find_engine
from kv_sim.history.arrivals import Arrivals
from kv_sim.history.coverage import Coverage
from kv_sim.history.effects import Effects, stands_still, taken_ids
from kv_sim.history.router import Router
from kv_sim.subject import TICKET, Subject, Trait
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
        holds = Trait.HOLDS in subject.traits
        self.tickets = Tickets(config, self.referee, is_on=subject.serves_peers, holds=holds)
        self.ending = Ending()
        self._digest = blake2b(digest_size=16)
        self._observe = observe
        self.engine = (engine_class or find_engine(config.engine))(config, subject, self.referee, self._called)
        if self.guards_media:
            guard_media(self.engine.connectors[-1], self.referee)
        self.arrivals = Arrivals(config, of_peers=subject.serves_peers)
        self.router: Router | None = None
        if subject.serves_peers:
            is_fair = Trait.TICKETS not in subject.traits
            self.router = Router(self.engine, is_fair=is_fair, comes_again=not holds)
            self.engine.params_for = self.router.params_for
        self._effects = Effects(self.engine, config, self.coverage)

    # -- applying ------------------------------------------------------------------------------

    def apply(self, action: Action, random: Random | None = None) -> bool:
        """Take an action, if it is legal now. It is recorded with everything that was drawn for it."""
        args = dict(action.args)
        states = self.coverage.states(self.engine, action)
        self.history.append(action)
        try:
            legal = self._effects.take(action.kind, args, random)
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
        return self._effects.take(kind, args, None)

    def taken_ids(self) -> set[str]:
        """Ids that must not be added now: requests that the engine has, or that a step under way computes."""
        return taken_ids(self.engine)

    @property
    def stands_still(self) -> bool:
        """Whether copies are under way, and all of them are lost."""
        return stands_still(self.engine)

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
        if name in ENDS and self.router is not None and (answer[1] or {}).get(TICKET):
            self.router.learn(args[0], answer[1], tables_told(name, args))
