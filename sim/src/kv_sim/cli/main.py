"""``kv-sim``: the testbed on the command line.

Exit codes: 0 nothing is wrong; 1 an invariant broke, a campaign missed something, or work grows; 2 the command
can't be run as it stands; 3 the testbed itself failed, which is never the connector's fault; 130 interrupted;
141 nobody reads on.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Final

from kv_sim.cli.options import parse
from kv_sim.console import values
from kv_sim.console.edge import exit_code_of
from kv_sim.console.output import MISUSED, UNREAD, let_connectors_log_nothing, print_whatever_there_is
from kv_sim.console.watchdog import ends_calls


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

    def run() -> int:
        values.check_numbers(options)
        values.check_folder("--save", getattr(options, "save", None))
        values.look_in_this_folder()
        with ends_calls(getattr(options, "call_timeout", 0)):
            code: int = options.run(options)
        return code

    return exit_code_of(f"kv-sim {options.command}", run)


def _of(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """A command that is imported when it runs: each needs much that no other one does."""

    def run(options: argparse.Namespace) -> int:
        code: int = getattr(import_module(module), name)(options)
        return code

    return run


COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "fuzz": _of("kv_sim.cli.fuzz", "fuzz"),
    "replay": _of("kv_sim.replay.command.run", "replay"),
    "size": _of("kv_sim.replay.command.run", "size"),
    "replay-schedule": _of("kv_sim.cli.replay_schedule", "replay_schedule"),
    "conform": _of("kv_sim.conformance.command", "conform"),
    "growth": _of("kv_sim.growth.command", "growth"),
    "campaign": _of("kv_sim.campaign.command", "campaign"),
    "zoo": _of("kv_sim.zoo.command", "zoo"),
    "subjects": _of("kv_sim.cli.subjects", "subjects"),
}
