"""``WorldState``: one or two engines with their connectors, and the record of their actions.

``apply`` takes an action, if it is legal now, and records it with everything that was drawn for it. The actions'
effects are in ``history.effects``.
"""

import json
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Any, ClassVar, Final

from kv_sim.actions import Action, Kind
from kv_sim.checkers.ending import Ending
from kv_sim.checkers.media import guard_media
from kv_sim.checkers.medium_worker import guard_workers
from kv_sim.checkers.tickets import ENDS, TELLS_OF_TICKETS, Tickets, tables_told
from kv_sim.config import WorldConfig
from kv_sim.engine.engine import Engine
from kv_sim.engine.place import places
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.engines import find_engine
from kv_sim.guard import all_or_none
from kv_sim.history import clients
from kv_sim.history.arrivals import Arrivals
from kv_sim.history.coverage import STRANGE, Coverage
from kv_sim.history.router import Router
from kv_sim.site import Call, Shared, Site
from kv_sim.subject import TICKET, Subject, Trait
from kv_sim.violation import Referee

_in_order: Final = json.JSONEncoder(sort_keys=True)

HEARD: Final = TELLS_OF_TICKETS | {"get_kv_connector_stats"}
"""The methods whose calls a world looks at; those that tell of tickets tell of sharing and coverage, too. Most
calls of a history are of others, and nobody but a watcher needs to hear of them."""


class WorldState:
    """The engines of a world, and the history so far."""

    guards_media: ClassVar[bool] = True
    """Whether managers of media are checked separately, which adds work to the connector's calls."""
    router_class: ClassVar[type[Router]] = Router
    """The class of the router between engines that serve each other."""

    def __init__(
        self,
        config: WorldConfig,
        subject: Subject,
        *,
        referee: Referee | None = None,
        observe: Callable[[Call], object] | None = None,
        engine_class: type[Engine] | None = None,
    ) -> None:
        self.config = config
        self.subject = subject
        self.referee = referee or Referee()
        self.coverage = Coverage()
        self.history: list[Action] = []
        holds = Trait.HOLDS in subject.traits
        self.tickets = Tickets(config, self.referee, is_on=subject.serves_peers, holds=holds)
        self.ending = Ending()
        self._digest = blake2b(digest_size=16)
        self._observe = observe
        engine_class = engine_class or find_engine(config.engine)
        shared = Shared(self.referee, self.coverage, self.tickets)
        self.sites: list[Site] = []
        for place in places(config.engines, shares_store=subject.shares_store, stranger=config.stranger):
            own = config.at(place.number)
            with all_or_none([connector for engine in self.engines for connector in engine.connectors]):
                site = Site(
                    place, own, subject, engine_class, shared, self._called, HEARD if observe is None else None
                )
            if self.guards_media:
                guard_media(site.engine.connectors[-1], site.referee, self.coverage.room)
                for worker, device in zip(site.engine.connectors, site.engine.devices, strict=False):
                    guard_workers(worker, site.referee, device.copies)
            self.sites.append(site)
        self._let_devices_know_each_other()
        if subject.shares_store:
            self._let_sites_share()
        self.arrivals = Arrivals(config, of_peers=subject.serves_peers or subject.shares_store)
        self.router: Router | None = None
        if subject.serves_peers:
            is_fair = Trait.TICKETS not in subject.traits
            self.router = self.router_class(self.engines, is_fair=is_fair, claims_used=not holds)

    def _let_devices_know_each_other(self) -> None:
        """Connect each device with the same rank's device in other engines, between which bytes are moved.

        It also lets a wrong content here be traced to the engine that computed it.
        """
        for engine in self.engines:
            for device in engine.devices:
                others = [other.devices for other in self.engines if other is not engine]
                device.others = [of_one[device.rank] for of_one in others if device.rank < len(of_one)]
                device.kernels.others = [of_one[0].kernels for of_one in others]

    def _let_sites_share(self) -> None:
        """Tell each site which others share its store."""
        for site in self.sites:
            for other in self.sites:
                if other is not site:
                    site.share_with(other)

    @property
    def engine(self) -> Engine:
        """The first engine; most worlds have only this one."""
        return self.sites[0].engine

    @property
    def engines(self) -> list[Engine]:
        """All engines, in the order of their sites."""
        return [site.engine for site in self.sites]

    def site_of(self, args: dict[str, Any]) -> Site | None:
        """Where an action with these arguments happens. None: the world has no such engine."""
        number = args.get("engine", 0)
        return self.sites[number] if number < len(self.sites) else None

    def draw_request(self, random: Random, at: int = 0) -> RequestSpec:
        """A request that may arrive at an engine now. No two engines of a world use the same id."""
        taken = set().union(*(site.taken_ids() for site in self.sites))
        held = self.router.newest_for(self.engines[at]) if self.router is not None else None
        spec = self.arrivals.draw(random, taken, held)
        if self.router is not None:
            spec = self.router.named(self.engines[at], spec)
        if Trait.CLIENTS not in self.subject.traits:
            return spec
        return clients.draw(spec, self.router.words if self.router is not None else ())

    # -- applying ------------------------------------------------------------------------------

    def apply(self, action: Action, random: Random | None = None) -> bool:
        """Take an action, if it is legal now. It is recorded with everything that was drawn for it."""
        args = dict(action.args)
        site = self.site_of(args)
        if site is None:
            return False
        states = self.coverage.states(site.engine, action)
        self.history.append(action)
        try:
            legal = site.effects.take(action.kind, args, random)
        finally:
            self.history[-1] = Action(action.kind, args)  # a failure's record needs what was drawn, too
        if not legal:
            self.history.pop()
            return False
        self.coverage.count(action.kind, states)
        self._digest.update(_in_order.encode(self.history[-1].to_json()).encode())
        return True

    def take(self, kind: Kind, **args: Any) -> bool:
        """Take an action, if it is legal now, and keep no record of it; nothing is drawn."""
        site = self.site_of(args)
        return site is not None and site.effects.take(kind, args, None)

    # -- what was ---------------------------------------------------------------------------------

    @property
    def digest(self) -> str:
        """A fingerprint of everything that happened, memory included."""
        digest = self._digest.copy()
        for device in (device for engine in self.engines for device in engine.devices):
            digest.update(device.memory.tobytes())
        return digest.hexdigest()

    def _called(self, site: Site, call: Call) -> None:
        """A connector answered a call: note the result, and tell checkers and watchers."""
        _, side, name, args, answer = call
        if name == "get_num_new_matched_tokens":
            self._matched(args, answer)
            self._digest.update(repr((side, name, args[0].request_id, args[1], answer)).encode())
        elif name == "get_kv_connector_stats":
            site.counted.take(answer)
        elif name == "update_connector_output":
            self.coverage.reported(site.engine, args[0], self.tickets.bearers)
        if self.subject.shares_store:
            site.hear_of_sharing(call)
        if self._observe is not None:
            self._observe(call)
        if name in ENDS and self.router is not None:
            self._ended(site, self.router, name, args, answer)
        else:
            self.tickets.hear(name, args, answer, site.config.role)

    def _matched(self, args: tuple[Any, ...], answer: Any) -> None:
        """Count what a connector has of a request."""
        self.coverage.matched(args[0], answer, self.tickets.bearers, args[1])
        if self._is_of_strangers(args[0]) and not answer[0]:
            self.coverage.situation(STRANGE)
        if self.config.stages != "alike" and answer[0]:
            self.coverage.situation("match: stages hold different layers")
        if self.config.is_unequal and answer[0]:
            self.coverage.situation("match: blocks of several sizes")
        if self.config.has_tails and answer[0] and (args[1] + answer[0]) % self.config.block_size:
            self.coverage.situation("match: a load ends within a block")

    def _is_of_strangers(self, request: Any) -> bool:
        """Whether a request has a ticket of a stranger; with two engines the ticket is the other engine's."""
        return self.config.stranger != "none" and request.request_id in self.tickets.bearers

    def _ended(self, site: Site, router: Router, name: str, args: tuple[Any, ...], answer: Any) -> None:
        """A request ended. If it returned a ticket, the router may give that to a request at the other engine."""
        is_held, request = answer[0], args[0]
        ticket = router.ticket_of(site.engine, request, answer)
        self.tickets.hear(name, args, (is_held, ticket), site.config.role)
        if ticket.get(TICKET):
            router.learn(site.engine, request, ticket, tables_told(name, args))
