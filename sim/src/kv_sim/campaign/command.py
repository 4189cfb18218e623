"""``kv-sim campaign``: reports failures, and legal pairs and situations that were never reached."""

import argparse

from kv_api import ConfigError
from kv_sim.campaign.found import Campaign, missing, tables
from kv_sim.campaign.processes import Plan, run_campaign
from kv_sim.console import values
from kv_sim.console.failed import say_that_it_failed
from kv_sim.console.output import BROKEN, FAILED, FINE, INTERRUPTED, say
from kv_sim.engines import find_engine
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.history.expected import expected


def campaign(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.minutes is not None and options.histories is not None:
        raise ConfigError("--minutes and --histories: give one of them")
    timed = options.histories is None
    minutes = (options.minutes or values.USUAL_MINUTES) if timed else None
    plan = Plan(
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
    return _say_what_was_found(options, plan, run_campaign(plan))


def _say_what_was_found(options: argparse.Namespace, plan: Plan, found: Campaign) -> int:
    """Print what was reached, and the failures. Returns the exit code."""
    total = sum(found.histories.values())
    say(f"{total} histories, {found.steps} engine steps in {found.seconds:.0f} s")
    say("")
    wanted = expected(plan.subjects.values())
    for text in tables(found, wanted):
        say(text)
    say("")
    missed = missing(found, wanted)
    for text in missed:
        say(text)
    for name, failure in sorted(found.failures.items()):
        say_that_it_failed(options, name, failure, frozenset())
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
