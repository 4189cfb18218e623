"""``kv-sim replay-schedule``: a history from a file, onto the connector that it is of, or onto another one."""

import argparse
from dataclasses import replace
from pathlib import Path

from kv_api import ConfigError
from kv_sim.console import selection
from kv_sim.console.output import FAILED, FINE, note, say
from kv_sim.console.views import make_world
from kv_sim.engines import find_engine
from kv_sim.failures import report
from kv_sim.failures.schedule_file import Schedule, read_schedule
from kv_sim.fuzz import replay
from kv_sim.subject import PEERS, SHARES


def replay_schedule(options: argparse.Namespace) -> int:
    """Run the command."""
    schedule = read_schedule(Path(options.file))
    engine = schedule.config.engine if options.engine is None else options.engine
    find_engine(engine)
    schedule = replace(schedule, config=replace(schedule.config, engine=engine))
    if options.connector is not None:
        kind = selection.kind_of(options)
        subject = selection.choose_subject(options.connector, options.extra, options.traits, engine, **kind)
        schedule = replace(schedule, subject=subject)
    elif any((options.extra is not None, options.traits is not None, options.serves_peers, options.shares_store)):
        about = f"--extra, --traits, {PEERS[1]}, {PEERS[2]} and {SHARES} are about another connector"
        raise ConfigError(f"{about}: name it with --connector")
    missing = selection.unclaimed(schedule)
    if missing:
        say(f"note: {schedule.subject.kv_connector} doesn't claim what this schedule needs: {', '.join(missing)}")
    if len(schedule.config.groups) > 1:
        selection.check_groups(schedule.subject, engine)
    history = schedule.history
    watched = make_world(options)
    world, violation = replay(schedule.subject, schedule.config, history, schedule.without, make_world=watched)
    applied = len(world.history) if world is not None else 0
    skipped = len(history) - applied if violation is None else 0
    if skipped:
        say(f"note: {skipped} of {len(history)} actions were not legal here and were skipped")
    if violation is None:
        was = f"; the file says: {schedule.violation}" if schedule.violation else ""
        say(f"passes: {applied} actions, nothing is wrong{was}")
        return FINE
    say(f"FAIL actions={len(history)}  {violation}")
    for text in violation.notes:
        note(text)
    if not options.log:
        for text in report.action_lines(history):
            say(text)
    say(_compare(schedule, str(violation.invariant), str(violation)))
    return FAILED


def _compare(schedule: Schedule, invariant: str, text: str) -> str:
    if schedule.violation is None:
        return "the file names no violation"
    if text == schedule.violation:
        return "the same violation as in the file"
    if invariant == schedule.invariant:
        return f"the same invariant as in the file, in other words: {schedule.violation}"
    return f"a different violation: the file says: {schedule.violation}"
