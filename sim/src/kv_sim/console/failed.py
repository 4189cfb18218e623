"""What is said of a history that failed, and the command that runs it again."""

import argparse
from pathlib import Path

from kv_sim.console.output import note, say
from kv_sim.failures import report
from kv_sim.failures.telling import tell
from kv_sim.fuzz import Failure
from kv_sim.violation import Invariant


def line_to_paste(options: argparse.Namespace, name: str, seed: int, without: frozenset[Invariant]) -> str:
    """The command that runs a seed again, in the same world."""
    return report.replay_line(
        name,
        seed,
        extra=options.extra,
        traits=options.traits,
        serves_peers=getattr(options, "serves_peers", None),
        shares_store=getattr(options, "shares_store", None),
        engine=options.engine,
        actions=options.actions,
        without=without,
    )


def say_that_it_failed(
    options: argparse.Namespace, name: str, found: Failure, without: frozenset[Invariant]
) -> None:
    """Say that it failed, shrink it and save it."""
    assert found.seed is not None, "a failure of a seed has it"
    line = line_to_paste(options, name, found.seed, without)
    stem = report.file_stem(name, found.seed)
    tell(found, line, Path(options.save), stem, say=say, note=note, without=without)
