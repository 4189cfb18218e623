"""The report on a connector's conformance: which scenarios ran, how often, and what broke."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Final

from kv_sim.actions import USUAL_ACTIONS
from kv_sim.conformance.scenarios import Claim, Outcome
from kv_sim.console.table import aligned
from kv_sim.failures import telling
from kv_sim.failures.report import file_stem, replay_line
from kv_sim.fuzz import Failure
from kv_sim.history.coverage import CONTINUED, Coverage, why_little_is_shown
from kv_sim.history.expected import FORGETS, SITUATION_NEEDS, SITUATIONS, situations_of
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant

WIDTH: Final = 100
HARDLY: Final = 20
"""If the situations of a trait were reached less often than this, a note says that little was shown."""

TOLD: Final = (FORGETS, CONTINUED)
"""Situations of which a note of their own tells that they never came up."""
NEVER_FULL: Final = (
    "the medium was never full, so it evicted no chunk and refused no store: give it less room by --extra, or as "
    "much as the world says (host_slots, cpu_bytes_to_use)"
)


def summary_lines(
    subject: Subject, outcomes: Sequence[Outcome], again: Callable[[Outcome], str] = lambda outcome: ""
) -> list[str]:
    """A table of the scenarios, the situations that all of them reached, and notes.

    Below a probe that failed stands ``again``, the command that shows how. A run that a failure ended reached
    little, and says so only by its notes: its reader looks for the failure above.
    """
    total = Coverage()
    for outcome in outcomes:
        total.add(outcome.coverage)
    head, *rows = scenario_table([row_of(outcome) for outcome in outcomes])
    lines = [head]
    for row, outcome in zip(rows, outcomes, strict=True):
        lines.append(row)
        if outcome.failure is not None and outcome.scenario.claim is Claim.PROBED:
            lines.append(f"  see how: {again(outcome)}")
    refused = sorted({outcome.refusal for outcome in outcomes if outcome.refusal is not None})
    tried = frozenset(outcome.scenario.shows for outcome in outcomes)
    last = outcomes[-1] if outcomes else None
    stopped = last is not None and last.failure is not None and last.scenario.claim is Claim.MADE
    never_tried = frozenset(outcome.scenario.shows for outcome in outcomes if outcome.refusal is not None)
    off = sorted({str(invariant) for outcome in outcomes for invariant in outcome.without})
    said = (
        *([f"not checked: {', '.join(off)}"] if off else []),
        *refused,
        *_refused_worlds(outcomes),
        *([] if stopped or total.room["full"] or not total.room["free"] else [NEVER_FULL]),
        *notes(subject, total.situations, tried, never_tried, is_whole=not stopped),
    )
    shown = subject.traits | (tried - never_tried)
    table = [] if stopped else situation_table(subject, total.situations, shown)
    return [*lines, "", *table, *(f"note: {note}" for note in said)]


def _refused_worlds(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A line for each probe in which the connector refused some worlds, so that it shows less."""
    for outcome in outcomes:
        if outcome.refusal is None and outcome.refused:
            worlds, [(words, _)] = outcome.refused.total(), outcome.refused.most_common(1)
            tried = worlds + outcome.histories
            yield f"{outcome.scenario.name}: of {tried} worlds, {worlds} were refused, for example: {words}"


def row_of(outcome: Outcome) -> tuple[str, str, int, int, str]:
    """A scenario's row, in plain values."""
    scenario, failure = outcome.scenario, outcome.failure
    if failure is not None:
        said = f"breaks {failure.violation.invariant}"
    elif outcome.refusal is not None:
        said = "can't be tried"
    elif not outcome.histories:
        said = "no history tries it"
    else:
        said = "holds"
    claim = "made" if scenario.claim is Claim.MADE else "probed"
    return scenario.name, claim, outcome.histories, outcome.steps, said


def scenario_table(rows: Sequence[tuple[str, str, int, int, str]]) -> list[str]:
    """The scenarios, a line each."""
    head = ["scenario", "claim", "histories", "steps", "result"]
    return aligned([head, *[[str(cell) for cell in row] for row in rows]], left=2)


def situation_table(subject: Subject, situations: Mapping[str, int], tried: Collection[Trait | None]) -> list[str]:
    """How often situations of the contract were reached, and which never were that belong to what was tried."""
    reached = [[name, str(situations[name])] for name in SITUATIONS if situations.get(name)]
    wanted = {None, *tried}
    never = [
        name for name in situations_of(subject) if not situations.get(name) and SITUATION_NEEDS.get(name) in wanted
    ]
    return [
        *aligned([["situation", "times"], *reached]),
        *(wrap(f"never: {'; '.join(never)}", WIDTH, subsequent_indent="  ") if never else ()),
    ]


def notes(
    subject: Subject,
    situations: Mapping[str, int],
    tried: frozenset[Trait | None] = frozenset(),
    refused: frozenset[Trait | None] = frozenset(),
    *,
    is_whole: bool = True,
) -> list[str]:
    """Notes on how little the table may show; it isn't complete if a failure ended the run."""
    kind = {"serves_peers": subject.serves_peers, "shares_store": subject.shares_store}
    little = why_little_is_shown(situations, **kind) if is_whole else None
    found = [] if little is None else [little]
    if is_whole:
        shown = (subject.traits | tried).intersection(subject.possible_traits) - refused
        found += _hardly_shown(shown, situations)
    if is_whole and Trait.RESET in subject.traits | tried and not situations.get(FORGETS):
        found.append("no reset_cache returned True, so this run doesn't show that a reset forgets what was stored")
    unclaimed = [trait.value for trait in subject.possible_traits if trait not in subject.traits | tried]
    if unclaimed:
        found.append(f"not claimed, so not tried: {', '.join(unclaimed)}")
    return found


def _hardly_shown(traits: frozenset[Trait | None], situations: Mapping[str, int]) -> Iterator[str]:
    """A line for each trait whose situations were hardly reached, so that little was shown."""
    for trait in Trait:
        about = [name for name, needed in SITUATION_NEEDS.items() if needed is trait and name not in TOLD]
        times = sum(situations.get(name, 0) for name in about)
        if trait in traits and about and times < HARDLY:
            came = f"came up {'once' if times == 1 else f'{times} times'}" if times else "never came up"
            yield f"{trait}: its situations ({', '.join(about)}) {came}: --histories N tries more"


def tell_failure(
    name: str,
    extra: str | None,
    failure: Failure,
    folder: Path,
    *,
    actions: int = USUAL_ACTIONS,
    without: frozenset[Invariant] = frozenset(),
    say: telling.Say,
    note: telling.Say,
) -> None:
    """Report a failure, with the shrunk and saved history and the commands to paste."""
    assert failure.seed is not None, "a scenario's failure has a seed"
    line = line_of_scenario(name, extra, failure.subject, failure.seed, failure.config.engine, actions, without)
    telling.tell(failure, line, folder, file_stem(name, failure.seed), say=say, note=note, without=without)


def line_of_scenario(
    name: str,
    extra: str | None,
    subject: Subject,
    seed: int,
    engine: str,
    actions: int,
    without: frozenset[Invariant] = frozenset(),
) -> str:
    """The command that runs a history of a scenario again; ``subject`` has the scenario's traits."""
    return replay_line(
        name,
        seed,
        extra=extra,
        traits=",".join(sorted(subject.traits)) or "none",
        serves_peers=subject.engines if subject.serves_peers else None,
        shares_store=subject.shares_store,
        engine=engine,
        actions=actions,
        without=without,
    )
