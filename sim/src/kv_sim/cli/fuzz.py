"""``kv-sim fuzz``: the histories of a range of seeds, up to the first that fails."""

import argparse
from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from typing import Final

from kv_api import ConfigError
from kv_sim.cli.options import USUAL_HISTORIES
from kv_sim.cli.processes import ProcessEndedError, run_in_order
from kv_sim.console import selection, values
from kv_sim.console.failed import line_to_paste, say_that_it_failed
from kv_sim.console.interrupts import Told
from kv_sim.console.output import (
    BROKEN,
    FAILED,
    FINE,
    note,
    say,
    say_interrupted,
    say_that_testbed_failed,
)
from kv_sim.console.views import make_world
from kv_sim.engines import find_engine
from kv_sim.failures.deadline import every
from kv_sim.failures.telling import SECONDS_OF_SILENCE
from kv_sim.fuzz import Run, run_seed
from kv_sim.history.coverage import why_little_is_shown
from kv_sim.subject import Subject
from kv_sim.violation import Invariant
from kv_sim.world import World

ENOUGH_TO_LOAD: Final = 10
"""After so many histories something should have been loaded; if nothing was, that is said."""


def fuzz(options: argparse.Namespace) -> int:
    """Run the command."""
    seeds = values.choose_seeds(options.seed, options.seeds, options.histories, USUAL_HISTORIES)
    without = values.parse_checkers(options.without)
    find_engine(options.engine)  # before anything runs: a wrong name or path is known now
    subjects = selection.choose_subjects(
        options.connector, options.extra, options.traits, options.engine, **selection.kind_of(options)
    )
    make_world(options)
    if options.perfetto and len(subjects) > 1:
        raise ConfigError("--perfetto writes the history of one connector: name it with --connector")
    if options.connector and not subjects[options.connector].traits:
        possible = ",".join(subjects[options.connector].possible_traits)
        say(
            f"note: {options.connector} claims no traits, so only plain worlds are tried; to claim some: "
            f"--traits {possible}"
        )
    code = FINE
    for name, subject in subjects.items():
        code = max(code, _fuzz_one(options, name, subject, seeds, without))
    return code


def _fuzz_one(
    options: argparse.Namespace, name: str, subject: Subject, seeds: range, without: frozenset[Invariant]
) -> int:
    """Run the seeds of one subject up to the first failure."""
    run_one = partial(run_seed, subject, engine=options.engine, actions=options.actions, without=without)
    steps, seed, situations = 0, seeds.start, Counter[str]()
    runs, is_due = _runs(options, seeds, run_one), every(SECONDS_OF_SILENCE)
    try:
        for seed in seeds:
            try:
                run = _guarded(seed, line_to_paste(options, name, seed, without), lambda: next(runs))
            except ProcessEndedError as error:
                say(f"FAIL seed={seed}  NO-CRASH  {error}")
                say(f"replay: {line_to_paste(options, name, seed, without)}")
                return FAILED
            if run is None:
                return BROKEN
            steps += run.steps
            situations += run.coverage.situations
            if options.digest:
                say(f"{name} {seed} {run.digest}")
            if run.failure is not None:
                runs.close()
                found = run.failure
                if len(seeds) > 1 and (options.log or options.perfetto):
                    found = run_one(seed, make_world=make_world(options)).failure or found
                say_that_it_failed(options, name, found, without)
                return FAILED
            if is_due() and seed != seeds[-1]:
                note(f"{name}: {seed - seeds.start + 1} of {len(seeds)} histories so far")
    except KeyboardInterrupt as error:
        say_interrupted(error, seed, name, seed - seeds.start)
        raise Told from None
    if not options.digest:
        say(f"{name}: {len(seeds)} histories, {steps} engine steps, nothing is wrong")
        kind = {"serves_peers": subject.serves_peers, "shares_store": subject.shares_store}
        little = why_little_is_shown(situations, **kind)
        if little is not None and len(seeds) >= ENOUGH_TO_LOAD:
            note(little)
    if options.perfetto and len(seeds) > 1:
        say(f"{options.perfetto} was not written, since no history failed; --seed N writes that of one seed")
    return FINE


def _runs(options: argparse.Namespace, seeds: range, run_one: Callable[..., Run]) -> Generator[Run]:
    """The histories of the seeds, in their order."""
    if len(seeds) > 1 and options.jobs > 1:
        return run_in_order(seeds, options.jobs, run_one, options.call_timeout)
    watched = make_world(options) if len(seeds) == 1 else World
    return (run_one(seed, make_world=watched) for seed in seeds)


def _guarded(seed: int, line: str, run: Callable[[], Run]) -> Run | None:
    """Run a history; None if the testbed itself failed, which is reported."""
    try:
        return run()
    except (ConfigError, OSError, ProcessEndedError):
        raise
    except Exception as error:  # noqa: BLE001 - reported with its traceback, under an exit code of its own
        say_that_testbed_failed(error, seed, line)
        return None
