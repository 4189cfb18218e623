"""``kv-sim conform``: everything that a connector claims, claim by claim."""

import argparse
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from kv_api import ConfigError
from kv_sim.actions import USUAL_ACTIONS
from kv_sim.config import BUILTIN_ENGINE
from kv_sim.conformance import scenarios
from kv_sim.conformance.report import line_of_scenario, row_of, scenario_table, summary_lines, tell_failure
from kv_sim.console import selection, values
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
from kv_sim.engines import find_engine
from kv_sim.failures.deadline import every
from kv_sim.failures.telling import SECONDS_OF_SILENCE
from kv_sim.subject import PEERS, SHARES, Subject


def conform(options: argparse.Namespace) -> int:
    """Run the command; a claim that doesn't hold ends it, unless it is to keep going."""
    find_engine(options.engine)
    name, extra = selection.choose_name(options)
    subject = selection.choose_subject(name, extra, options.traits, options.engine, **selection.kind_of(options))
    start = values.parse_seed(options.seed)
    without = values.parse_checkers(options.without)
    outcomes: list[scenarios.Outcome] = []
    is_due = every(SECONDS_OF_SILENCE)
    for scenario in scenarios.scenarios_of(subject) + (scenarios.probes_of(subject) if options.probe else []):
        outcome = scenarios.Outcome(scenario, without=without)
        try:
            _try_one(options, name, extra, subject, outcome, start, is_due)
        except KeyboardInterrupt as error:
            for text in scenario_table(list(map(row_of, outcomes))) if outcomes else ():
                say(text)
            say_interrupted(error, outcome.seed, f"the scenario {scenario.name}", outcome.histories)
            raise Told from None
        except (ConfigError, OSError):
            raise
        except Exception as error:
            if outcome.seed is None:  # no history had begun
                raise
            narrowed = replace(subject, traits=scenario.traits)
            asked = options.engine, options.actions, without
            line = line_of_scenario(name, extra, narrowed, outcome.seed, *asked)
            say_that_testbed_failed(error, outcome.seed, line)
            return BROKEN
        outcomes.append(outcome)
        if outcome.failure is not None and scenario.claim is scenarios.Claim.MADE and not options.keep_going:
            break
    for text in summary_lines(subject, outcomes, partial(again, options)):
        say(text)
    kept = all(o.failure is None or o.scenario.claim is scenarios.Claim.PROBED for o in outcomes)
    return FINE if kept else FAILED


def _try_one(
    options: argparse.Namespace,
    name: str,
    extra: str | None,
    subject: Subject,
    outcome: scenarios.Outcome,
    start: int,
    is_due: Callable[[], bool],
) -> None:
    """Run a scenario, and report a failure; say now and then how far it is, if that takes long."""
    histories = options.histories or scenarios.USUAL_HISTORIES

    def tells() -> None:
        if is_due():
            note(f"scenario {outcome.scenario.name}: {outcome.histories} of {histories} histories so far")

    scenarios.fill(
        outcome,
        subject,
        start=start,
        histories=histories,
        actions=options.actions,
        engine=options.engine,
        tells=tells,
    )
    if outcome.failure is not None and outcome.scenario.claim is scenarios.Claim.MADE:
        folder, asked = Path(options.save), {"actions": options.actions, "without": outcome.without}
        tell_failure(name, extra, outcome.failure, folder, **asked, say=say, note=note)
        say("")


def again(options: argparse.Namespace, outcome: scenarios.Outcome) -> str:
    """The command that runs an outcome's probe as a claim, with the same seeds."""
    most = outcome.histories > scenarios.USUAL_HISTORIES
    asked = (
        ("--spec", options.spec, None),
        ("--extra", options.extra, None),
        ("--traits", ",".join(sorted(outcome.scenario.traits)), None),
        ("--engine", options.engine, BUILTIN_ENGINE),
        ("--seed", options.seed, "0"),
        ("--histories", options.histories if most else None, None),
        ("--actions", options.actions, USUAL_ACTIONS),
        ("--without", ",".join(sorted(outcome.without)), ""),
    )
    words = [word for option, value, usual in asked if value != usual for word in (option, str(value))]
    words += [PEERS[options.serves_peers]] if options.serves_peers else []
    words += [SHARES] if options.shares_store else []
    return shlex.join(["kv-sim", "conform", *([options.name] if options.name else []), *words])
