"""``hunt``: fuzzes a subject until the time is over, and keeps one shrunk history of each kind of failure.

Two failures are of one kind if they break the same invariant with the same message, numbers aside. A kept
failure's shrunk history was replayed twice and failed both times; failures that didn't are listed apart.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kv_sim.failures.deadline import within
from kv_sim.failures.schedule_file import Schedule, write_schedule
from kv_sim.failures.shrink import shrink
from kv_sim.fuzz import Failure, Run, replay, run_seed
from kv_sim.history.coverage import why_little_is_shown
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, TookTooLong, Violation

MOST_REPLAYS = 600
"""How many shorter histories are tried to shrink one."""
MOST_SECONDS = 120
"""Seconds for that: a connector with threads or another process may take seconds for a history."""


@dataclass
class Found:
    """The results of fuzzing one subject."""

    histories: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    """Kind -> its shortest history."""
    counts: Counter[str] = field(default_factory=Counter)
    """Kind -> how many seeds failed in this way."""
    situations: Counter[str] = field(default_factory=Counter)
    """The situations that occurred, and how often."""
    unsteady: list[str] = field(default_factory=list)
    """Failures that a replay didn't show again, because of the driver or of a connector's own threads."""
    without: frozenset[Invariant] = frozenset()
    """The checkers that were switched off."""
    serves_peers: bool = False
    """Whether the subject serves other engines, so that loads by tickets should occur."""
    shares_store: bool = False
    """Whether its engines share a store, so that loads of another engine's chunks should occur."""
    was_interrupted: bool = False


def kind_of(violation: Violation) -> str:
    """A violation's text without the parts that differ between histories."""
    text = re.sub(r"/\S*/", "", str(violation))
    text = re.sub(r"0x[0-9a-f]+|\b[0-9a-f]{16,}\b", "#", text)
    text = re.sub(r"\(begun for [^)]*\)", "", text)
    return re.sub(r"(['\"]?)\br?\d+\b\1", "#", text)


def hunt(
    subject: Subject,
    seeds: Iterable[int],
    goes_on: Callable[[], bool],
    *,
    engine: str = "vllm",
    actions: int = 80,
    without: frozenset[Invariant] = frozenset(),
) -> Found:
    """Run seeds while ``goes_on``, and shrink the first failure of each kind."""
    found = Found(without=without, serves_peers=subject.serves_peers, shares_store=subject.shares_store)
    for seed in seeds:
        if not goes_on():
            break
        try:
            run = run_seed(subject, seed, engine=engine, actions=actions, without=without)
            _take(found, run)
        except KeyboardInterrupt:
            found.was_interrupted = True
            break
        except Exception as error:
            error.add_note(f"in the history of seed {seed}")  # it may be an error of the driver or of a connector
            raise
    return found


def _take(found: Found, run: Run) -> None:
    found.histories += 1
    found.situations += run.coverage.situations
    failure = run.failure
    if failure is None:
        return
    kind = kind_of(failure.violation)
    found.counts[kind] += 1
    if found.counts[kind] > 1:
        return
    if isinstance(failure.violation, TookTooLong):  # each try would take as long
        found.failures[kind] = failure
    else:
        _keep(found, failure)


def _keep(found: Found, failure: Failure) -> None:
    short = shrink(failure, without=found.without, most_replays=MOST_REPLAYS, goes_on=within(MOST_SECONDS))
    kind = kind_of(short.violation)
    again = [replay(short.subject, short.config, short.history, found.without).violation for _ in range(2)]
    if any(violation is None or kind_of(violation) != kind for violation in again):
        found.unsteady.append(f"seed {failure.seed}: {failure.violation}")
        return
    other = found.failures.get(kind)
    if other is None or len(short.history) < len(other.history):
        found.failures[kind] = short


def show_found(name: str, found: Found, folder: Path, show: Callable[[str], None]) -> bool:
    """Show the results, and write the schedules. True: there were failures."""
    stem = re.sub(r"[^\w.+-]+", "_", name)  # as of module:Class
    show(f"{name}: {found.histories} histories, {found.counts.total()} failures")
    for kind, times in found.counts.most_common():
        show(f"  {times} times: {kind}")
    for failure in found.failures.values():
        words = re.findall(r"[A-Za-z_]+", str(failure.violation))
        file = write_schedule(Schedule.of(failure, found.without), folder, "-".join([stem, *words[:4]]).lower())
        show(f"  {len(failure.history)} actions, {file}: {failure.violation}")
    others = {"serves_peers": found.serves_peers, "shares_store": found.shares_store}
    little = why_little_is_shown(found.situations, **others)
    if little is not None and found.histories and not found.counts:
        show(f"  note: {little}")
    for line in found.unsteady:
        show(f"  not shown by a replay: {line}")
    return bool(found.counts)
