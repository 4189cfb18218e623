"""``kv-sim zoo``: hunts every planted bug, and reports how each was caught.

For each bug it reports the checker that caught it first, after how many histories and how long, how many actions
are left after shrinking, and which other checkers catch it if the expected one is switched off.
"""

import argparse
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from kv_api import ConfigError
from kv_api.errors import did_you_mean
from kv_sim.console import values
from kv_sim.console.interrupts import heard_here_alone
from kv_sim.console.output import FAILED, FINE, let_connectors_log_nothing, say
from kv_sim.console.workers import end_with_parent
from kv_sim.failures.shrink import shrink
from kv_sim.violation import Invariant
from kv_sim.zoo.hunt import HISTORIES, PATIENCE, hunt, killers
from kv_sim.zoo.planted import Planted
from kv_sim.zoo.registry import PLANTED

ROW = "{:26} {:16} {:12} {:12} {:>9} {:>8} {:>7} {:>8}  {}"


@dataclass(frozen=True)
class Result:
    """The result of the hunt for one planted bug."""

    name: str
    histories: int
    """How many histories it took to find the bug, or how many the bug survived."""
    caught_by: Invariant | None
    found_seconds: float = 0
    shrink_seconds: float = 0
    actions: int = 0
    """How many actions are left after shrinking."""
    others: tuple[Invariant, ...] = ()
    """The checkers that catch it while the expected checker is off."""


def zoo(options: argparse.Namespace) -> int:
    """Run the command."""
    chosen = _choose(options.names)
    if options.list:
        for planted in chosen:
            say(f"{planted.name:26} {planted.issue:16} {planted.invariant:12} {planted.mechanism}")
        return FINE
    start = values.parse_seed(options.seed)
    say(ROW.format("bug", "issue", "expected", "caught by", "histories", "found", "actions", "shrunk", "else"))
    results = []
    for planted, result in zip(chosen, _results(chosen, start, options.jobs), strict=True):
        results.append(result)
        say(_row(planted, result))
    found = [result for result in results if result.caught_by is not None]
    say(f"{len(found)} of {len(results)} found{_medians(found)}")
    strangers = [
        f"{planted.name}: caught by {result.caught_by}, which is not an expected checker"
        for planted, result in zip(chosen, results, strict=True)
        if result.caught_by not in {planted.invariant, *planted.others, None}
    ]
    for text in strangers:
        say(text)
    return FAILED if len(found) < len(results) or strangers else FINE


def _choose(names: list[str]) -> list[Planted]:
    known = {planted.name: planted for planted in PLANTED}
    for name in names:
        if name not in known:
            meant = did_you_mean(name, known)
            raise ConfigError(f"unknown planted bug {name!r}{meant}; kv-sim zoo --list says which there are")
    return [planted for planted in PLANTED if not names or planted.name in names]


def _results(chosen: list[Planted], start: int, jobs: int) -> Iterator[Result]:
    work = [(planted.name, start, HISTORIES) for planted in chosen]
    if jobs == 1 or len(work) == 1:
        yield from map(_hunt, work)
        return
    with heard_here_alone():
        started = multiprocessing.get_context("spawn").Pool(jobs, _begin)
    with started as pool:
        yield from pool.imap(_hunt, work)


def _begin() -> None:
    """A worker's process."""
    end_with_parent()
    let_connectors_log_nothing()


def _hunt(work: tuple[str, int, int]) -> Result:
    name, start, quiet = work
    (planted,) = _choose([name])
    began = perf_counter()
    histories, failure = hunt(planted.subject, range(start, start + PATIENCE))
    found = perf_counter()
    if failure is None:
        return Result(name, histories, None)
    short = shrink(failure)
    shrunk = perf_counter()
    others = killers(planted.subject, range(start, start + quiet), frozenset({planted.invariant}))
    invariant, actions = failure.violation.invariant, len(short.history)
    return Result(
        name=name,
        histories=histories,
        caught_by=invariant,
        found_seconds=found - began,
        shrink_seconds=shrunk - found,
        actions=actions,
        others=tuple(sorted(others)),
    )


def _row(planted: Planted, result: Result) -> str:
    head = (planted.name, planted.issue, planted.invariant)
    if result.caught_by is None:
        return ROW.format(*head, "not caught", result.histories, "", "", "", "").rstrip()
    times = (f"{result.found_seconds:.2f} s", result.actions, f"{result.shrink_seconds:.2f} s")
    others = ", ".join(result.others) or f"survives {HISTORIES}"
    return ROW.format(*head, result.caught_by, result.histories, *times, others)


def _medians(found: list[Result]) -> str:
    if not found:
        return ""
    seconds = [result.found_seconds for result in found]
    return (
        f"; median {median(seconds):.2f} s to find (longest {max(seconds):.1f} s), "
        f"{median(result.actions for result in found):g} actions left "
        f"(most {max(result.actions for result in found)}), "
        f"shrunk in {median(result.shrink_seconds for result in found):.2f} s"
    )
