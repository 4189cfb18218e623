"""Scenarios: sets of claims that are tried together, and their outcomes.

The first is a plain engine. Then comes one for each claimed trait, so that a failure names the claim; then all of
them together. A trait that isn't claimed can be probed: a probe is no failure, and shows what could be claimed. A
world that the connector refuses shows nothing in a probe; if it refuses all of them, the trait can't be tried.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from random import Random
from typing import Final

from kv_api import ConfigError
from kv_sim.actions import USUAL_ACTIONS
from kv_sim.config import STATE, WorldConfig
from kv_sim.console.selection import check_groups
from kv_sim.fuzz import Failure, Run, run_seed
from kv_sim.guard import NotCreated
from kv_sim.history.coverage import Coverage
from kv_sim.history.draws import config_for
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant

NEEDS: Final = {Trait.STATES: Trait.GROUPS, Trait.UNEQUAL: Trait.GROUPS, Trait.EVENTS: Trait.KEEPS}
"""Trait -> another one, without which it means nothing."""

USUAL_HISTORIES: Final = 100
"""Of each scenario."""

MOST_SEEDS: Final = 40
"""How many seeds are tried, for each history, to find a world that shows a trait."""


class Claim(Enum):
    """Whether the connector claims what a scenario tries."""

    MADE = auto()
    PROBED = auto()
    """It isn't claimed, but tried to find out."""


@dataclass(frozen=True)
class Scenario:
    """A set of traits to try."""

    name: str
    traits: frozenset[Trait]
    shows: Trait | None = None
    """The trait that its worlds must show, if worlds can."""
    claim: Claim = Claim.MADE


@dataclass
class Outcome:
    """The result of a scenario."""

    scenario: Scenario
    histories: int = 0
    steps: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    failure: Failure | None = None
    refusal: str | None = None
    """Why a probe can't be made."""
    refused: Counter[str] = field(default_factory=Counter)
    """For a probe: the connector's reason for refusing worlds -> how many."""
    seed: int | None = None
    """The seed of the last history."""
    without: frozenset[Invariant] = frozenset()
    """Invariants whose checkers are off."""


def scenarios_of(subject: Subject) -> list[Scenario]:
    """The scenarios of a subject's claims."""
    claimed = [trait for trait in Trait if trait in subject.traits]
    single = [Scenario(str(trait), with_needs(trait) & subject.traits, trait) for trait in claimed]
    together = [Scenario("together", subject.traits)] if len(claimed) > 1 else []
    return [Scenario("plain", frozenset()), *single, *together]


def probes_of(subject: Subject) -> list[Scenario]:
    """The probes of traits that a subject doesn't claim."""
    return [
        Scenario(str(trait), with_needs(trait), trait, Claim.PROBED)
        for trait in subject.possible_traits
        if trait not in subject.traits
    ]


def with_needs(trait: Trait) -> frozenset[Trait]:
    """A trait, and those that it needs."""
    needed = NEEDS.get(trait)
    return frozenset({trait}) if needed is None else with_needs(needed) | {trait}


def seeds_of(subject: Subject, scenario: Scenario, start: int, histories: int, engine: str) -> Iterator[int]:
    """The seeds of a scenario: those from ``start`` on whose worlds show its trait."""
    narrowed = replace(subject, traits=scenario.traits)
    found = 0
    for seed in range(start, start + histories * MOST_SEEDS):
        if found == histories:
            return
        if _shows(narrowed, scenario.shows, seed, engine):
            found += 1
            yield seed


_SHOWN: Final[Mapping[Trait, Callable[[WorldConfig], bool]]] = {
    Trait.GROUPS: lambda config: len(config.groups) > 1,
    Trait.SLEEP: lambda config: config.pauses,
    Trait.IMAGES: lambda config: config.images,
    Trait.STATES: lambda config: STATE in config.groups,
    Trait.UNEQUAL: lambda config: config.is_unequal,
    Trait.FINE: lambda config: config.is_fine,
    Trait.RANKS: lambda config: config.world_size > 1,
    Trait.ZEROING: lambda config: config.zero_new_blocks and config.runner == 2,
    Trait.STRANGERS: lambda config: config.stranger != "none",
}
"""The worlds that can show a trait. The other traits are about actions, which any world may take."""


def _shows(subject: Subject, trait: Trait | None, seed: int, engine: str) -> bool:
    """Whether the world of a seed can show a trait."""
    is_shown_in = None if trait is None else _SHOWN.get(trait)
    return is_shown_in is None or is_shown_in(config_for(subject, Random(seed), engine))


def run_scenario(
    subject: Subject,
    scenario: Scenario,
    *,
    start: int = 0,
    histories: int,
    actions: int = USUAL_ACTIONS,
    engine: str,
) -> Outcome:
    """Run a scenario up to the first failure."""
    outcome = Outcome(scenario)
    fill(outcome, subject, start=start, histories=histories, actions=actions, engine=engine)
    return outcome


def fill(
    outcome: Outcome,
    subject: Subject,
    *,
    start: int,
    histories: int,
    actions: int,
    engine: str,
    tells: Callable[[], object] = lambda: None,
) -> None:
    """Run an outcome's scenario; the outcome is updated after each history, and then ``tells`` is called."""
    scenario = outcome.scenario
    narrowed = replace(subject, traits=scenario.traits)
    if scenario.claim is Claim.PROBED and Trait.GROUPS in scenario.traits:
        try:
            check_groups(subject, engine)
        except ConfigError as error:
            outcome.refusal = str(error)
            return
    for seed in seeds_of(subject, scenario, start, histories, engine):
        outcome.seed = seed
        run = _tried(outcome, narrowed, seed, actions, engine)
        if run is None:
            continue
        outcome.histories += 1
        outcome.steps += run.steps
        outcome.coverage.add(run.coverage)
        tells()
        if run.failure is not None:
            outcome.failure = run.failure
            break
    if outcome.refused and not outcome.histories:
        [(words, _)] = outcome.refused.most_common(1)
        outcome.refusal = f"{scenario.name}: {words}"


def _tried(outcome: Outcome, subject: Subject, seed: int, actions: int, engine: str) -> Run | None:
    """Run one history; None: the connector refuses the world of a probe."""
    try:
        run = run_seed(subject, seed, actions=actions, engine=engine, without=outcome.without)
    except ConfigError as error:
        if outcome.scenario.claim is Claim.MADE:
            raise
        outcome.refused[str(error)] += 1
        return None
    violation = None if run.failure is None else run.failure.violation
    if outcome.scenario.claim is Claim.MADE or not isinstance(violation, NotCreated):
        return run
    outcome.refused[f"can't create it: {violation.message}"] += 1
    return None
