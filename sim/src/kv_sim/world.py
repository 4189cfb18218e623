"""``World``: runs a random history, or replays a recorded one.

A world picks legal actions with a ``Random`` and takes them. The same class replays recorded actions, and skips
those that are not legal. The same seed gives the same history and digest in any process. After its history, the
engine and the connector are shut down.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from random import Random

from kv_sim.actions import Action
from kv_sim.checkers import at_rest
from kv_sim.guard import HistoryEnds
from kv_sim.history.choices import pick
from kv_sim.violation import Referee, Violation
from kv_sim.world_state import WorldState


class World(WorldState):
    """A world that runs a history: a random one, or recorded actions."""

    def run(self, random: Random, actions: int) -> None:
        """Take ``actions`` actions of ``random``'s choice, let everything come to rest, and end."""
        with self._whole_history():
            for _ in range(actions):
                self.act(random)
            self.rest()

    def act(self, random: Random) -> None:
        """Pick one legal action and take it."""
        at = 0 if len(self.sites) == 1 else random.randrange(len(self.sites))
        self.apply(pick(self, random, at), random)

    def rest(self) -> None:
        """Add no more requests, let every copy and request end, and check what must hold then."""
        at_rest.check(self)

    def replay(self, actions: Iterable[Action]) -> None:
        """Apply recorded actions, skipping those that are not legal, let everything come to rest, and end."""
        with self._whole_history():
            for action in actions:
                self.apply(action)
            self.rest()

    @contextmanager
    def _whole_history(self) -> Iterator[None]:
        try:
            yield
        except Violation as found:
            self.break_off(found)
            raise
        except HistoryEnds:
            self.break_off(None)
            raise
        self.end()

    def end(self) -> None:
        """Shut the engine down after all other checks, and check that, too."""
        self.ending.judge(self.engines, self.referee, self._left_open_again)

    def _left_open_again(self) -> Counter[str] | None:
        """What the same history leaves open in a world of its own; None if it can't be taken beside this one."""
        referee = Referee(switched_off={*self.referee.switched_off}, patience=self.referee.patience)
        try:
            again = World(self.config, self.subject, referee=referee, engine_class=type(self.engine))
        except (Violation, HistoryEnds):  # its address is still in use
            return None
        with suppress(Violation, HistoryEnds):
            for action in self.history:
                again.apply(action)
            again.rest()
        again.break_off(None)
        return again.ending.left_open(referee.patience)

    def break_off(self, violation: Violation | None) -> None:
        """Shut the engine down after a failure, which is reported instead of any failure of the shutdown."""
        self.ending.break_off(self.engines)
