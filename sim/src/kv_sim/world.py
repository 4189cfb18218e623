"""``World``: a history in the making, or one that is made again.

A world picks a legal action from a ``Random`` and takes it. The same class replays a recorded history, and skips
what is not legal. Same seed, same history, same digest, in any process.
"""

from collections.abc import Iterable
from random import Random

from kv_sim.actions import Action
from kv_sim.checkers import quiescence
from kv_sim.history.choices import pick
from kv_sim.world_state import WorldState


class World(WorldState):
    """One history."""

    def run(self, random: Random, actions: int) -> None:
        """Take ``actions`` actions of ``random``'s choice, then let everything come to rest."""
        for _ in range(actions):
            self.act(random)
        self.rest()

    def act(self, random: Random) -> None:
        """Pick one legal action and take it."""
        self.apply(pick(self, random), random)

    def rest(self) -> None:
        """Add nothing more, let every copy and request end, and check what must hold then."""
        quiescence.check(self)

    def replay(self, actions: Iterable[Action]) -> None:
        """Apply recorded actions, skipping those that are not legal, then let everything come to rest."""
        for action in actions:
            self.apply(action)
        self.rest()
