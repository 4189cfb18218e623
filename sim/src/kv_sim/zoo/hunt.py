"""Hunts planted bugs: how many histories until a bug is caught, by which checker, and the shrunk schedule."""

from collections.abc import Iterable

from kv_sim.fuzz import Failure, run_seed
from kv_sim.subject import Subject
from kv_sim.violation import Invariant

PATIENCE = 400
"""Histories within which a bug must be found. Most take a few; bugs that need an abort at one moment take more."""
HISTORIES = 200
"""Histories that a bug must survive while all of its checkers are off."""
ACTIONS = 80
"""Actions of one history, before the engine comes to rest."""
NOBODY: frozenset[Invariant] = frozenset()


def hunt(
    subject: Subject, seeds: Iterable[int], without: frozenset[Invariant] = NOBODY, *, actions: int = ACTIONS
) -> tuple[int, Failure | None]:
    """Run worlds until one fails. Returns how many were run, and the failure if there was one."""
    count = 0
    for seed in seeds:
        count += 1
        failure = run_seed(subject, seed, actions=actions, without=without).failure
        if failure is not None:
            return count, failure
    return count, None


def killers(subject: Subject, seeds: Iterable[int], without: frozenset[Invariant] = NOBODY) -> set[Invariant]:
    """All checkers that are the first to catch something in one of these worlds."""
    failures = (run_seed(subject, seed, actions=ACTIONS, without=without).failure for seed in seeds)
    return {failure.violation.invariant for failure in failures if failure is not None}
