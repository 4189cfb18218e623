"""Fuzzing: one seed, one world; and what is done with a world that failed.

``run_seed`` is a function of its arguments alone. A failure is shrunk by delta debugging over recorded actions:
chunks of them are left out as long as the same invariant still breaks, then groups of small actions are replaced
by ``step`` and ``settle``, then numbers are made smaller.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from kv_sim.actions import Action, Kind
from kv_sim.config import GroupConfig, WorldConfig, draw_config
from kv_sim.coverage import Coverage
from kv_sim.guard import HistoryEnds
from kv_sim.subject import Subject, Trait
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
    """What became of one world."""

    coverage: Coverage
    steps: int
    digest: str
    failure: Failure | None


def config_for(subject: Subject, random: Random) -> WorldConfig:
    """Draw a world that is within what the subject claims to withstand."""
    config = draw_config(random)
    if Trait.GROUPS not in subject.traits:
        config = replace(config, groups=(GroupConfig(),))
    if Trait.RANKS not in subject.traits:
        config = replace(config, tp_size=1, pp_size=1)
    if Trait.ZEROING not in subject.traits and config.runner == 2:
        config = replace(config, zero_new_blocks=False)
    return config


def run_seed(subject: Subject, seed: int, *, actions: int = 80, silent: frozenset[Invariant] = frozenset()) -> Run:
    """Run one world from a seed."""
    random = Random(seed)
    config = config_for(subject, random)
    referee = Referee()
    referee.silent |= silent
    world = World(config, subject, referee=referee)
    failure = None
    try:
        world.run(random, actions)
    except Violation as violation:
        failure = Failure(subject, config, world.history, violation, seed)
    except HistoryEnds:
        pass
    return Run(world.coverage, world.engine.num_steps, world.digest, failure)


def replay(
    subject: Subject, config: WorldConfig, history: Sequence[Action], silent: frozenset[Invariant] = frozenset()
) -> tuple[World, Violation | None]:
    """Apply a history to a fresh world. Actions that are not legal are skipped."""
    referee = Referee()
    referee.silent |= silent
    world = World(config, subject, referee=referee)
    try:
        world.replay(history)
    except Violation as violation:
        return world, violation
    except HistoryEnds:
        pass
    return world, None


def shrink(failure: Failure, *, silent: frozenset[Invariant] = frozenset(), most_replays: int = 2000) -> Failure:
    """A failure of the same invariant with as few actions as can be found in ``most_replays`` tries."""
    left = most_replays
    best = failure

    def still_fails(history: list[Action], config: WorldConfig | None = None) -> bool:
        nonlocal left, best
        if left <= 0:
            return False
        left -= 1
        world, violation = replay(failure.subject, config or best.config, history, silent)
        if violation is None or violation.invariant is not failure.violation.invariant:
            return False
        best = replace(best, config=config or best.config, history=list(world.history), violation=violation)
        return True

    if not still_fails(list(failure.history)):
        return failure
    before = -1
    while before != len(best.history) and left > 0:
        before = len(best.history)
        _remove_chunks(lambda: best.history, still_fails)
        _merge_steps(lambda: best.history, still_fails)
        _simplify_worlds(lambda: best, still_fails)
        _simplify_requests(lambda: best.history, still_fails)
    return best


StillFails = Callable[..., bool]


def _remove_chunks(history: Callable[[], list[Action]], still_fails: StillFails) -> None:
    size = max(1, len(history()) // 2)
    while size:
        start = 0
        while start < len(history()):
            current = history()
            if not still_fails(current[:start] + current[start + size :]):
                start += size
        size //= 2


def _merge_steps(history: Callable[[], list[Action]], still_fails: StillFails) -> None:
    """Replace runs of small actions by one that does all of it."""
    for macro in (Action(Kind.STEP), Action(Kind.SETTLE)):
        for length in (5, 4, 3, 2, 1):
            start = 0
            while start + length <= len(history()):
                current = history()
                part = current[start : start + length]
                if (
                    any(a.kind is Kind.ADD for a in part)
                    or part == [macro]
                    or not still_fails([*current[:start], macro, *current[start + length :]])
                ):
                    start += 1
                else:
                    start += 1


def _simplify_worlds(best: Callable[[], Failure], still_fails: StillFails) -> None:
    """Try a plainer world: fewer ranks, less run-ahead, one layer, no drafts."""
    plain = WorldConfig()
    for name in (
        "tp_size",
        "pp_size",
        "layers",
        "run_ahead",
        "async_scheduling",
        "spec_tokens",
        "zero_new_blocks",
    ):
        config = best().config
        value = getattr(plain, name)
        if getattr(config, name) != value:
            simpler = replace(config, **{name: value})
            if not simpler.run_ahead:
                simpler = replace(simpler, async_scheduling=False)
            still_fails(best().history, simpler)


def _simplify_requests(history: Callable[[], list[Action]], still_fails: StillFails) -> None:
    """Make requests plainer: no own tokens, no salt, few outputs."""
    for index in range(len(history())):
        if index >= len(history()) or history()[index].kind is not Kind.ADD:
            continue
        for name, value in (("own_tokens", 0), ("salt", None), ("adapter", None), ("output_tokens", 1)):
            current = history()
            if index >= len(current) or current[index].kind is not Kind.ADD:
                break
            spec = current[index].args["spec"]
            if spec[name] != value:
                plainer = {**spec, name: value}
                if name == "output_tokens":
                    plainer["max_tokens"] = 1
                still_fails([*current[:index], Action(Kind.ADD, {"spec": plainer}), *current[index + 1 :]])
