"""Telling of a failure: what broke is said at once, whatever becomes of shrinking and saving it."""

from collections.abc import Callable
from pathlib import Path

from kv_sim.failures.report import fail_line, shrunk_lines
from kv_sim.failures.schedule_file import Schedule, write_schedule
from kv_sim.failures.shrink import shrink
from kv_sim.fuzz import Failure
from kv_sim.violation import Invariant

Say = Callable[[str], object]


def tell(
    found: Failure,
    replay_line: str,
    folder: Path,
    stem: str,
    *,
    say: Say,
    note: Say,
    silent: frozenset[Invariant] = frozenset(),
) -> None:
    """Say what broke; then shrink it, save it and say what is left. That it can't be saved is a note."""
    say(fail_line(found))
    for text in found.violation.notes:
        note(text)
    shrunk = shrink(found, silent=silent)
    file = None
    try:
        file = write_schedule(Schedule.of(shrunk, silent), folder, stem)
    except OSError as error:
        note(f"the schedule was not saved: {error}")
    for text in shrunk_lines(found, shrunk, replay_line, file):
        say(text)
