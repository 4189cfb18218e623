"""``Site``: one engine of a world, with its connector, the actions on it, and the checkers of this engine alone.

The world has what its engines share: arriving requests, the router that takes tickets from one engine to another,
the checker of these tickets, coverage, and the history.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from kv_sim.checkers.accounting import Counted
from kv_sim.checkers.media import share_media
from kv_sim.checkers.tickets import Tickets
from kv_sim.config import WorldConfig
from kv_sim.engine.engine import Engine
from kv_sim.engine.place import Place
from kv_sim.guard import LogCall
from kv_sim.history.coverage import LENT, STRANGE, Coverage
from kv_sim.history.effects import Effects, stands_still, taken_ids
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Referee


class Call(NamedTuple):
    """A call to a connector, and its return value."""

    engine: int
    """The number of the engine that called."""
    side: str
    """``scheduler``, or ``worker`` and its rank."""
    method: str
    args: tuple[Any, ...]
    answer: Any


Called = Callable[["Site", Call], None]
"""A callback for each call to a site's connector."""


@dataclass(frozen=True)
class Shared:
    """Objects that all engines of a world share."""

    referee: Referee
    coverage: Coverage
    tickets: Tickets


class Site:
    """One engine with its connector, where an action happens."""

    def __init__(
        self,
        place: Place,
        config: WorldConfig,
        subject: Subject,
        engine_class: type[Engine],
        shared: Shared,
        called: Called,
        heard: Set[str] | None = None,
    ) -> None:
        """``heard``: the methods of the connector whose calls are passed on to ``called``; None: all."""
        self.place = place
        self.config = config
        self.subject = subject
        self.tickets, self.coverage = shared.tickets, shared.coverage
        self.referee = shared.referee if place.count == 1 else Referee(place.words, shared.referee.switched_off)
        self.counted = Counted(self.referee, is_on=Trait.COUNTS in subject.traits)
        self.engine = engine_class(config, subject, self.referee, self._log(called, heard), place)
        self.effects = Effects(self.engine, config, shared.coverage)
        self.shares_with: list[Site] = []
        """The other engines with the same store, whose chunks must be found here."""
        self._matched: dict[str, int] = {}
        """Request -> how many tokens it had when it was last matched."""

    def share_with(self, other: "Site") -> None:
        """Note that another engine shares the store: a stranger, or one whose chunks must be found here."""
        served = self.engine.served
        is_strange = self.config.stranger != other.config.stranger
        (served.strangers if is_strange else served.shares_with).append(other.engine.served)
        if not is_strange:
            self.shares_with.append(other)
            share_media(self.engine.connectors[-1], other.engine.connectors[-1])

    def hear_of_sharing(self, call: Call) -> None:
        """Count loads of chunks that another engine stored, and matches that rightly ignore a stranger's."""
        if call.method == "get_num_new_matched_tokens":
            request, local = call.args
            self._matched[request.request_id] = local
            if not call.answer[0] and self.engine.served.is_of_strangers(request, local):
                self.coverage.situation(STRANGE)
        elif call.method == "update_state_after_alloc" and call.args[2]:
            request, start = call.args[0], self._matched[call.args[0].request_id]
            if self.shares_with and self.engine.served.is_of_others(request, start, start + call.args[2]):
                self.coverage.situation(LENT)

    def _log(self, called: Called, heard: Set[str] | None) -> LogCall:
        number = self.place.number

        def log(side: str, method: str, args: tuple[Any, ...], answer: Any) -> None:
            if heard is None or method in heard:
                called(self, Call(number, side, method, args, answer))

        return log

    @property
    def where(self) -> dict[str, int]:
        """The argument of an action that names this engine; empty for the first."""
        return {"engine": self.place.number} if self.place.number else {}

    def taken_ids(self) -> set[str]:
        """Ids that must not be added now: requests that the engine has, or that a step under way computes."""
        return taken_ids(self.engine)

    @property
    def stands_still(self) -> bool:
        """Whether copies are under way, and all of them are lost."""
        return stands_still(self.engine)
