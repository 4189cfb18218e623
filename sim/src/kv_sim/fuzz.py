"""Fuzzing: one seed, one world. ``replay`` repeats a history from its actions.

Both depend on their arguments alone. Failures are handled in ``failures``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from kv_sim.actions import Action
from kv_sim.config import BUILTIN_ENGINE, WorldConfig
from kv_sim.guard import HistoryEnds
from kv_sim.history.coverage import Coverage
from kv_sim.history.draws import config_for
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, Referee, Violation
from kv_sim.world import World


@dataclass
class Failure:
    """A history that breaks an invariant."""

    subject: Subject
    config: WorldConfig
    history: list[Action]
    violation: Violation
    seed: int | None = None


@dataclass
class Run:
    """The result of one world."""

    coverage: Coverage
    steps: int
    digest: str
    failure: Failure | None


class Replayed(NamedTuple):
    """The result of a repeated history."""

    world: World | None
    """None: the world failed while it was set up."""
    violation: Violation | None


def run_seed(
    subject: Subject,
    seed: int,
    *,
    engine: str = BUILTIN_ENGINE,
    actions: int = 80,
    without: frozenset[Invariant] = frozenset(),
    make_world: Callable[..., World] = World,
) -> Run:
    """Run one world from a seed, ``without`` the checkers of some invariants.

    ``make_world`` may give one that is watched (``kv_sim.watching.watch``).
    """
    random = Random(seed)
    config = config_for(subject, random, engine)
    referee = Referee(switched_off={*without})
    try:
        world = make_world(config, subject, referee=referee)
    except Violation as violation:  # it breaks while it is set up
        return Run(Coverage(), 0, "", Failure(subject, config, [], violation, seed))
    except HistoryEnds:
        return Run(Coverage(), 0, "", None)
    failure = None
    try:
        world.run(random, actions)
    except Violation as violation:
        failure = Failure(subject, config, world.history, violation, seed)
    except HistoryEnds:
        pass
    return Run(world.coverage, world.engine.num_steps, world.digest, failure)


def replay(
    subject: Subject,
    config: WorldConfig,
    history: Sequence[Action],
    without: frozenset[Invariant] = frozenset(),
    *,
    make_world: Callable[..., World] = World,
    patience: float = 1.0,
) -> Replayed:
    """Apply a history to a fresh world, skipping what is not legal. ``without`` is that of `run_seed`.

    What must end after it gets the part ``patience`` of the usual time.
    """
    referee = Referee(switched_off={*without}, patience=patience)
    world = None
    try:
        world = make_world(config, subject, referee=referee)
        world.replay(history)
    except Violation as violation:
        return Replayed(world, violation)
    except HistoryEnds:
        pass
    return Replayed(world, None)
