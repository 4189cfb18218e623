"""Reports a failure: first the violation, in case shrinking or saving fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from kv_sim.failures.deadline import every, within
from kv_sim.failures.report import fail_line, shrunk_lines
from kv_sim.failures.schedule_file import Schedule, write_schedule
from kv_sim.failures.shrink import shrink
from kv_sim.fuzz import Failure, replay
from kv_sim.violation import Invariant, TookTooLong

Say = Callable[[str], object]

MOST_SECONDS: Final = 300
"""For shrinking, which takes seconds if the testbed owns all copies."""

SECONDS_OF_SILENCE: Final = 10
"""After so long a note says how far shrinking got."""

TIMES_AGAIN: Final = 3
"""How often the shrunk history is replayed, to see whether its actions alone cause the failure."""


def tell(
    found: Failure,
    replay_line: str,
    folder: Path,
    stem: str,
    *,
    say: Say,
    note: Say,
    without: frozenset[Invariant] = frozenset(),
) -> None:
    """Report the violation; then shrink the history, save it and report it. An error in saving it is a note."""
    say(fail_line(found))
    for text in found.violation.notes:
        note(text)
    if isinstance(found.violation, TookTooLong):
        note("the history is not shrunk: each attempt would take as long")
        shrunk = found
    else:
        shrunk = _shrunk(found, note, without)
    file = None
    try:
        file = write_schedule(Schedule.of(shrunk, without), folder, stem)
    except OSError as error:
        note(f"the schedule was not saved: {error}")
    for text in shrunk_lines(found, shrunk, replay_line, file):
        say(text)


def _shrunk(found: Failure, note: Say, without: frozenset[Invariant]) -> Failure:
    """The same failure in fewer actions, with a note if these don't always cause it."""
    goes_on, is_due = within(MOST_SECONDS), every(SECONDS_OF_SILENCE)

    def tells(actions: int) -> None:
        if is_due():
            note(f"shrinking: {actions} actions of {len(found.history)} are left so far")

    shrunk = shrink(found, without=without, goes_on=goes_on, tells=tells)
    if not goes_on():
        note(f"shrinking ended after {MOST_SECONDS} s, since each replay takes long; a shorter history may exist")
    again = sum(_fails_again(shrunk, without) for _ in range(TIMES_AGAIN))
    if again < TIMES_AGAIN:
        note(
            f"replayed {TIMES_AGAIN} times, these actions break {shrunk.violation.invariant} {again} times: the "
            "outcome also depends on something else, such as a thread of the connector, a clock, or state left "
            "by another history; a replay may pass"
        )
    return shrunk


def _fails_again(failure: Failure, without: frozenset[Invariant]) -> bool:
    _, violation = replay(failure.subject, failure.config, failure.history, without)
    return violation is not None and violation.invariant is failure.violation.invariant
