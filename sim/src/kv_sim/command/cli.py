"""``kv-sim``: the testbed on the command line.

Exit codes: 0 nothing is wrong; 1 an invariant broke, a campaign missed something, or work grows; 2 the command
can't be run as it stands; 3 the testbed itself failed, which is never the connector's fault; 130 interrupted;
141 nobody reads on.
"""

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from kv_api import ConfigError
from kv_sim.command import campaign, selection, values
from kv_sim.command.console import (
    BROKEN,
    FAILED,
    FINE,
    INTERRUPTED,
    MISUSED,
    UNREAD,
    let_connectors_log_nothing,
    note,
    print_whatever_there_is,
    printing,
    say,
    say_interrupted,
)
from kv_sim.command.interrupts import Told
from kv_sim.command.options import USUAL_HISTORIES, USUAL_MINUTES, parse
from kv_sim.command.replay_schedule import replay_schedule
from kv_sim.command.subjects import subject_lines
from kv_sim.command.views import make_world
from kv_sim.command.watchdog import ends_calls
from kv_sim.conformance.command import conform
from kv_sim.engines import find_engine
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.failures import report
from kv_sim.failures.telling import tell
from kv_sim.fuzz import Failure, Run, run_seed
from kv_sim.growth.command import growth
from kv_sim.history import legal
from kv_sim.history.coverage import why_little_is_shown
from kv_sim.replay.command import run as replaying
from kv_sim.subject import Subject
from kv_sim.violation import Invariant
from kv_sim.world import World

ENOUGH_TO_LOAD: Final = 10
"""Histories in which something should have been found."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    typed = sys.argv[1:] if arguments is None else arguments
    print_whatever_there_is()
    try:
        options = parse(COMMANDS, typed)
    except BrokenPipeError:
        return UNREAD
    except OSError as error:  # of the versions, which are printed at once
        print(f"kv-sim: {error.filename}: {error.strerror}", file=sys.stderr)
        return MISUSED
    let_connectors_log_nothing()
    try:
        values.check_numbers(options)
        values.check_folder("--save", getattr(options, "save", None))
        selection.look_in_this_folder()
        with ends_calls(getattr(options, "call_timeout", 0)):
            code: int = options.run(options)
        with printing():
            print(end="", flush=True)  # where there is no standard output, nothing
    except ConfigError as error:
        print(f"kv-sim {options.command}: {error}", file=sys.stderr)
        return MISUSED
    except Told:
        return INTERRUPTED
    except KeyboardInterrupt:
        note("interrupted")
        return INTERRUPTED
    except SystemExit as error:  # out of reach of what guards a connector's calls; it must not look like an answer
        print(f"kv-sim {options.command}: somebody called sys.exit({error.code!r}) in the middle", file=sys.stderr)
        return BROKEN
    except BrokenPipeError:  # whoever reads has seen enough
        return UNREAD
    except OSError as error:
        named = error.filename is not None and error.strerror is not None
        said = f"{error.filename}: {error.strerror}" if named else error
        print(f"kv-sim {options.command}: {said}", file=sys.stderr)
        return MISUSED
    return code


# -- fuzz --------------------------------------------------------------------------------------


def _fuzz(options: argparse.Namespace) -> int:
    seeds = values.choose_seeds(options.seed, options.seeds, options.histories, USUAL_HISTORIES)
    without = values.parse_checkers(options.without)
    find_engine(options.engine)  # before anything runs: a wrong name or path is known now
    subjects = selection.choose_subjects(
        options.connector, options.extra, options.traits, options.engine, serves_peers=options.serves_peers
    )
    make_world(options)
    if options.perfetto and len(subjects) > 1:
        raise ConfigError("--perfetto writes one history: name its connector with --connector")
    if options.connector and not subjects[options.connector].traits:
        possible = ",".join(subjects[options.connector].possible_traits)
        say(f"note: {options.connector} claims no traits, so its worlds are plain; --traits {possible}")
    code = FINE
    for name, subject in subjects.items():
        code = max(code, _fuzz_one(options, name, subject, seeds, without))
    return code


def _fuzz_one(
    options: argparse.Namespace, name: str, subject: Subject, seeds: range, without: frozenset[Invariant]
) -> int:
    """Run the seeds of one subject up to the first failure."""
    run_one = partial(run_seed, subject, engine=options.engine, actions=options.actions, silent=without)
    watched = make_world(options) if len(seeds) == 1 else World
    steps, seed, situations = 0, seeds.start, Counter[str]()
    try:
        for seed in seeds:
            line = _line_to_paste(options, name, seed, without)
            run = _guarded(seed, line, partial(run_one, seed, make_world=watched))
            if run is None:
                return BROKEN
            steps += run.steps
            situations += run.coverage.situations
            if options.digest:
                say(f"{name} {seed} {run.digest}")
            if run.failure is not None:
                found = run.failure
                if len(seeds) > 1 and (options.log or options.perfetto):
                    found = run_one(seed, make_world=make_world(options)).failure or found
                _report(options, name, found, without)
                return FAILED
    except KeyboardInterrupt as error:
        say_interrupted(error, seed, name, seed - seeds.start)
        raise Told from None
    if not options.digest:
        say(f"{name}: {len(seeds)} histories, {steps} engine steps, nothing is wrong")
        little = why_little_is_shown(situations, serves_peers=subject.serves_peers)
        if little is not None and len(seeds) >= ENOUGH_TO_LOAD:
            note(little)
    if options.perfetto and len(seeds) > 1:
        say(f"{options.perfetto} was not written: no history failed; --seed N writes that one's")
    return FINE


def _guarded(seed: int, line: str, run: Callable[[], Run]) -> Run | None:
    """Run a history; None if the testbed itself failed, which is reported."""
    try:
        return run()
    except (ConfigError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - reported with its traceback, under an exit code of its own
        traceback.print_exc()
        say(f"TESTBED seed={seed}  {type(error).__name__}: {error}")
        say(f"replay: {line}")
        return None


def _line_to_paste(options: argparse.Namespace, name: str, seed: int, without: frozenset[Invariant]) -> str:
    """The command that runs a seed again, in the same world."""
    return report.replay_line(
        name,
        seed,
        extra=options.extra,
        traits=options.traits,
        serves_peers=getattr(options, "serves_peers", None),
        engine=options.engine,
        actions=options.actions,
        without=without,
    )


def _report(options: argparse.Namespace, name: str, found: Failure, without: frozenset[Invariant]) -> None:
    """Say that it failed, shrink it and save it."""
    assert found.seed is not None, "a failure of a seed has it"
    line = _line_to_paste(options, name, found.seed, without)
    stem = report.file_stem(name, found.seed)
    tell(found, line, Path(options.save), stem, say=say, note=note, silent=without)


# -- campaign and subjects ---------------------------------------------------------------------


def _campaign(options: argparse.Namespace) -> int:
    if options.minutes is not None and options.histories is not None:
        raise ConfigError("--minutes and --histories: give one of them")
    timed = options.histories is None
    minutes = (options.minutes or USUAL_MINUTES) if timed else None
    plan = campaign.Plan(
        subjects=SUBJECTS,
        start=values.parse_seed(options.seed),
        histories=options.histories,
        minutes=minutes,
        jobs=options.jobs,
        actions=options.actions,
        engine=options.engine,
    )
    find_engine(plan.engine)
    until = f"{minutes:g} minutes" if timed else f"{options.histories} histories a subject"
    say(f"{len(SUBJECTS)} subjects, {until}, {plan.jobs} processes, seeds from {plan.start} (--seed)")
    found = campaign.run_campaign(plan)
    total = sum(found.histories.values())
    say(f"{total} histories, {found.steps} engine steps in {found.seconds:.0f} s")
    say("")
    expected = legal.expected(plan.subjects.values())
    for text in campaign.tables(found, expected):
        say(text)
    say("")
    missed = campaign.missing(found, expected)
    for text in missed:
        say(text)
    for name, failure in sorted(found.failures.items()):
        _report(options, name, failure, frozenset())
    if found.crash:
        say(f"TESTBED {found.crash}")
        return BROKEN
    if found.was_interrupted:
        say("interrupted: this is what was reached so far")
        return FAILED if found.failures else INTERRUPTED
    say("nothing broke" if not found.failures else f"{len(found.failures)} subjects broke")
    if not missed:
        say("every legal pair and every situation was reached")
    return FAILED if found.failures or missed else FINE


def _zoo(options: argparse.Namespace) -> int:
    from kv_sim.zoo.command import zoo  # it breaks the insides of connectors, which no other command needs

    return zoo(options)


def _subjects(options: argparse.Namespace) -> int:
    for text in subject_lines(SUBJECTS):
        say(text)
    return FINE


COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "fuzz": _fuzz,
    "replay": replaying.replay,
    "size": replaying.size,
    "replay-schedule": replay_schedule,
    "conform": conform,
    "growth": growth,
    "campaign": _campaign,
    "zoo": _zoo,
    "subjects": _subjects,
}
